//! Tool calls of a worker: what `outlast mcp` does with the engine's verbs, between a client that repeats its program in
//! each life and a server that does what it is told.
//!
//! A recorder is a process of its own: a life that ends takes its process along.

use outlast_core::{
    engine::{Delivered, GiveUpTool, Outcome, Receiver, ReserveTool, Reserved, SendTool},
    journal::{Payload, State, iteration_scope},
    store::Durability,
    words::{Digest, Seq, Slot},
};

use super::Worker;
use crate::{
    bug::Bug,
    happening::{How, ToWorker},
    outside::Outside,
    program::{Task, ToolCall},
};

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
