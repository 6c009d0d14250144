//! Connection: one client's request, from its arrival to its last byte.
//!
//! A connection asks for admission, waits where it must, and receives an answer: of a call it opened, of one in
//! flight, or a recorded one. The client may leave at any time; a call that was opened goes on without it.

use crate::{
    call::{
        Refused, Visible,
        desk::ForClient,
        exchange::{End, Progress},
    },
    engine::Admission,
    envelope::Refusal,
    journal::State,
    store,
    words::{InstanceNo, Seq},
};

/// Event that the host reports to a connection.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request was read whole. `stuck`: whether an earlier answer of this process still waits to be recorded.
    Arrived {
        stuck: bool,
    },
    /// The connection has its turn among identical requests (`Taken::line_up`, `Taken::leave_line`).
    Turn,
    Admitted(Result<Admission, store::Error>),
    /// The process was admitted as an instance that it has left since.
    AdmittedBefore(Admission),
    /// The connection may ask for admission again: room in a budget or a recorded answer may have become free, or the
    /// connection is now the first of its queue.
    MayRetry,
    /// The longest wait for admission (`--admit-wait`) is over.
    WaitOver,
    /// Progress of the exchange the connection is attached to: once when it attaches, then at every change.
    Progress(Progress),
    /// The exchange to attach to is over already. Its outcome is in the store's entry.
    NotHere,
    /// State of the entry that the connection polls.
    Polled(Result<State, store::Error>),
    /// The recorded answer is in memory, or cannot be read.
    Loaded(Result<(), store::Error>),
    /// The whole answer, with a clean end, was flushed to the client.
    Delivered,
    ClientGone,
}

/// Action of a connection. The desk carries out the actions on the registries, and has its host carry out the others, in
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Call `Taken::line_up`; feed `Turn` when the connection has it.
    LineUp,
    /// Call `Taken::leave_line`; feed `Turn` to the connection it returns.
    LeaveLine,
    /// Have the host admit by the registries' state at this moment, and call `Waiters::decides`.
    Admit,
    /// Call `Waiters::enqueue`, and have the host wait.
    Enqueue,
    /// Call `Waiters::dequeue`, feed `MayRetry` to the connections it returns, and have the host wait no more.
    Dequeue,
    /// Call `Taken::take`.
    Take(Seq),
    /// Call `Taken::give_back`; feed `MayRetry` to the connections that `Waiters::wake_identical` returns.
    GiveBack,
    /// Call `Taken::mark_error`: the request got an error and left no entry. A retry of it is then decided like a first
    /// request.
    MarkError,
    /// Call `Taken::retried`.
    Retried,
    /// An answer that is given back to the store may yet serve a request at another process: a `GiveBack` here follows,
    /// unless the connection never took the answer here. A mark always comes before `GiveBack`.
    Host(ForClient),
}

/// State machine of one client's request. See the module.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Instance of this process.
    instance: InstanceNo,
    retry_count: u32,
    /// Whether the client marked the request as a retry: by `x-stainless-retry-count` above 0 or an
    /// `Idempotency-Key`.
    marked: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    /// The connection waits for its turn among identical requests. `queued`: it also waits in its run's queue
    /// for room in a budget.
    InLine {
        queued: bool,
        expired: bool,
    },
    /// An admission is being decided.
    Admitting {
        queued: bool,
        woken: bool,
        expired: bool,
    },
    /// The client left while its admission was being decided.
    AdmittingForNobody {
        queued: bool,
    },
    /// The connection waits in its run's queue for room in a budget.
    Waiting,
    Receiving {
        seq: Seq,
        opened: bool,
        sent: Visible,
    },
    Polling(Seq),
    Loading(Seq),
    /// The whole answer is sent, and its delivery is not known yet. `mark` is the mark of a delivery.
    Flushing {
        mark: Option<(Seq, bool)>,
    },
    Over,
}

impl Connection {
    /// Creates the connection of a request with this retry count and, if it has one, an idempotency key.
    pub fn new(instance: InstanceNo, retry_count: u32, has_idempotency_key: bool) -> Connection {
        Connection {
            instance,
            retry_count,
            marked: retry_count > 0 || has_idempotency_key,
            phase: Phase::New,
        }
    }

    /// Returns whether the connection has ended: no event changes it any more.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Feeds an event: the only entry point. Events that come too late change nothing.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match (self.phase, event) {
            (_, Event::ClientGone) => self.client_gone(),
            (Phase::New, Event::Arrived { stuck: true }) => self.refuse(Refused::Stuck),
            (Phase::New, Event::Arrived { stuck: false }) => self.line_up(false),
            (Phase::InLine { queued, expired }, Event::Turn) => {
                self.phase = Phase::Admitting { queued, woken: false, expired };
                vec![Action::Admit]
            }
            (Phase::InLine { queued, .. }, Event::WaitOver) => {
                self.phase = Phase::InLine { queued, expired: true };
                Vec::new()
            }
            (Phase::Admitting { queued, expired, .. }, Event::MayRetry) => {
                self.phase = Phase::Admitting { queued, woken: true, expired };
                Vec::new()
            }
            (Phase::Admitting { queued, woken, .. }, Event::WaitOver) => {
                self.phase = Phase::Admitting { queued, woken, expired: true };
                Vec::new()
            }
            (Phase::Admitting { queued, woken, expired }, Event::Admitted(result)) => match result {
                Ok(Admission::Wait { refusal }) => self.wait(queued, woken, expired, refusal),
                other => self.admitted(queued, other),
            },
            (Phase::AdmittingForNobody { queued }, Event::Admitted(result)) => {
                self.admitted_for_nobody(queued, result.ok())
            }
            (Phase::AdmittingForNobody { queued }, Event::AdmittedBefore(admission)) => {
                self.admitted_for_nobody(queued, Some(admission))
            }
            (Phase::Admitting { queued, .. }, Event::AdmittedBefore(admission)) => {
                let mut actions = leave(queued);
                actions.extend(give_up(&admission));
                actions.extend(self.line_up(false));
                actions
            }
            (Phase::Waiting, Event::MayRetry) => self.line_up(true),
            (Phase::Waiting, Event::WaitOver) => {
                // Decide once more: room that came back unnoticed elsewhere still serves.
                self.phase = Phase::InLine { queued: true, expired: true };
                vec![Action::LineUp]
            }
            (Phase::Receiving { seq, opened, sent }, Event::Progress(p)) => {
                self.progress(seq, opened, sent, p)
            }
            (Phase::Receiving { seq, sent: Visible::Nothing, opened: false }, Event::NotHere) => {
                let mut actions = vec![Action::Host(ForClient::GiveBack(seq))];
                actions.extend(self.start_again());
                actions
            }
            (Phase::Polling(seq), Event::Polled(result)) => match result {
                Ok(State::Open) => vec![Action::Host(ForClient::Poll(seq))],
                Ok(State::Done) => {
                    self.phase = Phase::Loading(seq);
                    vec![Action::Host(ForClient::Load(seq))]
                }
                Ok(State::Failed | State::Void | State::Unknown) => self.start_again(),
                Err(e) => self.lose(seq, Refused::of(e)),
            },
            (Phase::Loading(seq), Event::Loaded(result)) => match result {
                Ok(()) => {
                    self.phase = Phase::Flushing { mark: Some((seq, true)) };
                    vec![Action::Host(ForClient::Send(Visible::Whole)), Action::Host(ForClient::Finish)]
                }
                // An answer that cannot be read is never bought again silently.
                Err(e) => self.lose(seq, Refused::of(e)),
            },
            (Phase::Flushing { mark }, Event::Delivered) => self.delivered(mark),
            _ => Vec::new(),
        }
    }

    fn line_up(&mut self, queued: bool) -> Vec<Action> {
        self.phase = Phase::InLine { queued, expired: false };
        vec![Action::LineUp]
    }

    fn admitted(&mut self, queued: bool, result: Result<Admission, store::Error>) -> Vec<Action> {
        let refused = match result {
            Ok(Admission::Go { opening, cap, .. }) => {
                let seq = opening.seq;
                let phase = Phase::Receiving { seq, opened: true, sent: Visible::Nothing };
                return self.take(seq, phase, queued, ForClient::Open { opening, cap });
            }
            Ok(Admission::Join { seq, instance }) if instance == self.instance => {
                let phase = Phase::Receiving { seq, opened: false, sent: Visible::Nothing };
                return self.take(seq, phase, queued, ForClient::Attach(seq));
            }
            Ok(Admission::Join { seq, .. }) => {
                return self.take(seq, Phase::Polling(seq), queued, ForClient::Poll(seq));
            }
            Ok(Admission::Replay { seq }) => {
                return self.take(seq, Phase::Loading(seq), queued, ForClient::Load(seq));
            }
            Ok(Admission::Refused(refusal)) => Refused::Budget(refusal),
            Ok(Admission::Wait { refusal }) => Refused::AdmissionTimeout(refusal),
            Err(e) => Refused::of(e),
        };
        let mut actions = leave(queued);
        actions.extend(self.refuse(refused));
        actions
    }

    /// Takes an answer before the line moves, so that the next identical request sees it.
    fn take(&mut self, seq: Seq, phase: Phase, queued: bool, then: ForClient) -> Vec<Action> {
        self.phase = phase;
        let mut actions = vec![Action::Take(seq)];
        actions.extend(self.marked.then_some(Action::Retried));
        actions.extend(leave(queued));
        actions.push(Action::Host(then));
        actions
    }

    fn wait(&mut self, queued: bool, woken: bool, expired: bool, refusal: Refusal) -> Vec<Action> {
        if expired && !woken {
            return self.admitted(queued, Ok(Admission::Wait { refusal }));
        }
        let mut actions = Vec::new();
        actions.extend((!queued).then_some(Action::Enqueue));
        if woken {
            // Room came back while this was being decided: the connection keeps its turn and asks again.
            self.phase = Phase::Admitting { queued: true, woken: false, expired };
            actions.push(Action::Admit);
        } else {
            self.phase = Phase::Waiting;
            actions.push(Action::LeaveLine);
        }
        actions
    }

    fn admitted_for_nobody(&mut self, queued: bool, admission: Option<Admission>) -> Vec<Action> {
        self.phase = Phase::Over;
        let mut actions = leave(queued);
        actions.extend(admission.as_ref().and_then(give_up));
        if !matches!(admission, Some(Admission::Go { .. })) {
            actions.extend(self.no_entry());
        }
        actions
    }

    fn progress(&mut self, seq: Seq, opened: bool, sent: Visible, p: Progress) -> Vec<Action> {
        let unsent = sent == Visible::Nothing;
        // A joiner that has seen nothing asks anew, as it would have without the join.
        let failed = match p.end {
            Some(End::Answered(state)) => state != State::Done,
            Some(End::Broken { state, .. }) => state.is_some(),
            None => false,
        };
        if failed && !opened && unsent {
            return self.start_again();
        }
        let mut actions = Vec::new();
        // A broken answer is not begun for the client: a plain error can be retried.
        let broken = matches!(p.end, Some(End::Broken { .. }));
        if p.visible > sent && !(broken && unsent) {
            self.phase = Phase::Receiving { seq, opened, sent: p.visible };
            actions.push(Action::Host(ForClient::Send(p.visible)));
        }
        match p.end {
            None => {}
            Some(End::Answered(state)) => {
                self.phase = Phase::Flushing { mark: (state == State::Done).then_some((seq, !opened)) };
                actions.push(Action::Host(ForClient::Finish));
            }
            Some(End::Broken { why, state }) => {
                self.phase = Phase::Over;
                // Not recorded yet: once it is, it may serve.
                actions.extend(state.is_none().then_some(Action::Host(ForClient::GiveBack(seq))));
                actions.push(Action::GiveBack);
                actions.push(if unsent {
                    Action::Host(ForClient::Refuse(Refused::Upstream(why)))
                } else {
                    Action::Host(ForClient::BreakOff(why))
                });
            }
        }
        actions
    }

    /// Ends the connection after its client received the complete answer. `mark` names the entry to mark as
    /// delivered, and whether the answer was replayed; `None` marks none.
    fn delivered(&mut self, mark: Option<(Seq, bool)>) -> Vec<Action> {
        self.phase = Phase::Over;
        let mark = mark
            .map(|(seq, replayed)| Action::Host(ForClient::Mark { seq, count: self.retry_count, replayed }));
        mark.into_iter().chain([Action::GiveBack]).collect()
    }

    /// Gives up an answer that came to nothing, and lines the connection up again with the identical
    /// requests.
    fn start_again(&mut self) -> Vec<Action> {
        let mut actions = vec![Action::GiveBack];
        actions.extend(self.line_up(false));
        actions
    }

    fn lose(&mut self, seq: Seq, refused: Refused) -> Vec<Action> {
        let mut actions = vec![Action::Host(ForClient::GiveBack(seq)), Action::GiveBack];
        actions.extend(self.refuse(refused));
        actions
    }

    /// Returns the mark of an error that left no entry for a retry to stand for. Without the mark the retry would
    /// be given the answer of an identical request. A retry that comes to nothing leaves the entry it stood for as it
    /// was, and is no second error.
    fn no_entry(&self) -> Option<Action> {
        (self.retry_count == 0).then_some(Action::MarkError)
    }

    fn refuse(&mut self, refused: Refused) -> Vec<Action> {
        self.phase = Phase::Over;
        let mark = if refused.should_retry() { self.no_entry() } else { None };
        mark.into_iter().chain([Action::Host(ForClient::Refuse(refused))]).collect()
    }

    fn client_gone(&mut self) -> Vec<Action> {
        let (next, actions) = match self.phase {
            Phase::New | Phase::Over => (Phase::Over, vec![]),
            Phase::InLine { queued, .. } => {
                (Phase::Over, leave(queued).into_iter().chain(self.no_entry()).collect())
            }
            Phase::Admitting { queued, .. } | Phase::AdmittingForNobody { queued } => {
                (Phase::AdmittingForNobody { queued }, vec![])
            }
            Phase::Waiting => (Phase::Over, [Action::Dequeue].into_iter().chain(self.no_entry()).collect()),
            Phase::Receiving { seq, .. }
            | Phase::Polling(seq)
            | Phase::Loading(seq)
            | Phase::Flushing { mark: Some((seq, _)) } => {
                (Phase::Over, vec![Action::Host(ForClient::GiveBack(seq)), Action::GiveBack])
            }
            Phase::Flushing { mark: None } => (Phase::Over, vec![Action::GiveBack]),
        };
        self.phase = next;
        actions
    }
}

/// Returns what undoes an admission of which nothing has been done yet; `None` if it did nothing.
fn give_up(admission: &Admission) -> Option<Action> {
    match admission {
        Admission::Go { opening, .. } => Some(Action::Host(ForClient::Drop(*opening))),
        Admission::Replay { seq } | Admission::Join { seq, .. } => {
            Some(Action::Host(ForClient::GiveBack(*seq)))
        }
        Admission::Wait { .. } | Admission::Refused(_) => None,
    }
}

fn leave(queued: bool) -> Vec<Action> {
    let mut actions = vec![Action::LeaveLine];
    actions.extend(queued.then_some(Action::Dequeue));
    actions
}

#[cfg(test)]
mod tests;
