use super::*;
use ErrorKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable, Unconfirmed};
use Stage::{Checking, Sending};

fn refused<'a>(status: u16, code: impl Into<Option<&'a str>>) -> Fault<'a> {
    Fault::Refused { status, code: code.into(), message: "why" }
}

#[test]
fn every_fault_has_its_kind() {
    let check = |fault, stage, kind, blames_event| {
        assert_eq!(classify(fault, stage), Verdict { kind, blames_event }, "{fault:?} {stage:?}");
    };
    for stage in [Sending, Checking] {
        check(Fault::Unbuildable, stage, Misconfigured, false);
        check(Fault::NoCredentials, stage, Unavailable, false);
        check(Fault::NotConnected, stage, Unavailable, false);
    }
    check(Fault::NoAnswer, Sending, Unconfirmed, false);
    check(Fault::NoAnswer, Checking, Unavailable, false);

    // Codes of a whole request, as the SDK hands them over: the query protocol's names win over the modelled ones.
    let whole = |code, kind, blames| check(refused(400, code), Sending, kind, blames);
    whole("AWS.SimpleQueueService.NonExistentQueue", Misconfigured, false);
    whole("QueueDoesNotExist", Misconfigured, false);
    whole("com.amazonaws.sqs#QueueDoesNotExist", Misconfigured, false);
    whole("AWS.SimpleQueueService.QueueDeletedRecently", Misconfigured, false);
    whole("InvalidAddress", Misconfigured, false);
    whole("AccessDenied", Misconfigured, false);
    whole("AccessDeniedException", Misconfigured, false);
    whole("KMS.AccessDeniedException", Misconfigured, false);
    whole("KmsDisabled", Misconfigured, false);
    whole("KMS.DisabledException", Misconfigured, false);
    whole("KMS.InvalidStateException", Misconfigured, false);
    whole("KMS.NotFoundException", Misconfigured, false);
    whole("KMS.InvalidKeyUsageException", Misconfigured, false);
    whole("KMS.OptInRequired", Misconfigured, false);
    whole("AWS.SimpleQueueService.UnsupportedOperation", Misconfigured, false);
    whole("InvalidAction", Misconfigured, false);
    whole("InvalidClientTokenId", Unavailable, false);
    whole("UnrecognizedClientException", Unavailable, false);
    whole("SignatureDoesNotMatch", Unavailable, false);
    whole("InvalidSignatureException", Unavailable, false);
    whole("ExpiredToken", Unavailable, false);
    whole("ExpiredTokenException", Unavailable, false);
    whole("MissingAuthenticationTokenException", Unavailable, false);
    whole("RequestExpired", Unavailable, false);
    whole("RequestThrottled", Throttled, false);
    whole("ThrottlingException", Throttled, false);
    whole("Throttling", Throttled, false);
    whole("ThrottledException", Throttled, false);
    whole("OverLimit", Throttled, false);
    whole("KMS.ThrottlingException", Throttled, false);
    whole("KmsThrottled", Throttled, false);
    whole("RequestLimitExceeded", Throttled, false);
    whole("InvalidMessageContents", Rejected, true);
    whole("AWS.SimpleQueueService.BatchRequestTooLong", Rejected, true);
    whole("BatchRequestTooLong", Rejected, true);
    whole("InvalidParameterValue", Failed, true);
    whole("AWS.SimpleQueueService.InvalidBatchEntryId", Failed, true);
    whole("Strange", Failed, true);

    check(refused(503, "ServiceUnavailable"), Sending, Throttled, false);
    check(refused(503, None), Sending, Throttled, false);
    check(refused(429, None), Sending, Throttled, false);
    check(refused(403, "Strange"), Sending, Misconfigured, false);
    check(refused(413, None), Sending, Rejected, true);
    check(refused(413, "Strange"), Sending, Rejected, true);
    for status in [301, 400, 403, 404] {
        check(refused(status, None), Sending, Misconfigured, false);
    }
    for status in [500, 502, 504] {
        check(refused(status, None), Sending, Unconfirmed, false);
        check(refused(status, "Strange"), Sending, Unconfirmed, false);
        check(refused(status, None), Checking, Unavailable, false);
    }
    check(refused(500, "InternalError"), Sending, Unconfirmed, false);
    check(refused(500, "InternalFailure"), Checking, Unavailable, false);
    check(refused(400, "InvalidParameterValue"), Checking, Misconfigured, false);

    let size = "One or more parameters are invalid. Reason: Message must be shorter than 262144 bytes.";
    check(Fault::Refused { status: 400, code: Some("InvalidParameterValue"), message: size }, Sending, Rejected, true);

    let entry = |sender_fault, code, kind, blames| {
        check(Fault::Entry { sender_fault, code, message: "why" }, Sending, kind, blames);
    };
    entry(true, "InvalidMessageContents", Rejected, true);
    entry(true, "AWS.SimpleQueueService.InvalidMessageContents", Rejected, true);
    entry(true, "AccessDenied", Misconfigured, false);
    entry(true, "KMS.AccessDeniedException", Misconfigured, false);
    entry(true, "QueueDoesNotExist", Misconfigured, false);
    entry(true, "MissingParameter", Failed, true);
    entry(true, "InternalError", Failed, true);
    entry(false, "InternalError", Throttled, false);
    entry(false, "InternalFailure", Throttled, false);
    entry(false, "ServiceUnavailable", Throttled, false);
    entry(false, "RequestThrottled", Throttled, false);
    entry(false, "Strange", Failed, true);
    check(Fault::Entry { sender_fault: true, code: "InvalidParameterValue", message: size }, Sending, Rejected, true);
}

#[test]
fn what_a_server_says_is_cut() {
    assert_eq!(said("Code", ""), "Code");
    assert_eq!(said("Code", "why"), "Code: why");
    assert_eq!(said("Code", &"\u{fc}".repeat(1000)).chars().count(), "Code: ".len() + 300);
}
