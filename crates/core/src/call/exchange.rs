//! Exchange: the upstream's side of one entry that this process opened, from sending to settled.
//!
//! An exchange runs to its end whatever happens to the clients: the answer outlives the agent. It decides how the
//! entry closes, how much of the answer is visible meanwhile, and whether a request that was refused or did not
//! arrive is sent once more under the same entry.

use crate::{
    call::{Broken, FailedTry, Patience, Visible, desk::ForExchange},
    engine::{self, Bill, Close, call::settle},
    journal::State,
    store,
};

/// Kind of a stream's frame, as its dialect reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A piece of the answer.
    Data,
    /// A frame that only keeps the connection open: a comment, a ping, an empty delta.
    Ping,
    /// A frame that is not forwarded: usage that the client had not asked for.
    Swallowed,
    /// A frame that says why the answer stops. A client may take this frame for the end.
    Stop,
    /// The event after which the answer is whole. It can be the stop as well.
    Terminal,
    /// The provider's own error event after a 2xx, or a terminal event that says the answer failed.
    Error,
}

impl Frame {
    /// Returns whether the frame carries a part of the answer.
    pub fn gets_on(self) -> bool {
        match self {
            Frame::Ping => false,
            Frame::Data | Frame::Swallowed | Frame::Stop | Frame::Terminal | Frame::Error => true,
        }
    }
}

/// Point at which the upstream's connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No byte of the request had left: the provider cannot have seen it.
    BeforeSend,
    AfterSend,
}

/// Wait for the upstream that timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// No response head came in time.
    FirstByte,
    /// A part of the answer came, and then no more of it.
    Idle,
    /// Nothing came for 30 s after the machine woke up: the connection is dead without notice.
    Suspend,
}

/// Event that the host reports to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The final response head. `streamed`: the answer is of frames (an event stream, NDJSON, a JSON array
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
    /// The whole body of an answer that is no stream, `len` bytes; `readable` when the dialect could parse it.
    BodyEnd {
        len: u64,
        readable: bool,
    },
    /// The stream's connection ended cleanly.
    StreamEnd,
    UpstreamError(Failure),
    Timeout(Silence),
    /// The client left before the request was sent, and it will not be sent.
    NotSent,
    /// No connection was made to the upstream. Another try is possible.
    Unreachable(FailedTry),
    /// The whole body, `len` bytes, of an answer other than 2xx, after which another try is possible.
    Refused {
        len: u64,
        told: FailedTry,
    },
    /// The pause of `Rest` is over.
    Rested,
    /// Outcome of `AskAgain`: whether the next try may leave.
    MayLeave(Result<bool, store::Error>),
    /// All clients of the call left while it rested.
    Abandoned,
    /// Outcome of the last `Settle` or `SettleAgain`.
    Settled(Result<(), store::Error>),
    /// The settlement takes longer than `--settle-wait`.
    SettleSlow,
}

/// Action for an exchange, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Feed the progress to every attached connection.
    Tell(Progress),
    /// A call whose last client has left does not rest: feed `Abandoned`.
    Host(ForExchange),
}

/// Error recorded in the entry of a call that was never sent.
const NOT_SENT: Option<&str> = Some("its client left before it was sent");

/// Outcome of a call. The call's journal entry is closed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The answer is whole.
    Done,
    /// The upstream sent an error status, or an answer that is not whole.
    Failed(Charge),
    /// The request was never sent: nothing is charged.
    Void,
    /// The request may have reached the provider, and its outcome is not known.
    Unknown,
}

/// Amount that a failed call is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The call is charged for the usage that the provider reported, or at its reservation if no usage
    /// arrived.
    Metered,
    Nothing,
}

impl Ending {
    /// Converts the ending to the engine's `Close`. `metered` is the bill of the provider's usage, if usage arrived
    /// that covers the whole answer so far: Anthropic's `message_start` alone does not.
    pub fn close(self, metered: Option<Bill>) -> Close {
        // Without usage the reservation stands, never zero: visible bytes miss hidden reasoning.
        let bill = || metered.unwrap_or(Bill::Reservation);
        match self {
            Ending::Done => Close::Done(bill()),
            Ending::Failed(Charge::Metered) => Close::Failed(bill()),
            Ending::Failed(Charge::Nothing) => Close::Failed(Bill::Nothing),
            Ending::Void => Close::Void,
            Ending::Unknown => Close::Unknown,
        }
    }

    /// Returns the state of the entry after this ending.
    pub fn state(self) -> State {
        match self {
            Ending::Done => State::Done,
            Ending::Failed(_) => State::Failed,
            Ending::Void => State::Void,
            Ending::Unknown => State::Unknown,
        }
    }
}

/// Part of an answer that its clients may be shown so far. The rest is kept back until it is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub visible: Visible,
    pub end: Option<End>,
}

/// End of an exchange, as its clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The visible part is the provider's whole answer: `Done`, or `Failed` for an error status, the provider's own
    /// error event, or an unreadable body.
    Answered(State),
    /// Clients get an error of Outlast's own, `why`. `state` is how the entry closed; `None` while that is not
    /// recorded.
    Broken { why: Broken, state: Option<State> },
}

/// State machine of an upstream call. See the module.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    phase: Phase,
    status: Option<u16>,
    patience: Patience,
    /// Whether the last try failed in an outage, so that the call is held.
    is_held: bool,
    /// HTTP statuses of the tries that have ended, oldest first; `None` where the upstream was not reached.
    tries: Vec<Option<u16>>,
    frames: usize,
    /// Index of the first frame kept back from clients until the settlement is durable; later frames are kept
    /// back with it. `None`: no frame is.
    held_from: Option<usize>,
    bytes: u64,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Sent,
    /// The head came. `streamed` is set only for 2xx.
    Answering {
        streamed: bool,
    },
    /// The call rests between two tries.
    Resting,
    /// The store is recording that the next try is about to be sent.
    Asking,
    Settling(Settling),
    Over,
}

/// Settlement that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settling {
    ending: Ending,
    error: Option<&'static str>,
    /// Part of the answer, or error, that clients are shown once the settlement is durable.
    then: Then,
    /// Whether an earlier submission of this settlement may have been committed.
    unclear: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Clients are shown this part of the answer.
    Reveal(Visible),
    Say(Broken),
}

impl Exchange {
    /// Creates the exchange of a request that is about to be sent; failed tries are retried as `patience` allows. Its entry is
    /// open and durable.
    pub fn patient(patience: Patience) -> Exchange {
        Exchange { patience, ..Exchange::default() }
    }

    /// Returns the progress for a connection that attaches now.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the upstream's HTTP status; `None` before its head came.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Returns the number of bytes of the answer so far, which are held in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the exchange has ended: its outcome is recorded, or never will be. The host then drops it.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns whether the answer has come and cannot be recorded. While that is so, the process answers new calls with
    /// 503.
    pub fn is_stuck(&self) -> bool {
        matches!(self.phase, Phase::Settling(_)) && self.progress.end.is_some()
    }

    /// Returns whether the call rests because its upstream has an outage.
    pub fn is_held(&self) -> bool {
        self.is_held && self.phase == Phase::Resting
    }

    /// Returns whether a call that rests in an outage may rest until `at_ms` milliseconds after its first try.
    pub fn may_rest_until(&self, at_ms: u64) -> bool {
        at_ms <= self.patience.hold_ms
    }

    /// Feeds an event: the only entry point. Late events, such as a frame after the end, change nothing.
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
            (Phase::Sent, Event::NotSent) => {
                self.settle_as(Ending::Void, NOT_SENT, Then::Say(Broken::Unreachable))
            }
            (Phase::Sent, Event::UpstreamError(Failure::AfterSend)) => {
                self.settle(Ending::Unknown, Then::Say(Broken::NoAnswer), false)
            }
            (Phase::Sent, Event::Unreachable(told)) => self.try_over(None, told),
            // An answer that may have been billed is no refusal, whatever the host reports.
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
                vec![Action::Host(ForExchange::AskAgain { tries: self.tries.clone() })]
            }
            (Phase::Asking, Event::MayLeave(Ok(true))) => self.again(),
            // Fail closed: a try that cannot be recorded on disk does not leave.
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
        // Clients are told nothing yet: the head goes with the first frame. An upstream that breaks before it
        // is thus a clean error to the opener, and a joiner can start again.
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
                // After a stop, the provider's own error cannot be shown: the held frames before it would read as a
                // clean end.
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
            // The answer was billed but cannot be parsed: it is delivered as it came, and not replayed.
            _ if !readable => Ending::Failed(Charge::Metered),
            _ => Ending::Done,
        };
        self.settle(ending, Then::Reveal(Visible::Whole), false)
    }

    /// Handles the end of a try that was not sent, or that the upstream refused with `status`: the call rests
    /// before another try, or is given up.
    fn try_over(&mut self, status: Option<u16>, told: FailedTry) -> Vec<Action> {
        self.tries.push(status);
        self.is_held = self.patience.holds(told);
        let tried = u32::try_from(self.tries.len()).unwrap_or(u32::MAX);
        match self.patience.pause_ms(tried, status, told) {
            None => self.give_up(),
            Some(pause_ms) => {
                self.phase = Phase::Resting;
                vec![Action::Host(ForExchange::Rest { tries: self.tries.clone(), pause_ms })]
            }
        }
    }

    fn again(&mut self) -> Vec<Action> {
        self.phase = Phase::Sent;
        self.status = None;
        self.bytes = 0;
        vec![Action::Host(ForExchange::SendAgain)]
    }

    /// Closes the call by its last try. A call that was refused once is not `void`: the upstream has seen it.
    fn give_up(&mut self) -> Vec<Action> {
        let ending = match settle::close(&self.tries) {
            Close::Void => Ending::Void,
            _ => Ending::Failed(Charge::Nothing),
        };
        let then = match self.status {
            _ if self.is_held => Then::Say(Broken::Outage),
            Some(_) => Then::Reveal(Visible::Whole),
            None => Then::Say(Broken::Unreachable),
        };
        self.settle(ending, then, false)
    }

    /// Settles a call whose answer began and was cut off. `abort`: also drops the upstream's connection.
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
        let mut actions: Vec<Action> =
            abort.then_some(Action::Host(ForExchange::Abort)).into_iter().collect();
        actions.extend(self.settle_as(ending, error, then));
        actions
    }

    fn settle_as(&mut self, ending: Ending, error: Option<&'static str>, then: Then) -> Vec<Action> {
        self.phase = Phase::Settling(Settling { ending, error, then, unclear: false });
        vec![Action::Host(ForExchange::Settle { ending, error })]
    }

    fn settled(&mut self, s: Settling, result: Result<(), store::Error>) -> Vec<Action> {
        match result {
            Ok(()) => self.recorded(s),
            // The submission with the unclear outcome had been committed: this entry has no other closer,
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
                actions.push(Action::Host(ForExchange::SettleAgain { ending: s.ending, error: s.error }));
                actions
            }
        }
    }

    /// Shows a durable answer to the clients. A client that was told an error before keeps the error.
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

/// Returns whether the status is an answer. Others are not billed: errors, and redirects, which are never followed.
fn is_answer(status: u16) -> bool {
    (200..300).contains(&status)
}

#[cfg(test)]
mod tests;
