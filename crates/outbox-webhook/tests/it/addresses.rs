//! Where connections may go.

use outbox_core::{ErrorKind, Publisher};
use outbox_webhook::{PlainHttp, PrivateAddresses, WebhookPublisher};

use crate::events::{config, event, events, kinds, publish, publish_one};
use crate::receiver::Receiver;

/// A name that points to this machine is refused when addresses must be public; nothing is connected to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_resolves_to_loopback_is_refused() {
    let receiver = Receiver::start().await;
    let refuse = config(receiver.url("/")).with_private_addresses(PrivateAddresses::Refuse);
    let publisher = WebhookPublisher::connect(refuse).unwrap();
    let outcomes = publish(&publisher, &events(3)).await;
    assert_eq!(kinds(&outcomes), [Err(ErrorKind::Misconfigured); 3]);
    let error = publisher.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    for report in [error.report(), outcomes[0].as_ref().unwrap_err().report()] {
        assert!(report.contains("a loopback address, which private_addresses = \"refuse\" does not allow"), "{report}");
    }
    assert_eq!(receiver.connections(), 0);

    let allow = WebhookPublisher::connect(config(receiver.url("/"))).unwrap();
    publish_one(&allow, &event(1)).await.unwrap();
}

/// Numbers that resolvers read as addresses are judged as what they are resolved to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_ways_to_write_an_address_change_nothing() {
    let receiver = Receiver::start().await;
    for host in ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "0", "localhost.", "[::ffff:127.0.0.1]", "[::]"] {
        let config = config(format!("http://{host}:{}/", receiver.addr.port()))
            .with_plain_http(PlainHttp::Anywhere)
            .with_private_addresses(PrivateAddresses::Refuse);
        // Refused by the config, or by the address, or not resolved at all.
        if let Ok(publisher) = WebhookPublisher::connect(config) {
            let kind = publish_one(&publisher, &event(1)).await.unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::Misconfigured | ErrorKind::Unavailable), "{host}: {kind}");
        }
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_does_not_exist_is_unavailable_with_the_cause() {
    let publisher = WebhookPublisher::connect(config("https://no-such-host.invalid/")).unwrap();
    let error = publish_one(&publisher, &event(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.report().contains("no-such-host.invalid"), "{}", error.report());
}

/// The environment's proxies are not used: events go where the config says.
#[test]
fn proxies_of_the_environment_are_not_used() {
    const CHILD: &str = "OUTBOX_WEBHOOK_PROXY_CHILD";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::var_os(CHILD).is_some() {
        runtime.block_on(async {
            let receiver = Receiver::start().await;
            let publisher = WebhookPublisher::connect(config(receiver.url("/"))).unwrap();
            publish_one(&publisher, &event(1)).await.unwrap();
        });
        return;
    }
    let test = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "addresses::proxies_of_the_environment_are_not_used", "--nocapture"])
        .env(CHILD, "1")
        .envs(
            ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"]
                .map(|name| (name, "http://127.0.0.1:1")),
        )
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&test.stdout);
    assert!(test.status.success() && text.contains("1 passed"), "{text}");
}
