//! Simulated worker: a program of steps, items and state changes that runs inside its process, as Python's library
//! does. It dies with its process, and its next life goes on with what is recorded.
//!
//! A worker's tool calls are what `outlast mcp` does with the engine's verbs, between a client that repeats its program
//! in each life and a server that does what it is told. A recorder is a process of its own: a life that ends takes its
//! process along.

use outlast_core::{
    engine::{
        Asker, BeginStep, Change, ClaimItem, Claimed, DecideApproval, Delivered, EndAttempt,
        Error as Refused, GiveUpTool, ItemEnd, NextTry, Put, Receiver, Record, RecordItem, RequestApproval,
        ReserveTool, Reserved, ResolveStep, SendTool, Step, StorePart, run::end_attempt::Then,
    },
    journal::{ItemClaim, OnChange, approval::Status, iteration_scope},
    run::Exit,
};

use crate::{How, Task, ToolCall, Waves, prelude::*};

/// State of a task within its wave.
#[derive(Clone, Debug)]
struct Doing {
    task: Task,
    opening: Opening,
    /// Simulated time at which the task was opened, in milliseconds.
    opened_ms: u64,
    try_no: i64,
    /// Value that the task's function returned; `None` before.
    value: Option<String>,
    /// Version that the task's swap expects.
    expected: i64,
    alone: bool,
    decision_asked: bool,
    /// Record of the task's result, which waits until the first part of that is stored; `None` if it waits for nothing.
    record: Option<Record>,
    is_over: bool,
}

/// State of one worker.
#[derive(Default)]
pub struct Worker {
    pub index: usize,
    pub run: RunNo,
    pub life: u32,
    pub mood: Mood,
    pub process: usize,
    waves: Waves,
    at: usize,
    doing: Vec<Doing>,
    actor: Actor,
    iteration: i64,
    lives_left: u32,
}

impl Worker {
    pub fn new(index: usize, run: RunNo, waves: Waves) -> Worker {
        Worker {
            index,
            run,
            waves,
            actor: Actor { run, ..Actor::default() },
            lives_left: 40,
            ..Worker::default()
        }
    }

    /// Handles an event. Nothing else changes the worker.
    pub fn on(&mut self, input: ToWorker, out: &mut Outside) {
        match input {
            ToWorker::Begin => {
                self.process = out.engine.rng.below(out.processes as u64) as usize;
                let (worker, life, run) = (self.index, self.life, self.run);
                out.to_process(3, self.process, ToProcess::WorkerClaims { worker, life, run });
            }
            ToWorker::Claimed(instance, result) => match result {
                Ok(Outcome::Claimed(Claimed::Attempt { attempt, iteration, .. })) => {
                    self.actor = Actor { run: self.run, attempt, instance };
                    self.iteration = iteration;
                    self.at = 0;
                    self.begin_wave(out);
                }
                Err(Error::Engine(Refused::RunEnded { .. })) => self.mood = Mood::Done,
                _ => self.restart_in(out.engine.rng.between(3_000, 9_000), out),
            },
            ToWorker::Open(task) => self.open(task, out),
            ToWorker::Did(task, result) => self.did(task, result, out),
            ToWorker::Returns(task) => self.returns(task, out),
            ToWorker::Sends(task) => self.sends(task, out),
            ToWorker::End(Ok(_)) => self.mood = Mood::Done,
            ToWorker::End(Err(_)) | ToWorker::Die => self.restart_in(out.engine.rng.between(500, 6_000), out),
        }
    }

    fn restart_in(&mut self, ms: u64, out: &mut Outside) {
        self.ends_its_recorder(out);
        self.doing.clear();
        self.life += 1;
        if self.lives_left == 0 {
            self.mood = Mood::GaveUp;
            return;
        }
        self.lives_left -= 1;
        out.to_worker(ms, self.index, self.life, ToWorker::Begin);
    }

    fn begin_wave(&mut self, out: &mut Outside) {
        let Some(wave) = self.waves.get(self.at).cloned() else {
            let end = EndAttempt {
                run: self.run,
                attempt: self.actor.attempt,
                instance: self.actor.instance,
                exit: Exit { code: Some(0), ..Exit::default() },
                active_ms: 0,
                then: Then::Complete,
            };
            return self.ask(None, end, How::Submitted(Durability::Synced), out);
        };
        self.doing = wave.into_iter().map(Doing::new).collect();
        for task in 0..self.doing.len() {
            let after = out.engine.rng.either(50, (0, 40), (0, 600));
            out.to_worker(after, self.index, self.life, ToWorker::Open(task));
        }
    }

    /// Submits the operation that opens a task.
    fn open(&mut self, task: usize, out: &mut Outside) {
        let (actor, slot) = (self.actor, Slot::DRIVER);
        let Some(doing) = self.doing.get_mut(task) else { return };
        doing.opened_ms = out.engine.now_ms();
        match &doing.task {
            Task::Step { key, at_most_once, retries, .. } => {
                let how = match (at_most_once, out.engine.rng.chance(60)) {
                    (true, _) => How::Submitted(Durability::Synced),
                    (false, true) => How::Ahead,
                    (false, _) => How::Submitted(Durability::Committed),
                };
                let begin = BeginStep {
                    actor,
                    slot,
                    scope: iteration_scope(self.iteration),
                    key: key.clone(),
                    within: None,
                    retries: *retries,
                    at_most_once: *at_most_once,
                };
                self.ask(Some(task), begin, how, out);
            }
            Task::Item { key } => {
                let claim = ClaimItem {
                    actor,
                    slot,
                    key: key.clone(),
                    index: task as i64,
                    content: None,
                    version: None,
                    on_change: OnChange::Rerun,
                    on_version: OnChange::Keep,
                    alone: doing.alone,
                };
                let how = if out.engine.rng.chance(50) {
                    How::Ahead
                } else {
                    How::Submitted(Durability::Committed)
                };
                self.ask(Some(task), claim, how, out);
            }
            Task::Swap { key } => {
                let name = Name::new("shared", "", key.clone());
                doing.expected =
                    out.engine.disk.inspect(|t, _| t.state.keys.get(&name).map_or(0, |c| c.version));
                let value = out.fresh(key);
                let change = Change::set(name, value.as_bytes()).expecting(doing.expected);
                doing.value = Some(value);
                let put = Put { actor: Some((actor, slot)), changes: vec![change], transaction: None };
                self.ask(Some(task), put, How::Submitted(Durability::Synced), out);
            }
            Task::Tool(call) => {
                let call = call.clone();
                self.reserve_tool(task, &call, out);
            }
            Task::Approval { key } => {
                let request = RequestApproval {
                    asker: Asker::Attempt { actor, slot },
                    key: Some(key.clone()),
                    tool: "rm".to_owned(),
                    side_effect: None,
                    arguments: Payload::encode(b"{}"),
                    expires_ms: 60_000,
                };
                self.ask(Some(task), request, How::Submitted(Durability::Synced), out);
            }
        }
    }

    fn ask(&self, task: Option<usize>, op: impl Into<Op>, how: How, out: &mut Outside) {
        let whose = Whose { worker: self.index, life: self.life, task };
        let work = ToProcess::Work { whose, op: op.into(), how };
        out.to_process(out.engine.rng.below(3), self.process, work);
    }

    fn did(&mut self, task: usize, result: Result<Outcome, Error>, out: &mut Outside) {
        let (run, index, life) = (self.run, self.index, self.life);
        let Some(doing) = self.doing.get_mut(task) else { return };
        let key = doing.task.key().to_owned();
        match result {
            Ok(Outcome::Kept(())) => self.record(task, out),
            Err(_) if doing.record.is_some() && out.engine.bug == Some(Bug::PartMissing) => {
                self.record(task, out)
            }
            Ok(outcome) if doing.task.is_tool() => self.tool_did(task, outcome, out),
            // Its client is told that the call was not made, or not recorded; the next life asks again.
            Err(_) if doing.task.is_tool() => self.restart_in(out.engine.rng.between(1_000, 5_000), out),
            Ok(Outcome::Begun(Step::Run { opening, try_no, .. })) => {
                if let Task::Step { at_most_once: true, .. } = doing.task {
                    out.oracle.work.runs_once(run, &key);
                }
                (doing.opening, doing.try_no) = (opening, try_no);
                out.to_worker(out.engine.rng.between(1, 800), index, life, ToWorker::Returns(task));
            }
            Ok(Outcome::ItemClaimed(ItemClaim::Run(item))) => {
                doing.opening = item.opening;
                out.to_worker(out.engine.rng.between(1, 800), index, life, ToWorker::Returns(task));
            }
            Ok(Outcome::Tried(try_no)) => {
                out.oracle.work.tried(run, &key, doing.try_no, try_no);
                doing.try_no = try_no;
                out.to_worker(out.engine.rng.between(1, 300), index, life, ToWorker::Returns(task));
            }
            Ok(Outcome::Begun(Step::Done { seq })) => {
                out.oracle.work.found(&out.engine.disk, run, &key, seq);
                self.over(task, out);
            }
            Ok(Outcome::Begun(Step::InDoubt { seq })) => self.resolve(task, seq, out),
            Ok(Outcome::Recorded(_) | Outcome::ItemEnded(_)) => {
                if let Some(value) = &doing.value {
                    out.oracle.work.recorded(run, &key, value);
                }
                self.over(task, out);
            }
            Ok(Outcome::Put(committed)) => {
                out.oracle.work.swapped(&key, doing.expected, &committed, doing.value.as_deref());
                self.over(task, out);
            }
            Ok(Outcome::ItemClaimed(ItemClaim::Held { .. })) => self.again(task, 2_000, out),
            Ok(Outcome::ItemClaimed(ItemClaim::Suspect { .. })) => {
                doing.alone = true;
                self.again(task, 1_000, out);
            }
            Ok(Outcome::ApprovalAsked(answer)) if answer.status == Status::Pending => {
                if let Some(id) = answer.id.filter(|_| !std::mem::replace(&mut doing.decision_asked, true)) {
                    let approve = out.engine.rng.chance(70);
                    let decide =
                        DecideApproval { id, digest: None, approve, reason: None, by: "p".to_owned() };
                    let after = out.engine.rng.between(500, 20_000);
                    out.to_process(after, self.process, ToProcess::Person(decide.into()));
                }
                self.again(task, 3_000, out);
            }
            Ok(Outcome::StepResolved(_)) => self.again(task, 10, out),
            Ok(_) => self.over(task, out),
            Err(Error::Engine(
                Refused::LeaseLost { .. }
                | Refused::InstanceDead
                | Refused::RunHalted { .. }
                | Refused::NotRunning { .. },
            )) => self.restart_in(out.engine.rng.between(1_000, 5_000), out),
            // An instance that its process has left is declared dead by another process, after whatever was answered ahead.
            Err(Error::Engine(Refused::UnknownEntry { .. }))
                if out.troubled_ms + 1_000 < doing.opened_ms
                    && out.instances[self.process] == Some(doing.opening.instance) =>
            {
                out.oracle.work.opening_lost(run, &key);
            }
            // An item that is held by this attempt is recorded once more, until it is known to be.
            Err(e) if !matches!(e, Error::Engine(_)) && doing.value.is_some() && doing.task.is_item() => {
                out.to_worker(1_000, index, life, ToWorker::Returns(task));
            }
            // A claim that failed stops its batch. If the item is this attempt's after all, the next attempt has it.
            Err(e) if !matches!(e, Error::Engine(_)) && doing.task.is_item() => {
                self.restart_in(out.engine.rng.between(1_000, 5_000), out);
            }
            // What was written, or not, is found when the task is opened again.
            Err(_) => self.again(task, 1_000, out),
        }
    }

    /// Lets a person state the outcome of a step in doubt: the step is done, or it may run again.
    fn resolve(&mut self, task: usize, seq: Seq, out: &mut Outside) {
        let Some(doing) = self.doing.get_mut(task) else { return };
        let key = doing.task.key().to_owned();
        let failed = out.engine.rng.chance(50);
        if failed {
            out.oracle.work.may_run_again(self.run, &key);
        }
        let value = out.fresh(&key);
        let seen = out.engine.disk.inspect(|t, _| t.entries.get(&(self.run, seq)).and_then(|e| e.instance));
        let resolve = ResolveStep {
            run: self.run,
            scope: iteration_scope(self.iteration),
            key,
            seen,
            by: Some(self.actor.instance),
            value: Payload::encode(value.as_bytes()),
            failed,
        };
        self.ask(Some(task), resolve, How::Submitted(Durability::Synced), out);
    }

    /// Records what the function of a task returned, or begins its next try.
    fn returns(&mut self, task_no: usize, out: &mut Outside) {
        let (actor, slot) = (self.actor, Slot::DRIVER);
        let Some(doing) = self.doing.get_mut(task_no) else { return };
        let (run, opening) = (self.run, doing.opening);
        if matches!(doing.task, Task::Step { retries: true, .. })
            && doing.try_no < 4
            && out.engine.rng.chance(40)
        {
            let how = How::Submitted(Durability::Committed);
            return self.ask(Some(task_no), NextTry { actor, slot, opening }, how, out);
        }
        let key = doing.task.key();
        let text = out.fresh(key);
        let value = Payload::encode(text.as_bytes());
        let op: Op = match &doing.task {
            Task::Item { .. } => {
                RecordItem { opening, end: ItemEnd::Done(value), changes: Vec::new() }.into()
            }
            task => {
                let name = Name::new(out.namespace_of(run), "", key);
                let writes = matches!(task, Task::Step { writes: true, .. });
                let changes = writes.then(|| Change::set(name, text.as_bytes())).into_iter().collect();
                let record = Record { opening, value, failed: false, again: false, changes };
                match task {
                    Task::Step { long: true, .. } => {
                        let (part, last) = in_two_parts(&record.value);
                        doing.record = Some(Record { value: last, ..record });
                        let how = How::Submitted(Durability::Committed);
                        let part = StorePart { opening, role: Role::Value, part };
                        doing.value = Some(text);
                        return self.ask(Some(task_no), part, how, out);
                    }
                    _ => record.into(),
                }
            }
        };
        doing.value = Some(text);
        self.ask(Some(task_no), op, How::Submitted(Durability::Synced), out);
    }

    /// Records a long result, whose first part is stored.
    fn record(&mut self, task: usize, out: &mut Outside) {
        if let Some(record) = self.doing.get_mut(task).and_then(|doing| doing.record.take()) {
            self.ask(Some(task), record, How::Submitted(Durability::Synced), out);
        }
    }

    fn again(&self, task: usize, ms: u64, out: &mut Outside) {
        out.to_worker(ms, self.index, self.life, ToWorker::Open(task));
    }

    fn over(&mut self, task: usize, out: &mut Outside) {
        if let Some(doing) = self.doing.get_mut(task) {
            doing.is_over = true;
        }
        if self.doing.iter().all(|d| d.is_over) {
            self.at += 1;
            self.begin_wave(out);
        }
    }
}

/// Splits a payload as one is split that is longer than a part.
fn in_two_parts(payload: &Payload) -> (Payload, Payload) {
    let middle = payload.bytes.len() / 2;
    let part = |part: u32, bytes| Payload { part, bytes, ..payload.clone() };
    (part(0, payload.bytes.slice(..middle)), part(1, payload.bytes.slice(middle..)))
}

impl Doing {
    fn new(task: Task) -> Doing {
        Doing {
            task,
            opening: Opening::default(),
            opened_ms: 0,
            try_no: 0,
            value: None,
            expected: 0,
            alone: false,
            decision_asked: false,
            record: None,
            is_over: false,
        }
    }
}

impl Worker {
    pub(super) fn reserve_tool(&mut self, task: usize, call: &ToolCall, out: &mut Outside) {
        let reserve = self.reservation(call);
        self.ask(Some(task), reserve, How::Submitted(Durability::Synced), out);
    }

    fn reservation(&self, call: &ToolCall) -> ReserveTool {
        ReserveTool {
            actor: self.actor,
            slot: Slot::DRIVER,
            scope: iteration_scope(self.iteration),
            server: "mail".to_owned(),
            tool: "send".to_owned(),
            id: call.id.clone(),
            arguments: Digest::of(call.arguments.as_bytes()),
            about: Payload::encode(b"{}"),
            repeatable: call.repeatable,
            leaves: call.leaves,
            anew: false,
        }
    }

    /// Handles the outcome of an operation on a tool call.
    pub(super) fn tool_did(&mut self, task: usize, outcome: Outcome, out: &mut Outside) {
        let (run, life) = (self.run, self.life);
        let Some(doing) = self.doing.get_mut(task) else { return };
        let Task::Tool(call) = doing.task.clone() else { return };
        match outcome {
            Outcome::ToolReserved(Reserved::Send { opening, new }) => {
                out.engine.saw(if new { "tool reserved" } else { "tool taken over" });
                doing.opening = opening;
                // Whoever plants this defect sends a call that no death would leave in doubt.
                if call.leaves || out.engine.bug == Some(Bug::ToolUnmarked) {
                    return out.to_worker(out.engine.rng.below(200), self.index, life, ToWorker::Sends(task));
                }
                let send = SendTool { opening, attempt: self.actor.attempt, slot: Slot::DRIVER };
                self.ask(Some(task), send, How::Submitted(Durability::Synced), out);
            }
            Outcome::ToolSent(_) => {
                out.to_worker(out.engine.rng.below(200), self.index, life, ToWorker::Sends(task))
            }
            Outcome::ToolReserved(Reserved::InFlight { .. }) => {
                out.engine.saw("tool in flight");
                self.again(task, 500, out);
            }
            Outcome::ToolReserved(Reserved::Recorded { seq, .. }) => {
                out.engine.saw("tool replayed");
                out.oracle.tools.replayed(&out.engine.disk, run, &call, seq);
                self.tool_answered(task, seq, out);
            }
            Outcome::ToolReserved(Reserved::InDoubt { seq }) => {
                out.engine.saw("tool in doubt");
                out.oracle.tools.doubted(run, &call);
                self.tool_answered(task, seq, out);
            }
            Outcome::ToolGivenUp(State::Unknown) => {
                out.engine.saw("tool given up");
                self.tool_answered(task, doing_seq(self, task), out);
            }
            Outcome::Recorded(seq) => {
                if let Some(value) = doing.value.take() {
                    out.oracle.tools.answered(run, &call, seq, value);
                }
                self.tool_answered(task, seq, out);
            }
            // The client has its answer, or was told that the call was not made.
            _ => self.over(task, out),
        }
    }

    /// Lets the server receive the call. The call has its effect and is answered, or its answer is lost; or the server
    /// refuses the call, and it has no effect.
    pub(super) fn sends(&mut self, task: usize, out: &mut Outside) {
        let (run, index, life) = (self.run, self.index, self.life);
        let Some(doing) = self.doing.get(task) else { return };
        let Task::Tool(call) = doing.task.clone() else { return };
        let opening = doing.opening;
        let (refused, lost) = (out.engine.rng.chance(5), out.engine.rng.chance(10));
        if !refused {
            let equal = self.waves.iter().flatten().filter(|t| t.key() == call.arguments).count();
            let id = out
                .engine
                .disk
                .inspect(|t, _| t.runs.get(&run).map(|r| r.id.to_string()))
                .unwrap_or_default();
            let key = match out.engine.bug {
                Some(Bug::ToolKeyOfTheLife) => format!("{id} {} {}", opening.seq, opening.instance),
                _ => self.reservation(&call).idempotency_key(&id, opening.seq),
            };
            out.engine.saw("tool sent");
            out.oracle.tools.sent(&out.engine.disk, (run, opening.seq), &call, key, equal);
        }
        if refused || lost {
            let give_up = GiveUpTool { opening, refused };
            return self.ask(Some(task), give_up, How::Submitted(Durability::Synced), out);
        }
        out.to_worker(out.engine.rng.between(1, 800), index, life, ToWorker::Returns(task));
    }

    /// Marks the answer of an entry as delivered. Now and then the client goes away before the mark is made.
    fn tool_answered(&mut self, task: usize, seq: Seq, out: &mut Outside) {
        if out.engine.rng.chance(20) {
            return self.over(task, out);
        }
        let (run, attempt) = (self.run, self.actor.attempt);
        let receiver = Receiver::Process(self.actor.instance);
        let mark = Delivered { run, seq, attempt, receiver, count: 0, replayed: false };
        self.ask(Some(task), mark, How::Submitted(Durability::Committed), out);
    }

    /// Ends this life's process, if it has made tool calls: a recorder that ends is a process that ends.
    pub(super) fn ends_its_recorder(&self, out: &mut Outside) {
        let has_tools = self.waves.iter().flatten().any(|task| matches!(task, Task::Tool(_)));
        if has_tools && out.instances[self.process] == Some(self.actor.instance) {
            out.process_died(self.process);
        }
    }
}

fn doing_seq(worker: &Worker, task: usize) -> Seq {
    worker.doing.get(task).map_or(Seq(0), |doing| doing.opening.seq)
}
