//! Seeds, and the planted defects the oracle has to find.
#![allow(clippy::unwrap_used)]

use outlast_sim::{Bug, Outcome, run};

/// How many seeds a test tries: `OUTLAST_SIM_SEEDS`, else `default`.
fn seeds(default: u64) -> u64 {
    std::env::var("OUTLAST_SIM_SEEDS").ok().map_or(default, |n| n.parse().expect("a number of seeds"))
}

/// Every `of`-th seed from `first`: the tests share the seeds, and run side by side.
fn check(first: u64, of: u64) {
    let (mut calls, mut replays, mut refusals) = (0, 0, 0);
    for seed in (first..seeds(400)).step_by(of as usize) {
        let Outcome { violation, calls: c, replays: r, refusals: f, .. } = run(seed, None, false);
        if let Some(violation) = violation {
            panic!("seed {seed}: {violation}\nhint: OUTLAST_SIM_SEED={seed} tells its story (test one_seed)");
        }
        (calls, replays, refusals) = (calls + c, replays + r, refusals + f);
    }
    println!("calls {calls}, replays {replays}, refusals {refusals}");
    // A world in which nothing happens proves nothing.
    assert!(calls > 100 && replays > 10 && refusals > 5);
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
    let found = (0..200).find_map(|seed| run(seed, Some(bug), false).violation);
    let found = found.unwrap_or_else(|| panic!("200 seeds, and nobody noticed {bug:?}"));
    assert!(found.contains(what), "{bug:?} was found as: {found}");
}

#[test]
fn an_end_shown_before_it_is_durable_is_found() {
    finds(Bug::ShownBeforeDurable, "2: the end of entry");
}

#[test]
fn a_replay_across_scopes_is_found() {
    finds(Bug::ScopeIgnored, "4: entry");
}

#[test]
fn an_admission_decided_outside_its_transaction_is_found() {
    finds(Bug::StaleAdmission, "over its limit");
}
