use super::*;
use crate::{
    call::{
        Broken, FailedTry, Rate, Refused, Visible,
        connection::Event as C,
        exchange::{Ending, Event as X, Failure},
        rates::{Later, Why},
    },
    engine::Admission,
    envelope::Refusal,
    journal::{Opening, State},
    store,
    words::{Cause, Digest, MatchKey, Micros, OpNo, Seq},
};

const RUN: RunNo = RunNo(1);
const ME: InstanceNo = InstanceNo(9);
const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);
const ONE: Seq = Seq(1);
const BEFORE_SEND: X = X::UpstreamError(Failure::BeforeSend);

fn place(key: u8) -> RequestKey {
    RequestKey { run: RUN, attempt: AttemptNo(1), key: MatchKey([key; 16]) }
}

fn request(key: u8, rate: Option<u64>) -> Request {
    let rate = Rate { requests: rate, tokens: None };
    let account = (None, "m".to_owned());
    let wants = Wants {
        upstream: "u".into(),
        way: Digest([0; 32]),
        request: Digest([0; 32]),
        is_of_item: false,
        account,
        rate,
        bound: 10,
        input_bound: 10,
        patience_ms: 1_000,
    };
    let patience = Patience { tries: 2, within_ms: 60_000, hold_ms: 0, seed: 1 };
    Request {
        place: place(key),
        retry_count: 0,
        has_idempotency_key: false,
        patience,
        wants: Arc::new(wants),
    }
}

struct Rig(Desk);

impl Rig {
    fn new() -> Rig {
        Rig(Desk::new(100, 60_000))
    }

    fn on(&mut self, event: Event) -> Vec<Deed> {
        self.at(0, event)
    }

    fn at(&mut self, now_ms: u64, event: Event) -> Vec<Deed> {
        self.0.on(event, At { now_ms, instance: ME })
    }

    fn client(&mut self, id: ConnectionId, event: C) -> Vec<Deed> {
        self.on(Event::Client(id, event))
    }

    fn exchange(&mut self, seq: Seq, event: X) -> Vec<Deed> {
        self.on(Event::Exchange((RUN, seq), event))
    }

    /// `id` asks, and is admitted with `admission`.
    fn admitted(&mut self, id: ConnectionId, key: u8, admission: Admission) -> Vec<Deed> {
        self.on(Event::Arrived(id, request(key, None)));
        self.client(id, C::Admitted(Ok(admission)))
    }

    /// `id` opens a call, whose whole answer comes and is settled; it is not flushed yet.
    fn answered(&mut self, id: ConnectionId, key: u8, seq: Seq) -> Vec<Deed> {
        self.admitted(id, key, go(seq));
        self.exchange(seq, X::Head { status: 200, streamed: false });
        self.exchange(seq, X::BodyEnd { len: 10, readable: true });
        self.exchange(seq, X::Settled(Ok(())))
    }
}

fn opening(seq: Seq) -> Opening {
    Opening { run: RunNo(1), seq, instance: ME, op: OpNo(seq.0) }
}

fn go(seq: Seq) -> Admission {
    Admission::Go { opening: opening(seq), cap: None, retry_of: None, diverged: None }
}

fn wait() -> Admission {
    Admission::Wait { refusal: Refusal::plain("queued", Micros(0)) }
}

fn full() -> store::Error {
    store::Error::Full { why: "disk".into() }
}

/// The one admission that `deeds` ask for, and for whom.
fn asks(deeds: &[Deed]) -> Option<(ConnectionId, Admitting)> {
    let asks = deeds.iter().filter_map(|d| match d {
        Deed::Client(id, ForClient::Admit(admitting)) => Some((*id, admitting.clone())),
        _ => None,
    });
    let all: Vec<_> = asks.collect();
    assert!(all.len() < 2, "{all:?}");
    all.into_iter().next()
}

fn taken_by(deeds: &[Deed]) -> Option<(ConnectionId, Vec<Seq>)> {
    asks(deeds).map(|(id, admitting)| (id, admitting.taken))
}

fn client(id: ConnectionId, deed: ForClient) -> Deed {
    Deed::Client(id, deed)
}

fn exchange(seq: Seq, deed: ForExchange) -> Deed {
    Deed::Exchange((RUN, seq), deed)
}

#[test]
fn identical_requests_are_decided_one_after_the_other_and_the_second_sees_what_the_first_took() {
    let mut rig = Rig::new();
    assert_eq!(taken_by(&rig.on(Event::Arrived(A, request(1, None)))), Some((A, vec![])));
    assert_eq!(rig.on(Event::Arrived(B, request(1, None))), []);
    assert_eq!(asks(&rig.on(Event::Arrived(ConnectionId(3), request(2, None)))).unwrap().0, ConnectionId(3));
    let deeds = rig.client(A, C::Admitted(Ok(go(ONE))));
    assert_eq!(deeds[0], client(A, ForClient::Open { opening: opening(ONE), cap: None }));
    assert_eq!(taken_by(&deeds), Some((B, vec![ONE])));
}

#[test]
fn an_answer_reaches_everybody_attached_and_then_nothing_is_left() {
    let mut rig = Rig::new();
    rig.admitted(A, 1, go(ONE));
    let joined = rig.admitted(B, 1, Admission::Join { seq: ONE, instance: ME });
    assert_eq!(joined, [client(B, ForClient::Attach(ONE))]);
    rig.exchange(ONE, X::Head { status: 200, streamed: false });
    let settle = rig.exchange(ONE, X::BodyEnd { len: 10, readable: true });
    assert_eq!(settle, [exchange(ONE, ForExchange::Settle { ending: Ending::Done, error: None })]);
    let shown = |id| [client(id, ForClient::Send(Visible::Whole)), client(id, ForClient::Finish)];
    let over = [exchange(ONE, ForExchange::Over)];
    assert_eq!(rig.exchange(ONE, X::Settled(Ok(()))), [over.as_slice(), &shown(A), &shown(B)].concat());
    for (id, replayed) in [(A, false), (B, true)] {
        assert_eq!(
            rig.client(id, C::Delivered),
            [client(id, ForClient::Mark { seq: ONE, count: 0, replayed })]
        );
        assert_eq!(rig.on(Event::Marked(id)), [client(id, ForClient::Over)]);
    }
    assert!(rig.0.is_empty());
}

// What `left` was for: a client that leaves and asks again at once finds its answer.
#[test]
fn a_client_that_leaves_gives_its_answer_back_at_once() {
    let mut rig = Rig::new();
    rig.admitted(A, 1, go(ONE));
    let give_back = client(A, ForClient::GiveBack(ONE));
    assert_eq!(rig.client(A, C::ClientGone), [give_back, client(A, ForClient::Over)]);
    assert_eq!(taken_by(&rig.on(Event::Arrived(B, request(1, None)))), Some((B, vec![])));
    // The answer goes on without it, for the one that joins.
    let joined = rig.client(B, C::Admitted(Ok(Admission::Join { seq: ONE, instance: ME })));
    assert_eq!(joined, [client(B, ForClient::Attach(ONE))]);
    // One that left while it was decided takes nothing.
    let mut rig = Rig::new();
    rig.on(Event::Arrived(A, request(1, None)));
    rig.client(A, C::ClientGone);
    rig.on(Event::Arrived(B, request(1, None)));
    let deeds = rig.client(A, C::Admitted(Ok(Admission::Replay { seq: ONE })));
    assert_eq!(taken_by(&deeds), Some((B, vec![])));
}

#[test]
fn identical_requests_are_decided_behind_a_mark_that_is_under_way() {
    let mut rig = Rig::new();
    rig.answered(A, 1, ONE);
    rig.client(A, C::Delivered);
    assert_eq!(rig.on(Event::Arrived(B, request(1, None))), [], "it waits for the mark");
    assert!(
        asks(&rig.on(Event::Arrived(ConnectionId(3), request(2, None)))).is_some(),
        "another one does not"
    );
    let deeds = rig.on(Event::Marked(A));
    assert_eq!(taken_by(&deeds), Some((B, vec![])));
    assert_eq!(rig.on(Event::Marked(A)), [], "a mark ends once");
}

// Bug: a call whose client left while it was admitted was closed by a loop of the proxy's own.
// Consequence: what the call machine promises of settlements was not tested for it.
// Cause: it never became an exchange.
#[test]
fn a_call_that_was_never_sent_is_void_however_often_the_store_fails() {
    let mut rig = Rig::new();
    rig.on(Event::Arrived(A, request(1, None)));
    rig.client(A, C::ClientGone);
    let deeds = rig.client(A, C::Admitted(Ok(go(ONE))));
    let (ending, error) = (Ending::Void, Some("its client left before it was sent"));
    let settle = exchange(ONE, ForExchange::Settle { ending, error });
    assert_eq!(deeds, [client(A, ForClient::Drop(opening(ONE))), client(A, ForClient::Over), settle]);
    for _ in 0..3 {
        let again = exchange(ONE, ForExchange::SettleAgain { ending, error });
        assert_eq!(rig.exchange(ONE, X::Settled(Err(full()))), [again]);
        assert!(rig.0.is_stuck());
    }
    assert_eq!(rig.exchange(ONE, X::Settled(Ok(()))), [exchange(ONE, ForExchange::Over)]);
    assert!(rig.0.is_empty() && !rig.0.is_stuck());
}

#[test]
fn while_an_answer_cannot_be_recorded_new_calls_are_refused_and_memory_is_bounded() {
    let mut rig = Rig::new();
    let calls = [(A, ONE, 90, false), (B, Seq(2), 11, true)];
    for (id, seq, ..) in calls {
        rig.admitted(id, seq.0 as u8, go(seq));
    }
    for (id, seq, len, drops) in calls {
        rig.exchange(seq, X::Head { status: 200, streamed: false });
        rig.exchange(seq, X::BodyEnd { len, readable: true });
        let failed = rig.exchange(seq, X::Settled(Err(full())));
        assert_eq!(failed.contains(&exchange(seq, ForExchange::DropAnswer)), drops);
        assert!(failed.contains(&client(id, ForClient::Refuse(Refused::Upstream(Broken::NotRecorded)))));
    }
    let c = ConnectionId(3);
    let refused = [client(c, ForClient::Refuse(Refused::Stuck)), client(c, ForClient::Over)];
    assert_eq!(rig.on(Event::Arrived(c, request(3, None))), refused);
    rig.exchange(ONE, X::Settled(Ok(())));
    assert!(rig.0.is_stuck());
    rig.exchange(Seq(2), X::Settled(Ok(())));
    assert!(asks(&rig.on(Event::Arrived(c, request(3, None)))).is_some());
}

#[test]
fn a_call_that_rests_is_given_up_when_its_last_client_leaves() {
    let mut rig = Rig::new();
    rig.admitted(A, 1, go(ONE));
    rig.admitted(B, 1, Admission::Join { seq: ONE, instance: ME });
    rig.client(A, C::ClientGone);
    assert!(matches!(
        rig.exchange(ONE, X::Unreachable(Default::default()))[..],
        [Deed::Exchange(_, ForExchange::Rest { .. })]
    ));
    let gone = rig.client(B, C::ClientGone);
    let settle = ForExchange::Settle { ending: Ending::Void, error: Some("upstream_unreachable") };
    let give_back = client(B, ForClient::GiveBack(ONE));
    assert_eq!(gone, [give_back, client(B, ForClient::Over), exchange(ONE, settle)]);
}

#[test]
fn room_that_comes_back_is_told_to_the_first_that_waits() {
    let mut rig = Rig::new();
    rig.admitted(A, 1, go(ONE));
    assert_eq!(rig.admitted(B, 2, wait()), [client(B, ForClient::Wait)]);
    rig.exchange(ONE, BEFORE_SEND);
    let deeds = rig.exchange(ONE, X::Settled(Ok(())));
    assert!(!asks(&deeds).unwrap().1.behind);
    let admitted = rig.client(B, C::Admitted(Ok(go(Seq(2)))));
    assert!(admitted.contains(&client(B, ForClient::WaitNoMore)));
    for event in [Event::Moved, Event::Look] {
        let mut rig = Rig::new();
        rig.admitted(B, 2, wait());
        assert_eq!(asks(&rig.on(event)).unwrap().0, B);
    }
}

#[test]
fn who_has_no_turn_at_its_upstream_is_admitted_behind_and_a_call_that_did_not_go_gives_its_own_back() {
    let mut rig = Rig::new();
    let limited = |key| request(key, Some(1));
    assert_eq!(asks(&rig.on(Event::Arrived(A, limited(1)))).unwrap().1.later, None);
    let (_, admitting) = asks(&rig.on(Event::Arrived(B, limited(2)))).unwrap();
    assert!(admitting.behind && admitting.later.is_some());
    assert_eq!(rig.client(B, C::Admitted(Ok(wait()))), [client(B, ForClient::Wait)]);
    // A recorded answer needs no turn: A's turn is free for B, which is told when it asks.
    rig.client(A, C::Admitted(Ok(Admission::Replay { seq: ONE })));
    let asked = rig.at(10, Event::Client(B, C::MayRetry));
    assert!(!asks(&asked).unwrap().1.behind);
    rig.client(B, C::Admitted(Ok(go(Seq(2)))));
    rig.at(10, Event::Leaves((RUN, Seq(2))));
    let c = ConnectionId(3);
    assert!(asks(&rig.at(20, Event::Arrived(c, limited(3)))).unwrap().1.behind, "a minute has one");
    rig.client(c, C::Admitted(Ok(wait())));
    // The call never reached its upstream: its part of the minute is free again.
    rig.exchange(Seq(2), BEFORE_SEND);
    let deeds = rig.exchange(Seq(2), X::Settled(Ok(())));
    assert!(!asks(&deeds).unwrap().1.behind);
}

#[test]
fn what_is_over_or_was_never_there_changes_nothing() {
    let mut rig = Rig::new();
    for event in [
        Event::Client(A, C::Delivered),
        Event::Client(A, C::Admitted(Ok(go(ONE)))),
        Event::Marked(A),
        Event::Exchange((RUN, ONE), X::Rested),
        Event::Leaves((RUN, ONE)),
        Event::Used((RUN, ONE), 3),
        Event::Moved,
        Event::Look,
    ] {
        assert_eq!(rig.on(event.clone()), [], "{event:?}");
    }
    rig.admitted(A, 1, Admission::Join { seq: ONE, instance: InstanceNo(3) });
    let polled = rig.client(A, C::Polled(Ok(State::Open)));
    assert_eq!(polled, [client(A, ForClient::Poll(ONE))]);
}

const TWO: Seq = Seq(2);
const THREE: Seq = Seq(3);

/// `id` asks, would wait for ten minutes, and is sent at `now_ms`.
fn patient(rig: &mut Rig, id: ConnectionId, key: u8, seq: Seq, now_ms: u64) {
    let patience = Patience { hold_ms: 600_000, ..request(key, None).patience };
    let deeds = rig.at(now_ms, Event::Arrived(id, Request { patience, ..request(key, None) }));
    assert!(asks(&deeds).is_some_and(|(_, admitting)| !admitting.behind), "{deeds:?}");
    rig.at(now_ms, Event::Client(id, C::Admitted(Ok(go(seq)))));
    rig.at(now_ms, Event::Leaves((RUN, seq)));
}

fn unreachable(elapsed_ms: u64) -> X {
    X::Unreachable(FailedTry { elapsed_ms, cause: Some(Cause::NoConnection), ..FailedTry::default() })
}

/// Returns the pause for which the call of `seq` is to rest.
#[track_caller]
fn rests(deeds: &[Deed], seq: Seq) -> u64 {
    let outage = exchange(seq, ForExchange::Outage(Cause::NoConnection));
    match deeds {
        [first, Deed::Exchange(key, ForExchange::Rest { pause_ms, .. })] if *first == outage => {
            assert_eq!(*key, (RUN, seq));
            *pause_ms
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_held_call_probes_an_upstream_that_is_out_and_its_answer_lets_the_others_go() {
    let mut rig = Rig::new();
    patient(&mut rig, A, 1, ONE, 0);
    patient(&mut rig, B, 2, TWO, 0);
    let pause_ms = rests(&rig.exchange(ONE, unreachable(0)), ONE);
    assert_eq!(rests(&rig.exchange(TWO, unreachable(0)), TWO), pause_ms);
    // What arrives now is held before it is admitted, and gets a recorded answer all the same.
    let c = ConnectionId(3);
    let patience = Patience { hold_ms: 600_000, ..request(3, None).patience };
    let late = asks(&rig.on(Event::Arrived(c, Request { patience, ..request(3, None) }))).unwrap().1;
    assert!(late.behind && matches!(late.later, Some(Later { why: Why::Outage(Cause::NoConnection), .. })));
    rig.client(c, C::Admitted(Ok(wait())));
    let rested = |rig: &mut Rig, seq, at| rig.at(at, Event::Exchange((RUN, seq), X::Rested));
    assert_eq!(rested(&mut rig, ONE, pause_ms), [exchange(ONE, ForExchange::AskAgain { tries: vec![None] })]);
    assert!(matches!(
        rested(&mut rig, TWO, pause_ms)[..],
        [Deed::Exchange((RUN, TWO), ForExchange::RestOn { .. })]
    ));
    rig.at(pause_ms, Event::Exchange((RUN, ONE), X::MayLeave(Ok(true))));
    let back = rig.at(pause_ms, Event::Exchange((RUN, ONE), X::Head { status: 200, streamed: false }));
    assert_eq!(back, [exchange(TWO, ForExchange::AskAgain { tries: vec![None] })]);
    let again = rig.at(pause_ms, Event::Client(c, C::MayRetry));
    assert!(asks(&again).is_some_and(|(id, admitting)| id == c && !admitting.behind), "{again:?}");
}

// Bug: after a new key was read, calls waited for the outage of the old one.
// Consequence: they were held for as long as their clients waited. Cause: an outage was the upstream's, whatever the key.
#[test]
fn a_call_with_another_key_waits_for_no_outage_of_the_old_one() {
    let mut rig = Rig::new();
    patient(&mut rig, A, 1, ONE, 0);
    rests(&rig.exchange(ONE, unreachable(0)), ONE);
    let patience = Patience { hold_ms: 600_000, ..request(2, None).patience };
    let wants = Arc::new(Wants { way: Digest([2; 32]), ..(*request(2, None).wants).clone() });
    let other = rig.on(Event::Arrived(B, Request { patience, wants, ..request(2, None) }));
    assert!(asks(&other).is_some_and(|(_, admitting)| admitting.later.is_none()), "{other:?}");
}

#[test]
fn a_request_that_becomes_the_probe_and_comes_to_nothing_leaves_its_place_to_another() {
    let mut rig = Rig::new();
    patient(&mut rig, A, 1, ONE, 0);
    let pause_ms = rests(&rig.exchange(ONE, unreachable(0)), ONE);
    let patience = Patience { hold_ms: 600_000, ..request(2, None).patience };
    let probe = rig.at(pause_ms, Event::Arrived(B, Request { patience, ..request(2, None) }));
    assert!(asks(&probe).is_some_and(|(_, admitting)| !admitting.behind), "{probe:?}");
    let rested = |rig: &mut Rig| rig.at(pause_ms, Event::Exchange((RUN, ONE), X::Rested));
    assert!(matches!(rested(&mut rig)[..], [Deed::Exchange(_, ForExchange::RestOn { .. })]));
    rig.at(pause_ms, Event::Client(B, C::Admitted(Err(full()))));
    assert!(matches!(rested(&mut rig)[..], [Deed::Exchange(_, ForExchange::AskAgain { .. })]));
}

#[test]
fn a_held_call_ends_with_its_clients_patience_as_an_outage() {
    let mut rig = Rig::new();
    patient(&mut rig, A, 1, ONE, 0);
    let given_up = rig.at(600_000, Event::Exchange((RUN, ONE), unreachable(600_000)));
    let error = Some(Broken::Outage.code());
    assert_eq!(
        given_up,
        [
            exchange(ONE, ForExchange::Outage(Cause::NoConnection)),
            exchange(ONE, ForExchange::Settle { ending: Ending::Void, error })
        ]
    );
    let told = rig.exchange(ONE, X::Settled(Ok(())));
    assert!(told.contains(&client(A, ForClient::Refuse(Refused::Upstream(Broken::Outage)))), "{told:?}");
    // Its place is free for the next request, whatever becomes of the client.
    patient(&mut rig, B, 2, THREE, 700_000);
}
