//! Seeds, what they have to meet, and the planted defects that the oracle has to find.
#![allow(clippy::unwrap_used)]

mod coverage;
mod found;
mod linear;
mod model;
mod planted;
mod trace;

use outlast_sim::{many, run};

/// Some fifty milliseconds of work each, in a debug build.
const DEFAULT: u64 = 2_000;

#[test]
fn the_invariants_hold_whatever_breaks() {
    let seeds = std::env::var("OUTLAST_SIM_SEEDS").map_or(DEFAULT, |n| n.parse().expect("a number of seeds"));
    let played = many::play(0..seeds);
    println!("{:#?}\n{:.0} seeds/s", played.seen, played.per_second());
    assert!(
        played.failed.is_empty(),
        "{:#?}\nhint: OUTLAST_SIM_SEED=n tells a seed's story (test one_seed)",
        played.failed
    );
    if seeds >= DEFAULT {
        coverage::check(&played.seen, seeds >= 10 * DEFAULT);
    }
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
    for seed in 0..10 {
        assert_eq!(run(seed, None, true).story, run(seed, None, true).story, "seed {seed}");
    }
}
