//! One seed, and the worlds that it plays.

use crate::{
    bug::Bug,
    login,
    world::{self, Outcome},
};

/// One seed in so many plays the world of a login, too: it has less that can go wrong.
const LOGIN_EVERY: u64 = 3;

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
        Some(bug) => world::run(seed, Some(bug), tell),
        None => both(seed, tell),
    }
}

fn both(seed: u64, tell: bool) -> Outcome {
    let mut outcome = world::run(seed, None, tell);
    if outcome.violation.is_none() && seed.is_multiple_of(LOGIN_EVERY) {
        let login = login::run(seed, None, tell);
        outcome.violation = login.violation;
        outcome.story.extend(login.story);
        login.seen.into_iter().for_each(|(what, n)| *outcome.seen.entry(what).or_default() += n);
    }
    outcome
}
