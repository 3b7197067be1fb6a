//! The order against a model.

mod model;

use outbox_core::RetryState;
use proptest::prelude::*;

use self::model::{Answer, Model, Step, TOPICS};
use super::*;

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let answer = prop_oneof![
        6 => Just(Answer::Confirm),
        1 => Just(Answer::Dead),
        2 => Just(Answer::GiveBack),
        2 => (0_u64..50).prop_map(Answer::Retry),
        1 => Just(Answer::Park),
        2 => Just(Answer::Cut),
    ];
    proptest::collection::vec(answer, 1..6)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u64..5;
    let step = prop_oneof![
        3 => (key.clone(), 1_usize..90, proptest::option::weighted(0.1, 0_u64..60))
            .prop_map(|(key, count, delay)| Step::Insert { key, count, delay }),
        1 => key.prop_map(|key| Step::Late { key }),
        1 => Just(Step::Reveal),
        8 => (any::<bool>(), 1_usize..120).prop_map(|(reread, most)| Step::Read { reread, most }),
        8 => proptest::bool::weighted(0.1).prop_map(|lost| Step::EndRead { lost }),
        6 => (1_usize..40, 1_usize..20).prop_map(|(events, kib)| Step::Take { events, kib }),
        1 => Just(Step::TakeSuspect),
        1 => (0..TOPICS).prop_map(Step::TakeParked),
        8 => (0_usize..8, answers()).prop_map(|(batch, answers)| Step::Answer { batch, answers }),
        3 => (1_u64..30).prop_map(Step::Advance),
        1 => (0..TOPICS).prop_map(Step::Unpause),
        1 => Just(Step::Refresh),
        1 => (0_usize..4).prop_map(Step::Delete),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn in_order_one_at_a_time_and_nothing_lost(steps in steps(), several: bool, budget in 1_usize..40) {
        let mut model = Model::new(Ordering::Aggregate, several, budget);
        steps.iter().for_each(|step| model.step(step));
        model.drain();
    }

    #[test]
    fn without_an_order_nothing_is_lost_either(steps in steps(), budget in 1_usize..40) {
        let mut model = Model::new(Ordering::None, false, budget);
        steps.iter().for_each(|step| model.step(step));
        model.drain();
    }
}

#[test]
fn a_waiting_key_does_not_delay_others() {
    let mut model = Model::new(Ordering::Aggregate, false, 10);
    model.step(&Step::Insert { key: 1, count: 100, delay: None });
    model.step(&Step::Read { reread: false, most: 1 });
    model.step(&Step::EndRead { lost: false });
    model.step(&Step::Take { events: 1, kib: 64 });
    model.step(&Step::Answer { batch: 0, answers: vec![Answer::Retry(10_000)] });
    model.step(&Step::Insert { key: 2, count: 1, delay: None });
    model.step(&Step::Read { reread: false, most: 1_000 });
    model.step(&Step::EndRead { lost: false });
    assert!(model.order.stuck().events <= 10 && model.order.spilled_keys() == 1);
    model.step(&Step::Take { events: 100, kib: 64 });
    assert_eq!(model.out.iter().flatten().map(Pending::id).collect::<Vec<_>>(), [101]);
    assert!(!model.order.wants_reread(), "what waits behind a retry is not read over and over");
    model.drain();
}

#[test]
fn a_stale_answer_about_a_waiting_event_changes_nothing() {
    let mut model = Model::new(Ordering::Aggregate, false, 10);
    model.step(&Step::Insert { key: 1, count: 1, delay: Some(20) });
    model.step(&Step::Read { reread: false, most: 1 });
    model.step(&Step::EndRead { lost: false });
    let asked = model.order.waiting(0, 10);
    model.step(&Step::Advance(20));
    model.step(&Step::Take { events: 1, kib: 64 });
    model.step(&Step::Answer { batch: 0, answers: vec![Answer::Retry(1_000)] });
    assert!(model.order.refresh(&asked[0], RetryState::Clear, model.now).is_none());
    model.step(&Step::Take { events: 1, kib: 64 });
    assert!(model.out.is_empty(), "the second delay holds");
    model.drain();
}
