//! The store's side of a process: groups, tickets, heartbeats, verdicts.

use outlast_core::{
    call::{connection::Event, exchange},
    engine::{
        self,
        call::settle::{Bill, Close},
        op::{Admission, Claimed, Durability, Op, Outcome},
        run::{claim::Claim, declare_dead::DeclareDead, raise::Raise, register::Register, renew::Renew},
    },
    envelope::unit::{Limits, PerUnit, Unit},
    journal::{Entry, State},
    run::instance::{Identity, Life},
    store::{Error, Store},
    words::id::{InstanceNo, RunNo, Slot},
};

use super::{Input, Process, Then, refuse};
use crate::{agent, world::Outside};

/// A heartbeat unchanged for so long is a death.
const LEASE_MS: u64 = 10_000;
const TICK_MS: u64 = 2_000;

impl Process {
    pub(super) fn start(&mut self, out: &mut Outside) {
        self.is_up = true;
        self.register(None, out);
        out.to_process(TICK_MS, self.index, Input::Tick);
    }

    fn register(&mut self, before: Option<InstanceNo>, out: &mut Outside) {
        self.instance = None;
        let pid = self.index as u32;
        let identity = Identity { host: "sim".into(), pid, program: "sim".into(), ..Identity::default() };
        self.queue(Register { identity }, Durability::Synced, Then::Registered { before }, out);
    }

    /// After a commit nobody saw the outcome of, all it may have opened is given up: what it still
    /// holds in memory is recorded later, as the truth.
    pub(super) fn reopen(&mut self, out: &mut Outside) {
        self.reopening = false;
        self.store.reopen();
        let before = self.instance.take();
        self.register(before, out);
    }

    pub(super) fn tick(&mut self, out: &mut Outside) {
        out.to_process(TICK_MS, self.index, Input::Tick);
        match self.instance {
            Some(instance) => {
                let renew = Renew { instance, active: Vec::new() };
                self.queue(renew, Durability::Committed, Then::Renewed, out);
                self.watch(instance, out);
            }
            None if self.pending.is_empty() && self.resolved.is_empty() => self.register(None, out),
            None => {}
        }
        // Room can come back in another process, which tells nobody here.
        let polls = out.processes > 1;
        let firsts: Vec<u64> = self.waiters.firsts().filter(|_| polls).map(|c| c.0).collect();
        for c in firsts {
            self.feed(c, Event::MayRetry, out);
        }
    }

    /// Judges the others: those whose heartbeat stood still for a lease, and its own earlier lives.
    fn watch(&mut self, own: InstanceNo, out: &mut Outside) {
        let now = out.now_ms();
        for other in out.disk.live_instances().unwrap_or_default() {
            if other.no == own {
                continue;
            }
            let seen = self.watched.entry(other.no).or_insert((other.heartbeat, now));
            if seen.0 != other.heartbeat {
                *seen = (other.heartbeat, now);
            }
            let gone = other.identity.pid as usize == self.index;
            if gone || now - seen.1 >= LEASE_MS {
                self.declare_dead(other.no, other.heartbeat, false, out);
            }
        }
    }

    fn declare_dead(&mut self, instance: InstanceNo, heartbeat_seen: i64, left: bool, out: &mut Outside) {
        let verdict = DeclareDead { instance, heartbeat_seen, left };
        self.queue(verdict, Durability::Synced, Then::Declared, out);
    }

    pub(super) fn claim(&mut self, agent: usize, life: u32, run: RunNo, fresh: bool, out: &mut Outside) {
        let Some(instance) = self.instance else {
            return out.to_agent(1, agent, life, agent::Input::Claimed(None));
        };
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh, restart: life > 0 };
        self.queue(claim, Durability::Synced, Then::Claimed { agent, life }, out);
    }

    pub(super) fn raise(&mut self, run: RunNo, amount: i64, out: &mut Outside) {
        let Ok(Some(view)) = out.disk.run(run) else { return };
        let mut add = Limits::default();
        for (unit, by) in [(Unit::CostNanoUsd, amount), (Unit::Tokens, amount), (Unit::Calls, 5)] {
            add[unit] = view.envelope.limits[unit].map(|_| by);
        }
        let raise = Raise { run, add, set: Limits::default(), lift: PerUnit::default() };
        self.queue(raise, Durability::Synced, Then::Raised, out);
    }

    /// Commits whatever is queued. A crash in the middle ends the process; what comes after is lost.
    pub(super) fn commit(&mut self, out: &mut Outside) {
        self.commit_at = None;
        let mut group = std::mem::take(&mut self.pending).into_iter();
        while let Some(p) = group.next() {
            if let Some(fault) = out.draw_fault() {
                self.store.plan(fault);
            }
            let resting = leaves_resting(&p.op, out);
            let ticket = match &p.stale {
                Some(stale) => self.store.submit_on_stale(stale, p.op.clone()),
                None => self.store.submit(p.op.clone(), p.durability),
            };
            let result = ticket.wait();
            out.say(|| format!("process {} {}: {result:?}", self.index, p.op.name()));
            note(&p.op, &result, out);
            if resting && result.is_ok() {
                out.saw("swept at rest");
            }
            out.oracle.decided(&out.disk, &p.op, &result);
            if let (Op::Delivered(d), Err(_)) = (&p.op, &result) {
                out.oracle.mark_lost(d.run, d.seq);
            }
            out.oracle.check_tables(&out.disk, &out.provider);
            if self.store.has_crashed() {
                self.pending = group.collect();
                return out.process_died(self.index);
            }
            self.resolved.push_back((p.then, result));
            out.to_process(1, self.index, Input::Resolve);
        }
        if self.store.refuses() && !self.reopening {
            self.reopening = true;
            out.to_process(2_000, self.index, Input::Reopen);
        }
    }

    pub(super) fn resolve_next(&mut self, out: &mut Outside) {
        let Some((then, result)) = self.resolved.pop_front() else { return };
        match then {
            Then::Registered { before } => self.registered(before, result, out),
            Then::Renewed => {
                if matches!(result, Err(Error::Engine(engine::Error::InstanceDead))) {
                    self.register(None, out);
                }
            }
            Then::Entered { connection, run, label } => self.entered(connection, run, label, result, out),
            Then::Admitted(c) => {
                self.waiters.decided(outlast_core::call::ConnectionId(c));
                let admission = result.and_then(|outcome| match outcome {
                    Outcome::Admitted(admission) => Ok(admission),
                    other => Err(Error::Corrupt { what: format!("{other:?}") }),
                });
                self.feed(c, Event::Admitted(admission), out);
            }
            Then::Settled(run, seq) => {
                let recorded = result.is_ok();
                self.exchange(run, seq, exchange::Event::Settled(result.map(|_| ())), out);
                if recorded {
                    self.wake(out);
                }
            }
            Then::MayLeave(run, seq) => {
                let may = result.and_then(|outcome| match outcome {
                    Outcome::MayLeave(may) => Ok(may),
                    other => Err(Error::Corrupt { what: format!("{other:?}") }),
                });
                self.exchange(run, seq, exchange::Event::MayLeave(may), out);
            }
            Then::Declared | Then::Raised => self.wake(out),
            Then::Marked => {}
            Then::Claimed { agent, life } => {
                let claimed = match result {
                    Ok(Outcome::Claimed(Claimed::Attempt { attempt, iteration, .. })) => {
                        Some((attempt, iteration))
                    }
                    _ => None,
                };
                out.to_agent(1, agent, life, agent::Input::Claimed(claimed));
            }
        }
    }

    fn registered(&mut self, before: Option<InstanceNo>, result: Result<Outcome, Error>, out: &mut Outside) {
        let Ok(Outcome::Registered(no)) = result else { return };
        self.instance = Some(no);
        let Some(before) = before else { return };
        if let Ok(Some(i)) = out.disk.instance(before)
            && i.life == Life::Live
        {
            self.declare_dead(before, i.heartbeat, true, out);
        }
    }

    fn entered(
        &mut self,
        connection: u64,
        run: RunNo,
        label: String,
        result: Result<Outcome, Error>,
        out: &mut Outside,
    ) {
        let Some(client) = self.clients.get(&connection) else { return };
        match result {
            Ok(Outcome::Entered(entered)) => {
                self.labels.insert((run, label), entered.attempt);
                self.arrive(connection, entered.attempt, out);
            }
            result => {
                let allowed = !matches!(result, Err(Error::Engine(_)));
                let code = result.err().map_or("internal", |e| e.code());
                refuse(connection, &client.request, code, allowed, 2_000, out);
                self.clients.remove(&connection);
            }
        }
    }

    fn wake(&mut self, out: &mut Outside) {
        for c in self.waiters.wake() {
            self.feed(c.0, Event::MayRetry, out);
        }
    }
}

/// Whether it is the verdict on a process that has a call between two tries.
fn leaves_resting(op: &Op, out: &Outside) -> bool {
    let Op::DeclareDead(verdict) = op else { return false };
    let rests = |e: &Entry| {
        let resting = e.call.as_ref().is_some_and(|c| c.resting);
        e.instance == Some(verdict.instance) && e.state == State::Open && resting
    };
    out.disk.inspect(|t, _| t.entries.values().any(rests))
}

/// Counts what the decision came to.
fn note(op: &Op, result: &Result<Outcome, Error>, out: &mut Outside) {
    match result {
        Err(e) => out.saw(e.code()),
        Ok(Outcome::Admitted(admission)) => match admission {
            Admission::Go { cap, retry_of, diverged, .. } => {
                out.saw("new call");
                if cap.is_some() {
                    out.saw("clamped");
                }
                if retry_of.is_some() {
                    out.saw("retry of a lost call");
                }
                if diverged.is_some() {
                    out.saw("diverged");
                }
            }
            Admission::Replay { .. } => out.saw("replay"),
            Admission::Join { .. } => out.saw("join"),
            Admission::Wait { refusal } if refusal.code == "queued" => out.saw("queued"),
            Admission::Wait { .. } => out.saw("waits"),
            Admission::Refused(_) => out.saw("refused"),
        },
        Ok(Outcome::Settled(_)) => {
            let Op::Settle(settle) = op else { return };
            out.saw(match settle.close {
                Close::Done(Bill::Usage { .. }) => "done",
                Close::Done(_) => "done, estimated",
                Close::Failed(Bill::Nothing) => "refused upstream",
                Close::Failed(_) => "failed",
                Close::Void => "void",
                Close::Unknown => "unknown",
            });
            let owner = out.disk.instance(settle.instance).ok().flatten();
            if owner.is_some_and(|i| i.life != Life::Live) {
                out.saw("late truth");
            }
        }
        Ok(Outcome::Declared(swept)) if swept.unknown_calls > 0 => out.saw("swept to unknown"),
        Ok(_) => {}
    }
}
