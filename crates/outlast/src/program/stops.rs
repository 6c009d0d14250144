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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub moment: Moment,
    pub what: String,
}

/// Store that says where it is before it gives the outcome of an operation.
struct Stops {
    inner: Arc<dyn Store>,
    line: Mutex<BufReader<UnixStream>>,
    /// Entries that this process has opened.
    opened: Mutex<HashMap<Seq, Stop>>,
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

/// Returns the boundary at which an operation may stop, and the entry that it closes or sends, which was opened before.
fn boundary(op: &Op) -> Option<(Stop, Option<Seq>)> {
    let at = |moment, what: &str| Some((Stop { moment, what: what.to_owned() }, None));
    let of = |moment, seq| Some((Stop { moment, what: String::new() }, Some(seq)));
    match op {
        Op::Admit(_) => at(Moment::CallReserved, ""),
        Op::Settle(_) => at(Moment::CallStored, ""),
        Op::BeginStep(step) => at(Moment::StepBegun, &step.key),
        Op::BeginTool(tool) => at(Moment::ToolReserved, &tool.key),
        Op::ReserveTool(tool) => at(Moment::ToolReserved, &tool.tool),
        Op::SendTool(tool) => of(Moment::ToolSent, tool.opening.seq),
        Op::Record(record) => of(Moment::StepRecorded, record.opening.seq),
        Op::ClaimItem(item) => at(Moment::ItemClaimed, &item.key),
        Op::RecordItem(item) => of(Moment::ItemRecorded, item.opening.seq),
        Op::PutByToken(_) => at(Moment::StateCommitted, ""),
        Op::Put(put) if put.actor.is_some() => at(Moment::StateCommitted, ""),
        Op::Checkpoint(checkpoint) if !checkpoint.name.starts_with(OURS) => {
            at(Moment::CheckpointSaved, &checkpoint.name)
        }
        Op::BeginIteration(_) => at(Moment::IterationBegun, ""),
        Op::JudgeIteration(_) => at(Moment::IterationJudged, ""),
        _ => None,
    }
}

impl Stops {
    /// Says where this process is, if the outcome makes the operation a boundary, and waits until it may go on.
    fn stop(&self, (mut stop, of): (Stop, Option<Seq>), outcome: &Outcome) {
        let opened = match outcome {
            Outcome::Begun(Step::Run { opening, .. })
            | Outcome::ToolBegun(Tool::Begun(opening) | Tool::Again(opening))
            | Outcome::ToolReserved(Reserved::Send { opening, .. }) => Some(opening.seq),
            Outcome::ItemClaimed(ItemClaim::Run(run)) => Some(run.opening.seq),
            Outcome::Admitted(Admission::Go { .. }) => None,
            // Nothing was begun: its outcome is known, or it has to wait.
            Outcome::Begun(_)
            | Outcome::ToolBegun(_)
            | Outcome::ToolReserved(_)
            | Outcome::ItemClaimed(_)
            | Outcome::Admitted(_) => return,
            _ => None,
        };
        if let Some(seq) = opened {
            self.opened.lock().insert(seq, stop.clone());
        }
        if let Some(begun) = of.and_then(|seq| self.opened.lock().get(&seq).cloned()) {
            let is_tool = begun.moment == Moment::ToolReserved && stop.moment == Moment::StepRecorded;
            let moment = if is_tool { Moment::ToolRecorded } else { stop.moment };
            stop = Stop { moment, ..begun };
        }
        // A line to a crash test that is gone holds nobody up.
        if let Ok(said) = serde_json::to_string(&stop) {
            let mut line = self.line.lock();
            let _ = writeln!(line.get_mut(), "{said}").and_then(|()| line.read_line(&mut String::new()));
        }
    }
}

impl Store for Stops {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        let Some(stop) = boundary(&op) else { return self.inner.submit(op, durability) };
        let outcome = self.inner.submit_here(op, durability).wait();
        if let Ok(outcome) = &outcome {
            self.stop(stop, outcome);
        }
        Ticket::ready(outcome)
    }
    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        match boundary(&op) {
            Some(_) => self.submit(op, durability),
            None => self.inner.submit_here(op, durability),
        }
    }
    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        let stop = boundary(&op);
        let outcome = self.inner.ahead(op)?;
        if let (Some(stop), Ok(outcome)) = (stop, &outcome) {
            self.stop(stop, outcome);
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
