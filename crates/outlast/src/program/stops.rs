//! Store that stops at each boundary of a journal, for `outlast crashtest`: the commit is done, and nobody has its outcome.
//!
//! A process that has the variable `OUTLAST_CRASHTEST` says at each boundary where it is, over the Unix socket that the
//! variable names, and goes on when it is answered. Who answers may kill it, or others, meanwhile.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    sync::Arc,
};

use outlast_core::{
    engine::{Admission, Op, Outcome, Reserved, Step, Tool, checkpoint::OURS},
    journal::ItemClaim,
    named,
    store::{Answer, Durability, Error, Question, Store, Ticket},
    words::Seq,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{context::Context, told};

named! {
    /// Moment of an agent's life between two of its acts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Moment {
        /// A call is reserved, and has not left.
        CallReserved "call-reserved",
        /// A call has come to its provider, and no byte of its answer has left.
        CallLeft "call-left",
        /// Half of a call's answer has left its provider.
        CallHalf "call-half",
        /// A call's answer is recorded, and its agent does not have the end of it.
        CallStored "call-stored",
        /// A step is begun, and its function has not been called.
        StepBegun "step-begun",
        /// A step's result is recorded, and its caller does not have it.
        StepRecorded "step-recorded",
        /// A tool call is opened, and has not been made.
        ToolReserved "tool-reserved",
        /// A tool call that waited is about to be made.
        ToolSent "tool-sent",
        /// A tool call's outcome is recorded, and its caller does not have it.
        ToolRecorded "tool-recorded",
        ItemClaimed "item-claimed",
        ItemRecorded "item-recorded",
        /// A change of the state is committed, and its writer does not know.
        StateCommitted "state-committed",
        CheckpointSaved "checkpoint-saved",
        IterationBegun "iteration-begun",
        IterationJudged "iteration-judged",
    }
}

/// Line that a process says at a boundary: the moment, and the name of the step, tool or item.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stop {
    pub moment: Moment,
    pub what: String,
}

/// Store that says where it is before it gives the outcome of an operation.
struct Stops {
    inner: Arc<dyn Store>,
    line: Mutex<BufReader<UnixStream>>,
    /// Names of the entries that this process has opened, and whether each is a tool call.
    opened: Mutex<HashMap<Seq, (bool, String)>>,
}

/// Operation that may be a boundary.
enum Act {
    Call,
    Answer,
    Step(String),
    Tool(String),
    Sent(Seq),
    Recorded(Seq),
    Item(String),
    ItemEnded(Seq),
    Other(Moment, String),
}

impl Context {
    /// Returns the store as this process uses it: one that stops at boundaries in a crash test.
    ///
    /// A crash test that is gone stops nobody.
    pub(super) fn stopping(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let socket = self.around.var(told::CRASHTEST);
        match socket.and_then(|socket: &OsStr| UnixStream::connect(socket).ok()) {
            Some(line) => Arc::new(Stops {
                inner: store,
                line: Mutex::new(BufReader::new(line)),
                opened: Mutex::default(),
            }),
            None => store,
        }
    }
}

impl Act {
    fn of(op: &Op) -> Option<Act> {
        let other = |moment| Some(Act::Other(moment, String::new()));
        match op {
            Op::Admit(_) => Some(Act::Call),
            Op::Settle(_) => Some(Act::Answer),
            Op::BeginStep(step) => Some(Act::Step(step.key.clone())),
            Op::BeginTool(tool) => Some(Act::Tool(tool.key.clone())),
            Op::ReserveTool(tool) => Some(Act::Tool(tool.tool.clone())),
            Op::SendTool(tool) => Some(Act::Sent(tool.opening.seq)),
            Op::Record(record) => Some(Act::Recorded(record.opening.seq)),
            Op::ClaimItem(item) => Some(Act::Item(item.key.clone())),
            Op::RecordItem(item) => Some(Act::ItemEnded(item.opening.seq)),
            Op::PutByToken(_) => other(Moment::StateCommitted),
            Op::Put(put) if put.actor.is_some() => other(Moment::StateCommitted),
            Op::Checkpoint(checkpoint) if !checkpoint.name.starts_with(OURS) => {
                Some(Act::Other(Moment::CheckpointSaved, checkpoint.name.to_string()))
            }
            Op::BeginIteration(_) => other(Moment::IterationBegun),
            Op::JudgeIteration(_) => other(Moment::IterationJudged),
            _ => None,
        }
    }
}

impl Stops {
    /// Says where this process is, if the outcome makes the operation a boundary, and waits until it may go on.
    fn stop(&self, act: Act, outcome: &Outcome) {
        let opened = |seq: Seq, is_tool: bool, name: String| {
            self.opened.lock().insert(seq, (is_tool, name));
        };
        let name_of = |seq: Seq| {
            let opened = self.opened.lock();
            opened.get(&seq).cloned().unwrap_or_default()
        };
        let (moment, what) = match (act, outcome) {
            (Act::Call, Outcome::Admitted(Admission::Go { .. })) => (Moment::CallReserved, String::new()),
            (Act::Answer, Outcome::Settled(_)) => (Moment::CallStored, String::new()),
            (Act::Step(key), Outcome::Begun(Step::Run { opening, .. })) => {
                opened(opening.seq, false, key.clone());
                (Moment::StepBegun, key)
            }
            (Act::Tool(name), Outcome::ToolBegun(Tool::Begun(opening) | Tool::Again(opening)))
            | (Act::Tool(name), Outcome::ToolReserved(Reserved::Send { opening, .. })) => {
                opened(opening.seq, true, name.clone());
                (Moment::ToolReserved, name)
            }
            (Act::Sent(seq), Outcome::ToolSent(_)) => (Moment::ToolSent, name_of(seq).1),
            (Act::Recorded(seq), Outcome::Recorded(_)) => match name_of(seq) {
                (true, name) => (Moment::ToolRecorded, name),
                (false, name) => (Moment::StepRecorded, name),
            },
            (Act::Item(key), Outcome::ItemClaimed(ItemClaim::Run(run))) => {
                opened(run.opening.seq, false, key.clone());
                (Moment::ItemClaimed, key)
            }
            (Act::ItemEnded(seq), Outcome::ItemEnded(_)) => (Moment::ItemRecorded, name_of(seq).1),
            (Act::Other(moment, what), _) => (moment, what),
            _ => return,
        };
        // A line to a crash test that is gone holds nobody up.
        if let Ok(said) = serde_json::to_string(&Stop { moment, what }) {
            let mut line = self.line.lock();
            let _ = writeln!(line.get_mut(), "{said}").and_then(|()| line.read_line(&mut String::new()));
        }
    }
}

impl Store for Stops {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        let Some(act) = Act::of(&op) else { return self.inner.submit(op, durability) };
        let outcome = self.inner.submit_here(op, durability).wait();
        if let Ok(outcome) = &outcome {
            self.stop(act, outcome);
        }
        Ticket::ready(outcome)
    }
    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        match Act::of(&op) {
            Some(_) => self.submit(op, durability),
            None => self.inner.submit_here(op, durability),
        }
    }
    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        let act = Act::of(&op);
        let outcome = self.inner.ahead(op)?;
        if let (Some(act), Ok(outcome)) = (act, &outcome) {
            self.stop(act, outcome);
        }
        Ok(outcome)
    }
    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        self.inner.answer(question)
    }
    fn place(&self) -> String {
        self.inner.place()
    }
    fn within(&self) -> Option<&dyn Store> {
        Some(self.inner.as_ref())
    }
}
