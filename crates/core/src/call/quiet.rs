//! Quiet: the wait for more of an answer that has begun, and when it is given up.
//!
//! Alive is not getting on: a wedged upstream, or a gateway before it, may send pings for ever.

use std::time::Duration;

/// Wait for more of an answer that has begun. Only what carries a part of the answer ends it.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    longest: Duration,
    longest_urged: Duration,
    is_urged: bool,
    /// Time at which a part of the answer came last.
    since: Duration,
}

impl Quiet {
    /// Begins the wait at the time `now`, which counts from any moment. The wait is given up after `longest`, and after
    /// `longest_urged` if somebody is held up by it.
    pub fn new(longest: Duration, longest_urged: Duration, now: Duration) -> Quiet {
        Quiet { longest, longest_urged: longest_urged.min(longest), is_urged: false, since: now }
    }

    /// Notes what came. `gets_on`: whether it carries a part of the answer.
    pub fn came(&mut self, gets_on: bool, now: Duration) {
        if gets_on {
            self.since = now;
        }
    }

    /// Notes that somebody is held up by the answer: a later request for it, or a process that is about to end.
    pub fn urge(&mut self) {
        self.is_urged = true;
    }

    /// Returns the time at which the answer is given up.
    pub fn until(&self) -> Duration {
        self.since + if self.is_urged { self.longest_urged } else { self.longest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    // Bug: a wedged stream that sent pings was never given up.
    // Consequence: each life of an agent was joined to it, and waited until somebody killed it.
    // Cause: whatever came over the connection counted as a part of the answer.
    #[test]
    fn only_what_carries_a_part_of_an_answer_ends_the_wait_for_one() {
        let mut quiet = Quiet::new(S(300), S(30), S(10));
        assert_eq!(quiet.until(), S(310));
        quiet.came(false, S(200));
        assert_eq!(quiet.until(), S(310));
        quiet.came(true, S(250));
        assert_eq!(quiet.until(), S(550));
    }

    #[test]
    fn an_answer_that_holds_somebody_up_is_given_up_earlier_and_never_later() {
        let mut quiet = Quiet::new(S(300), S(30), S(10));
        quiet.urge();
        assert_eq!(quiet.until(), S(40));
        quiet.came(true, S(39));
        assert_eq!(quiet.until(), S(69));
        let mut short = Quiet::new(S(3), S(30), S(10));
        short.urge();
        assert_eq!(short.until(), S(13));
    }
}
