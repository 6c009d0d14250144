use super::{Action as A, Charge::*, Ending as E, Event as Ev, ForExchange as D, Frame as F, *};

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
    let mut x = Exchange::patient(Patience::NONE);
    let mut actions = Vec::new();
    for e in events {
        actions.extend(x.on(e.clone()));
    }
    assert_eq!(x.progress(), Progress { visible: before, end: None }, "{events:?}");
    let settles: Vec<Ending> = actions
        .iter()
        .filter_map(|a| match a {
            A::Host(D::Settle { ending, .. }) => Some(*ending),
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

const PATIENCE: Patience = Patience { tries: 3, within_ms: 45_000, hold_ms: 0, seed: 1 };
const TOLD: FailedTry =
    FailedTry { elapsed_ms: 10, retry_after_ms: None, lasting: false, cause: None, probe_ms: None };

fn refused(status: u16) -> [Ev; 2] {
    [Ev::Head { status, streamed: false }, Ev::Refused { len: 10, told: TOLD }]
}

/// Feeds one try after the other, each but the last followed by a rest, and tells the tries that each action named.
fn tries(x: &mut Exchange, all: &[&[Ev]]) -> Vec<A> {
    let mut last = Vec::new();
    for (i, events) in all.iter().enumerate() {
        if i > 0 {
            assert!(matches!(&last[..], [A::Host(D::Rest { tries, .. })] if tries.len() == i), "{last:?}");
            assert!(matches!(&x.on(Ev::Rested)[..], [A::Host(D::AskAgain { tries })] if tries.len() == i));
            assert_eq!(x.on(Ev::MayLeave(Ok(true))), [A::Host(D::SendAgain)]);
        }
        last = events.iter().flat_map(|e| x.on(e.clone())).collect();
    }
    last
}

#[test]
fn what_is_refused_or_not_reached_is_tried_again_and_the_answer_is_that_of_the_last_try() {
    let never = [Ev::Unreachable(TOLD)];
    let whole = [JSON, WHOLE];
    for (all, ending, error) in [
        (vec![&refused(429)[..], &whole], E::Done, None),
        (vec![&never[..], &refused(529), &whole], E::Done, None),
        (vec![&never[..], &never, &never], E::Void, Some("upstream_unreachable")),
        (vec![&never[..], &refused(503), &never], E::Failed(Nothing_), Some("upstream_unreachable")),
        (vec![&refused(429)[..], &refused(429), &refused(503)], E::Failed(Nothing_), Some("upstream_error")),
        // A refusal that does not pass by itself ends the call at once.
        (vec![&refused(400)[..]], E::Failed(Nothing_), Some("upstream_error")),
        (vec![&refused(429)[..], &refused(500)], E::Failed(Nothing_), Some("upstream_error")),
        (
            vec![&refused(429)[..], &[Ev::UpstreamError(Failure::AfterSend)]],
            E::Unknown,
            Some("upstream_no_answer"),
        ),
        (
            vec![&refused(429)[..], &[STREAM, frame(F::Data), Ev::StreamEnd]],
            E::Failed(Metered),
            Some("upstream_broke_off"),
        ),
    ] {
        let mut x = Exchange::patient(PATIENCE);
        let last = tries(&mut x, &all);
        assert_eq!(last.last(), Some(&A::Host(D::Settle { ending, error })), "{all:?}");
        x.on(Ev::Settled(Ok(())));
        assert!(x.is_over(), "{all:?}");
    }
}

#[test]
fn a_rest_ends_where_nobody_waits_or_the_next_try_may_not_leave() {
    let no = [Ok(false), Err(full()), Err(engine(engine::Error::AlreadySettled { seq: 1, state: "failed" }))];
    let ends: Vec<Vec<Ev>> = no
        .into_iter()
        .map(|no| vec![Ev::Rested, Ev::MayLeave(no)])
        .chain([vec![Ev::Abandoned], vec![Ev::Rested, Ev::Abandoned]])
        .collect();
    for end in ends {
        for (first, ending) in
            [(refused(429).to_vec(), E::Failed(Nothing_)), (vec![Ev::Unreachable(TOLD)], E::Void)]
        {
            let mut x = Exchange::patient(PATIENCE);
            first.iter().chain(&end).fold(Vec::new(), |_, e| x.on(e.clone()));
            let settled = x.on(Ev::MayLeave(Ok(true)));
            assert_eq!(settled, [], "it is being settled: nothing leaves");
            x.on(Ev::Settled(Ok(())));
            let state = x.progress().end;
            let answered = ending == E::Failed(Nothing_);
            assert_eq!(matches!(state, Some(End::Answered(State::Failed))), answered, "{end:?} {state:?}");
        }
    }
}

#[test]
fn once_a_2xx_began_nothing_is_tried_again() {
    for cut in [Ev::StreamEnd, Ev::UpstreamError(Failure::AfterSend), Ev::Timeout(Silence::Idle)] {
        for head in [STREAM, JSON] {
            let mut x = Exchange::patient(PATIENCE);
            x.on(head);
            assert!(x.on(cut.clone()).iter().any(|a| matches!(a, A::Host(D::Settle { .. }))), "{cut:?}");
        }
    }
    let mut x = Exchange::patient(PATIENCE);
    x.on(JSON);
    // Even if a host asked for it.
    let done = A::Host(D::Settle { ending: E::Done, error: None });
    assert_eq!(x.on(Ev::Refused { len: 1, told: TOLD }), [done]);
}

#[test]
fn a_silent_upstream_is_dropped() {
    let mut x = Exchange::patient(Patience::NONE);
    assert_eq!(x.on(Ev::Timeout(Silence::FirstByte))[0], A::Host(D::Abort));
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
    let mut x = Exchange::patient(Patience::NONE);
    x.on(JSON);
    x.on(WHOLE);
    let told = Progress {
        visible: Visible::Nothing,
        end: Some(End::Broken { why: Broken::NotRecorded, state: None }),
    };
    let again = A::Host(D::SettleAgain { ending: E::Done, error: None });
    assert_eq!(x.on(Ev::Settled(Err(full()))), [A::Tell(told), again.clone()]);
    assert!(x.is_stuck() && !x.is_over());
    assert_eq!(x.on(Ev::Settled(Err(full()))), [again]);
    assert_eq!(x.on(Ev::Settled(Ok(()))), []);
    assert!(x.is_over() && !x.is_stuck());
    assert_eq!(x.progress(), told);
}

#[test]
fn a_slow_settlement_is_an_error_to_its_clients_and_ends_when_it_ends() {
    let mut x = Exchange::patient(Patience::NONE);
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
        let mut x = Exchange::patient(Patience::NONE);
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
    let mut x = Exchange::patient(Patience::NONE);
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
