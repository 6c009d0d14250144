//! Model of the contract: which acts a store may commit, in which order. Reserve, send, settle; lease, fence, takeover.
//!
//! The model shares no code with the engine, and knows nothing of requests: an act is refused by what the acts before it left.

use std::collections::BTreeMap;

use crate::prelude::*;

/// Nano-USD, tokens and calls.
pub type Sum = [i64; 3];
const UNITS: [&str; 3] = ["nano-usd", "tokens", "calls"];

/// A run's number, and the number of something of it.
pub type Of = (i64, i64);

/// Part of a store that the contract speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    /// Processes that have registered, and whether each may still act.
    processes: BTreeMap<i64, bool>,
    runs: BTreeMap<i64, Run>,
    /// Holder and fence of each slot.
    leases: BTreeMap<Of, (i64, i64)>,
    attempts: BTreeMap<Of, Attempt>,
    entries: BTreeMap<Of, Entry>,
    limits: BTreeMap<i64, [Option<i64>; 3]>,
    /// Attempts that ended in the operation under way.
    ending: Vec<Of>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Run {
    /// Envelopes to which its calls are charged.
    charges: Vec<i64>,
    fence: i64,
    last_attempt: i64,
    last_entry: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    slot: i64,
    driver: Option<(i64, i64)>,
    open: bool,
}

/// Entry of a journal as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub kind: Kind,
    pub state: State,
    pub attempt: i64,
    pub holder: Option<i64>,
    /// Operation that opened the entry, or took it over last.
    pub opening: i64,
    pub held: Sum,
    pub spent: Sum,
    /// Part of `spent` that was billed beyond the reservation, and is recorded so.
    pub overrun: Sum,
    /// Envelopes to which the entry is charged besides those of its run.
    pub windows: Vec<i64>,
    /// Number of times that it was sent, and the process that sent it last.
    pub sends: i64,
    pub sender: Option<i64>,
    pub repeatable: bool,
    /// Whether it has to be on the disk before it begins.
    pub intended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Register {
        process: i64,
    },
    /// A process is declared dead, or leaves.
    Bury {
        process: i64,
    },
    Start {
        run: i64,
        charges: Vec<i64>,
    },
    Limit {
        envelope: i64,
        limits: [Option<i64>; 3],
    },
    /// `driver`: process and fence; `None` for callers whom nobody drives.
    Begin {
        at: Of,
        slot: i64,
        driver: Option<(i64, i64)>,
    },
    End {
        at: Of,
    },
    Lend {
        slot: Of,
        process: i64,
        fence: i64,
    },
    Open {
        at: Of,
        entry: Entry,
    },
    Take {
        at: Of,
        attempt: i64,
        process: i64,
        opening: i64,
    },
    Send {
        at: Of,
        repeatable: bool,
    },
    /// An entry that is open, or whose outcome was unknown, gets its outcome. `opening`: the operation that opened it, as
    /// whoever closes it knows it.
    Close {
        at: Of,
        opening: i64,
        state: State,
        spent: Sum,
        overrun: Sum,
    },
    /// The outcome of an open entry becomes unknown.
    Doubt {
        at: Of,
        held: Sum,
        spent: Sum,
    },
    /// The reservation of a lost call passes to its retry, or comes back.
    Pass {
        at: Of,
        held: Sum,
    },
}

/// Act that the model refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("process {0} registered twice")]
    RegisteredTwice(i64),
    #[error("process {0} acts, and is dead or not there")]
    NotAlive(i64),
    #[error("attempt {1} of run {0} has a number that was given out")]
    AttemptAgain(i64, i64),
    #[error("slot {1} of run {0} got a second open attempt")]
    DrivenTwice(i64, i64),
    #[error("attempt {1} of run {0} ended, and did so again")]
    EndedTwice(i64, i64),
    #[error("slot {1} of run {0} was lent under an old fence")]
    OldFence(i64, i64),
    #[error("slot {1} of run {0} was taken from a process that lives and drives it")]
    Seized(i64, i64),
    #[error("entry {1} of run {0} was opened by an attempt that is over, or has lost its lease")]
    Fenced(i64, i64),
    #[error("entry {1} of run {0} has a number that was given out")]
    NumberAgain(i64, i64),
    #[error("entry {1} of run {0} is closed, and was never reserved")]
    NeverReserved(i64, i64),
    #[error("entry {1} of run {0} was sent before it was reserved")]
    SentUnreserved(i64, i64),
    #[error("entry {1} of run {0} was sent again, and may have been done")]
    SentAgain(i64, i64),
    #[error("entry {1} of run {0} was taken from a process that lives")]
    TakenFromTheLiving(i64, i64),
    #[error(
        "entry {1} of run {0} was closed by whoever had another of this number, which a loss of commits gave out again"
    )]
    AnotherOpening(i64, i64),
    #[error("entry {1} of run {0} was settled twice")]
    SettledTwice(i64, i64),
    #[error("entry {1} of run {0} is settled, and holds something or has a charge that nobody reserved")]
    Unbacked(i64, i64),
    #[error("entry {1} of run {0} changed what it holds while it was open")]
    Moved(i64, i64),
    #[error("envelope {0}: {1} {2} charged, over the limit of {3}")]
    OverLimit(i64, i64, &'static str, i64),
}

/// Sums of the entries that are charged to an envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    pub held: Sum,
    /// Part of `held` whose outcome is unknown.
    pub doubt: Sum,
    pub spent: Sum,
    /// Part of `spent` that was billed beyond reservations.
    pub overrun: Sum,
}

impl World {
    /// Does an act of the operation under way. Errors: the act may not come after what was done before.
    pub fn act(&mut self, act: Act) -> Result<(), Wrong> {
        match act {
            Act::Register { process } => match self.processes.insert(process, true) {
                None => Ok(()),
                Some(_) => Err(Wrong::RegisteredTwice(process)),
            },
            Act::Bury { process } => {
                self.alive(process)?;
                self.processes.insert(process, false);
                Ok(())
            }
            Act::Start { run, charges } => {
                self.runs.entry(run).or_default().charges = charges;
                Ok(())
            }
            Act::Limit { envelope, limits } => {
                self.limits.insert(envelope, limits);
                Ok(())
            }
            Act::Begin { at, slot, driver } => self.begin(at, slot, driver),
            Act::End { at } => {
                let attempt = self.attempts.get_mut(&at).filter(|a| a.open);
                attempt.ok_or(Wrong::EndedTwice(at.0, at.1))?.open = false;
                self.ending.push(at);
                Ok(())
            }
            Act::Lend { slot, process, fence } => self.lend(slot, process, fence),
            Act::Open { at, entry } => self.open(at, entry),
            Act::Take { at, attempt, process, opening } => self.take(at, attempt, process, opening),
            Act::Send { at, repeatable } => self.send(at, repeatable),
            Act::Close { at, opening, state, spent, overrun } => {
                self.settle(at, opening, state, spent, overrun)
            }
            Act::Doubt { at, held, spent } => self.doubt(at, held, spent),
            Act::Pass { at, held } => {
                let entry = self.entry_in(at, State::Unknown)?;
                if entry.kind != Kind::Call || held.iter().any(|n| *n < 0) {
                    return Err(Wrong::Moved(at.0, at.1));
                }
                entry.held = held;
                Ok(())
            }
        }
    }

    /// Ends an operation. Errors: what it left is over a limit.
    pub fn rest(&mut self) -> Result<(), Wrong> {
        self.ending.clear();
        for (envelope, limits) in &self.limits {
            let charged = self.charged(*envelope);
            for unit in 0..UNITS.len() {
                let used = charged.held[unit] + charged.spent[unit];
                if let Some(limit) = limits[unit].filter(|limit| used > limit + charged.overrun[unit]) {
                    return Err(Wrong::OverLimit(*envelope, used, UNITS[unit], limit));
                }
            }
        }
        Ok(())
    }

    pub fn entry(&self, at: Of) -> Option<&Entry> {
        self.entries.get(&at)
    }

    pub fn has_attempt(&self, at: Of) -> bool {
        self.attempts.contains_key(&at)
    }

    pub fn is_open_attempt(&self, at: Of) -> bool {
        self.attempts.get(&at).is_some_and(|a| a.open)
    }

    pub fn lives(&self, process: i64) -> bool {
        self.processes.get(&process) == Some(&true)
    }

    pub fn lease(&self, slot: Of) -> Option<(i64, i64)> {
        self.leases.get(&slot).copied()
    }

    pub fn charged(&self, envelope: i64) -> Charged {
        let mut charged = Charged::default();
        for ((run, _), entry) in self.entries.iter().filter(|(_, entry)| entry.kind == Kind::Call) {
            let of_run = self.runs.get(run).is_some_and(|run| run.charges.contains(&envelope));
            if of_run || entry.windows.contains(&envelope) {
                add(&mut charged.held, entry.held);
                add(&mut charged.spent, entry.spent);
                add(&mut charged.overrun, entry.overrun);
                if entry.state == State::Unknown {
                    add(&mut charged.doubt, entry.held);
                }
            }
        }
        charged
    }

    fn alive(&self, process: i64) -> Result<(), Wrong> {
        if self.lives(process) { Ok(()) } else { Err(Wrong::NotAlive(process)) }
    }

    fn begin(&mut self, at: Of, slot: i64, driver: Option<(i64, i64)>) -> Result<(), Wrong> {
        let run = self.runs.entry(at.0).or_default();
        if at.1 <= run.last_attempt {
            return Err(Wrong::AttemptAgain(at.0, at.1));
        }
        run.last_attempt = at.1;
        let fence = run.fence;
        if self.attempts.iter().any(|((run, _), a)| *run == at.0 && a.open && a.slot == slot) {
            return Err(Wrong::DrivenTwice(at.0, slot));
        }
        if let Some((process, own)) = driver {
            self.alive(process)?;
            if own <= fence {
                return Err(Wrong::OldFence(at.0, slot));
            }
        }
        self.attempts.insert(at, Attempt { slot, driver, open: true });
        Ok(())
    }

    fn lend(&mut self, slot: Of, process: i64, fence: i64) -> Result<(), Wrong> {
        self.alive(process)?;
        let before = self.leases.insert(slot, (process, fence));
        let run = self.runs.entry(slot.0).or_default();
        // Who adopts an attempt acts under the attempt's own fence.
        let adopts = slot.1 == Slot::ADOPTER.0;
        if fence < run.fence || !adopts && fence == run.fence || before.is_some_and(|(_, old)| fence < old) {
            return Err(Wrong::OldFence(slot.0, slot.1));
        }
        run.fence = fence;
        let Some((holder, old)) = before.filter(|(holder, _)| *holder != process) else { return Ok(()) };
        let drives = |(of, a): (&Of, &Attempt)| {
            let was_open = a.open || self.ending.contains(of);
            of.0 == slot.0 && a.driver == Some((holder, old)) && was_open
        };
        let drove = if adopts { fence == old } else { self.attempts.iter().any(drives) };
        if drove && self.lives(holder) { Err(Wrong::Seized(slot.0, slot.1)) } else { Ok(()) }
    }

    fn open(&mut self, at: Of, entry: Entry) -> Result<(), Wrong> {
        let run = self.runs.entry(at.0).or_default();
        if at.1 <= run.last_entry {
            return Err(Wrong::NumberAgain(at.0, at.1));
        }
        run.last_entry = at.1;
        if entry.intended && entry.state != State::Open {
            return Err(Wrong::NeverReserved(at.0, at.1));
        }
        if entry.sends > 1 {
            return Err(Wrong::SentUnreserved(at.0, at.1));
        }
        // The others are marks, of whoever may set them.
        if matches!(entry.kind, Kind::Call | Kind::Step | Kind::Item | Kind::Tool) {
            self.acts_in(at, entry.attempt, entry.holder)?;
        }
        let sender = entry.holder.filter(|_| entry.sends > 0);
        self.entries.insert(at, Entry { sender, ..entry });
        Ok(())
    }

    /// Checks that a process may open something in an attempt.
    fn acts_in(&self, at: Of, attempt: i64, process: Option<i64>) -> Result<(), Wrong> {
        let found = self.attempts.get(&(at.0, attempt)).filter(|a| a.open);
        let found = found.ok_or(Wrong::Fenced(at.0, at.1))?;
        let lease = self.lease((at.0, found.slot));
        if found.driver.is_some_and(|driver| lease != Some(driver)) {
            return Err(Wrong::Fenced(at.0, at.1));
        }
        process.map_or(Ok(()), |process| self.alive(process))
    }

    fn take(&mut self, at: Of, attempt: i64, process: i64, opening: i64) -> Result<(), Wrong> {
        let old = self.entry_in(at, State::Open)?.clone();
        self.acts_in(at, attempt, Some(process))?;
        let over = !self.is_open_attempt((at.0, old.attempt));
        let free = old.holder.is_none_or(|holder| holder == process || over || !self.lives(holder));
        if old.kind == Kind::Call || !free {
            return Err(Wrong::TakenFromTheLiving(at.0, at.1));
        }
        self.entries.insert(at, Entry { attempt, holder: Some(process), opening, ..old });
        Ok(())
    }

    fn send(&mut self, at: Of, repeatable: bool) -> Result<(), Wrong> {
        let entry = self.entries.get_mut(&at).filter(|entry| entry.state == State::Open);
        let entry = entry.ok_or(Wrong::SentUnreserved(at.0, at.1))?;
        let by_another = entry.sender.is_some() && entry.sender != entry.holder;
        if by_another && !repeatable {
            return Err(Wrong::SentAgain(at.0, at.1));
        }
        (entry.sends, entry.sender, entry.repeatable) = (entry.sends + 1, entry.holder, repeatable);
        Ok(())
    }

    /// Closes an entry that is open, or corrects one whose outcome was unknown.
    fn settle(&mut self, at: Of, opening: i64, state: State, spent: Sum, overrun: Sum) -> Result<(), Wrong> {
        let entry = self.entries.get_mut(&at).ok_or(Wrong::NeverReserved(at.0, at.1))?;
        let from = entry.state;
        if entry.opening != opening {
            return Err(Wrong::AnotherOpening(at.0, at.1));
        }
        if !matches!(from, State::Open | State::Unknown) {
            return Err(Wrong::SettledTwice(at.0, at.1));
        }
        if entry.kind == Kind::Call {
            // A lost call's estimate is posted as far as its envelopes have room, whatever it still held.
            let backed = from == State::Unknown
                || (0..2).all(|unit| spent[unit] <= entry.held[unit] + overrun[unit])
                    && spent[2] <= entry.held[2];
            if !backed || state == State::Void && spent != Sum::default() {
                return Err(Wrong::Unbacked(at.0, at.1));
            }
            (entry.held, entry.spent, entry.overrun) = (Sum::default(), spent, overrun);
        }
        entry.state = state;
        Ok(())
    }

    fn doubt(&mut self, at: Of, held: Sum, spent: Sum) -> Result<(), Wrong> {
        let entry = self.entry_in(at, State::Open)?;
        if entry.kind == Kind::Call {
            // It stays charged at its reservation, or is given back where its run says so; it counts as a call.
            let kept = held[..2] == entry.held[..2] || held == Sum::default();
            if !kept || held[2] != 0 || spent != [0, 0, entry.held[2]] {
                return Err(Wrong::Unbacked(at.0, at.1));
            }
            (entry.held, entry.spent) = (held, spent);
        }
        entry.state = State::Unknown;
        Ok(())
    }

    fn entry_in(&mut self, at: Of, state: State) -> Result<&mut Entry, Wrong> {
        let entry = self.entries.get_mut(&at).ok_or(Wrong::NeverReserved(at.0, at.1))?;
        if entry.state == state { Ok(entry) } else { Err(Wrong::SettledTwice(at.0, at.1)) }
    }
}

fn add(to: &mut Sum, amounts: Sum) {
    to.iter_mut().zip(amounts).for_each(|(to, amount)| *to += amount);
}
