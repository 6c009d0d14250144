//! A request at the desk: its machine's actions, as far as they concern the registries.

use std::sync::Arc;

use super::{Admitting, Desk, ForClient, Key, Next, Request, Round, live::Live};
use crate::{
    call::{
        Connection, ConnectionId, Exchange, Patience,
        connection::{Action, Event},
        exchange,
        rates::{Turn, Wants},
        taken::Place,
    },
    engine::call::admit::Admission,
    words::id::{InstanceNo, Seq},
};

/// A request with what the desk keeps for it.
#[derive(Debug)]
pub(super) struct Client {
    machine: Connection,
    place: Place,
    patience: Patience,
    wants: Arc<Wants>,
    /// As whom its admission was asked: who opens an entry closes it, also when the process registers anew meanwhile.
    asked_as: InstanceNo,
    /// At its upstream, while it is decided.
    turn: Option<Turn>,
    /// In its upstream's line.
    lines_up: bool,
    /// The exchange it is attached to.
    attached: Option<Seq>,
    /// Its delivery mark is under way: until then it keeps its answer.
    marking: bool,
}

impl Desk {
    pub(super) fn arrived(&mut self, id: ConnectionId, request: Request, round: &mut Round) {
        let Request { place, retry_count, has_idempotency_key, patience, wants } = request;
        let client = Client {
            machine: Connection::new(round.at.instance, retry_count, has_idempotency_key),
            place,
            patience,
            wants,
            asked_as: round.at.instance,
            turn: None,
            lines_up: false,
            attached: None,
            marking: false,
        };
        self.clients.insert(id, client);
        let stuck = self.is_stuck();
        round.next.push_back(Next::Client(id, Event::Arrived { stuck }));
    }

    /// An event from outside. What an admission came to is told to the registries first.
    pub(super) fn reported(&mut self, id: ConnectionId, event: Event, round: &mut Round) {
        if let Event::Admitted(result) = &event {
            self.shared.waiters.decided(id);
            if !matches!(result, Ok(Admission::Go { .. })) {
                self.gives_turn_back(id);
            }
            if !matches!(result, Ok(Admission::Wait { .. })) {
                // What is recorded or in flight serves it: it keeps nobody from going.
                self.leaves_line(id, round);
            }
        }
        round.next.push_back(Next::Client(id, event));
    }

    pub(super) fn feed(&mut self, id: ConnectionId, event: Event, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        for action in client.machine.on(event) {
            self.act(id, action, round);
        }
        self.rests(id, round);
    }

    /// Its mark is with the store: now its answer is nobody's, and identical requests are decided.
    pub(super) fn marked(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id).filter(|client| client.marking) else { return };
        client.marking = false;
        let place = client.place;
        self.give_back(id, place, round);
        for held in self.shared.marks.end(place) {
            self.ask(held, round);
        }
        self.rests(id, round);
    }

    fn act(&mut self, id: ConnectionId, action: Action, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let (place, shared) = (client.place, &mut self.shared);
        match action {
            Action::LineUp => {
                let turn = shared.taken.line_up(place, id);
                round.next.extend(turn.then_some(Next::Client(id, Event::Turn)));
            }
            Action::LeaveLine => {
                let next = shared.taken.leave_line(place, id);
                round.next.extend(next.map(|next| Next::Client(next, Event::Turn)));
            }
            Action::Admit => self.ask_behind_marks(id, place, round),
            Action::Enqueue => {
                shared.waiters.enqueue(place, id);
                round.client(id, ForClient::Wait);
            }
            Action::Dequeue => {
                round.may_retry(shared.waiters.dequeue(place.run, id));
                round.client(id, ForClient::WaitNoMore);
            }
            Action::Take { seq, replays } => shared.taken.take(place, id, seq, replays),
            Action::GiveBack if client.marking => {}
            Action::GiveBack => self.give_back(id, place, round),
            Action::MarkError => shared.taken.mark_error(place),
            Action::Retried => shared.taken.retried(place),
            Action::Open { seq, cap } => {
                let instance = self.opens(id, seq, true);
                round.client(id, ForClient::Open { seq, cap, instance });
            }
            Action::Drop(seq) => {
                let instance = self.opens(id, seq, false);
                round.client(id, ForClient::Drop { seq, instance });
                round.next.push_back(Next::Exchange((place.run, seq), exchange::Event::NotSent));
            }
            Action::Attach(seq) => self.attach(id, (place.run, seq), round),
            Action::Poll(seq) => round.client(id, ForClient::Poll(seq)),
            Action::LoadAnswer(seq) => round.client(id, ForClient::Load(seq)),
            Action::Send(visible) => round.client(id, ForClient::Send(visible)),
            Action::Finish => round.client(id, ForClient::Finish),
            Action::Refuse(refused) => round.client(id, ForClient::Refuse(refused)),
            Action::BreakOff(why) => round.client(id, ForClient::BreakOff(why)),
            Action::MarkDelivered { seq, count, replayed } => {
                client.marking = true;
                shared.marks.begin(place);
                round.client(id, ForClient::Mark { seq, count, replayed });
            }
        }
    }

    /// A client that lost a delivered answer, and says so at once, is decided behind its mark.
    fn ask_behind_marks(&mut self, id: ConnectionId, place: Place, round: &mut Round) {
        if !self.shared.marks.holds(place, id) {
            self.ask(id, round);
        }
    }

    fn ask(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let (place, shared) = (client.place, &mut self.shared);
        let (turn, told) = match shared.waiters.is_behind(place.run, id) {
            true => (Err(None), shared.rates.leave(id, &client.wants)),
            false => {
                let (turn, told) = shared.rates.turn(id, &client.wants, round.at.now_ms);
                (turn.map_err(Some), told)
            }
        };
        round.may_retry(told);
        let behind = turn.is_err();
        let later = match turn {
            Ok(turn) => {
                client.turn = Some(turn);
                None
            }
            Err(later) => later,
        };
        client.lines_up = later.is_some();
        client.asked_as = round.at.instance;
        shared.waiters.decides(place, id);
        let admitting = Admitting {
            instance: round.at.instance,
            taken: shared.taken.seqs(place),
            in_hand: shared.taken.in_hand(place.run, place.attempt),
            answered_with_error: shared.taken.has_error(place),
            behind,
            later,
        };
        round.client(id, ForClient::Admit(admitting));
    }

    fn gives_turn_back(&mut self, id: ConnectionId) {
        let turn = self.clients.get_mut(&id).and_then(|client| client.turn.take());
        turn.into_iter().for_each(|turn| self.shared.rates.give_back(turn));
    }

    fn leaves_line(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if std::mem::take(&mut client.lines_up) {
            round.may_retry(self.shared.rates.leave(id, &client.wants));
        }
    }

    fn give_back(&mut self, id: ConnectionId, place: Place, round: &mut Round) {
        self.shared.taken.give_back(place, id);
        round.may_retry(self.shared.waiters.wake_identical(place));
        self.detach(id, round);
    }

    /// Opens the exchange of an entry, and returns the instance that owns the entry.
    fn opens(&mut self, id: ConnectionId, seq: Seq, is_sent: bool) -> InstanceNo {
        let Some(client) = self.clients.get_mut(&id) else { return Default::default() };
        let mut live =
            Live::new(Exchange::patient(client.patience), client.wants.clone(), client.turn.take());
        if is_sent {
            live.attached.push(id);
            client.attached = Some(seq);
        }
        self.exchanges.insert((client.place.run, seq), live);
        client.asked_as
    }

    fn attach(&mut self, id: ConnectionId, key: Key, round: &mut Round) {
        let event = match (self.exchanges.get_mut(&key), self.clients.get_mut(&id)) {
            (Some(live), Some(client)) => {
                live.attached.push(id);
                client.attached = Some(key.1);
                round.client(id, ForClient::Attach(key.1));
                Event::Progress(live.machine.progress())
            }
            _ => Event::NotHere,
        };
        // Before the next identical request is decided: what is not here is given back.
        round.next.push_front(Next::Client(id, event));
    }

    /// Whoever waits for an exchange no more. A call that rests with nobody left is given up.
    fn detach(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(key) = client.attached.take().map(|seq| (client.place.run, seq)) else { return };
        let Some(live) = self.exchanges.get_mut(&key) else { return };
        live.attached.retain(|c| *c != id);
        if live.attached.is_empty() {
            round.next.push_back(Next::Exchange(key, exchange::Event::Abandoned));
        }
    }

    /// Forgets a request that is over.
    fn rests(&mut self, id: ConnectionId, round: &mut Round) {
        if self.clients.get(&id).is_some_and(|c| c.machine.is_over() && !c.marking) {
            self.gives_turn_back(id);
            self.leaves_line(id, round);
            self.detach(id, round);
            self.clients.remove(&id);
            round.client(id, ForClient::Over);
        }
    }
}
