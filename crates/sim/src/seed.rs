//! One seed, and the worlds that it plays.

use crate::{
    bug::Bug,
    login, shares,
    world::{self, Outcome},
};

/// One seed in so many plays the smaller worlds, too: they have less that can go wrong.
const SMALLER_EVERY: u64 = 3;

/// Plays the worlds of a seed to their ends, or to the first broken invariant. `bug` plants a known defect, in the world
/// that it is of; `tell` keeps a line for each event, the story.
pub fn run(seed: u64, bug: Option<Bug>, tell: bool) -> Outcome {
    let is_of_login = |bug| {
        matches!(
            bug,
            Bug::PlanWrittenBlind
                | Bug::PlanCallsForgotten
                | Bug::EndUnnoted
                | Bug::EndWithoutItsHead
                | Bug::DeadNotBuried
                | Bug::HoldBlind
                | Bug::HeldAgain
        )
    };
    match bug {
        Some(bug) if is_of_login(bug) => login::run(seed, Some(bug), tell),
        Some(Bug::SharesOfOthersIgnored | Bug::ShareLoweredEarly | Bug::DeadShareFreed) => {
            shares::run(seed, bug, tell)
        }
        Some(bug) => world::run(seed, Some(bug), tell),
        None => all(seed, tell),
    }
}

fn all(seed: u64, tell: bool) -> Outcome {
    let mut outcome = world::run(seed, None, tell);
    for smaller in [login::run, shares::run] {
        if outcome.violation.is_none() && seed.is_multiple_of(SMALLER_EVERY) {
            let other = smaller(seed, None, tell);
            outcome.violation = other.violation;
            outcome.story.extend(other.story);
            other.seen.into_iter().for_each(|(what, n)| *outcome.seen.entry(what).or_default() += n);
        }
    }
    outcome
}
