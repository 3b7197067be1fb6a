use bytes::Bytes;
use lapin::BasicProperties;
use lapin::protocol::AMQPError;
use lapin::types::ShortString;

use super::*;

fn messages(count: usize) -> Vec<Message> {
    let message = |index: usize| Message {
        routing_key: ShortString::from("order.placed"),
        message_id: ShortString::from(index.to_string()),
        properties: BasicProperties::default(),
        body: Bytes::from(vec![b'x'; index * 100]),
        header_frame_bytes: 100,
    };
    (0..count).map(message).collect()
}

fn returned(index: usize) -> Option<Returned> {
    let reason = "NO_ROUTE (312)".to_owned();
    Some(Returned { message_id: index.to_string(), routing_key: "order.placed".to_owned(), reason })
}

fn closed(code: u16, text: &str) -> Answer {
    Answer::Error(lapin::ErrorKind::ProtocolError(AMQPError::from_id(code, text.into()).unwrap()).into())
}

fn kinds(answers: &Answers, end: End) -> Vec<Result<(), ErrorKind>> {
    let messages = messages(answers.slots.len());
    let outcomes = answers.outcomes(&messages, end, &RabbitMqConfig::default());
    outcomes.iter().map(|outcome| outcome.as_ref().map(drop).map_err(PublishError::kind)).collect()
}

/// All sent, answered before the last scan.
fn answered(list: Vec<Answer>) -> Answers {
    let mut answers = Answers::new(list.len());
    for (index, answer) in list.into_iter().enumerate() {
        answers.sent(index);
        answers.note(index, answer);
    }
    answers.trust_what_came();
    answers
}

const UNROUTED: Result<(), ErrorKind> = Err(ErrorKind::Misconfigured);
const UNKNOWN: Result<(), ErrorKind> = Err(ErrorKind::Unconfirmed);

#[test]
fn a_return_counts_for_the_message_it_names_whoever_carries_it() {
    let check = |list: Vec<Answer>, expected: &[Result<(), ErrorKind>]| {
        assert_eq!(kinds(&answered(list), End::Answered), expected);
    };
    check(vec![Answer::Ack(None), Answer::Ack(returned(1))], &[Ok(()), UNROUTED]);
    check(vec![Answer::Ack(returned(1)), Answer::Ack(None)], &[Ok(()), UNROUTED]);
    check(vec![Answer::Ack(returned(2)), Answer::Ack(returned(1)), Answer::Ack(None)], &[Ok(()), UNROUTED, UNROUTED]);
    check(vec![Answer::Nack(returned(1)), Answer::Ack(None)], &[Err(ErrorKind::Throttled), UNROUTED]);
    check(vec![Answer::Nack(None), Answer::Ack(None)], &[Err(ErrorKind::Throttled), Ok(())]);
}

#[test]
fn with_answers_missing_only_an_empty_trusted_confirm_is_success() {
    let missing = || vec![Answer::Ack(returned(3)), Answer::Ack(None), Answer::None, Answer::None];
    let answers = answered(missing());
    assert!(!answers.complete());
    assert_eq!(kinds(&answers, End::TimedOut), [UNKNOWN, Ok(()), UNKNOWN, UNROUTED]);

    let mut late = answered(vec![Answer::None, Answer::None]);
    late.note(1, Answer::Ack(None)); // came in the very last scan: who was scanned before it may carry its return
    assert_eq!(kinds(&late, End::TimedOut), [UNKNOWN, UNKNOWN]);
}

#[test]
fn a_stray_return_makes_its_bearer_doubtful() {
    let answers = answered(vec![Answer::Ack(returned(77)), Answer::Ack(None)]);
    assert_eq!(kinds(&answers, End::Answered), [UNKNOWN, Ok(())]);
}

#[test]
fn blocked_and_late_and_unsent() {
    let mut answers = Answers::new(3);
    answers.sent(0);
    answers.sent(1);
    answers.note(0, Answer::Ack(None));
    answers.trust_what_came();
    let unsent = Err(ErrorKind::Unavailable);
    assert_eq!(kinds(&answers, End::Blocked), [Ok(()), UNKNOWN, unsent]);
    assert_eq!(kinds(&answers, End::TimedOut), [Ok(()), UNKNOWN, unsent]);
}

#[test]
fn what_the_broker_said_when_it_closed_the_channel_holds_for_all_without_an_answer() {
    let lost = || Answer::Error(lapin::ErrorKind::MissingHeartbeatError.into());
    let mut answers = answered(vec![Answer::Ack(None), lost(), closed(404, "NOT_FOUND - no exchange 'x'")]);
    answers.slots.push(Slot { sent: false, trusted: false, answer: Answer::None });
    assert_eq!(kinds(&answers, End::Answered), [Ok(()), UNROUTED, UNROUTED, UNROUTED]);
    let outcomes = answers.outcomes(&messages(4), End::Answered, &RabbitMqConfig::default());
    let error = outcomes[1].as_ref().unwrap_err();
    assert_eq!(error.topic(), None);
    assert!(error.report().contains("no exchange 'x'"), "{}", error.report());

    assert_eq!(
        kinds(&answered(vec![Answer::Ack(None), lost(), Answer::None]), End::Answered),
        [Ok(()), UNKNOWN, UNKNOWN]
    );
}

#[test]
fn the_event_over_the_brokers_limit_is_found_and_the_others_are_not_blamed() {
    let text = "PRECONDITION_FAILED - message size 300 is larger than configured max size 250";
    let answers = answered(vec![closed(406, text), closed(406, text), closed(406, text), closed(406, text)]);
    assert_eq!(kinds(&answers, End::Answered), [UNKNOWN, UNKNOWN, UNKNOWN, Err(ErrorKind::Rejected)]);
}

#[test]
fn the_returned_message_is_named_to_the_operator() {
    let answers = answered(vec![Answer::Ack(returned(0))]);
    let config = RabbitMqConfig::new("amqp://localhost", "orders");
    let outcomes = answers.outcomes(&messages(1), End::Answered, &config);
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.topic(), Some("order.placed"));
    assert_eq!(
        error.report(),
        "unroutable: exchange `orders` has no queue for `order.placed`, returned with NO_ROUTE (312)"
    );
}
