//! Requests at the desk: carries out a connection's actions as far as they concern the registries.

use std::sync::Arc;

use super::{Admitting, Desk, ForClient, Key, Next, Request, Round, live::Live};
use crate::{
    call::{
        Connection, ConnectionId, Exchange, Patience, RequestKey,
        connection::{Action, Event},
        exchange,
        outages::Probe,
        rates::{Later, Turn, Wants, Why},
    },
    engine::Admission,
    words::{InstanceNo, Seq},
};

/// Connection with the data that the desk keeps for it.
#[derive(Debug)]
pub(super) struct Client {
    machine: Connection,
    place: RequestKey,
    patience: Patience,
    wants: Arc<Wants>,
    /// Turn at the upstream, held while the admission is decided; `None` otherwise.
    turn: Option<Turn>,
    /// Whether the connection waits in its upstream's line of calls that share rate limits.
    lines_up: bool,
    /// Instance in whose name the connection last asked for admission.
    asked_as: InstanceNo,
    /// Entry of the exchange that the connection is attached to; `None` if it is attached to none.
    attached: Option<Seq>,
    /// Whether the delivery mark is under way; until it is stored the connection keeps its answer.
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
            turn: None,
            lines_up: false,
            asked_as: round.at.instance,
            attached: None,
            marking: false,
        };
        self.clients.insert(id, client);
        let stuck = self.is_stuck();
        round.next.push_back(Next::Client(id, Event::Arrived { stuck }));
    }

    /// Feeds an event from outside. The registries learn the outcome of an admission first.
    pub(super) fn reported(&mut self, id: ConnectionId, event: Event, round: &mut Round) {
        if let Event::Admitted(result) = &event {
            self.shared.waiters.decided(id);
            if !matches!(result, Ok(Admission::Go { .. })) {
                self.gives_turn_back(id);
            }
            if !matches!(result, Ok(Admission::Wait { .. })) {
                // A recorded answer or a call in flight serves the request, which must not keep others from going.
                self.leaves_line(id, round);
            }
        }
        let is_former = self.clients.get(&id).is_some_and(|client| client.asked_as != round.at.instance);
        let event = match event {
            // What was opened or taken is not among what the new instance was handed over, or may not be.
            Event::Admitted(Ok(admission)) if is_former => Event::AdmittedBefore(admission),
            event => event,
        };
        round.next.push_back(Next::Client(id, event));
    }

    pub(super) fn feed(&mut self, id: ConnectionId, event: Event, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        for action in client.machine.on(event) {
            self.act(id, action, round);
        }
        self.rests(id, round);
    }

    /// Gives the client's answer back after its delivery mark is submitted, and lets the identical requests that waited
    /// for the mark be decided.
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
            Action::Take(seq) => shared.taken.take(place, id, seq),
            Action::GiveBack if client.marking => {}
            Action::GiveBack => self.give_back(id, place, round),
            Action::MarkError => shared.taken.mark_error(place),
            Action::Retried => shared.taken.retried(place),
            Action::Host(ForClient::Attach(seq)) => self.attach(id, (place.run, seq), round),
            Action::Host(deed) => {
                match deed {
                    ForClient::Open { opening, .. } => self.opens(id, opening.seq, true),
                    ForClient::Drop(opening) => {
                        self.opens(id, opening.seq, false);
                        let never = Next::Exchange((place.run, opening.seq), exchange::Event::NotSent);
                        round.next.push_back(never);
                    }
                    ForClient::Mark { .. } => {
                        client.marking = true;
                        shared.marks.begin(place);
                    }
                    _ => {}
                }
                round.client(id, deed);
            }
        }
    }

    /// Asks for admission after the delivery marks of identical requests, as a client may repeat a lost answer at once.
    fn ask_behind_marks(&mut self, id: ConnectionId, place: RequestKey, round: &mut Round) {
        if !self.shared.marks.holds(place, id) {
            self.ask(id, round);
        }
    }

    fn ask(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let (place, shared) = (client.place, &mut self.shared);
        let is_behind = shared.waiters.is_behind(place.run, id);
        let outage = (!is_behind && client.patience.hold_ms > 0)
            .then(|| shared.outages.may_go(&client.wants.way, Probe::Request(id), round.at.now_ms))
            .and_then(Result::err)
            .map(|(cause, after_ms)| Later { after_ms, why: Why::Outage(cause) });
        let (turn, told) = match is_behind || outage.is_some() {
            true => (Err(outage), shared.rates.leave(id, &client.wants)),
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
            answered_with_error: shared.taken.has_error(place),
            behind,
            later,
        };
        round.client(id, ForClient::Admit(admitting));
    }

    fn gives_turn_back(&mut self, id: ConnectionId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.shared.outages.give_back(&client.wants.way, Probe::Request(id));
        client.turn.take().into_iter().for_each(|turn| self.shared.rates.give_back(turn));
    }

    fn leaves_line(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if std::mem::take(&mut client.lines_up) {
            round.may_retry(self.shared.rates.leave(id, &client.wants));
        }
    }

    fn give_back(&mut self, id: ConnectionId, place: RequestKey, round: &mut Round) {
        self.shared.taken.give_back(place, id);
        round.may_retry(self.shared.waiters.wake_identical(place));
        self.detach(id, round);
    }

    /// Opens the exchange of an entry.
    fn opens(&mut self, id: ConnectionId, seq: Seq, is_sent: bool) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut live =
            Live::new(Exchange::patient(client.patience), client.wants.clone(), client.turn.take());
        if is_sent {
            live.attached.push(id);
            client.attached = Some(seq);
        }
        let key = (client.place.run, seq);
        self.shared.outages.becomes(&live.wants.way, id, key);
        self.exchanges.insert(key, live);
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
        // Fed before the next identical request is decided: an answer that is not here is given back.
        round.next.push_front(Next::Client(id, event));
    }

    /// Detaches a connection from its exchange. A resting call without any connection is given up.
    fn detach(&mut self, id: ConnectionId, round: &mut Round) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(key) = client.attached.take().map(|seq| (client.place.run, seq)) else { return };
        let Some(live) = self.exchanges.get_mut(&key) else { return };
        live.attached.retain(|c| *c != id);
        if live.attached.is_empty() {
            round.next.push_back(Next::Exchange(key, exchange::Event::Abandoned));
        }
    }

    /// Removes a connection whose request is over, unless its delivery mark is still under way. Gives its turn and its
    /// place in the line back.
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
