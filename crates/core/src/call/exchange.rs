//! An exchange: the upstream's side of one entry this process opened, from sending to settled.
//!
//! It runs to its end whatever becomes of the clients: the answer outlives the agent. It decides
//! how the entry closes and how much of the answer may be seen meanwhile.

use crate::{
    call::{Broken, Visible},
    engine::{
        self,
        settle::{Bill, Close},
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
    /// An exchange whose request is about to be sent. Its entry is open and durable.
    pub fn new() -> Exchange {
        Exchange {
            phase: Phase::Sent,
            status: None,
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
mod tests {
    use super::{Action as A, Charge::*, Ending as E, Event as Ev, Frame as F, *};

    const STREAM: Ev = Ev::Head { status: 200, streamed: true };
    const JSON: Ev = Ev::Head { status: 200, streamed: false };
    const WHOLE: Ev = Ev::BodyEnd { len: 10, readable: true };

    fn frame(frame: F) -> Ev {
        Ev::Frame { frame, len: 1 }
    }

    fn full() -> store::Error {
        store::Error::Full { why: "disk".into() }
    }

    fn engine(e: engine::Error) -> store::Error {
        store::Error::Engine(e)
    }

    /// Feeds `events`, and compares what clients knew before the settlement, the settlement, and
    /// what they know once it is durable.
    fn check(events: &[Ev], before: Visible, ending: Ending, after: Progress) {
        let mut x = Exchange::new();
        let mut actions = Vec::new();
        for e in events {
            actions.extend(x.on(e.clone()));
        }
        assert_eq!(x.progress(), Progress { visible: before, end: None }, "{events:?}");
        let settles: Vec<Ending> = actions
            .iter()
            .filter_map(|a| match a {
                A::Settle { ending, .. } => Some(*ending),
                _ => None,
            })
            .collect();
        assert_eq!(settles, [ending], "{events:?}");
        x.on(Ev::Settled(Ok(())));
        assert_eq!(x.progress(), after, "{events:?}");
        assert!(x.is_over() && !x.is_stuck(), "{events:?}");
    }

    fn answered(visible: Visible, state: State) -> Progress {
        Progress { visible, end: Some(End::Answered(state)) }
    }

    fn broken(visible: Visible, why: Broken, state: State) -> Progress {
        Progress { visible, end: Some(End::Broken { why, state: Some(state) }) }
    }

    #[test]
    fn a_json_answer_is_invisible_until_it_is_settled() {
        use Visible::{Nothing, Whole};
        let status = |status| Ev::Head { status, streamed: false };
        check(&[JSON, WHOLE], Nothing, E::Done, answered(Whole, State::Done));
        for s in [301, 400, 429, 500, 529] {
            check(&[status(s), WHOLE], Nothing, E::Failed(Nothing_), answered(Whole, State::Failed));
        }
        let garbage = Ev::BodyEnd { len: 10, readable: false };
        check(&[JSON, garbage.clone()], Nothing, E::Failed(Metered), answered(Whole, State::Failed));
        check(&[status(500), garbage], Nothing, E::Failed(Nothing_), answered(Whole, State::Failed));
    }

    #[test]
    fn of_a_stream_all_before_its_first_stop_is_visible() {
        use Visible::{Frames, Nothing, Whole};
        for (frames, before) in [
            (vec![F::Data, F::Ping, F::Data, F::Stop, F::Data, F::Swallowed, F::Terminal], Frames(3)),
            (vec![F::Ping, F::Terminal], Frames(1)),
            (vec![F::Terminal], Nothing),
            (vec![F::Swallowed, F::Terminal], Nothing),
            (vec![F::Stop, F::Ping, F::Terminal, F::Data], Nothing),
        ] {
            let events: Vec<Ev> = [STREAM].into_iter().chain(frames.into_iter().map(frame)).collect();
            check(&events, before, E::Done, answered(Whole, State::Done));
        }
    }

    #[test]
    fn a_stream_without_its_terminal_event_has_failed_and_its_stop_is_never_shown() {
        use Visible::{Frames, Nothing};
        let cuts = [Ev::StreamEnd, Ev::UpstreamError(Failure::AfterSend), Ev::Timeout(Silence::Idle)];
        for cut in cuts {
            let failed = E::Failed(Metered);
            let end = |visible| broken(visible, Broken::Cut, State::Failed);
            check(&[STREAM, cut.clone()], Nothing, failed, end(Nothing));
            check(&[STREAM, frame(F::Data), cut.clone()], Frames(1), failed, end(Frames(1)));
            let stopped = [STREAM, frame(F::Data), frame(F::Stop), frame(F::Data), cut.clone()];
            check(&stopped, Frames(1), failed, end(Frames(1)));
            check(&[JSON, cut.clone()], Nothing, failed, end(Nothing));
            let refused = Ev::Head { status: 500, streamed: true };
            check(&[refused, cut], Nothing, E::Failed(Nothing_), end(Nothing));
        }
    }

    #[test]
    fn the_providers_own_error_event_is_shown_once_recorded_but_not_behind_a_stop() {
        use Visible::Frames;
        let failed = E::Failed(Metered);
        let plain = [STREAM, frame(F::Data), frame(F::Error), frame(F::Terminal)];
        check(&plain, Frames(1), failed, answered(Frames(2), State::Failed));
        let stopped = [STREAM, frame(F::Data), frame(F::Stop), frame(F::Error)];
        check(&stopped, Frames(1), failed, broken(Frames(1), Broken::Cut, State::Failed));
    }

    #[test]
    fn what_never_left_is_void_and_what_left_unanswered_is_unknown() {
        use Visible::Nothing;
        let never = Ev::UpstreamError(Failure::BeforeSend);
        check(&[never], Nothing, E::Void, broken(Nothing, Broken::Unreachable, State::Void));
        for silent in [
            Ev::UpstreamError(Failure::AfterSend),
            Ev::StreamEnd,
            Ev::Timeout(Silence::FirstByte),
            Ev::Timeout(Silence::Suspend),
        ] {
            check(&[silent], Nothing, E::Unknown, broken(Nothing, Broken::NoAnswer, State::Unknown));
        }
    }

    #[test]
    fn a_silent_upstream_is_dropped() {
        let mut x = Exchange::new();
        assert_eq!(x.on(Ev::Timeout(Silence::FirstByte))[0], A::Abort);
    }

    #[test]
    fn no_usage_is_the_reservation_and_never_nothing() {
        for (ending, close) in [
            (E::Done, Close::Done(Bill::Reservation)),
            (E::Failed(Metered), Close::Failed(Bill::Reservation)),
            (E::Failed(Nothing_), Close::Failed(Bill::Nothing)),
            (E::Void, Close::Void),
            (E::Unknown, Close::Unknown),
        ] {
            assert_eq!(ending.close(None), close);
        }
    }

    #[test]
    fn an_answer_the_store_cannot_take_is_an_error_to_its_clients_and_is_kept_until_it_can() {
        let mut x = Exchange::new();
        x.on(JSON);
        x.on(WHOLE);
        let told = Progress {
            visible: Visible::Nothing,
            end: Some(End::Broken { why: Broken::NotRecorded, state: None }),
        };
        let again = A::SettleAgain { ending: E::Done, error: None };
        assert_eq!(x.on(Ev::Settled(Err(full()))), [A::Tell(told), again.clone()]);
        assert!(x.is_stuck() && !x.is_over());
        assert_eq!(x.on(Ev::Settled(Err(full()))), [again]);
        assert_eq!(x.on(Ev::Settled(Ok(()))), []);
        assert!(x.is_over() && !x.is_stuck());
        assert_eq!(x.progress(), told);
    }

    #[test]
    fn a_slow_settlement_is_an_error_to_its_clients_and_ends_when_it_ends() {
        let mut x = Exchange::new();
        x.on(JSON);
        x.on(WHOLE);
        assert_eq!(x.on(Ev::SettleSlow).len(), 1);
        assert!(x.is_stuck());
        assert_eq!(x.on(Ev::SettleSlow), []);
        assert_eq!(x.on(Ev::Settled(Ok(()))), []);
        assert!(x.is_over());
    }

    #[test]
    fn a_settlement_found_committed_after_an_unclear_try_counts() {
        let settled = |state| engine(engine::Error::AlreadySettled { seq: 1, state });
        let unknown = || store::Error::CommitUnknown { why: "gone".into() };
        for (first, second, end) in [
            (Some(unknown()), settled("done"), None),
            (Some(unknown()), settled("unknown"), None),
            (None, settled("done"), Some(Broken::Overtaken)),
            (None, engine(engine::Error::AlreadyTaken { seq: 1 }), Some(Broken::Overtaken)),
        ] {
            let mut x = Exchange::new();
            x.on(JSON);
            x.on(WHOLE);
            let had_first = first.is_some();
            if let Some(e) = first {
                x.on(Ev::Settled(Err(e)));
            }
            x.on(Ev::Settled(Err(second)));
            assert!(x.is_over());
            let why = match x.progress().end {
                Some(End::Broken { why, .. }) => why,
                other => panic!("{other:?}"),
            };
            assert_eq!(why, end.unwrap_or(Broken::NotRecorded), "{had_first}");
        }
    }

    #[test]
    fn events_after_the_end_change_nothing() {
        let mut x = Exchange::new();
        x.on(JSON);
        x.on(WHOLE);
        x.on(Ev::Settled(Ok(())));
        let before = x.progress();
        for late in [frame(F::Data), WHOLE, Ev::StreamEnd, Ev::SettleSlow, Ev::Settled(Err(full()))] {
            assert_eq!(x.on(late), []);
        }
        assert_eq!(x.progress(), before);
    }

    use Charge::Nothing as Nothing_;
}
