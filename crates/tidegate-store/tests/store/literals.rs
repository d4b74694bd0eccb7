//! What is asked where a transaction begins is written into the statement: whatever a name holds stays a name.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tidegate_core::submission::{Idempotency, Submission};
use tidegate_store::Group;

use super::*;

/// What would end a constant, an array or a statement if it were taken at its word, or is easily taken for something else.
const AWKWARD: [&str; 16] =
    ["it's", "''", "'", "\"", "\\", "\\'", "\\\"", "\\\\", "{a,b}", ",", "NULL", "null", "$1", "E'", "');DROP--", "/*"];

fn keyed(cell: &Cell, key: &str, body: u8) -> Submission {
    Submission { idempotency: Some(Idempotency { key: key.into(), body_sha256: [body; 32] }), ..cell.submission() }
}

/// Awkward names, and many that are made of their parts.
fn names(visible: &'static str) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let parts = proptest::collection::vec(proptest::sample::select(&AWKWARD[..]), 1..6);
    let name = (parts, visible).prop_map(|(parts, rest)| format!("{}{rest}", parts.concat()));
    let made = (0..60).map(|_| name.new_tree(&mut runner).unwrap().current());
    let mut names: Vec<String> = AWKWARD.iter().map(|name| (*name).to_owned()).chain(made).collect();
    names.sort();
    names.dedup();
    names
}

#[tokio::test]
async fn a_key_is_known_again_whatever_it_holds() {
    let cell = Cell::new().await;
    let names = names("[!-~]{0,8}");
    let admit = |body| {
        futures_util::future::join_all(
            names.iter().map(move |name| (name, body)).map(|(name, body)| cell.admit(keyed(&cell, name, body))),
        )
    };
    let mut ids = Vec::new();
    for (name, answer) in names.iter().zip(admit(1).await) {
        let Admission::Decided { id, .. } = answer else { panic!("{name}: {answer:?}") };
        ids.push(id);
    }
    for ((name, answer), id) in names.iter().zip(admit(1).await).zip(&ids) {
        assert_eq!(answer, Admission::Replayed { id: *id }, "{name}");
    }
    for ((name, answer), id) in names.iter().zip(admit(2).await).zip(&ids) {
        assert_eq!(answer, Admission::KeyReused { id: *id }, "{name}");
    }
}

#[tokio::test]
async fn a_token_is_cancelled_whatever_it_holds_and_no_other() {
    let cell = Cell::new().await;
    // Every other one is cancelled; a token may hold any character but NUL.
    let names = names("[^\u{0}]{0,8}");
    for name in names.iter().step_by(2) {
        cell.canceller.cancel_group(&tenant(), Group::Token(name.clone())).await.unwrap();
    }
    let admit = |name: &String| cell.admit(Submission { cancellation_token: Some(name.clone()), ..cell.submission() });
    let answers = futures_util::future::join_all(names.iter().map(admit)).await;
    for (n, (name, answer)) in names.iter().zip(answers).enumerate() {
        let Admission::Decided { decision, .. } = answer else { panic!("{name}: {answer:?}") };
        assert_eq!(decision.status == Status::Cancelled, n % 2 == 0, "{name}: {decision:?}");
    }
}

/// The door writes no NUL into a statement: the database says what is wrong with it, and only to whom it concerns.
#[tokio::test]
async fn a_name_that_no_text_can_hold_is_refused_alone() {
    let cell = Cell::new().await;
    let bad = Submission { cancellation_token: Some("a\0b".into()), ..cell.submission() };
    let good = Submission { cancellation_token: Some("ab".into()), ..cell.submission() };
    let (bad, good) = tokio::join!(cell.admitter.admit(bad, Instant::now()), cell.admit(good));
    assert!(bad.is_err(), "{bad:?}");
    assert!(matches!(good, Admission::Decided { decision, .. } if !decision.status.is_final()), "{good:?}");
}
