//! One seed, and the scenes that it plays.

use crate::{
    bug::Bug,
    engine::{Outcome, Play},
    login, shares, world,
};

/// One seed in so many plays the smaller scenes, too: they have less that can go wrong.
const SMALLER_EVERY: u64 = 3;

/// Plays the scenes of a seed to their ends, or to the first broken invariant. `bug` plants a known defect, in the scene
/// that it is of; `tell` keeps a line for each event, the story.
pub fn run(seed: u64, bug: Option<Bug>, tell: bool) -> Outcome {
    let play = Play { seed, bug, tell };
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
        Some(bug) if is_of_login(bug) => login::run(play),
        Some(Bug::SharesOfOthersIgnored | Bug::ShareLoweredEarly | Bug::DeadShareFreed) => shares::run(play),
        Some(_) => world::run(play),
        None => all(play),
    }
}

fn all(play: Play) -> Outcome {
    let mut outcome = world::run(play);
    for smaller in [login::run, shares::run] {
        if outcome.violation.is_none() && play.seed.is_multiple_of(SMALLER_EVERY) {
            let other = smaller(play);
            outcome.violation = other.violation;
            outcome.story.extend(other.story);
            other.seen.into_iter().for_each(|(what, n)| *outcome.seen.entry(what).or_default() += n);
        }
    }
    outcome
}
