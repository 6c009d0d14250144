//! An exchange: the upstream's side of one entry this process opened, from sending to settled.
//!
//! It runs to its end whatever becomes of the clients: the answer outlives the agent. It decides
//! how the entry closes and how much of the answer may be seen meanwhile, and whether a request that was refused,
//! or did not arrive, is sent once more under the same entry.

use crate::{
    call::{Broken, Patience, Told, Visible},
    engine::{
        self,
        call::{
            retry,
            settle::{Bill, Close},
        },
    },
    journal::State,
    store,
};

/// What a stream's frame is, as its dialect reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A piece of the answer.
    Data,
    /// Keeps the connection open; says nothing.
    Ping,
    /// Not for the client: usage that it had not asked for.
    Swallowed,
    /// It says why the answer stops. A client may act on it as on the end.
    Stop,
    /// The event after which the answer is whole. May be a stop at once.
    Terminal,
    /// The provider's own error event after a 2xx, or a terminal event that says the answer failed.
    Error,
}

/// When the upstream's connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Before a byte of the request left: the provider cannot have seen it.
    BeforeSend,
    AfterSend,
}

/// Which wait was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// No head.
    FirstByte,
    /// Nothing more after some of it.
    Idle,
    /// Nothing for 30 s after the machine woke up: the connection is dead, and nobody was told.
    Suspend,
}

/// What the host reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The final head. `streamed`: the answer is of frames (an event stream, NDJSON, a JSON array
    /// sent piece by piece); a request for a stream can be answered by JSON.
    Head {
        status: u16,
        streamed: bool,
    },
    /// One frame of a stream, `len` bytes.
    Frame {
        frame: Frame,
        len: u64,
    },
    /// The whole body of what is no stream, `len` bytes; `readable` when the dialect could parse it.
    BodyEnd {
        len: u64,
        readable: bool,
    },
    /// The stream's connection ended cleanly.
    StreamEnd,
    UpstreamError(Failure),
    Timeout(Silence),
    /// No connection was made, and another try may.
    Unreachable(Told),
    /// The whole body, `len` bytes, of an answer that is no 2xx, and another try may bring one.
    Refused {
        len: u64,
        told: Told,
    },
    /// The pause of `Rest` is over.
    Rested,
    /// The ticket of `AskAgain`: whether the next try may leave.
    MayLeave(Result<bool, store::Error>),
    /// While it rests: nobody waits for it any more.
    Abandoned,
    /// The ticket of the last `Settle` or `SettleAgain`.
    Settled(Result<(), store::Error>),
    /// The settlement takes longer than `--settle-wait`.
    SettleSlow,
}

/// What the host does, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Submit the settlement, `Synced`, and arm the settle-wait. `error` is the entry's.
    Settle { ending: Ending, error: Option<&'static str> },
    /// The store failed: submit the same again after a pause.
    SettleAgain { ending: Ending, error: Option<&'static str> },
    /// Give every attached connection the progress.
    Tell(Progress),
    /// Drop the upstream's connection.
    Abort,
    /// Submit `Retry { resting: true }`, `Committed`; feed `Rested` after the pause, or `Abandoned` if the last client
    /// leaves before. What came is kept: it may be the answer.
    Rest { tries: Vec<Option<u16>>, pause_ms: u64 },
    /// Submit `Retry { resting: false }`, `Synced`; feed `MayLeave`.
    AskAgain { tries: Vec<Option<u16>> },
    /// Forget what came, and send the request again.
    SendAgain,
}

/// How the entry closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A whole answer.
    Done,
    /// An error status, or an answer that is not whole.
    Failed(Charge),
    /// It never left.
    Void,
    /// It may have happened.
    Unknown,
}

/// What a failed call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Its usage if there is some, else its reservation.
    Metered,
    Nothing,
}

impl Ending {
    /// The engine's word for it. `metered` is what the provider's usage comes to, if some arrived
    /// that covers all of the answer so far: Anthropic's `message_start` alone does not.
    pub fn close(self, metered: Option<Bill>) -> Close {
        // Without usage the reservation stands: bytes seen miss hidden reasoning. Never zero.
        let bill = || metered.unwrap_or(Bill::Reservation);
        match self {
            Ending::Done => Close::Done(bill()),
            Ending::Failed(Charge::Metered) => Close::Failed(bill()),
            Ending::Failed(Charge::Nothing) => Close::Failed(Bill::Nothing),
            Ending::Void => Close::Void,
            Ending::Unknown => Close::Unknown,
        }
    }

    /// The entry's state after it.
    pub fn state(self) -> State {
        match self {
            Ending::Done => State::Done,
            Ending::Failed(_) => State::Failed,
            Ending::Void => State::Void,
            Ending::Unknown => State::Unknown,
        }
    }
}

/// What connections may know of an exchange at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub visible: Visible,
    pub end: Option<End>,
}

/// The end of an exchange for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All that is visible is the provider's answer to its end: `Done`, or `Failed` for an error
    /// status, the provider's own error event, or a body nobody can read.
    Answered(State),
    /// Ours to say. `state` is how the entry closed; `None` while that is not recorded.
    Broken { why: Broken, state: Option<State> },
}

/// The machine. See the module.
#[derive(Clone, Debug)]
pub struct Exchange {
    phase: Phase,
    status: Option<u16>,
    patience: Patience,
    /// What came of the tries that are over: their statuses, `None` where the upstream was not reached.
    tries: Vec<Option<u16>>,
    frames: usize,
    /// The frame from which on all is held until the settlement is durable.
    held_from: Option<usize>,
    bytes: u64,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Sent,
    /// A head came; `streamed` only with a 2xx.
    Answering {
        streamed: bool,
    },
    /// Between two tries.
    Resting,
    /// The next try is being put on disk.
    Asking,
    Settling(Settling),
    Over,
}

/// A settlement that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settling {
    ending: Ending,
    error: Option<&'static str>,
    /// What clients get once it is durable.
    then: Then,
    /// An earlier try may have been committed.
    unclear: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// All of it.
    Reveal(Visible),
    Say(Broken),
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

impl Exchange {
    /// An exchange whose request is about to be sent, once. Its entry is open and durable.
    pub fn new() -> Exchange {
        Exchange::patient(Patience::NONE)
    }

    /// The same, and what came to nothing is tried again.
    pub fn patient(patience: Patience) -> Exchange {
        Exchange {
            phase: Phase::Sent,
            status: None,
            patience,
            tries: Vec::new(),
            frames: 0,
            held_from: None,
            bytes: 0,
            progress: Progress::default(),
        }
    }

    /// What a connection that attaches now may know.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The upstream's status, once its head came.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Bytes of the answer so far: what it holds in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Recorded, or never to be: the host forgets it.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// It has its answer and cannot record it: while one is stuck, new calls get 503.
    pub fn is_stuck(&self) -> bool {
        matches!(self.phase, Phase::Settling(_)) && self.progress.end.is_some()
    }

    /// The one way in. Events that come too late (a frame after the end) change nothing.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match (self.phase, event) {
            (Phase::Sent, Event::Head { status, streamed }) => self.head(status, streamed),
            (Phase::Answering { streamed: true }, Event::Frame { frame, len }) => self.frame(frame, len),
            (Phase::Answering { streamed: false }, Event::BodyEnd { len, readable }) => {
                self.body_end(len, readable)
            }
            (Phase::Answering { .. }, Event::StreamEnd) => self.cut(false),
            (Phase::Sent, Event::StreamEnd) => {
                self.settle(Ending::Unknown, Then::Say(Broken::NoAnswer), false)
            }
            (Phase::Sent, Event::UpstreamError(Failure::BeforeSend)) => {
                self.settle(Ending::Void, Then::Say(Broken::Unreachable), false)
            }
            (Phase::Sent, Event::UpstreamError(Failure::AfterSend)) => {
                self.settle(Ending::Unknown, Then::Say(Broken::NoAnswer), false)
            }
            (Phase::Sent, Event::Unreachable(told)) => self.try_over(None, told),
            // What may have been billed is no refusal, whatever a host takes it for.
            (Phase::Answering { streamed: false }, Event::Refused { len, .. })
                if self.status.is_some_and(is_answer) =>
            {
                self.body_end(len, true)
            }
            (Phase::Answering { streamed: false }, Event::Refused { len, told }) => {
                self.bytes += len;
                self.try_over(self.status, told)
            }
            (Phase::Resting, Event::Rested) => {
                self.phase = Phase::Asking;
                vec![Action::AskAgain { tries: self.tries.clone() }]
            }
            (Phase::Asking, Event::MayLeave(Ok(true))) => self.again(),
            // Fail closed: what cannot be put on disk does not leave.
            (Phase::Asking, Event::MayLeave(_)) | (Phase::Resting | Phase::Asking, Event::Abandoned) => {
                self.give_up()
            }
            (Phase::Sent, Event::Timeout(_)) => {
                self.settle(Ending::Unknown, Then::Say(Broken::NoAnswer), true)
            }
            (Phase::Answering { .. }, Event::UpstreamError(_)) => self.cut(false),
            (Phase::Answering { .. }, Event::Timeout(_)) => self.cut(true),
            (Phase::Settling(s), Event::Settled(result)) => self.settled(s, result),
            (Phase::Settling(_), Event::SettleSlow) => self.end_unrecorded(),
            _ => Vec::new(),
        }
    }

    fn head(&mut self, status: u16, streamed: bool) -> Vec<Action> {
        self.status = Some(status);
        // An error is held like a JSON answer, however it is framed.
        self.phase = Phase::Answering { streamed: streamed && is_answer(status) };
        // Nothing is told: the head goes with the first frame, so that an upstream that breaks
        // before it is a clean error to the opener, and a joiner can start again.
        Vec::new()
    }

    fn frame(&mut self, frame: Frame, len: u64) -> Vec<Action> {
        let at = self.frames;
        self.frames += 1;
        self.bytes += len;
        match frame {
            Frame::Data | Frame::Ping if self.held_from.is_none() => self.reveal(),
            Frame::Data | Frame::Ping | Frame::Swallowed => Vec::new(),
            Frame::Stop => {
                self.held_from.get_or_insert(at);
                Vec::new()
            }
            Frame::Terminal => {
                self.held_from.get_or_insert(at);
                self.settle(Ending::Done, Then::Reveal(Visible::Whole), false)
            }
            Frame::Error => {
                // After a stop the provider's own error cannot be shown: what is held before it
                // would read as a clean end.
                let then = match self.held_from {
                    None => Then::Reveal(Visible::Frames(self.frames)),
                    Some(_) => Then::Say(Broken::Cut),
                };
                self.settle(Ending::Failed(Charge::Metered), then, false)
            }
        }
    }

    fn body_end(&mut self, len: u64, readable: bool) -> Vec<Action> {
        self.bytes += len;
        let ending = match self.status {
            Some(status) if !is_answer(status) => Ending::Failed(Charge::Nothing),
            // It was billed, and what it said nobody can tell: delivered as it came, not replayed.
            _ if !readable => Ending::Failed(Charge::Metered),
            _ => Ending::Done,
        };
        self.settle(ending, Then::Reveal(Visible::Whole), false)
    }

    /// The request was not sent, or refused with `status`.
    fn try_over(&mut self, status: Option<u16>, told: Told) -> Vec<Action> {
        self.tries.push(status);
        let tried = u32::try_from(self.tries.len()).unwrap_or(u32::MAX);
        match self.patience.pause_ms(tried, status, told) {
            None => self.give_up(),
            Some(pause_ms) => {
                self.phase = Phase::Resting;
                vec![Action::Rest { tries: self.tries.clone(), pause_ms }]
            }
        }
    }

    fn again(&mut self) -> Vec<Action> {
        self.phase = Phase::Sent;
        self.status = None;
        self.bytes = 0;
        vec![Action::SendAgain]
    }

    /// The last try counts. A call that was refused once is no `void`: the upstream has seen it.
    fn give_up(&mut self) -> Vec<Action> {
        let ending = match retry::close(&self.tries) {
            Close::Void => Ending::Void,
            _ => Ending::Failed(Charge::Nothing),
        };
        let then = match self.status {
            Some(_) => Then::Reveal(Visible::Whole),
            None => Then::Say(Broken::Unreachable),
        };
        self.settle(ending, then, false)
    }

    /// The answer began and will not end.
    fn cut(&mut self, abort: bool) -> Vec<Action> {
        let refused = self.status.is_some_and(|s| !is_answer(s));
        let charge = if refused { Charge::Nothing } else { Charge::Metered };
        self.settle(Ending::Failed(charge), Then::Say(Broken::Cut), abort)
    }

    fn settle(&mut self, ending: Ending, then: Then, abort: bool) -> Vec<Action> {
        let error = match (then, ending) {
            (Then::Say(broken), _) => Some(broken.code()),
            (_, Ending::Failed(_)) => Some("upstream_error"),
            _ => None,
        };
        self.phase = Phase::Settling(Settling { ending, error, then, unclear: false });
        let settle = Action::Settle { ending, error };
        if abort { vec![Action::Abort, settle] } else { vec![settle] }
    }

    fn settled(&mut self, s: Settling, result: Result<(), store::Error>) -> Vec<Action> {
        match result {
            Ok(()) => self.recorded(s),
            // The try whose outcome was unclear had been committed: this entry has no other closer,
            // and a sweep or a correction leaves another state.
            Err(store::Error::Engine(engine::Error::AlreadySettled { state, .. }))
                if s.unclear && state == s.ending.state().name() =>
            {
                self.recorded(s)
            }
            Err(store::Error::Engine(_)) => {
                self.phase = Phase::Over;
                self.end(End::Broken { why: Broken::Overtaken, state: Some(State::Unknown) })
            }
            Err(e) => {
                let unclear = s.unclear || matches!(e, store::Error::CommitUnknown { .. });
                self.phase = Phase::Settling(Settling { unclear, ..s });
                let mut actions = self.end_unrecorded();
                actions.push(Action::SettleAgain { ending: s.ending, error: s.error });
                actions
            }
        }
    }

    /// Durable: now it may be visible. Clients that were told an error before keep it.
    fn recorded(&mut self, s: Settling) -> Vec<Action> {
        self.phase = Phase::Over;
        let state = s.ending.state();
        match s.then {
            Then::Reveal(visible) => {
                if self.progress.end.is_none() {
                    self.progress.visible = visible;
                }
                self.end(End::Answered(state))
            }
            Then::Say(why) => self.end(End::Broken { why, state: Some(state) }),
        }
    }

    fn end_unrecorded(&mut self) -> Vec<Action> {
        self.end(End::Broken { why: Broken::NotRecorded, state: None })
    }

    fn end(&mut self, end: End) -> Vec<Action> {
        if self.progress.end.is_some() {
            return Vec::new();
        }
        self.progress.end = Some(end);
        vec![Action::Tell(self.progress)]
    }

    fn reveal(&mut self) -> Vec<Action> {
        self.progress.visible = Visible::Frames(self.frames);
        vec![Action::Tell(self.progress)]
    }
}

/// Other statuses are no answer and are not billed: errors, and redirects, which are never followed.
fn is_answer(status: u16) -> bool {
    (200..300).contains(&status)
}

#[cfg(test)]
mod tests;
