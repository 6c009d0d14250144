//! The server's side of a session: what it says, and what becomes of what was with it when it dies, or loses an answer.

use outlast_server::mcp::{
    era,
    message::{self, INTERNAL, Message},
};

use super::{Call, Deed, MOST_STARTS, No, Open, Phase, Plain, Queued, Server, Session};

impl Session {
    pub(super) fn server(&mut self, line: Vec<u8>) {
        let Ok(message) = message::read(&line) else {
            // A server that prints to standard output what is no message is not the client's trouble.
            return self.deeds.push(Deed::Stray(line));
        };
        let id = message.id.map(|id| id.get().to_owned());
        match (&message.method, id) {
            (Some(_), Some(id)) => {
                self.asked.insert(id);
                self.show(line);
            }
            (Some(_), None) => self.show(line),
            (None, Some(id)) if self.own.remove(&id) => self.greeted(&id),
            (None, Some(id)) => self.answered(&id, &message, &line),
            (None, None) => self.show(line),
        }
    }

    /// Handles the server's answer to the `initialize` that was repeated to it.
    fn greeted(&mut self, id: &str) {
        if self.server != Server::Greeting(id.to_owned()) {
            return;
        }
        let initialized = self.initialized.clone();
        self.deeds.extend(initialized.map(Deed::ToServer));
        let kept: Vec<Vec<u8>> =
            self.level.iter().chain(self.subscriptions.iter().map(|(_, line)| line)).cloned().collect();
        for line in kept {
            let id = self.own_id();
            self.deeds.push(Deed::ToServer(message::with_id(&line, &id)));
        }
        self.up();
    }

    fn answered(&mut self, id: &str, message: &Message<'_>, line: &[u8]) {
        if let Some(no) = self.out(id) {
            let Some(call) = self.calls.get_mut(&no) else { return };
            let Phase::Out(open) = call.phase.clone() else { return };
            self.starts = 0;
            let body = message::recorded(message).filter(|_| !(call.withdrawn && era::is_cancelled(message)));
            let Some(body) = body else {
                // It says nothing of the call, or only that it was cancelled somewhere.
                return self.give_up(no, open, None);
            };
            let (opening, failed) = (open.opening, message::is_failure(message));
            call.phase = Phase::Recording(open, line.to_vec());
            return self.deeds.push(Deed::Record { no, opening, body, failed });
        }
        let Some(plain) = self.plain.remove(id) else {
            return self.deeds.push(Deed::Stray(line.to_vec()));
        };
        self.starts = 0;
        match (plain.method.as_str(), message.result) {
            ("initialize", Some(_)) => self.greeting = Some(plain.line),
            ("tools/list", Some(result)) => self.tools.learn(result),
            _ => {}
        }
        self.show(line.to_vec());
    }

    pub(super) fn server_ended(&mut self, how: &str) {
        if self.server == Server::Gone {
            return;
        }
        self.server = Server::Starting;
        self.own.clear();
        for id in std::mem::take(&mut self.asked) {
            self.show(message::cancelled(&id, "the server ended"));
        }
        let gives_up = self.starts >= MOST_STARTS;
        let mut out: Vec<No> =
            self.calls.iter().filter(|(_, c)| matches!(c.phase, Phase::Out(_))).map(|(no, _)| *no).collect();
        out.sort_unstable();
        for no in out {
            let Some(call) = self.calls.get_mut(&no) else { continue };
            let Phase::Out(open) = call.phase.clone() else { continue };
            match call.manner.repeatable() && !call.withdrawn && !gives_up {
                true => {
                    call.phase = Phase::Ready(open);
                    self.queue.push_back(Queued::Call(no));
                }
                false => self.give_up(no, open, None),
            }
        }
        if gives_up {
            return self.given_up(how);
        }
        // What passes unrecorded asks the server for what it knows: it is asked again.
        let is_queued = |line: &Vec<u8>| self.queue.iter().any(|q| matches!(q, Queued::Line(l) if l == line));
        let mut again: Vec<&Plain> = self.plain.values().filter(|plain| !is_queued(&plain.line)).collect();
        again.sort_by_key(|plain| plain.method != "initialize");
        let again: Vec<Vec<u8>> = again.into_iter().map(|plain| plain.line.clone()).collect();
        again.into_iter().rev().for_each(|line| self.queue.push_front(Queued::Line(line)));
        if self.closing {
            return;
        }
        let pause_ms = u64::from(self.starts.saturating_sub(1)) * 300;
        self.deeds.push(Deed::Start { pause_ms });
    }

    /// Gives up a server that does not stay up: every request and call that waits for the server is refused.
    fn given_up(&mut self, how: &str) {
        self.server = Server::Gone;
        self.queue.clear();
        let text =
            format!("the server ended {MOST_STARTS} times without an answer, the last time with {how}");
        let plain: Vec<String> = self.plain.drain().map(|(id, _)| id).collect();
        plain.iter().for_each(|id| self.refuse(id, INTERNAL, &text));
        let waiting: Vec<(No, Open)> = self
            .calls
            .iter()
            .filter_map(|(no, call)| match &call.phase {
                Phase::Reserved(open) | Phase::Ready(open) => Some((*no, open.clone())),
                _ => None,
            })
            .collect();
        waiting.into_iter().for_each(|(no, open)| self.give_up(no, open, None));
        self.closing = true;
        self.deeds.push(Deed::Quit { why: Some(text) });
    }

    /// Handles one lost answer of a server that still runs: its stream broke off, or the server could not be
    /// reached.
    pub(super) fn lost(&mut self, line: &[u8], why: &str, taken: bool) {
        let id = message::read(line).ok().and_then(|m| m.id).map(|id| id.get().to_owned());
        let Some(id) = id else { return };
        if self.server == Server::Greeting(id.clone()) {
            return self.server_ended(why);
        }
        if self.own.remove(&id) {
            return;
        }
        if let Some(no) = self.out(&id) {
            let Some(call) = self.calls.get_mut(&no) else { return };
            let Phase::Out(open) = call.phase.clone() else { return };
            call.lost += 1;
            if !taken {
                return self.give_up(no, open, Some(why.to_owned()));
            }
            if !call.manner.repeatable() || call.withdrawn || call.lost >= MOST_STARTS {
                return self.give_up(no, open, None);
            }
            call.phase = Phase::Ready(open);
            return self.go(no);
        }
        let Some(plain) = self.plain.get_mut(&id) else { return };
        plain.lost += 1;
        if taken && plain.lost < MOST_STARTS {
            let line = plain.line.clone();
            return self.pass(line);
        }
        self.plain.remove(&id);
        self.refuse(&id, INTERNAL, &format!("the server did not answer: {why}"));
    }

    /// Handles that the server no longer knows the session, and did not process this line: the line is sent
    /// again in a new session.
    pub(super) fn forgotten(&mut self, line: Vec<u8>) {
        let message = message::read(&line).ok();
        let id = message.as_ref().and_then(|m| m.id).map(|id| id.get().to_owned());
        let is_answer = message.as_ref().is_some_and(|m| m.method.is_none());
        match id.as_ref().and_then(|id| self.out(id)) {
            Some(no) => {
                let Some(call) = self.calls.get_mut(&no) else { return };
                if let Phase::Out(open) = call.phase.clone() {
                    call.phase = Phase::Ready(open);
                }
                self.queue.push_back(Queued::Call(no));
            }
            // An answer to a question of the session before is nobody's, and what we ask is asked with each session.
            None if is_answer || id.is_some_and(|id| self.own.contains(&id)) => {}
            None => self.queue.push_back(Queued::Line(line)),
        }
        if self.server != Server::Up {
            return;
        }
        self.starts += 1;
        if self.starts >= MOST_STARTS {
            return self.given_up("it forgets each session");
        }
        self.asked.clear();
        self.greet();
    }

    /// Repeats the client's `initialize` to a server that was started again.
    pub(super) fn greet(&mut self) {
        match self.greeting.clone() {
            Some(greeting) => {
                let id = self.own_id();
                self.deeds.push(Deed::ToServer(message::with_id(&greeting, &id)));
                self.server = Server::Greeting(id);
            }
            None => self.up(),
        }
    }

    /// Returns the call with this id whose answer is awaited from the server; `None` if there is none.
    fn out(&self, id: &str) -> Option<No> {
        let out = |call: &Call| matches!(&call.phase, Phase::Out(_)) && call.id == id;
        self.calls.iter().find(|(_, call)| out(call)).map(|(no, _)| *no)
    }

    pub(super) fn up(&mut self) {
        self.server = Server::Up;
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Line(line) => self.deeds.push(Deed::ToServer(line)),
                Queued::Call(no) => self.go(no),
            }
        }
    }
}
