//! Events of the world, and what processes, agents and workers send each other with them.

use std::sync::Arc;

use outlast_core::call::desk::Key;

use crate::{Ask, Piece, Trouble, prelude::*};

/// Event in the world's queue.
pub enum Happening {
    Process(usize, ToProcess),
    Agent {
        agent: usize,
        life: u32,
        input: ToAgent,
    },
    Worker {
        worker: usize,
        life: u32,
        input: ToWorker,
    },
    Trouble(Trouble),
    /// The clock of the machine, which is this many milliseconds ahead, is set right.
    ClockSetRight {
        by_ms: i64,
    },
}

/// Event for a process. All events wait while it is paused.
#[derive(Clone, Debug)]
pub enum ToProcess {
    Start,
    Tick,
    /// Commit the writer's next group.
    Commit,
    /// Resolve the oldest committed ticket.
    Resolve,
    Reopen,
    Request {
        connection: u64,
        request: Request,
    },
    ClientGone(u64),
    /// A timer of the desk's, or a planted defect's late event.
    Desk(desk::Event),
    WaitOver {
        connection: u64,
        wait: u64,
    },
    /// The client asks for its turn at its upstream again.
    AskTurn {
        connection: u64,
        asked: u64,
    },
    Poll {
        connection: u64,
        seq: Seq,
    },
    Load {
        connection: u64,
        seq: Seq,
    },
    Flushed(u64),
    /// The client's delivery mark is submitted now.
    Mark(u64),
    Upstream {
        run: RunNo,
        seq: Seq,
        piece: Piece,
    },
    SettleAgain(Key),
    Claim {
        agent: usize,
        life: u32,
        run: RunNo,
        fresh: bool,
    },
    Raise {
        run: RunNo,
        amount: i64,
    },
    WorkerClaims {
        worker: usize,
        life: u32,
        run: RunNo,
    },
    Work {
        whose: Whose,
        op: Op,
        how: How,
    },
    /// Operation of a person, who does not wait for its outcome.
    Person(Op),
    /// A person removes a run.
    Forget(RunNo),
    /// A person gives an order, drawn by lot.
    Order(Runs),
}

/// Event for an agent. The world drops an event that was meant for the agent before its last death.
#[derive(Clone, Debug)]
pub enum ToAgent {
    /// Start another attempt.
    Begin,
    /// Attempt and iteration that the claim of a supervised attempt gave; `None` if the claim failed.
    Claimed(Option<(AttemptNo, i64)>),
    /// Send the current step.
    Next,
    Resend(Logical),
    Answer {
        connection: u64,
        answer: u64,
    },
    Refused {
        connection: u64,
        code: String,
        retry: bool,
        after_ms: u64,
    },
    /// The client waited too long: it drops the connection and asks again.
    Vanish {
        connection: u64,
        marked: bool,
    },
    Die {
        leaves_ghost: bool,
    },
}

/// Request of the program, over all tries of the SDK to have it answered.
#[derive(Clone, Copy, Debug)]
pub struct Logical {
    pub ask: Ask,
    /// Idempotency key, shared by all tries of this request and by no other; `None` if the SDK sends none.
    pub key: Option<u64>,
    pub retry: u32,
}

/// Means by which an agent names its attempt to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Label(String),
    Token(AttemptNo),
}

/// Request of a client, as it arrives at a process.
#[derive(Clone, Debug)]
pub struct Request {
    pub agent: usize,
    pub life: u32,
    pub run: RunNo,
    pub credential: Credential,
    pub ask: Ask,
    pub scope: Arc<str>,
    pub retry: u32,
    pub key: Option<String>,
}

impl Request {
    pub fn digest(&self) -> Digest {
        let Ask { prompt, stream, priced, .. } = self.ask;
        Digest::of(format!("{prompt} {stream} {priced}").as_bytes())
    }
}

/// Event for a worker. The world drops an event that was meant for the worker before its last death.
#[derive(Clone, Debug)]
pub enum ToWorker {
    /// Claim the run, on a process drawn by lot.
    Begin,
    Claimed(InstanceNo, Result<Outcome, Error>),
    /// Begin a task of the wave, for the first time or again.
    Open(usize),
    /// Outcome of the last operation of a task.
    Did(usize, Result<Outcome, Error>),
    /// The function of a task returns.
    Returns(usize),
    /// A tool call leaves for its server.
    Sends(usize),
    End(Result<Outcome, Error>),
    Die,
}

/// Way in which an operation of a worker is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The outcome is returned before the commit (`Store::ahead`), where that is possible.
    Ahead,
    Submitted(Durability),
}

/// Owner of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Whose {
    pub worker: usize,
    pub life: u32,
    /// Task of the wave; `None` for the end of the attempt.
    pub task: Option<usize>,
}

/// Runs that a person gives orders to.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// Run that nobody else works in: a batch job with a few calls.
    pub own: RunNo,
    /// Run of the first agent, which is no job.
    pub agents: RunNo,
}
