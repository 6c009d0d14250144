//! Busy waiting: turns in which an agent only looks or waits, and is told the same as shortly before.
//!
//! A waiting turn sends the whole conversation to the model and brings it nothing. A *turn* is the tool calls that the
//! model asked for last, with their results, as its next request carries them. A turn waits if each of its
//! calls can only look or wait, and if calls and results are the same as in one of the last few turns, but for
//! times and ids ([`look`]). Everything else is work: another result, an edit, a build, a test, a person's words.
//!
//! A judgement may be too mild and never too strict: an agent that is held or stopped without need loses more than one
//! that waits.

mod look;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use self::look::{Awaited, awaited};
use crate::{
    envelope::Evidence,
    words::{AttemptNo, Digest, Micros, Seq},
};

/// Number of waiting calls in a row from which a streak is told and, where the run asks for it, held.
pub const TOLD_FROM: u32 = 5;

/// Number of waiting calls in a row at which a run is halted that asks for it.
pub const HALTED_AT: u32 = 200;

/// Turns before one among which its like is looked for: an agent may sleep, look and ask in turn.
const BEFORE: usize = 4;

/// Longest time for which a call is held, in milliseconds: CLIs wait for an answer for ten minutes and longer.
const LONGEST_MS: u64 = 480_000;

/// Shortest time for which a call is held without anybody who sees what it waits for, in milliseconds.
const SHORTEST_MS: u64 = 1_000;

/// Part of a streak's time for which its next call is held, if nobody can see whether what it waits for has moved.
const UNSEEN: i64 = 4;

/// Conversations of a run that are remembered.
const CONVERSATIONS: usize = 64;

/// Most characters of the name of a turn.
const NAME: usize = 60;

/// Tool call with its result, as a request carries them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolUse {
    pub name: String,
    /// Input as JSON text, or as plain text for a tool that takes text.
    pub input: String,
    pub result: String,
}

/// Part of a conversation that a request adds to the one before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    pub uses: Vec<ToolUse>,
    /// Texts that the agent's program added beside the results.
    pub texts: Vec<String>,
    /// Whether a person said something, or something other than text came.
    pub is_told: bool,
}

/// Turns of one conversation that wait, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streak {
    /// Number of calls that brought nothing new.
    pub waits: u32,
    /// Number of waiting calls since another conversation of the run last got on.
    pub still: u32,
    /// Time at which the first waiting call arrived.
    pub since: Option<Micros>,
    /// Entry of the first waiting call.
    pub first: Option<Seq>,
    /// Name of what the newest turn called.
    pub name: String,
    /// Whether all that is waited for belongs to the agent: its processes, its sub-agents.
    pub for_own: bool,
    lately: VecDeque<Digest>,
    stirs: u64,
}

/// Conversation of a run, by what it begins with.
#[derive(Clone, Debug)]
struct Conversation {
    key: Digest,
    /// Number of items that its newest request carried.
    items: usize,
    streak: Streak,
    /// Number of its answers that called no tool.
    ends: u64,
}

/// Conversations of a run as one process sees them, of its newest attempt: what a replay asks again is no waiting.
#[derive(Clone, Debug, Default)]
pub struct Conversations {
    attempt: Option<AttemptNo>,
    known: VecDeque<Conversation>,
    /// Number of calls that did not wait.
    stirs: u64,
    /// Number of answers that called no tool, of all conversations.
    ends: u64,
    /// Newest requests that were held, so that none is held twice.
    held: VecDeque<Digest>,
    /// Newest look at what a call may wait for; `None` before the first.
    look: Option<Look>,
}

impl Streak {
    /// Returns the streak with a turn more.
    fn with(&self, turn: &Turn, stirs: u64, now: Micros) -> Streak {
        let Some(awaited) = turn.awaited() else { return Streak::default() };
        let shape = turn.shape();
        let (is_own, lately) = (awaited == Awaited::Own, self.lately.clone());
        let mut next = match self.lately.contains(&shape) {
            true => Streak {
                waits: self.waits + 1,
                still: if stirs == self.stirs { self.still + 1 } else { 1 },
                since: self.since.or(Some(now)),
                first: self.first,
                name: turn.name(),
                for_own: self.for_own && is_own,
                lately,
                stirs,
            },
            false => Streak { name: turn.name(), for_own: is_own, lately, stirs, ..Streak::default() },
        };
        next.lately.retain(|known| *known != shape);
        next.lately.push_back(shape);
        if next.lately.len() > BEFORE {
            next.lately.pop_front();
        }
        next
    }

    /// Returns whether the streak is long enough to be told now; once for each streak.
    pub fn is_news(&self) -> bool {
        self.waits == TOLD_FROM
    }

    /// Returns for how long the streak's next call is held, in milliseconds. `patience_ms`: the time for which its client
    /// says that it waits. `seen`: whether somebody sees when a process of the agent's ends.
    pub fn hold_ms(&self, patience_ms: Option<u64>, seen: bool, now: Micros) -> u64 {
        let Some(since) = self.since.filter(|_| self.waits >= TOLD_FROM) else { return 0 };
        // The rest of its patience is for the answer.
        let longest_ms = patience_ms.map_or(LONGEST_MS, |ms| (ms / 9 * 8).min(LONGEST_MS));
        if self.for_own && seen {
            return longest_ms;
        }
        // Nobody tells when it has moved: the agent hears of it a quarter of its waiting too late at most.
        let part = u64::try_from(now.ms_since(since) / UNSEEN).unwrap_or(0).min(longest_ms);
        if part < SHORTEST_MS { 0 } else { part }
    }

    /// Returns the evidence for a halt; `None` while the streak is none yet.
    pub fn evidence(&self) -> Option<Evidence> {
        let (first, since) = (self.first?, self.since?);
        (self.still >= HALTED_AT).then(|| Evidence {
            calls: self.still,
            first,
            since,
            name: self.name.clone(),
        })
    }
}

impl Turn {
    /// Returns what the turn waits for; `None` if anything of it is work, or new by its kind.
    fn awaited(&self) -> Option<Awaited> {
        if self.is_told || self.uses.is_empty() {
            return None;
        }
        let mut all = self.uses.iter().map(awaited);
        all.try_fold(Awaited::Own, |sum, one| Some(if sum == one? { sum } else { Awaited::Elsewhere }))
    }

    fn shape(&self) -> Digest {
        let mut text = String::new();
        for ToolUse { name, input, result } in &self.uses {
            text.extend([name, "\0", &look::of_input(input), "\0", &look::of_result(result), "\0"]);
        }
        text.extend(self.texts.iter().map(|text| look::of_result(text)));
        Digest::of(text.as_bytes())
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.uses.iter().map(|used| look::name(used, NAME)).collect();
        names.join(", ").chars().take(2 * NAME).collect()
    }
}

impl Conversations {
    /// Returns the number of items that the conversation's last request of the attempt carried; `None` if none is known.
    pub fn items(&self, attempt: AttemptNo, key: Digest) -> Option<usize> {
        self.find(attempt, key).map(|found| found.items)
    }

    /// Returns the streak that a request with this turn belongs to. Changes nothing: the request may be replayed.
    pub fn judge(&self, attempt: AttemptNo, key: Digest, turn: &Turn, now: Micros) -> Streak {
        let before = self.find(attempt, key).map(|found| &found.streak);
        before.cloned().unwrap_or_default().with(turn, self.stirs, now)
    }

    /// Notes that the request left, as entry `seq`.
    pub fn left(&mut self, attempt: AttemptNo, key: Digest, items: usize, mut streak: Streak, seq: Seq) {
        if self.attempt != Some(attempt) {
            *self = Conversations { attempt: Some(attempt), ..Conversations::default() };
        }
        match streak.waits {
            0 => self.stirs += 1,
            _ => drop(streak.first.get_or_insert(seq)),
        }
        let ends = self.find(attempt, key).map_or(0, |known| known.ends);
        self.known.retain(|known| known.key != key);
        if self.known.len() == CONVERSATIONS {
            self.known.pop_front();
        }
        self.known.push_back(Conversation { key, items, streak, ends });
    }

    /// Notes that a call left that is part of no conversation known here.
    pub fn stirs(&mut self) {
        self.stirs += 1;
    }

    /// Notes that an answer calls no tool: whoever waits for that conversation has something new.
    pub fn ended(&mut self, key: Digest) {
        self.ends += 1;
        self.known.iter_mut().filter(|known| known.key == key).for_each(|known| known.ends += 1);
    }

    /// Returns how often other conversations than this one have come to an end.
    pub fn ends_of_others(&self, key: Digest) -> u64 {
        let own = self.known.iter().find(|known| known.key == key).map_or(0, |known| known.ends);
        self.ends.saturating_sub(own)
    }

    fn find(&self, attempt: AttemptNo, key: Digest) -> Option<&Conversation> {
        let same = self.attempt == Some(attempt);
        self.known.iter().find(|known| same && known.key == key)
    }
}

/// Things that a held call may wait for, as they are at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Process groups of the agent's; `None` if nobody tells.
    pub groups: Option<BTreeSet<u32>>,
    /// Number of times that other conversations of the run have come to an end.
    pub ends: u64,
}

impl Look {
    /// Returns whether a group of this look is gone in the later one, or a conversation has ended since.
    pub fn has_moved(&self, later: &Look) -> bool {
        let groups = self.groups.as_ref().zip(later.groups.as_ref());
        later.ends > self.ends || groups.is_some_and(|(was, is)| !was.is_subset(is))
    }
}

/// Hold of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Longest time for which the call is held, in milliseconds.
    pub ms: u64,
    began: Look,
}

impl Hold {
    /// Returns whether the hold is over after `held_ms` milliseconds, at which things are as `now` shows them.
    pub fn is_over(&self, held_ms: u64, now: &Look) -> bool {
        held_ms >= self.ms || self.began.has_moved(now)
    }
}

impl Streak {
    /// Returns whether a look is wanted at what the next call may wait for. The first one is taken one call before a call
    /// is held: what moves between a tool's end and its request is seen too.
    pub fn wants_look(&self) -> bool {
        self.waits + 1 >= TOLD_FROM
    }
}

impl Conversations {
    /// Decides whether a call is held, for which [`Streak::wants_look`]. `request`: its digest; a request is held once,
    /// because its client may ask again. `patience_ms`: the time for which its client says that it waits.
    pub fn hold(
        &mut self,
        streak: &Streak,
        request: Digest,
        patience_ms: Option<u64>,
        look: Look,
        now: Micros,
    ) -> Option<Hold> {
        let before = self.look.replace(look.clone());
        let has_moved = before.is_some_and(|before| before.has_moved(&look));
        let ms = streak.hold_ms(patience_ms, look.groups.is_some(), now);
        (ms > 0 && !has_moved && self.may_hold(request)).then_some(Hold { ms, began: look })
    }

    /// Returns whether the request may be held: it was not before.
    fn may_hold(&mut self, request: Digest) -> bool {
        if self.held.contains(&request) {
            return false;
        }
        if self.held.len() == CONVERSATIONS {
            self.held.pop_front();
        }
        self.held.push_back(request);
        true
    }
}

#[cfg(test)]
mod hold_tests {
    use super::*;

    fn look(groups: &[u32], ends: u64) -> Look {
        Look { groups: Some(groups.iter().copied().collect()), ends }
    }

    #[test]
    fn a_group_that_is_gone_and_a_conversation_that_ended_have_moved() {
        let blind = Look { groups: None, ends: 1 };
        for (before, later, wanted) in [
            (look(&[1, 2], 1), look(&[1, 2], 1), false),
            // A tool that was started meanwhile.
            (look(&[1, 2], 1), look(&[1, 2, 3], 1), false),
            (look(&[1, 2], 1), look(&[1, 3], 1), true),
            (look(&[1, 2], 1), look(&[1, 2], 2), true),
            (look(&[1, 2], 1), blind.clone(), false),
            (blind.clone(), look(&[1], 2), true),
        ] {
            assert_eq!(before.has_moved(&later), wanted, "{before:?} {later:?}");
        }
    }

    #[test]
    fn a_request_is_held_once_and_until_something_has_moved_or_its_time_is_over() {
        let streak = Streak { waits: 9, since: Some(Micros(0)), for_own: true, ..Streak::default() };
        let (one, two) = (Digest([7; 32]), Digest([8; 32]));
        let mut talk = Conversations::default();
        let hold = talk.hold(&streak, one, None, look(&[1, 2], 0), Micros(0)).unwrap();
        assert!(!hold.is_over(hold.ms - 1, &look(&[1, 2], 0)));
        assert!(hold.is_over(hold.ms, &look(&[1, 2], 0)));
        assert!(hold.is_over(0, &look(&[1], 0)) && hold.is_over(0, &look(&[1, 2], 1)));
        assert_eq!(talk.hold(&streak, one, None, look(&[1, 2], 0), Micros(0)), None, "held before");
        assert_eq!(
            talk.hold(&streak, two, None, look(&[1], 0), Micros(0)),
            None,
            "moved since the last look"
        );
        assert!(talk.hold(&streak, two, None, look(&[1], 0), Micros(0)).is_some());
        let short = Streak { waits: 4, ..streak };
        assert_eq!(talk.hold(&short, Digest([9; 32]), None, look(&[1], 0), Micros(0)), None);
        assert!(short.wants_look() && !Streak { waits: 3, ..short }.wants_look());
    }
}
