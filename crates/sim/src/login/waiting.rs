//! Busy waiting of an agent, and the holds of its calls: what a server's memory knows of its conversation, and whether a
//! hold ends as it has to.

use std::collections::BTreeSet;

use outlast_core::call::busy_waiting::{Conversations, Hold, Look, Streak, ToolUse, Turn};

use crate::prelude::*;

/// Pause between two looks at what a held call waits for, in milliseconds.
pub const LOOK_MS: u64 = 1_000;

/// Process group of the tool that the agent waits for.
const GROUP: u32 = 42;

/// Other groups that the agent has: a shell, a server.
const OTHERS: [u32; 2] = [7, 8];

const KEY: Digest = Digest([7; 32]);

/// Process that an agent waits for, and the length of its wait.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Time at which it is over, in simulated milliseconds.
    pub ends_ms: u64,
    /// Whether it is a process of the agent's own, whose end is seen.
    pub own: bool,
    /// Time for which the agent waits for an answer, in milliseconds.
    pub patience_ms: u64,
    /// Whether its requests say so.
    names_patience: bool,
    turns: u64,
}

/// Call that is held, and how often its client had asked before.
struct Held {
    hold: Hold,
    since_ms: u64,
    tries: u32,
}

/// Memory of one server about one agent's conversation: a dead server's is gone.
#[derive(Default)]
pub struct Memory {
    talk: Conversations,
    streak: Streak,
    held: Option<Held>,
}

impl Waiting {
    pub fn draw(rng: &Rng, now_ms: u64) -> Waiting {
        Waiting {
            ends_ms: now_ms + rng.between(60_000, 3_600_000),
            own: rng.chance(70),
            patience_ms: rng.between(120, 1_500) * 1_000,
            names_patience: rng.chance(70),
            turns: 0,
        }
    }

    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.ends_ms
    }

    /// Takes the next look. Returns the time at which the tool has told, in simulated milliseconds.
    pub fn looks(&mut self, now_ms: u64) -> u64 {
        self.turns += 1;
        (now_ms + 30_000).min(self.ends_ms.max(now_ms))
    }

    fn turn(&self, now_ms: u64) -> Turn {
        let is_over = self.is_over(now_ms);
        let (name, input) = match self.own {
            true => ("write_stdin", r#"{"session_id":1,"chars":"","yield_time_ms":30000}"#),
            false => ("Bash", r#"{"command":"sleep 30; gh run view 7"}"#),
        };
        let result = if is_over { "Process exited with code 0" } else { "still running" };
        let used = ToolUse { name: name.into(), input: input.into(), result: result.into() };
        Turn { uses: vec![used], ..Turn::default() }
    }

    fn look(&self, now_ms: u64) -> Look {
        let runs = self.own && !self.is_over(now_ms);
        let groups: BTreeSet<u32> = OTHERS.into_iter().chain(runs.then_some(GROUP)).collect();
        Look { groups: Some(groups), ends: 0 }
    }
}

impl Memory {
    /// Judges a call that tells what the agent saw. Returns whether it is held.
    pub fn judge(
        &mut self,
        waits: &Waiting,
        [agent, life]: [u64; 2],
        bug: Option<Bug>,
        (now_ms, now): (u64, Micros),
        tries: u32,
    ) -> bool {
        let attempt = AttemptNo(life as i64);
        self.streak = self.talk.judge(attempt, KEY, &waits.turn(now_ms), now);
        if !self.streak.wants_look() {
            return false;
        }
        let text = format!("{agent} {life} {}", waits.turns);
        let mut request = Digest::of(text.as_bytes());
        if bug == Some(Bug::HeldAgain) {
            request = Digest::of(format!("{text} {now_ms}").as_bytes());
        }
        let patience = waits.names_patience.then_some(waits.patience_ms);
        let hold = self.talk.hold(&self.streak, request, patience, waits.look(now_ms), now);
        self.held = hold.map(|hold| Held { hold, since_ms: now_ms, tries });
        self.held.is_some()
    }

    /// Looks at what the held call waits for. Returns whether its hold is over.
    pub fn is_over(&self, waits: &Waiting, bug: Option<Bug>, now_ms: u64) -> bool {
        let Some(held) = &self.held else { return true };
        let blind = Waiting { ends_ms: u64::MAX, ..waits.clone() };
        let sees = if bug == Some(Bug::HoldBlind) { &blind } else { waits };
        held.hold.is_over(now_ms - held.since_ms, &sees.look(now_ms))
    }

    /// Notes that the call has left.
    pub fn left(&mut self, life: u32, waits: &Waiting) {
        self.held = None;
        let items = usize::try_from(waits.turns).unwrap_or(usize::MAX);
        let (attempt, seq) = (AttemptNo(i64::from(life)), Seq(items as i64));
        self.talk.left(attempt, KEY, items, self.streak.clone(), seq);
    }

    /// Returns whether the call is held since its client asked for the nth time.
    pub fn is_held(&self, tries: u32) -> bool {
        self.held.as_ref().is_some_and(|held| held.tries == tries)
    }

    /// Ends the hold.
    pub fn goes_on(&mut self) {
        self.held = None;
    }

    /// Returns what is wrong with a hold that goes on.
    pub fn wrong(&self, waits: &Waiting, now_ms: u64) -> Option<String> {
        let held = self.held.as_ref()?;
        let for_ms = now_ms - held.since_ms;
        let moved_ms = now_ms.saturating_sub(waits.ends_ms.max(held.since_ms));
        if waits.own && waits.is_over(now_ms) && moved_ms > 2 * LOOK_MS {
            return Some(format!("P3: a call is held {moved_ms} ms after what it waits for has moved"));
        }
        let all = waits.patience_ms;
        (waits.names_patience && for_ms >= all)
            .then(|| format!("P3: a call is held for {for_ms} ms, and its client waits for {all} ms"))
    }
}
