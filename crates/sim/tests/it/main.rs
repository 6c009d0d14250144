//! Seeds, and the planted defects the oracle has to find.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use outlast_sim::{Bug, run};

/// Some twenty milliseconds of work each, in a debug build.
const DEFAULT: u64 = 400;

/// How many seeds a test tries: `OUTLAST_SIM_SEEDS`, else `default`.
fn seeds(default: u64) -> u64 {
    std::env::var("OUTLAST_SIM_SEEDS").ok().map_or(default, |n| n.parse().expect("a number of seeds"))
}

/// What the seeds of one test have to meet, or they prove nothing.
const MET: [&str; 34] = [
    "new call",
    "clamped",
    "retry of a lost call",
    "diverged",
    "replay",
    "join",
    "joined here",
    "queued",
    "waits",
    "refused",
    "admission timeout",
    "done",
    "done, estimated",
    "refused upstream",
    "failed",
    "void",
    "unknown",
    "late truth",
    "swept to unknown",
    "rested",
    "tried again",
    "swept at rest",
    "settled again",
    "voided again",
    "lost after its end",
    "no turn",
    "broke off",
    "lease_lost",
    "label_ended",
    "run_held",
    "instance_dead",
    "store_full",
    "store_refused",
    "commit_unknown",
];

/// Every `of`-th seed from `first`: the tests share the seeds, and run side by side.
fn check(first: u64, of: u64) {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for seed in (first..seeds(DEFAULT)).step_by(of as usize) {
        let outcome = run(seed, None, false);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}\nhint: OUTLAST_SIM_SEED={seed} tells its story (test one_seed)");
        }
        for (what, n) in outcome.seen {
            *seen.entry(what).or_default() += n;
        }
    }
    println!("{seen:#?}");
    let missed: Vec<&&str> = MET.iter().filter(|what| !seen.contains_key(**what)).collect();
    assert!(missed.is_empty() || seeds(DEFAULT) < DEFAULT, "these seeds never met {missed:?}");
}

#[test]
fn the_invariants_hold_whatever_breaks_1() {
    check(0, 4);
}

#[test]
fn the_invariants_hold_whatever_breaks_2() {
    check(1, 4);
}

#[test]
fn the_invariants_hold_whatever_breaks_3() {
    check(2, 4);
}

#[test]
fn the_invariants_hold_whatever_breaks_4() {
    check(3, 4);
}

/// Tells one seed's story, when asked for.
#[test]
fn one_seed() {
    let Ok(seed) = std::env::var("OUTLAST_SIM_SEED") else { return };
    let outcome = run(seed.parse().expect("a seed"), None, true);
    println!("{}", outcome.story.join("\n"));
    assert_eq!(outcome.violation, None, "seed {seed}");
}

#[test]
fn a_seed_plays_the_same_story_twice() {
    for seed in 0..5 {
        assert_eq!(run(seed, None, true).story, run(seed, None, true).story, "seed {seed}");
    }
}

fn finds(bug: Bug, what: &str) {
    let found = (0..DEFAULT).find_map(|seed| Some((seed, run(seed, Some(bug), false).violation?)));
    let (seed, found) = found.unwrap_or_else(|| panic!("{DEFAULT} seeds, and nobody noticed {bug:?}"));
    println!("{bug:?}: seed {seed}: {found}");
    assert!(found.contains(what), "{bug:?} was found as: {found}");
}

#[test]
fn an_end_shown_before_it_is_durable_is_found() {
    finds(Bug::ShownBeforeDurable, "2: the end of entry");
}

#[test]
fn a_call_sent_again_before_that_is_durable_is_found() {
    finds(Bug::TriedBeforeDurable, "1: entry");
}

#[test]
fn a_replay_across_scopes_is_found() {
    finds(Bug::ScopeIgnored, "4: entry");
}

#[test]
fn an_admission_decided_outside_its_transaction_is_found() {
    finds(Bug::StaleAdmission, "its entries add up to");
}

#[test]
fn an_answer_that_a_client_keeps_after_it_left_is_found() {
    finds(Bug::LeftUnnoticed, "4: entry");
}

#[test]
fn a_delivery_mark_that_is_forgotten_is_found() {
    finds(Bug::MarkForgotten, "4: entry");
}

#[test]
fn a_request_decided_before_the_mark_of_its_twin_is_found() {
    finds(Bug::MarkIgnored, "4: entry");
}

#[test]
fn a_void_that_is_tried_once_is_found() {
    finds(Bug::VoidTriedOnce, "nobody carries it");
}

#[test]
fn an_upstream_asked_faster_than_its_rate_is_found() {
    finds(Bug::RateForgotten, "its upstream takes");
}
