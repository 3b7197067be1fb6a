//! Credentials of AWS as its tools find them.

use std::fmt;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_smithy_http_client::tls::{self, rustls_provider::CryptoMode};
use tokio::sync::OnceCell;

/// Environment, profile, web identity, container, machine, in this order; looked for when the first request is signed, so
/// that a relay starts wherever it is.
pub(super) struct AwsCredentials(OnceCell<DefaultCredentialsChain>);

impl AwsCredentials {
    pub(super) fn new() -> Self {
        Self(OnceCell::new())
    }

    async fn chain(&self) -> &DefaultCredentialsChain {
        self.0
            .get_or_init(|| async {
                let provider = tls::Provider::Rustls(CryptoMode::Ring);
                let client = aws_smithy_http_client::Builder::new().tls_provider(provider).build_https();
                let config = ProviderConfig::default().with_http_client(client);
                DefaultCredentialsChain::builder().configure(config).build().await
            })
            .await
    }
}

impl ProvideCredentials for AwsCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async { self.chain().await.provide_credentials().await })
    }
}

impl fmt::Debug for AwsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsCredentials").finish_non_exhaustive()
    }
}
