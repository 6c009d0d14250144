//! Delivery of events to an endpoint: how far it has come, what failed, and who delivers.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Mark;
use crate::words::{InstanceNo, Micros, RunNo};

/// Largest number of undelivered events (letters) of an endpoint that are kept for another try. Beyond it the oldest
/// are given up.
pub const MOST_WAITING: usize = 1_000;

/// Largest number of given-up letters of an endpoint that are kept for a person's `retry`. Older ones are only counted.
pub const MOST_DEAD: usize = 1_000;

/// State of the deliveries to one endpoint: how far they have come, what failed, and who delivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivery {
    /// Name of the endpoint, from the person's settings.
    pub name: String,
    /// Number of changes so far: a change names the version that it was made on.
    pub version: i64,
    /// Process that delivers; `None` if there is none. Another process takes over when the holder is dead or
    /// has left.
    pub holder: Option<InstanceNo>,
    /// Events up to this mark were delivered, left out by the rules, or are among `waiting` and `dead`.
    pub cursor: Mark,
    /// Letters whose delivery failed and is tried again.
    pub waiting: Vec<Letter>,
    /// Letters that were given up after too many failed tries.
    pub dead: Vec<Letter>,
    /// Number of given-up letters that are no longer kept in `dead`.
    pub dropped: i64,
    /// Number of letters that were delivered.
    pub delivered: i64,
    /// Runs that wait for each upstream with an outage, as the events up to `cursor` tell.
    pub outages: BTreeMap<String, BTreeSet<RunNo>>,
    /// Runs that waited for an upstream and whose process died before it answered. Whoever takes one up waits on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, BTreeSet<RunNo>>,
    /// Codes of the causes for which a person was asked in each outage.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, BTreeSet<String>>,
    pub digests: Digests,
}

/// Progress of the daily digests to an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Digests {
    /// End of the time that the last digest told of; 0 before the first look.
    pub told_until: Micros,
    /// Number of failed tries of the digest that is due.
    pub tries: u32,
    /// Time of its next try.
    pub next_at: Micros,
}

/// Notification of one event that was not delivered so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Letter {
    pub mark: Mark,
    pub tries: u32,
    /// Time of the next try.
    pub next_at: Micros,
    /// Reason why the last try failed.
    pub why: String,
}

/// Result of a deliverer's work, added to the state of the deliveries. If that state was changed meanwhile, the result
/// is added to the changed state as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Events up to this mark were looked at.
    Passed(Mark),
    Sent(Mark),
    /// The letter failed, once more if it had before.
    Failed(Letter),
    /// The event of a letter is not kept any more.
    Gone(Mark),
    /// A run waits for an upstream with an outage, was left by its process while it did, or no longer does.
    Waits {
        upstream: String,
        run: RunNo,
        how: Waiting,
    },
    /// A person was asked to end an outage.
    Asked {
        upstream: String,
        code: String,
    },
    /// Digests have come this far.
    Digested(Digests),
}

/// Relation of a run to an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    Waits,
    /// Nobody drives it; it was told that its upstream is out, and not that it answers again.
    Left,
    Over,
}

impl Delivery {
    /// Notes a deed. A letter is given up after `most` tries.
    pub fn note(&mut self, deed: Deed, most: u32) {
        match deed {
            Deed::Passed(mark) => self.cursor = mark,
            Deed::Sent(mark) => self.sent(mark),
            Deed::Failed(letter) => self.failed(letter, most),
            Deed::Gone(mark) => self.waiting.retain(|had| had.mark != mark),
            Deed::Waits { upstream, run, how } => self.waits(upstream, run, how),
            Deed::Asked { upstream, code } => {
                self.asked.entry(upstream).or_default().insert(code);
            }
            Deed::Digested(digests) => self.digests = digests,
        }
    }

    /// Returns the upstreams with an outage that a run waits for, or waited for when it was left.
    pub fn upstreams_of(&self, run: RunNo) -> BTreeSet<String> {
        let all = self.outages.iter().chain(&self.left);
        all.filter(|(_, runs)| runs.contains(&run)).map(|(upstream, _)| upstream.clone()).collect()
    }

    fn waits(&mut self, upstream: String, run: RunNo, how: Waiting) {
        for all in [&mut self.outages, &mut self.left] {
            if let Some(runs) = all.get_mut(&upstream) {
                runs.remove(&run);
            }
        }
        match how {
            Waiting::Waits => self.outages.entry(upstream).or_default().extend([run]),
            Waiting::Left => self.left.entry(upstream).or_default().extend([run]),
            Waiting::Over => {}
        }
        self.outages.retain(|_, runs| !runs.is_empty());
        self.left.retain(|_, runs| !runs.is_empty());
        // The outage is over when nobody waits any more; the next one asks anew.
        let (outages, left) = (&self.outages, &self.left);
        self.asked.retain(|upstream, _| outages.contains_key(upstream) || left.contains_key(upstream));
    }

    /// Records that a letter could not be delivered. `letter` counts the failed try: after `most` tries the
    /// letter is given up, before that it is kept to be tried again. So that their number is bounded, the
    /// oldest waiting letter is given up if too many wait.
    pub fn failed(&mut self, letter: Letter, most: u32) {
        self.waiting.retain(|had| had.mark != letter.mark);
        if letter.tries >= most {
            return self.give_up(letter);
        }
        self.waiting.push(letter);
        if self.waiting.len() > MOST_WAITING {
            let oldest = self.waiting.remove(0);
            self.give_up(oldest);
        }
    }

    /// Removes a letter that was delivered.
    pub fn sent(&mut self, mark: Mark) {
        self.waiting.retain(|had| had.mark != mark);
        self.delivered += 1;
    }

    /// Makes all given-up and all waiting letters due at `now`. Returns the number of waiting letters after that.
    pub fn retry(&mut self, now: Micros) -> usize {
        let again = std::mem::take(&mut self.dead);
        self.waiting.extend(again.into_iter().map(|letter| Letter { tries: 0, ..letter }));
        self.waiting.iter_mut().for_each(|letter| letter.next_at = now);
        self.waiting.len()
    }

    fn give_up(&mut self, letter: Letter) {
        self.dead.push(letter);
        if self.dead.len() > MOST_DEAD {
            self.dead.remove(0);
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(no: i64, tries: u32) -> Letter {
        Letter { mark: Mark { transaction: 0, no }, tries, ..Letter::default() }
    }

    #[test]
    fn a_letter_is_tried_again_until_it_is_given_up_and_a_retry_brings_it_back() {
        let mut delivery = Delivery::default();
        delivery.failed(letter(1, 1), 3);
        delivery.failed(letter(1, 2), 3);
        assert_eq!((delivery.waiting.len(), delivery.dead.len()), (1, 0));
        delivery.failed(letter(1, 3), 3);
        assert_eq!((delivery.waiting.len(), delivery.dead.len()), (0, 1));
        assert_eq!(delivery.retry(Micros(9)), 1);
        assert_eq!(delivery.waiting, [Letter { next_at: Micros(9), ..letter(1, 0) }]);
        delivery.sent(Mark { transaction: 0, no: 1 });
        assert_eq!((delivery.waiting.len(), delivery.delivered), (0, 1));
    }

    #[test]
    fn what_is_kept_for_an_endpoint_that_stays_down_is_bounded_and_counted() {
        let mut delivery = Delivery::default();
        let all = (MOST_WAITING + MOST_DEAD + 5) as i64;
        (0..all).for_each(|no| delivery.failed(letter(no, 1), 3));
        assert_eq!((delivery.waiting.len(), delivery.dead.len(), delivery.dropped), (1_000, 1_000, 5));
        assert_eq!(delivery.dead[0].mark.no, 5, "the oldest went first");
    }
}
