//! Client side of a process: the desk's deeds for a request, and the answer its client gets; and its upstream side: the
//! pieces that come back for exchanges, and their settlements.

use std::{cell::RefCell, rc::Rc, time::Duration};

use outlast_core::{
    call::{
        ConnectionId, FailedTry, Quiet, Refused,
        connection::Event,
        desk::{Admitting, ForClient, ForExchange, Key},
        exchange::{self, Ending, Failure, Silence},
    },
    engine::{Admit, AwaitProvider, Delivered, GiveBack, Received, Receiver, Retry, Settle},
    words::{Cause, Outage, Usage},
};

use super::{Carried, Process, Then, refuse};
use crate::{PING_MS, Piece, prelude::*};

impl Process {
    pub(super) fn client_gone(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get(&c) else { return };
        if client.attempt.is_none() {
            // The attempt is not known yet, and no one asks for it any more.
            self.clients.remove(&c);
            return;
        }
        out.oracle.leaves(c);
        out.oracle.moved(out.engine.now_ms());
        match out.engine.bug {
            Some(Bug::LeftUnnoticed) => {
                let late = desk::Event::Client(ConnectionId(c), Event::ClientGone);
                out.to_process(300, self.index, ToProcess::Desk(late));
            }
            _ => self.feed(c, Event::ClientGone, out),
        }
    }

    pub(super) fn act(&mut self, c: u64, deed: ForClient, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let run = client.request.run;
        match deed {
            ForClient::Admit(admitting) => self.admit(c, admitting, out),
            ForClient::Wait => {
                client.wait += 1;
                let wait = client.wait;
                out.to_process(45_000, self.index, ToProcess::WaitOver { connection: c, wait });
            }
            ForClient::WaitNoMore => client.wait += 1,
            ForClient::Open { opening, cap } => {
                self.receives(c, opening.seq, out);
                self.open(c, opening, cap, true, out);
            }
            ForClient::Drop(opening) => self.open(c, opening, None, false, out),
            ForClient::Attach(seq) => {
                out.engine.saw("joined here");
                self.receives(c, seq, out);
                let live = self.exchanges.get(&(run, seq)).cloned();
                live.iter().for_each(|live| live.borrow_mut().quiet.iter_mut().for_each(Quiet::urge));
                self.clients.entry(c).and_modify(|client| client.source = live);
            }
            ForClient::Poll(seq) => {
                self.receives(c, seq, out);
                let pause = out.engine.rng.between(100, 900);
                out.to_process(pause, self.index, ToProcess::Poll { connection: c, seq });
            }
            ForClient::Load(seq) => {
                self.receives(c, seq, out);
                out.to_process(2, self.index, ToProcess::Load { connection: c, seq });
            }
            ForClient::Send(visible) => {
                let live = client.source.as_ref().map(|live| live.borrow());
                let frames = live.as_ref().map(|live| live.frames.as_slice());
                let seq = client.receiving.unwrap_or_default();
                out.oracle.shown(&out.engine.disk, &out.provider, run, seq, visible, frames);
            }
            ForClient::Finish => self.finish(c, out),
            ForClient::Refuse(refused) => {
                let after = u64::from(refused.retry_after_s().unwrap_or(1)) * 1000;
                let (code, retry) = (refused.code().to_owned(), refused.should_retry());
                match refused {
                    Refused::AdmissionTimeout(_) if client.lacks_turn => out.engine.saw("no turn in time"),
                    Refused::AdmissionTimeout(_) => {
                        out.engine.saw("admission timeout");
                        // Whoever stood behind it is served from now on, often at the end of the same wait.
                        out.oracle.held_up(out.engine.now_ms(), client.request.run);
                    }
                    _ => {}
                }
                refuse(c, &client.request, &code, retry, after, out);
            }
            // The SDK does not retry a stream that broke, so the agent fails.
            ForClient::BreakOff(why) => {
                out.engine.saw("broke off");
                refuse(c, &client.request, why.code(), false, 0, out);
            }
            ForClient::GiveBack(_) if out.engine.bug == Some(Bug::GiveBackUntold) => {}
            ForClient::GiveBack(seq) => {
                let Some(attempt) = client.attempt else { return };
                out.oracle.gives_back_from(c, (run, seq), (client.asked_as, self.index));
                let give_back = GiveBack(Received { run, seq, attempt, connection: c });
                self.queue(give_back, Durability::Committed, Then::GivenBack(c), out);
            }
            ForClient::Mark { seq, count, replayed } => {
                let Some(attempt) = client.attempt else { return };
                let receiver = Receiver::Connection(c);
                client.mark = Some(Delivered { run, seq, attempt, receiver, count, replayed });
                // The driver gets to it at once, or a little later.
                let delay = if out.engine.rng.chance(60) { 0 } else { out.engine.rng.between(1, 60) };
                out.to_process(delay, self.index, ToProcess::Mark(c));
            }
            ForClient::Over => {
                out.oracle.gives_back(c);
                self.clients.remove(&c);
            }
        }
    }

    /// Notes that the client's answer is that of `seq` from now on.
    fn receives(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        client.receiving = Some(seq);
        let run = client.request.run;
        // With one process and no rate, room always comes back with an event, which wakes a waiter that fits.
        let waited_out = std::mem::take(&mut client.waited_out);
        if waited_out && out.processes == 1 && out.rate.is_any() {
            out.overslept(run, seq);
        }
        out.oracle.receives(c, run, client.attempt.unwrap_or_default(), seq, self.index);
    }

    fn admit(&mut self, c: u64, admitting: Admitting, out: &mut Outside) {
        out.oracle.gives_back(c);
        let Some(client) = self.clients.get_mut(&c) else { return };
        let Some(attempt) = client.attempt else { return };
        client.asked += 1;
        client.asked_as = admitting.instance;
        client.lacks_turn = admitting.later.is_some();
        if let Some(later) = &admitting.later {
            out.engine.saw("no turn");
            out.oracle.held_up(out.engine.now_ms(), client.request.run);
            let ask = ToProcess::AskTurn { connection: c, asked: client.asked };
            out.to_process(later.after_ms.min(1_000), self.index, ask);
        }
        let place = client.place(attempt, out.engine.bug);
        let r = &client.request;
        let op = Admit {
            actor: Actor { run: r.run, attempt, instance: admitting.instance },
            slot: Slot::DRIVER,
            scope: r.scope.clone(),
            digest: r.digest(),
            match_key: place.key,
            upstream: "sim".into(),
            path: "/chat".into(),
            model: "sim-1".into(),
            stream: r.ask.stream,
            idempotency_key: r.key.clone(),
            bound: r.ask.bound(),
            priced: r.ask.priced,
            usual_cap: r.ask.usual_cap(),
            taken: admitting.taken,
            connection: c,
            retry_count: r.retry,
            answered_with_error: admitting.answered_with_error,
            behind: admitting.behind,
            ..Admit::default()
        };
        self.queue(op, Durability::Synced, Then::Admitted(c), out);
    }

    /// Sends the end of an answer on its way to the client.
    fn finish(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        if let Some(live) = client.source.as_ref().map(|live| live.borrow()) {
            let done = live.last.is_some_and(|(ending, _)| ending == Ending::Done);
            let status = live.status.unwrap_or(502);
            client.result = Some(match out.provider.served.get(&live.key) {
                Some(served) if done => ToAgent::Answer { connection: c, answer: served.answer },
                _ => ToAgent::Refused {
                    connection: c,
                    code: format!("status {status}"),
                    retry: status >= 429,
                    after_ms: 500,
                },
            });
        }
        let delay = out.engine.rng.between(1, 60);
        out.to_process(delay, self.index, ToProcess::Flushed(c));
    }

    /// Notes that the answer reached the client's machine. Now and then the answer is lost there.
    pub(super) fn flushed(&mut self, c: u64, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let (request, attempt) = (client.request.clone(), client.attempt.unwrap_or_default());
        let seq = client.receiving.unwrap_or_default();
        let result = client.result.take();
        match result {
            // Its mark may reach the store later than a request for the same at another process.
            Some(ToAgent::Answer { .. }) => {
                out.oracle.gives_back_from(c, (request.run, seq), (client.asked_as, self.index));
            }
            _ => out.oracle.gives_back(c),
        }
        match result {
            Some(ToAgent::Answer { .. }) if out.engine.rng.chance(5) && !out.provider.behaves => {
                out.engine.saw("lost after its end");
                let after = out.engine.rng.between(0, 40);
                refuse(c, &request, "connection reset", true, after, out);
            }
            Some(result) => {
                if let ToAgent::Answer { answer, .. } = result {
                    out.oracle.received(&out.provider, &request, attempt, answer);
                }
                out.to_agent(0, request.agent, request.life, result);
            }
            None => {}
        }
        self.feed(c, Event::Delivered, out);
    }

    pub(super) fn mark(&mut self, c: u64, out: &mut Outside) {
        let Some(mark) = self.clients.get_mut(&c).and_then(|client| client.mark.take()) else { return };
        self.queue(mark, Durability::Lazy, Then::GivenBack(c), out);
        self.desk_on(desk::Event::Marked(ConnectionId(c)), out);
    }

    pub(super) fn poll(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(run) = self.clients.get(&c).map(|client| client.request.run) else { return };
        let state = match self.store.read(|disk| disk.entry(run, seq)) {
            Ok(Some(entry)) => Ok(entry.state),
            Ok(None) => Err(Error::Corrupt { what: format!("entry {seq} is gone") }),
            Err(e) => Err(e),
        };
        self.feed(c, Event::Polled(state), out);
    }

    pub(super) fn load(&mut self, c: u64, seq: Seq, out: &mut Outside) {
        let Some(client) = self.clients.get_mut(&c) else { return };
        let run = client.request.run;
        let stored = self.store.read(|disk| disk.payload(run, seq, Role::Answer));
        let text = stored.ok().flatten().and_then(|kept| kept.decode().ok());
        let answer = text.and_then(|t| std::str::from_utf8(&t).ok()?.parse().ok());
        let event = match answer {
            Some(answer) => {
                client.source = None;
                client.result = Some(ToAgent::Answer { connection: c, answer });
                Event::Loaded(Ok(()))
            }
            None => Event::Loaded(Err(Error::Corrupt { what: format!("the answer of entry {seq}") })),
        };
        self.feed(c, event, out);
    }
}

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
            is_first_try: true,
            ..Carried::default()
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
                exchange::Event::Head { status, streamed }
            }
            Piece::Frame(frame) => {
                live.frames.push(frame);
                live.quiet.iter_mut().for_each(|quiet| quiet.came(frame.gets_on() || pings_count, now));
                exchange::Event::Frame { frame, len: 10 }
            }
            Piece::Wedged if live.quiet.is_some_and(|quiet| now >= quiet.until()) => {
                exchange::Event::Timeout(Silence::Idle)
            }
            Piece::Wedged => {
                out.engine.saw("wedged");
                let next = ToProcess::Upstream { run: key.0, seq: key.1, piece: Piece::Wedged };
                out.to_process(PING_MS, self.index, next);
                live.frames.push(Frame::Ping);
                live.quiet.iter_mut().for_each(|quiet| quiet.came(pings_count, now));
                exchange::Event::Frame { frame: Frame::Ping, len: 10 }
            }
            Piece::Body { .. } if live.status.is_some_and(|s| s >= 300) => {
                let cause = live.status.filter(|s| *s >= 500).map(Cause::Failing);
                exchange::Event::Refused { len: 100, told: told(&live, cause, out) }
            }
            Piece::Body { readable } => exchange::Event::BodyEnd { len: 100, readable },
            Piece::End => exchange::Event::StreamEnd,
            Piece::Failed(Failure::BeforeSend) => {
                exchange::Event::Unreachable(told(&live, Some(Cause::NoConnection), out))
            }
            Piece::Failed(failure) => exchange::Event::UpstreamError(failure),
            Piece::Silent(silence) => exchange::Event::Timeout(silence),
        };
        drop(live);
        self.exchange(key, event, out);
    }

    pub(super) fn exchange(&mut self, key: Key, event: exchange::Event, out: &mut Outside) {
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
                out.to_process(30_000, self.index, timer(exchange::Event::SettleSlow));
                if out.engine.bug == Some(Bug::ShownBeforeDurable) {
                    return then(exchange::Event::Settled(Ok(())));
                }
            }
            ForExchange::SettleAgain { ending: Ending::Void, .. }
                if out.engine.bug == Some(Bug::VoidTriedOnce) =>
            {
                return then(exchange::Event::Settled(Ok(())));
            }
            ForExchange::SettleAgain { ending, .. } => {
                out.engine.saw(if ending == Ending::Void { "voided again" } else { "settled again" });
                out.to_process(1_000, self.index, ToProcess::SettleAgain(key));
            }
            ForExchange::Rest { tries, pause_ms } => {
                out.engine.saw("rested");
                let retry = self.retry(key, tries, true)?;
                self.queue(retry, Durability::Committed, Then::Noted, out);
                out.to_process(pause_ms, self.index, timer(exchange::Event::Rested));
            }
            ForExchange::RestOn { pause_ms } => {
                out.engine.saw("rested on");
                if self.pending.is_empty() && self.resolved.is_empty() {
                    out.oracle.waits_for_probe(key, self.now_ms(out) - self.sign_ms);
                }
                out.to_process(pause_ms, self.index, timer(exchange::Event::Rested));
            }
            ForExchange::Outage(cause) => {
                out.engine.saw("outage");
                let outage = Outage { upstream: "sim".to_owned(), cause };
                self.queue(AwaitProvider { run: key.0, outage }, Durability::Committed, Then::Noted, out);
            }
            ForExchange::FailsAlone => {}
            ForExchange::AskAgain { tries } => {
                let retry = self.retry(key, tries, false)?;
                self.queue(retry, Durability::Synced, Then::MayLeave(key), out);
                if out.engine.bug == Some(Bug::TriedBeforeDurable) {
                    return then(exchange::Event::MayLeave(Ok(true)));
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
            http_status: live.status,
            error: error.map(str::to_owned),
            answer: answer.map(|s| Payload::encode(s.answer.to_string().as_bytes())),
            ..Settle::default()
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
