//! Store side of a process: groups, tickets, heartbeats, verdicts; and the operations of workers, which go to the store as a
//! library's in the same process do.

use std::sync::Arc;

use outlast_core::{
    call::{
        connection::Event,
        exchange::{self, Ending},
        membership::HEARTBEAT_MS,
    },
    engine::{
        Admission, Admit, Claim, Claimed, Close, Forget, Forgot, Heir, Loaded, ProviderAnswered, Raise,
        Register, Retry, Verb as _,
    },
    envelope::PerUnit,
    run::{Identity, Run, Status},
    state::run_namespace,
    words::Clock as _,
};
use outlast_store::group::Step;

use super::{Pending, Process, Then, refuse};
use crate::{How, prelude::*, resolved};

const TICK_MS: u64 = HEARTBEAT_MS;

impl Process {
    pub(super) fn start(&mut self, out: &mut Outside) {
        self.is_up = true;
        self.register(out);
        out.to_process(TICK_MS, self.index, ToProcess::Tick);
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
        // What was queued is answered as closed.
        self.commit_in(0, out);
        self.register(out);
    }

    pub(super) fn tick(&mut self, out: &mut Outside) {
        out.to_process(TICK_MS, self.index, ToProcess::Tick);
        match self.membership.instance() {
            Some(instance) => {
                if self.pending.is_empty() && self.resolved.is_empty() {
                    out.oracle.carries(&out.engine.disk, instance, |key| self.exchanges.contains_key(&key));
                }
                let fresh = out.engine.rng.between(0, u64::MAX - 1);
                if let Some(renew) = self.membership.renewal(Vec::new(), fresh, self.now_ms(out)) {
                    let then = Then::Renewed(renew.next);
                    self.queue(renew, Durability::Committed, then, out);
                }
                self.watch(out);
            }
            None if self.pending.is_empty() && self.resolved.is_empty() => self.register(out),
            None => {}
        }
        // The named budget starts anew each hour, without an event.
        if std::mem::replace(&mut self.hour, out.hour()) != out.hour() {
            self.desk_on(desk::Event::Moved, out);
        }
        // Room can come back in another process, without an event here.
        if out.processes > 1 {
            self.desk_on(desk::Event::Look, out);
        }
    }

    /// Queues verdicts on other instances, and on an instance of this process that was given up.
    fn watch(&mut self, out: &mut Outside) {
        let Ok(live) = self.store.read(|disk| disk.live_instances()) else { return };
        let (index, life) = (self.index, self.life);
        let is_gone = |who: &Identity| (who.pid as usize == index).then_some(who.start_time != life);
        let mut verdicts = self.membership.verdicts(&live, is_gone, self.now_ms(out));
        let row = |no| self.store.read(|disk| disk.instance(no));
        let farewell = self.membership.farewell(row).ok().flatten();
        if let Some(farewell) = farewell.filter(|_| out.engine.bug != Some(Bug::FarewellForgotten)) {
            let heir = Heir { instance: self.instance, received: self.desk.received() };
            let heir = (out.engine.bug != Some(Bug::Disinherited)).then_some(heir);
            self.clients.values_mut().for_each(|client| client.asked_as = self.instance);
            verdicts.push(DeclareDead { heir, ..farewell });
        }
        for verdict in verdicts {
            self.queue(verdict, Durability::Synced, Then::Declared, out);
        }
    }

    pub(super) fn claim(&mut self, agent: usize, life: u32, run: RunNo, fresh: bool, out: &mut Outside) {
        let Some(instance) = self.membership.instance() else {
            return out.to_agent(1, agent, life, ToAgent::Claimed(None));
        };
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh, restart: life > 0 };
        self.queue(claim, Durability::Synced, Then::Claimed { agent, life }, out);
    }

    pub(super) fn raise(&mut self, run: RunNo, amount: i64, out: &mut Outside) {
        let Ok(Some(view)) = out.engine.disk.run(run) else { return };
        let mut add = Limits::default();
        for (unit, by) in [(Unit::CostNanoUsd, amount), (Unit::Tokens, amount), (Unit::Calls, 5)] {
            add[unit] = view.envelope.limits[unit].map(|_| by);
        }
        let raise = Raise { run, add, set: Limits::default(), lift: PerUnit::default() };
        self.queue(raise, Durability::Synced, Then::Raised, out);
    }

    /// Removes a run that has ended, as `outlast rm` does.
    pub(super) fn forget(&mut self, run: RunNo, out: &mut Outside) {
        let (tables, _) = out.engine.disk.snapshot();
        let Some((row, newest)) = tables.runs.get(&run).zip(tables.runs.keys().last()) else { return };
        if tables.envelopes[&row.envelope()].has_calls_in_flight() {
            out.engine.saw("removed in flight");
        }
        if out.engine.bug == Some(Bug::ForgottenInFlight) && row.status.is_ended() {
            return forget_whatever_is_open(row, &tables, out);
        }
        let ended_before = out.engine.now().plus_ms(1);
        let forget = Forget { run, above: Vec::new(), ended_before, seen: *newest };
        self.queue(forget, Durability::Synced, Then::Raised, out);
    }

    /// Runs the writer's next group. A crash in the middle ends the process, and the rest is lost.
    pub(super) fn commit(&mut self, out: &mut Outside) {
        self.commit_at = None;
        if self.store.line.lock().crashed {
            return out.process_died(self.index);
        }
        if self.store.line.lock().away && out.engine.rng.chance(70) {
            // The writer goes on trying for a while before it reports that the store is away.
            let wait = out.engine.rng.between(200, 1_500);
            return self.commit_in(wait, out);
        }
        self.store.line.lock().plan = out.draw_faults(self.pending.iter().map(|p| &p.op));
        let resting = self.pending.iter().any(|p| leaves_resting(&p.op, out));
        let (step, trail) = self.store.step(out.engine.now_ms());
        if self.store.line.lock().torn {
            out.oracle.torn(self.index);
        }
        out.oracle.removals(&trail);
        if !self.pending.iter().all(|p| matches!(p.op, Op::Renew(_))) {
            out.oracle.check_tables(&out.engine.disk, &out.provider);
        }
        if self.store.line.lock().crashed {
            return out.process_died(self.index);
        }
        note_statuses(&trail, out);
        if let Step::After(wait) = step {
            self.commit_in(wait.as_millis() as u64, out);
        }
        for mut p in std::mem::take(&mut self.pending) {
            match resolved(&mut p.ticket) {
                Some(result) => self.committed(p, result, resting, &trail, out),
                None => self.pending.push(p),
            }
        }
    }

    /// Reports an outcome to the oracle, and queues it for whoever waits for it.
    fn committed(
        &mut self,
        p: Pending,
        result: Result<Outcome, Error>,
        resting: bool,
        trail: &[Arc<Tables>],
        out: &mut Outside,
    ) {
        out.engine.say(|| format!("process {} {}: {result:?}", self.index, p.op.name()));
        note(&p.op, &result, out);
        note_error(&result, out);
        if resting && matches!(result, Ok(Outcome::Declared(_))) {
            out.engine.saw("swept at rest");
        }
        if result.is_ok() && !matches!(p.op, Op::Admit(_) | Op::Renew(_) | Op::Delivered(_) | Op::GiveBack(_))
        {
            out.oracle.moved(out.engine.now_ms());
        }
        out.oracle.decided(trail, out.engine.clock.now(), &p.op, (self.index, &p.receiving), &result);
        if let (Op::Delivered(d), Err(_)) = (&p.op, &result) {
            out.oracle.mark_lost(d.run, d.seq);
        }
        if let (Op::DeclareDead(verdict), Ok(Outcome::Declared(_))) = (&p.op, &result) {
            out.judged(verdict, p.submitted_ms);
        }
        let refuses = matches!(result, Err(Error::CommitUnknown { .. } | Error::Refused { .. }));
        if refuses && !self.reopening {
            self.reopening = true;
            out.hampers(self.index, 2_000);
            out.to_process(2_000, self.index, ToProcess::Reopen);
        }
        self.resolved.push_back((p.then, p.as_whom, result));
        out.to_process(1, self.index, ToProcess::Resolve);
    }

    pub(super) fn resolve_next(&mut self, out: &mut Outside) {
        let Some((then, as_whom, result)) = self.resolved.pop_front() else { return };
        if let Err(e) = &result {
            self.membership.failed(as_whom, e);
            if self.membership.instance().is_none() {
                // Given up. What it was sending stays taken until the store is told.
                out.oracle.died(self.instance);
            }
        }
        match then {
            Then::Registered => {
                if let Ok(Outcome::Registered(no)) = result {
                    self.instance = no;
                    out.instances[self.index] = Some(no);
                    self.membership.registered(no, self.now_ms(out));
                    self.watch(out);
                }
            }
            Then::Renewed(next) => match result {
                Err(_) if out.engine.bug == Some(Bug::SilenceThroughOutage) => {
                    self.membership.renewed(next, self.now_ms(out));
                }
                Ok(_) => self.membership.renewed(next, self.now_ms(out)),
                Err(_) if self.membership.instance().is_none() => self.register(out),
                Err(_) => {}
            },
            Then::Entered { connection, run, label } => self.entered(connection, run, label, result, out),
            Then::Admitted(c) => {
                let admission = result.and_then(|outcome| Admit::answer(outcome).ok_or(Error::Closed));
                self.feed(c, Event::Admitted(admission), out);
            }
            Then::Settled(key) => {
                let last = self.exchanges.get(&key).and_then(|live| live.borrow().last);
                let is_answer = matches!(last, Some((Ending::Done, _)));
                if matches!(&result, Ok(Outcome::Settled(s)) if is_answer && s.run_status == Status::Waiting)
                {
                    let answered =
                        ProviderAnswered { run: key.0, upstream: "sim".to_owned(), sent_ago_ms: 0 };
                    self.queue(answered, Durability::Committed, Then::Noted, out);
                }
                self.exchange(key, exchange::Event::Settled(result.map(|_| ())), out);
            }
            Then::MayLeave(key) => {
                let may = result.and_then(|outcome| Retry::answer(outcome).ok_or(Error::Closed));
                self.exchange(key, exchange::Event::MayLeave(may), out);
            }
            Then::Declared | Then::Raised if out.engine.bug == Some(Bug::WakeLost) => {}
            Then::Declared | Then::Raised => self.desk_on(desk::Event::Moved, out),
            Then::Noted => {}
            Then::GivenBack(c) if result.is_ok() => out.oracle.is_given_back(c),
            Then::GivenBack(_) => {}
            Then::WorkerClaimed(whose) => {
                let input = ToWorker::Claimed(as_whom, result);
                out.to_worker(1, whose.worker, whose.life, input);
            }
            Then::Worked(whose) => did(whose, result, out),
            Then::Claimed { agent, life } => {
                let claimed = match result {
                    Ok(Outcome::Claimed(Claimed::Attempt { attempt, iteration, .. })) => {
                        Some((attempt, iteration))
                    }
                    _ => None,
                };
                out.to_agent(1, agent, life, ToAgent::Claimed(claimed));
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

/// Plants a defect: removes the run without a look at its calls.
fn forget_whatever_is_open(run: &Run, tables: &Tables, out: &Outside) {
    let mut forgotten = tables.clone();
    let which = (run.no, run.envelope(), run_namespace(&run.id));
    forgotten.apply(Loaded { forgotten: vec![which], ..Loaded::default() });
    out.engine.disk.commit(Arc::new(forgotten), Durability::Synced);
}

/// Returns whether `op` is the verdict on a process that has a call between two tries.
fn leaves_resting(op: &Op, out: &Outside) -> bool {
    let Op::DeclareDead(verdict) = op else { return false };
    let rests = |e: &Entry| {
        let resting = e.call.as_ref().is_some_and(|c| c.resting);
        e.instance == Some(verdict.instance) && e.state == State::Open && resting
    };
    out.engine.disk.inspect(|t, _| t.entries.values().any(rests))
}

/// Counts the changes of runs' statuses.
fn note_statuses(trail: &[Arc<Tables>], out: &mut Outside) {
    for pair in trail.windows(2) {
        for run in pair[1].runs.values() {
            let before = pair[0].runs.get(&run.no).map_or(run.status, |before| before.status);
            if before != run.status {
                out.engine.saw(&format!("status {} -> {}", before.name(), run.status.name()));
            }
        }
    }
}

/// Counts the outcome of a decision.
fn note(op: &Op, result: &Result<Outcome, Error>, out: &mut Outside) {
    match result {
        Err(e) => out.engine.saw(e.code()),
        Ok(Outcome::Admitted(admission)) => match admission {
            Admission::Go { cap, retry_of, diverged, .. } => {
                out.engine.saw("new call");
                if cap.is_some() {
                    out.engine.saw("clamped");
                }
                if retry_of.is_some() {
                    out.engine.saw("retry of a lost call");
                }
                if diverged.is_some() {
                    out.engine.saw("diverged");
                }
            }
            Admission::Replay { .. } => out.engine.saw("replay"),
            Admission::Join { .. } => out.engine.saw("join"),
            Admission::Wait { refusal } if refusal.code == "queued" => out.engine.saw("queued"),
            Admission::Wait { .. } => out.engine.saw("waits"),
            Admission::Refused(_) => out.engine.saw("refused"),
        },
        Ok(Outcome::Settled(_)) => {
            let Op::Settle(settle) = op else { return };
            out.engine.saw(match settle.close {
                Close::Done(Bill::Usage { .. }) => "done",
                Close::Done(_) => "done, estimated",
                Close::Failed(Bill::Nothing) => "refused upstream",
                Close::Failed(_) => "failed",
                Close::Void => "void",
                Close::Unknown => "unknown",
            });
            let owner = out.engine.disk.instance(settle.opening.instance).ok().flatten();
            if owner.is_some_and(|i| i.life != Life::Live) {
                out.engine.saw("late truth");
            }
        }
        Ok(Outcome::Declared(swept)) if swept.unknown_calls > 0 => out.engine.saw("swept to unknown"),
        Ok(Outcome::Forgotten(Forgot::Gone)) => out.engine.saw("removed"),
        Ok(Outcome::Kept(())) => out.engine.saw("part stored"),
        Ok(_) => {}
    }
}

impl Process {
    pub(super) fn worker_claims(&mut self, worker: usize, life: u32, run: RunNo, out: &mut Outside) {
        let whose = Whose { worker, life, task: None };
        let Some(instance) = self.membership.instance() else {
            return out.to_worker(1, worker, life, ToWorker::Claimed(self.instance, Err(Error::Closed)));
        };
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: life > 0 };
        self.queue(claim, Durability::Synced, Then::WorkerClaimed(whose), out);
    }

    /// Submits an operation of a worker.
    pub(super) fn work(&mut self, whose: Whose, op: Op, how: How, out: &mut Outside) {
        let op = self.tampered(op, out);
        let (op, durability) = match how {
            How::Submitted(durability) => (op, durability),
            How::Ahead => match self.ahead(op, out) {
                Ok(result) => {
                    out.engine.saw("ahead");
                    note_error(&result, out);
                    self.commit_in(100, out);
                    return did(whose, result, out);
                }
                Err(op) => (op, Durability::Committed),
            },
        };
        if durability == Durability::Synced && out.engine.rng.chance(30) {
            return self.here(op, Then::Worked(whose), out);
        }
        self.queue(op, durability, Then::Worked(whose), out);
    }

    /// Submits an operation on the caller's own thread, which runs it at once if nothing else waits.
    fn here(&mut self, op: Op, then: Then, out: &mut Outside) {
        self.store.line.lock().plan = out.draw_faults(std::iter::once(&op));
        let ticket = self.store.submit_here(op.clone(), Durability::Synced, out.engine.now_ms());
        let submitted_ms = out.engine.now_ms();
        let receiving = Vec::new();
        self.pending.push(Pending { op, ticket, then, as_whom: self.instance, submitted_ms, receiving });
        self.commit(out);
    }

    fn ahead(&mut self, op: Op, out: &Outside) -> Result<Result<Outcome, Error>, Op> {
        match out.engine.bug {
            Some(Bug::AheadLost) => self.store.ahead_and_forgotten(op, out.engine.now_ms()),
            _ => self.store.ahead(op, out.engine.now_ms()),
        }
    }

    /// Changes a worker's operation as the planted defect demands.
    fn tampered(&mut self, mut op: Op, out: &mut Outside) -> Op {
        match (&mut op, out.engine.bug) {
            (Op::Put(put), Some(Bug::SwapIgnored)) => {
                put.changes.iter_mut().for_each(|change| change.expected = None);
            }
            (Op::NextTry(_), Some(Bug::TryCountedTwice)) => {
                self.queue(op.clone(), Durability::Committed, Then::Noted, out);
            }
            (Op::NextTry(next), Some(Bug::NumberReused)) => by_number(&mut next.opening, out),
            (Op::BeginStep(begin), Some(Bug::OnceForgotten)) => begin.at_most_once = false,
            (Op::ReserveTool(reserve), Some(Bug::ToolSentAgain)) => reserve.repeatable = true,
            (Op::ReserveTool(reserve), Some(Bug::ToolIdOfTheLife)) => {
                let life = reserve.actor.instance;
                reserve.id.iter_mut().for_each(|id| id.push_str(&format!(" {life}")));
            }
            (Op::Record(record), Some(Bug::NumberReused)) => by_number(&mut record.opening, out),
            (Op::RecordItem(record), Some(Bug::NumberReused)) => by_number(&mut record.opening, out),
            _ => {}
        }
        op
    }
}

/// Replaces an opening by the one that has its number now.
fn by_number(opening: &mut Opening, out: &Outside) {
    let here =
        out.engine.disk.inspect(|t, _| t.entries.get(&(opening.run, opening.seq)).and_then(Opening::of));
    *opening = here.unwrap_or(*opening);
}

/// Passes the outcome of a worker's operation to the worker.
pub(super) fn did(whose: Whose, result: Result<Outcome, Error>, out: &mut Outside) {
    let input = match whose.task {
        Some(task) => ToWorker::Did(task, result),
        None => ToWorker::End(result),
    };
    out.to_worker(1, whose.worker, whose.life, input);
}

/// Counts the errors of the engine, by their variants.
pub(super) fn note_error(result: &Result<Outcome, Error>, out: &mut Outside) {
    if let Err(Error::Engine(e)) = result {
        let name: String = format!("{e:?}").chars().take_while(|c| c.is_alphanumeric()).collect();
        out.engine.saw(&format!("error {name}"));
    }
}
