//! Taking: which connection receives an answer, as it stands in the store for the processes of all servers.

use crate::{engine::prelude::*, journal::Taker};

/// Answer that a connection receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub seq: Seq,
    pub connection: u64,
}

/// Instance under which a process goes on, and the answers that its connections receive.
#[derive(Clone, Debug)]
pub struct Heir {
    pub instance: InstanceNo,
    pub received: Vec<Received>,
}

impl Received {
    /// Returns the rows that [`give_back`] and [`hand_over`] need.
    pub fn needs(&self) -> [Need; 3] {
        [Need::Run(self.run), Need::Attempt(self.run, self.attempt), Need::Entry(self.run, self.seq)]
    }

    /// Returns whether a connection's answer is still its own: the connection took it, and no other has taken it since.
    pub fn is_of(&self, taker: &Taker) -> bool {
        (taker.attempt, taker.connection) == (self.attempt, self.connection)
    }
}

/// Returns whether a connection of another live process receives the entry's answer for the actor's attempt. What
/// connections of its own process receive, a process knows without a commit (`Admit::taken`).
pub fn is_taken_elsewhere(l: &Loaded, e: &Entry, actor: &Actor) -> bool {
    e.taken.is_some_and(|t| {
        t.attempt == actor.attempt && t.instance != actor.instance && guard::lives(l, Some(t.instance))
    })
}

/// Notes that a connection of the actor's process receives the answer of an entry. `counts`: whether it is one of the
/// attempt's untaken answers. Needs the entry and the attempt.
pub fn take(l: &mut Loaded, actor: &Actor, seq: Seq, connection: u64, counts: bool) {
    let (attempt, instance) = (actor.attempt, actor.instance);
    give_back(l, actor.run, seq, |t| t.attempt == attempt);
    if let Some(e) = l.entry_mut(actor.run, seq) {
        e.taken = Some(Taker { attempt, instance, connection, counted: counts });
    }
    if counts && let Some(a) = l.attempt_mut(actor.run, attempt) {
        a.receives(instance, 1);
    }
}

/// Notes that the entry's taker no longer receives the answer, if it is the one that `is_taker` knows. Needs the entry and
/// the taker's attempt.
pub fn give_back(l: &mut Loaded, run: RunNo, seq: Seq, is_taker: impl Fn(&Taker) -> bool) {
    let Some(taker) = l.entry(run, seq).and_then(|e| e.taken).filter(is_taker) else { return };
    if let Some(e) = l.entry_mut(run, seq) {
        e.taken = None;
    }
    if taker.counted
        && let Some(a) = l.attempt_mut(run, taker.attempt)
    {
        a.receives(taker.instance, -1);
    }
}

/// Lets the process go on receiving its answers as another instance. Of those that others have taken it gets none.
pub fn hand_over(l: &mut Loaded, heir: &Heir) {
    for answer in &heir.received {
        let Received { run, attempt, seq, .. } = *answer;
        let taken = l.entry(run, seq).and_then(|e| e.taken);
        let Some(taker) = taken.filter(|taker| answer.is_of(taker)) else { continue };
        if let Some(e) = l.entry_mut(run, seq) {
            e.taken = Some(Taker { instance: heir.instance, ..taker });
        }
        if taker.counted
            && let Some(a) = l.attempt_mut(run, attempt)
        {
            a.receives(taker.instance, -1);
            a.receives(heir.instance, 1);
        }
    }
}

/// Returns the number of untaken answers of the actor's attempt that connections of live processes are receiving.
pub fn on_their_way(l: &Loaded, actor: &Actor) -> i64 {
    let receiving: &[(InstanceNo, i64)] =
        l.attempt(actor.run, actor.attempt).map_or(&[], |a| a.receiving.as_slice());
    receiving.iter().filter(|(no, _)| guard::lives(l, Some(*no))).map(|(_, count)| count).sum()
}
