//! The upstream's side: exchanges, what comes back for them, and their settlements.

use outlast_core::{
    call::{
        Exchange, Patience, Told,
        connection::Event as ToConnection,
        exchange::{Action, Ending, Event, Failure, Frame},
    },
    engine::{
        call::{
            retry::Retry,
            settle::{Bill, Settle},
        },
        op::Durability,
    },
    journal::payload::Payload,
    words::id::{AttemptNo, InstanceNo, RunNo, Seq},
};

use super::{Input, Process, Then};
use crate::{
    Bug,
    provider::{Asked, Piece, Provider},
    world::Outside,
};

/// An exchange with what the host keeps for it.
pub struct Live {
    pub machine: Exchange,
    pub key: (RunNo, Seq),
    asked: Asked,
    /// Since when it is tried.
    began_ms: u64,
    /// The instance that opened the entry: it alone may close it, also after registering anew.
    instance: InstanceNo,
    attempt: AttemptNo,
    pub frames: Vec<Frame>,
    metered: Option<Bill>,
    pub attached: Vec<u64>,
    aborted: bool,
    last: Option<(Ending, Option<&'static str>)>,
}

impl Process {
    /// Opens an exchange for an entry; `send` is false when the client is gone: it never leaves.
    pub(super) fn open(&mut self, c: u64, seq: Seq, cap: Option<u64>, send: bool, out: &mut Outside) {
        let Some(client) = self.clients.get(&c) else { return };
        let r = &client.request;
        let (run, bound) = (r.run, r.ask.bound());
        let asked = Asked {
            run,
            seq,
            digest: r.digest(),
            scope: r.scope.clone(),
            stream: r.ask.stream,
            bound,
            cap: cap.unwrap_or(bound.cap),
            priced: r.ask.priced,
        };
        let live = Live {
            machine: Exchange::patient(patience(out)),
            key: (run, seq),
            asked,
            began_ms: out.now_ms(),
            instance: self.instance.unwrap_or_default(),
            attempt: client.attempt.unwrap_or_default(),
            frames: Vec::new(),
            metered: None,
            attached: if send { vec![c] } else { Vec::new() },
            aborted: false,
            last: None,
        };
        self.exchanges.insert((run, seq), live);
        if !send {
            return self.exchange(run, seq, Event::UpstreamError(Failure::BeforeSend), out);
        }
        self.send(run, seq, out);
    }

    fn send(&mut self, run: RunNo, seq: Seq, out: &mut Outside) {
        let Some(asked) = self.exchanges.get(&(run, seq)).map(|live| live.asked.clone()) else { return };
        let pieces = if !out.provider.behaves && out.rng.chance(4) {
            Provider::unreachable()
        } else {
            out.oracle.sent(&out.disk, &asked);
            out.provider.receive(asked, &out.rng)
        };
        let mut at = 0;
        for (wait, piece) in pieces {
            at += wait;
            out.to_process(at, self.index, Input::Upstream { run, seq, piece });
        }
    }

    pub(super) fn attach(&mut self, c: u64, run: RunNo, seq: Seq) -> ToConnection {
        match self.exchanges.get_mut(&(run, seq)) {
            Some(live) => {
                live.attached.push(c);
                ToConnection::Progress(live.machine.progress())
            }
            None => ToConnection::NotHere,
        }
    }

    pub(super) fn upstream(&mut self, run: RunNo, seq: Seq, piece: Piece, out: &mut Outside) {
        let Some(live) = self.exchanges.get_mut(&(run, seq)).filter(|live| !live.aborted) else { return };
        let event = match piece {
            Piece::Usage(bill) => {
                live.metered = Some(bill);
                return;
            }
            Piece::Head { status, streamed } => Event::Head { status, streamed },
            Piece::Frame(frame) => {
                live.frames.push(frame);
                Event::Frame { frame, len: 10 }
            }
            Piece::Body { .. } if live.machine.status().is_some_and(|s| s >= 300) => {
                Event::Refused { len: 100, told: told(live, out) }
            }
            Piece::Body { readable } => Event::BodyEnd { len: 100, readable },
            Piece::End => Event::StreamEnd,
            Piece::Failed(Failure::BeforeSend) => Event::Unreachable(told(live, out)),
            Piece::Failed(failure) => Event::UpstreamError(failure),
            Piece::Silent(silence) => Event::Timeout(silence),
        };
        self.exchange(run, seq, event, out);
    }

    /// Feeds an exchange, carries its actions out, and forgets it when it is over.
    pub(super) fn exchange(&mut self, run: RunNo, seq: Seq, event: Event, out: &mut Outside) {
        let Some(live) = self.exchanges.get_mut(&(run, seq)) else { return };
        out.say(|| format!("process {} exchange {run}/{seq}: {event:?}", self.index));
        for action in live.machine.on(event) {
            match action {
                Action::Settle { ending, error } => {
                    self.settle(run, seq, ending, error, out);
                    out.to_process(30_000, self.index, Input::SettleSlow(run, seq));
                    if out.bug == Some(Bug::ShownBeforeDurable) {
                        self.exchange(run, seq, Event::Settled(Ok(())), out);
                    }
                }
                Action::SettleAgain { .. } => {
                    out.saw("settled again");
                    out.to_process(1_000, self.index, Input::SettleAgain(run, seq));
                }
                Action::Tell(progress) => {
                    let attached = self.exchanges.get(&(run, seq)).map(|live| live.attached.clone());
                    for c in attached.into_iter().flatten() {
                        self.feed(c, ToConnection::Progress(progress), out);
                    }
                }
                Action::Rest { tries, pause_ms } => {
                    out.saw("rested");
                    let Some(retry) = self.retry(run, seq, tries, true) else { return };
                    self.queue(retry, Durability::Committed, Then::Marked, out);
                    out.to_process(pause_ms, self.index, Input::Rested(run, seq));
                }
                Action::AskAgain { tries } => {
                    let Some(retry) = self.retry(run, seq, tries, false) else { return };
                    self.queue(retry, Durability::Synced, Then::MayLeave(run, seq), out);
                    if out.bug == Some(Bug::TriedBeforeDurable) {
                        self.exchange(run, seq, Event::MayLeave(Ok(true)), out);
                    }
                }
                Action::SendAgain => {
                    out.saw("tried again");
                    if let Some(live) = self.exchanges.get_mut(&(run, seq)) {
                        live.frames.clear();
                    }
                    self.send(run, seq, out);
                }
                Action::Abort => {
                    if let Some(live) = self.exchanges.get_mut(&(run, seq)) {
                        live.aborted = true;
                    }
                }
            }
        }
        if self.exchanges.get(&(run, seq)).is_some_and(|live| live.machine.is_over()) {
            self.exchanges.remove(&(run, seq));
        }
    }

    fn retry(&self, run: RunNo, seq: Seq, tries: Vec<Option<u16>>, resting: bool) -> Option<Retry> {
        let live = self.exchanges.get(&(run, seq))?;
        Some(Retry { run, seq, instance: live.instance, tries, resting })
    }

    /// A pause is over: the next try, if anybody waits for it.
    pub(super) fn rested(&mut self, run: RunNo, seq: Seq, out: &mut Outside) {
        let Some(live) = self.exchanges.get(&(run, seq)) else { return };
        let event = match live.attached.iter().any(|c| self.clients.contains_key(c)) {
            true => Event::Rested,
            false => Event::Abandoned,
        };
        self.exchange(run, seq, event, out);
    }

    pub(super) fn settle_again(&mut self, run: RunNo, seq: Seq, out: &mut Outside) {
        if let Some((ending, error)) = self.exchanges.get(&(run, seq)).and_then(|live| live.last) {
            self.settle(run, seq, ending, error, out);
        }
    }

    fn settle(
        &mut self,
        run: RunNo,
        seq: Seq,
        ending: Ending,
        error: Option<&'static str>,
        out: &mut Outside,
    ) {
        let Some(live) = self.exchanges.get_mut(&(run, seq)) else { return };
        live.last = Some((ending, error));
        let answer = out.provider.served.get(&(run, seq)).filter(|_| ending == Ending::Done);
        let settle = Settle {
            run,
            seq,
            attempt: live.attempt,
            instance: live.instance,
            close: ending.close(live.metered.clone()),
            active_ms: 0,
            http_status: live.machine.status(),
            upstream_request_id: None,
            error: error.map(str::to_owned),
            answer: answer.map(|s| Payload::encode(s.answer.to_string().as_bytes())),
        };
        self.queue(settle, Durability::Synced, Then::Settled(run, seq), out);
    }
}

fn patience(out: &Outside) -> Patience {
    let seed = out.rng.between(0, u64::MAX - 1);
    Patience { tries: out.rng.between(1, 3) as u32, within_ms: 45_000, seed }
}

fn told(live: &Live, out: &Outside) -> Told {
    let elapsed_ms = out.now_ms() - live.began_ms;
    let retry_after_ms = out.rng.chance(30).then(|| out.rng.between(0, 25_000));
    Told { elapsed_ms, retry_after_ms, lasting: out.rng.chance(10) }
}
