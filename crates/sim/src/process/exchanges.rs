//! Upstream side of a process: the pieces that come back for exchanges, and their settlements.

use std::{cell::RefCell, rc::Rc, time::Duration};

use outlast_core::{
    call::{
        FailedTry, Quiet,
        desk::{self, ForExchange, Key},
        exchange::{Ending, Event, Failure, Frame, Silence},
    },
    engine::{AwaitProvider, Bill, Retry, Settle},
    journal::{Opening, Payload},
    store::Durability,
    words::{Cause, Outage, Usage},
};

use super::{Process, Then, held::Carried};
use crate::{
    bug::Bug,
    happening::ToProcess,
    outside::Outside,
    provider::{PING_MS, Piece, Provider, UpstreamRequest},
};

/// Longest time without a part of an answer that has begun.
const IDLE: Duration = Duration::from_secs(60);

/// The same, once a later request has joined the answer.
const URGED_IDLE: Duration = Duration::from_secs(20);

impl Process {
    /// Begins to carry the exchange of an entry. `send` is false if the client is gone and the call must not be sent.
    pub(super) fn open(&mut self, c: u64, opening: Opening, cap: Option<u64>, send: bool, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let r = &client.request;
        let (key, bound) = ((r.run, opening.seq), r.ask.bound());
        let asked = UpstreamRequest {
            run: r.run,
            seq: opening.seq,
            digest: r.digest(),
            scope: r.scope.clone(),
            stream: r.ask.stream,
            bound,
            cap: cap.unwrap_or(bound.cap),
            priced: r.ask.priced,
        };
        let carried = Rc::new(RefCell::new(Carried {
            key,
            asked,
            began_ms: out.engine.now_ms(),
            opening,
            attempt: client.attempt.unwrap_or_default(),
            status: None,
            frames: Vec::new(),
            quiet: None,
            metered: None,
            aborted: false,
            last: None,
            is_first_try: true,
        }));
        client.source = send.then(|| carried.clone());
        self.exchanges.insert(key, carried);
        if send {
            self.send(key, out);
        }
    }

    fn send(&mut self, key: Key, out: &mut Outside) {
        let Some(mut carried) = self.exchanges.get(&key).map(|carried| carried.borrow_mut()) else { return };
        let asked = carried.asked.clone();
        let is_first_try = std::mem::replace(&mut carried.is_first_try, false);
        drop(carried);
        let now = out.engine.now_ms();
        self.sign_ms = self.now_ms(out);
        let unreachable = if out.engine.bug == Some(Bug::ProbeKept) { 25 } else { 4 };
        let pieces = if !out.provider.behaves && out.engine.rng.chance(unreachable) {
            Provider::unreachable()
        } else {
            out.oracle.sent(&out.engine.disk, &asked);
            if is_first_try && out.provider.counts((self.index, self.life), now, out.rate) {
                out.oracle.asked_too_fast(key, out.rate);
            }
            out.provider.receive(asked, &out.engine.rng)
        };
        let mut at = 0;
        for (wait, piece) in pieces {
            at += wait;
            out.to_process(at, self.index, ToProcess::Upstream { run: key.0, seq: key.1, piece });
        }
        self.desk_on(desk::Event::Leaves(key), out);
    }

    pub(super) fn upstream(&mut self, key: Key, piece: Piece, out: &mut Outside) {
        let Some(carried) = self.exchanges.get(&key).cloned() else { return };
        let mut live = carried.borrow_mut();
        if live.aborted {
            return;
        }
        self.sign_ms = self.now_ms(out);
        let now = Duration::from_millis(self.sign_ms);
        let pings_count = out.engine.bug == Some(Bug::PingsCount);
        let event = match piece {
            Piece::Usage(bill) => {
                live.metered = Some(bill);
                return;
            }
            Piece::Head { status, streamed } => {
                live.status = Some(status);
                live.quiet = Some(Quiet::new(IDLE, URGED_IDLE, now));
                Event::Head { status, streamed }
            }
            Piece::Frame(frame) => {
                live.frames.push(frame);
                live.quiet.iter_mut().for_each(|quiet| quiet.came(frame.gets_on() || pings_count, now));
                Event::Frame { frame, len: 10 }
            }
            Piece::Wedged if live.quiet.is_some_and(|quiet| now >= quiet.until()) => {
                Event::Timeout(Silence::Idle)
            }
            Piece::Wedged => {
                out.engine.saw("wedged");
                let next = ToProcess::Upstream { run: key.0, seq: key.1, piece: Piece::Wedged };
                out.to_process(PING_MS, self.index, next);
                live.frames.push(Frame::Ping);
                live.quiet.iter_mut().for_each(|quiet| quiet.came(pings_count, now));
                Event::Frame { frame: Frame::Ping, len: 10 }
            }
            Piece::Body { .. } if live.status.is_some_and(|s| s >= 300) => {
                let cause = live.status.filter(|s| *s >= 500).map(Cause::Failing);
                Event::Refused { len: 100, told: told(&live, cause, out) }
            }
            Piece::Body { readable } => Event::BodyEnd { len: 100, readable },
            Piece::End => Event::StreamEnd,
            Piece::Failed(Failure::BeforeSend) => {
                Event::Unreachable(told(&live, Some(Cause::NoConnection), out))
            }
            Piece::Failed(failure) => Event::UpstreamError(failure),
            Piece::Silent(silence) => Event::Timeout(silence),
        };
        drop(live);
        self.exchange(key, event, out);
    }

    pub(super) fn exchange(&mut self, key: Key, event: Event, out: &mut Outside) {
        self.desk_on(desk::Event::Exchange(key, event), out);
    }

    /// Carries out a deed for an exchange. Returns the event that a planted defect adds; `None` if it adds none.
    pub(super) fn act_upstream(
        &mut self,
        key: Key,
        deed: ForExchange,
        out: &mut Outside,
    ) -> Option<desk::Event> {
        let then = |event| Some(desk::Event::Exchange(key, event));
        let timer = |event| ToProcess::Desk(desk::Event::Exchange(key, event));
        match deed {
            ForExchange::Settle { ending, error } => {
                self.settle(key, ending, error, out);
                out.to_process(30_000, self.index, timer(Event::SettleSlow));
                if out.engine.bug == Some(Bug::ShownBeforeDurable) {
                    return then(Event::Settled(Ok(())));
                }
            }
            ForExchange::SettleAgain { ending: Ending::Void, .. }
                if out.engine.bug == Some(Bug::VoidTriedOnce) =>
            {
                return then(Event::Settled(Ok(())));
            }
            ForExchange::SettleAgain { ending, .. } => {
                out.engine.saw(if ending == Ending::Void { "voided again" } else { "settled again" });
                out.to_process(1_000, self.index, ToProcess::SettleAgain(key));
            }
            ForExchange::Rest { tries, pause_ms } => {
                out.engine.saw("rested");
                let retry = self.retry(key, tries, true)?;
                self.queue(retry, Durability::Committed, Then::Noted, out);
                out.to_process(pause_ms, self.index, timer(Event::Rested));
            }
            ForExchange::RestOn { pause_ms } => {
                out.engine.saw("rested on");
                if self.pending.is_empty() && self.resolved.is_empty() {
                    out.oracle.waits_for_probe(key, self.now_ms(out) - self.sign_ms);
                }
                out.to_process(pause_ms, self.index, timer(Event::Rested));
            }
            ForExchange::Outage(cause) => {
                out.engine.saw("outage");
                let outage = Outage { upstream: "sim".to_owned(), cause };
                self.queue(AwaitProvider { run: key.0, outage }, Durability::Committed, Then::Noted, out);
            }
            ForExchange::AskAgain { tries } => {
                let retry = self.retry(key, tries, false)?;
                self.queue(retry, Durability::Synced, Then::MayLeave(key), out);
                if out.engine.bug == Some(Bug::TriedBeforeDurable) {
                    return then(Event::MayLeave(Ok(true)));
                }
            }
            ForExchange::SendAgain => {
                out.engine.saw("tried again");
                if let Some(live) = self.exchanges.get(&key) {
                    let mut live = live.borrow_mut();
                    live.frames.clear();
                    live.quiet = None;
                    live.status = None;
                }
                self.send(key, out);
            }
            ForExchange::Abort => {
                self.exchanges.get(&key).into_iter().for_each(|live| live.borrow_mut().aborted = true);
            }
            ForExchange::DropAnswer => {}
            ForExchange::Over => drop(self.exchanges.remove(&key)),
        }
        None
    }

    fn retry(&self, key: Key, tries: Vec<Option<u16>>, resting: bool) -> Option<Retry> {
        let opening = self.exchanges.get(&key)?.borrow().opening;
        Some(Retry { opening, tries, resting })
    }

    pub(super) fn settle_again(&mut self, key: Key, out: &mut Outside) {
        let last = self.exchanges.get(&key).and_then(|live| live.borrow().last);
        if let Some((ending, error)) = last {
            self.settle(key, ending, error, out);
        }
    }

    fn settle(&mut self, key: Key, ending: Ending, error: Option<&'static str>, out: &mut Outside) {
        let Some(live) = self.exchanges.get(&key).cloned() else { return };
        let mut live = live.borrow_mut();
        live.last = Some((ending, error));
        let answer = out.provider.served.get(&key).filter(|_| ending == Ending::Done);
        let settle = Settle {
            opening: live.opening,
            attempt: live.attempt,
            close: ending.close(live.metered.clone()),
            active_ms: 0,
            http_status: live.status,
            upstream_request_id: None,
            error: error.map(str::to_owned),
            answer: answer.map(|s| Payload::encode(s.answer.to_string().as_bytes())),
        };
        self.queue(settle, Durability::Synced, Then::Settled(key), out);
        if let Some(Bill::Usage { usage, .. }) = &live.metered {
            self.desk_on(desk::Event::Used(key, Usage::total(usage)), out);
        }
    }
}

fn told(live: &Carried, cause: Option<Cause>, out: &Outside) -> FailedTry {
    let elapsed_ms = out.engine.now_ms() - live.began_ms;
    let retry_after_ms = out.engine.rng.chance(30).then(|| out.engine.rng.between(0, 25_000));
    FailedTry { elapsed_ms, retry_after_ms, lasting: out.engine.rng.chance(10), cause, probe_ms: None }
}
