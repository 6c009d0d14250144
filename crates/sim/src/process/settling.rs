//! Store side of a process: groups, tickets, heartbeats, verdicts.

use outlast_core::{
    call::{connection::Event, desk, exchange},
    engine::{
        call::{
            admit::Admission,
            settle::{Bill, Close},
        },
        op::{Op, Outcome},
        run::{
            claim::{Claim, Claimed},
            raise::Raise,
            register::Register,
            renew::Renew,
        },
    },
    envelope::unit::{Limits, PerUnit, Unit},
    journal::{Entry, State},
    run::instance::{Identity, Life},
    store::{Durability, Error, Store},
    words::id::{RunNo, Slot},
};

use super::{Input, Process, Then, refuse};
use crate::{agent, world::Outside};

const TICK_MS: u64 = 2_000;

impl Process {
    pub(super) fn start(&mut self, out: &mut Outside) {
        self.is_up = true;
        self.register(out);
        out.to_process(TICK_MS, self.index, Input::Tick);
    }

    fn register(&mut self, out: &mut Outside) {
        let (pid, start_time) = (self.index as u32, self.life);
        let host = "sim".to_owned();
        let identity = Identity { host, pid, start_time, program: "sim".into(), ..Identity::default() };
        self.queue(Register { identity }, Durability::Synced, Then::Registered, out);
    }

    /// Reopens the store after a commit with an unknown outcome.
    pub(super) fn reopen(&mut self, out: &mut Outside) {
        self.reopening = false;
        self.store.reopen();
        self.register(out);
    }

    pub(super) fn tick(&mut self, out: &mut Outside) {
        out.to_process(TICK_MS, self.index, Input::Tick);
        match self.membership.instance() {
            Some(instance) => {
                if self.pending.is_empty() && self.resolved.is_empty() {
                    out.oracle.carries(&out.disk, instance, |key| self.exchanges.contains_key(&key));
                }
                let renew = Renew { instance, active: Vec::new() };
                self.queue(renew, Durability::Committed, Then::Renewed, out);
                self.watch(out);
            }
            None if self.pending.is_empty() && self.resolved.is_empty() => self.register(out),
            None => {}
        }
        // Room can come back in another process, without an event here.
        if out.processes > 1 {
            self.desk_on(desk::Event::Look, out);
        }
    }

    /// Queues verdicts on other instances, and on an instance of this process that was given up.
    fn watch(&mut self, out: &mut Outside) {
        let live = out.disk.live_instances().unwrap_or_default();
        let (index, life) = (self.index, self.life);
        let is_gone = |who: &Identity| (who.pid as usize == index).then_some(who.start_time != life);
        let mut verdicts = self.membership.verdicts(&live, is_gone, out.now_ms());
        verdicts.extend(self.membership.farewell(|no| out.disk.instance(no)).ok().flatten());
        for verdict in verdicts {
            self.queue(verdict, Durability::Synced, Then::Declared, out);
        }
    }

    pub(super) fn claim(&mut self, agent: usize, life: u32, run: RunNo, fresh: bool, out: &mut Outside) {
        let Some(instance) = self.membership.instance() else {
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

    /// Commits all queued operations. A crash in the middle ends the process, and the rest is lost.
    pub(super) fn commit(&mut self, out: &mut Outside) {
        self.commit_at = None;
        let mut group = std::mem::take(&mut self.pending).into_iter();
        while let Some(p) = group.next() {
            if let Some(fault) = out.draw_fault(&p.op) {
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
            out.oracle.decided(&out.disk, &p.op, &p.receiving, &result);
            if let (Op::Delivered(d), Err(_)) = (&p.op, &result) {
                out.oracle.mark_lost(d.run, d.seq);
            }
            out.oracle.check_tables(&out.disk, &out.provider);
            if self.store.has_crashed() {
                self.pending = group.collect();
                return out.process_died(self.index);
            }
            self.resolved.push_back((p.then, p.as_whom, result));
            out.to_process(1, self.index, Input::Resolve);
        }
        if self.store.refuses() && !self.reopening {
            self.reopening = true;
            out.to_process(2_000, self.index, Input::Reopen);
        }
    }

    pub(super) fn resolve_next(&mut self, out: &mut Outside) {
        let Some((then, as_whom, result)) = self.resolved.pop_front() else { return };
        if let Err(e) = &result {
            self.membership.failed(as_whom, e);
        }
        match then {
            Then::Registered => {
                if let Ok(Outcome::Registered(no)) = result {
                    self.instance = no;
                    self.membership.registered(no, out.now_ms());
                    self.watch(out);
                }
            }
            Then::Renewed => match result {
                Ok(_) => self.membership.renewed(out.now_ms()),
                Err(_) if self.membership.instance().is_none() => self.register(out),
                Err(_) => {}
            },
            Then::Entered { connection, run, label } => self.entered(connection, run, label, result, out),
            Then::Admitted(c) => {
                let admission = result.and_then(|outcome| match outcome {
                    Outcome::Admitted(admission) => Ok(admission),
                    other => Err(Error::Corrupt { what: format!("{other:?}") }),
                });
                self.feed(c, Event::Admitted(admission), out);
            }
            Then::Settled(key) => self.exchange(key, exchange::Event::Settled(result.map(|_| ())), out),
            Then::MayLeave(key) => {
                let may = result.and_then(|outcome| match outcome {
                    Outcome::MayLeave(may) => Ok(may),
                    other => Err(Error::Corrupt { what: format!("{other:?}") }),
                });
                self.exchange(key, exchange::Event::MayLeave(may), out);
            }
            Then::Declared | Then::Raised => self.desk_on(desk::Event::Moved, out),
            Then::Noted => {}
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
}

/// Returns whether `op` is the verdict on a process that has a call between two tries.
fn leaves_resting(op: &Op, out: &Outside) -> bool {
    let Op::DeclareDead(verdict) = op else { return false };
    let rests = |e: &Entry| {
        let resting = e.call.as_ref().is_some_and(|c| c.resting);
        e.instance == Some(verdict.instance) && e.state == State::Open && resting
    };
    out.disk.inspect(|t, _| t.entries.values().any(rests))
}

/// Counts the outcome of a decision.
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
            let owner = out.disk.instance(settle.opening.instance).ok().flatten();
            if owner.is_some_and(|i| i.life != Life::Live) {
                out.saw("late truth");
            }
        }
        Ok(Outcome::Declared(swept)) if swept.unknown_calls > 0 => out.saw("swept to unknown"),
        Ok(_) => {}
    }
}
