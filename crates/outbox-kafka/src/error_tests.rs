use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
use Stage::{Asking, Queued, QueuedAlone, Queueing};
use krafka::ProtocolErrorKind;
use krafka::error::ErrorCode as Code;

use super::*;

const STAGES: [Stage; 4] = [Asking, Queueing, Queued, QueuedAlone];

#[test]
fn every_code_has_its_kind_at_every_stage() {
    let check = |codes: &[Code], kinds: [ErrorKind; 4], only_topic: bool, suspects: bool| {
        for code in codes {
            for (stage, kind) in STAGES.into_iter().zip(kinds) {
                let expected = Verdict { kind, only_topic, send_alone: suspects && stage == Queued };
                assert_eq!(classify(&KrafkaError::broker(*code, "x"), stage), expected, "{code:?} {stage:?}");
            }
        }
    };
    let of_the_topic = [
        Code::UnknownTopicOrPartition,
        Code::UnknownTopicId,
        Code::InvalidTopic,
        Code::TopicAuthorizationFailed,
        Code::InvalidTimestamp,
        Code::PolicyViolation,
        Code::UnsupportedForMessageFormat,
        Code::InvalidRequiredAcks,
        Code::UnsupportedCompressionType,
    ];
    check(&of_the_topic, [Misconfigured; 4], true, false);
    let of_the_cluster = [Code::ClusterAuthorizationFailed, Code::UnsupportedVersion, Code::SecurityDisabled];
    check(&of_the_cluster, [Misconfigured; 4], false, false);
    check(&[Code::NotEnoughReplicas, Code::ThrottlingQuotaExceeded], [Throttled; 4], false, false);
    let of_the_bytes = [Code::MessageTooLarge, Code::RecordListTooLarge, Code::InvalidRecord];
    check(&of_the_bytes, [Unavailable, Unavailable, Unconfirmed, Rejected], false, true);
    let says_nothing = [
        Code::NotEnoughReplicasAfterAppend,
        Code::RequestTimedOut,
        Code::NotLeaderForPartition,
        Code::LeaderNotAvailable,
        Code::BrokerNotAvailable,
        Code::KafkaStorageException,
        Code::CorruptMessage,
        Code::NetworkException,
        Code::OutOfOrderSequenceNumber,
        Code::UnknownProducerId,
        Code::InvalidProducerEpoch,
        Code::InvalidProducerIdMapping,
        Code::ProducerFenced,
        Code::SaslAuthenticationFailed,
        Code::UnsupportedSaslMechanism,
        Code::IllegalSaslState,
        Code::UnknownServerError,
    ];
    check(&says_nothing, [Unavailable, Unavailable, Unconfirmed, Unconfirmed], false, false);
    let other = [Code::InvalidRequest, Code::InvalidMessageSize, Code::Unknown(999)];
    check(&other, [Unavailable, Unavailable, Unconfirmed, Failed], false, true);
}

#[test]
fn every_other_error_has_its_kind_at_every_stage() {
    let check = |error: KrafkaError, kinds: [ErrorKind; 4]| {
        for (stage, kind) in STAGES.into_iter().zip(kinds) {
            assert_eq!(classify(&error, stage), Verdict::of(kind), "{error:?} {stage:?}");
        }
    };
    let lost = [Unavailable, Unavailable, Unconfirmed, Unconfirmed];
    check(KrafkaError::auth("SASL authentication failed"), lost);
    check(KrafkaError::network(std::io::ErrorKind::ConnectionReset.into()), lost);
    check(KrafkaError::timeout("topic x is not present in cluster metadata"), lost);
    check(KrafkaError::closed("the producer was closed"), lost);
    check(KrafkaError::fenced("another producer"), lost);
    check(KrafkaError::illegal_state("x"), lost);
    check(KrafkaError::out_of_order_sequence("x", 0, "lost"), lost);
    check(
        KrafkaError::timeout("max_block elapsed while waiting for buffer memory"),
        [Unavailable, Throttled, Unconfirmed, Unconfirmed],
    );
    check(KrafkaError::config("x"), [Misconfigured, Rejected, Unconfirmed, Unconfirmed]);
    let protocol = |kind| KrafkaError::protocol_kind(kind, "x");
    check(protocol(ProtocolErrorKind::UnknownApiVersion), [Misconfigured, Rejected, Unconfirmed, Unconfirmed]);
    check(protocol(ProtocolErrorKind::InvalidLength), [Unavailable, Rejected, Unconfirmed, Unconfirmed]);

    let timed_out = |written, last: &str| {
        let message = format!("not acknowledged within delivery_timeout after 2 attempt(s); last error: {last}");
        KrafkaError::delivery_timeout(written, message)
    };
    check(timed_out(true, "operation timed out: Produce request 7"), [Unconfirmed; 4]);
    check(timed_out(false, "network error: connection refused"), [Unavailable; 4]);
    check(timed_out(true, "broker error: NotEnoughReplicas - produce to x-0 failed"), [Throttled; 4]);
    check(timed_out(true, "broker error: NotEnoughReplicasAfterAppend - produce to x-0 failed"), [Unconfirmed; 4]);
    check(timed_out(true, "broker error: RequestTimedOut - produce to x-0 failed"), [Unconfirmed; 4]);
    check(timed_out(true, "broker error: UnknownTopicOrPartition - produce to x-0 failed"), [Unconfirmed; 4]);
    let earlier = "broker error: NotEnoughReplicas - produce to x-0 failed; last error: network error: reset";
    check(timed_out(true, earlier), [Unconfirmed; 4]);

    for error in [
        KrafkaError::unknown_topic("x"),
        timed_out(false, "broker error: UnknownTopicOrPartition - produce to x-0 failed"),
        timed_out(false, "broker error: UnknownTopicId - produce to x-0 failed"),
    ] {
        for stage in STAGES {
            assert_eq!(classify(&error, stage), Verdict::TOPIC, "{error:?} {stage:?}");
        }
    }
}

/// No path from a missing answer to *not sent*: whatever the client says of a queued event, only its own statement
/// that it never left, or a broker's word about the topic, the cluster or the load, is anything but unconfirmed.
#[test]
fn a_queued_event_is_never_called_unavailable_but_by_the_clients_own_word() {
    for code in -1..=140 {
        let kind = classify(&KrafkaError::broker(Code::from_i16(code), "x"), Queued).kind;
        assert!(matches!(kind, Unconfirmed | Misconfigured | Throttled), "{code}: {kind}");
    }
}
