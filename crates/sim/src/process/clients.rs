//! Client side of a process: the desk's deeds for a request, and the answer its client gets.

use outlast_core::{
    call::{
        ConnectionId, Quiet, Refused,
        connection::Event,
        desk::{self, Admitting, ForClient},
        exchange::Ending,
    },
    engine::{Actor, Admit, Delivered, GiveBack, Received, Receiver},
    journal::Role,
    store::{Durability, Error, Store},
    words::{Seq, Slot},
};

use super::{Process, Then, refuse};
use crate::{
    bug::Bug,
    happening::{ToAgent, ToProcess},
    outside::Outside,
};

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
            within: None,
            digest: r.digest(),
            match_key: place.key,
            upstream: "sim".into(),
            path: "/chat".into(),
            model: "sim-1".into(),
            stream: r.ask.stream,
            idempotency_key: r.key.clone(),
            bound: r.ask.bound(),
            priced: r.ask.priced,
            unknown_fee: None,
            caller: None,
            usual_cap: r.ask.usual_cap(),
            taken: admitting.taken,
            connection: c,
            retry_count: r.retry,
            answered_with_error: admitting.answered_with_error,
            behind: admitting.behind,
            active_ms: 0,
            waits: 0,
            request: None,
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
