//! A call: reserved before it leaves, charged what it cost when it is settled.

use outlast_core::{
    engine::call::settle::{Bill, Close, Settle},
    envelope::unit::{Amounts, Unit},
    journal::{Role, State, payload::Payload},
    run::Unpriced,
    words::id::Seq,
};

use crate::{agent::*, stage::Stage};

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").cost(10_000).limit(Unit::Tokens, 10_000).create())
}

pub fn a_call_reserves_its_bound_before_it_leaves(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    let (entry, envelope) = (s.entry(a.run, seq), s.envelope(a.run));
    assert_eq!(
        (entry.state, entry.held[Unit::CostNanoUsd], entry.held[Unit::Tokens]),
        (State::Open, FULL, FULL)
    );
    for (unit, want) in [(Unit::CostNanoUsd, FULL), (Unit::Tokens, FULL), (Unit::Calls, 1)] {
        assert_eq!((envelope.reserved[unit], envelope.spent[unit]), (want, 0), "{}", unit.name());
    }
}

pub fn a_settled_call_is_charged_what_it_cost(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    let settled = a.done(seq, 120);
    assert_eq!((settled.cost_nano_usd, settled.overrun_nano_usd, settled.run_spent_nano_usd), (120, 0, 120));
    let envelope = s.envelope(a.run);
    for (unit, want) in [(Unit::CostNanoUsd, 120), (Unit::Tokens, 120), (Unit::Calls, 1)] {
        assert_eq!((envelope.reserved[unit], envelope.spent[unit]), (0, want), "{}", unit.name());
    }
    assert_eq!(s.entry(a.run, seq).state, State::Done);
}

pub fn each_close_charges_its_own_way(s: &Stage) {
    let cases = [
        (Close::Done(bill(120)), State::Done, (0, 120, 1)),
        (Close::Done(Bill::Reservation), State::Done, (0, FULL, 1)),
        (Close::Failed(bill(120)), State::Failed, (0, 120, 1)),
        (Close::Failed(Bill::Reservation), State::Failed, (0, FULL, 1)),
        (Close::Failed(Bill::Nothing), State::Failed, (0, 0, 1)),
        (Close::Void, State::Void, (0, 0, 0)),
        (Close::Unknown, State::Unknown, (FULL, 0, 1)),
    ];
    let process = s.process("p");
    for (i, (close, state, (reserved, spent, calls))) in cases.into_iter().enumerate() {
        let a = process.claim(s.run(&format!("r{i}")).cost(10_000).create());
        let seq = a.call("x");
        a.ask(a.settle(seq, close.clone())).unwrap();
        let e = s.envelope(a.run);
        assert_eq!(s.entry(a.run, seq).state, state);
        let had = (e.reserved.cost(), e.spent.cost(), e.spent[Unit::Calls]);
        assert_eq!(had, (reserved, spent, calls), "{close:?}");
    }
}

pub fn a_call_without_usage_is_marked_estimated(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.ask(a.settle(seq, Close::Done(Bill::Reservation))).unwrap();
    assert!(s.entry(a.run, seq).call.unwrap().estimated);
}

pub fn an_overrun_is_recorded_in_full_and_shown(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(FULL).create());
    let seq = a.call("x");
    let settled = a.done(seq, FULL + 30);
    assert_eq!((settled.cost_nano_usd, settled.overrun_nano_usd), (FULL + 30, 30));
    assert_eq!(s.entry(a.run, seq).call.unwrap().overrun(), Amounts::of(30, 30));
    assert_eq!(s.money(a.run), (0, 0, FULL + 30));
    assert_eq!(a.request("y").bound(bound(0, 1)).refused().free, -30);
}

pub fn a_settled_call_is_settled_once(s: &Stage) {
    let a = agent(s);
    for close in [Close::Done(bill(1)), Close::Failed(Bill::Nothing), Close::Void] {
        let seq = a.call(&format!("{close:?}"));
        a.ask(a.settle(seq, close.clone())).unwrap();
        for again in [close, Close::Done(bill(2)), Close::Unknown] {
            s.refuses("already_settled", a.settle(seq, again));
        }
    }
}

pub fn an_entry_that_is_not_there_cannot_be_settled(s: &Stage) {
    let a = agent(s);
    s.refuses("unknown_entry", a.settle(Seq(9), Close::Void));
}

/// Bug: a step could be settled as if it were a call.
/// Consequence: it closed without a result, and one call was counted that nobody made.
/// Cause: settling looked the entry up by number and never asked its kind, as recording does.
pub fn only_a_call_can_be_settled(s: &Stage) {
    let a = agent(s);
    let step = a.begins("step");
    for close in [Close::Void, Close::Done(bill(5)), Close::Unknown] {
        s.refuses("unknown_entry", a.settle(step, close));
    }
}

pub fn a_call_keeps_what_people_ask_for(s: &Stage) {
    let a = agent(s);
    let seq = a.request("x").keyed("idem").goes();
    let settle = Settle {
        http_status: Some(200),
        upstream_request_id: Some("req_1".into()),
        ..a.settle(seq, Close::Done(bill(7)))
    };
    a.ask(settle).unwrap();
    s.reopen();
    let call = s.entry(a.run, seq).call.unwrap();
    assert_eq!((call.http_status, call.upstream_request_id.as_deref()), (Some(200), Some("req_1")));
    assert_eq!((call.model.as_str(), call.upstream.as_str()), ("model-a", "openai"));
    assert_eq!(call.usage.map(|u| u.input), Some(7));
    assert_eq!((call.price_hash.as_deref(), call.idempotency_key.as_deref()), (Some("test"), Some("idem")));
}

pub fn an_answer_and_its_request_are_kept_as_they_were(s: &Stage) {
    let a = agent(s);
    let mut request = a.request("x");
    request.admit.request = Some(Payload::encode(b"the request"));
    let seq = request.goes();
    a.done(seq, 7);
    s.reopen();
    for (role, want) in [(Role::Request, "the request"), (Role::Answer, "answer 1")] {
        let kept = s.store().payload(a.run, seq, role).unwrap().unwrap();
        assert_eq!(kept.decode().unwrap(), want.as_bytes());
    }
    assert_eq!(s.store().newest_request(a.run).unwrap(), Some(seq));
}

pub fn a_failed_answer_is_not_kept(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    let answer = Some(Payload::encode(b"half an answer"));
    a.ask(Settle { answer, ..a.settle(seq, Close::Failed(bill(3))) }).unwrap();
    assert_eq!(s.store().payload(a.run, seq, Role::Answer).unwrap(), None);
}

pub fn a_model_without_a_price_is_refused_under_a_dollar_limit_only(s: &Stage) {
    let process = s.process("p");
    let dollars = process.claim(s.run("dollars").cost(10_000).create());
    assert_eq!(dollars.request("x").unpriced().refused().code, "price_unknown");
    assert_eq!(s.status(dollars.run).name(), "running");
    dollars.call("a priced one");
    let tokens = process.claim(s.run("tokens").limit(Unit::Tokens, FULL).create());
    tokens.request("x").unpriced().goes();
    let free = process.claim(s.run("free").cost(10_000).unpriced(Unpriced::Free).create());
    let seq = free.request("x").unpriced().goes();
    assert_eq!(s.entry(free.run, seq).held.cost(), 0);
    // A fee that is not known is no reason to charge nothing: the tokens have a price.
    let refused = dollars.request("y").with_fee("tools[0] web_search").refused();
    assert_eq!(refused.message(), "tools[0] web_search has no known price, and the run has a limit in usd");
    assert!(!refused.hint("r").contains("--prices") && refused.hint("r").contains("--unpriced free"));
    let free = s.run("free-fee").cost(10_000).unpriced(Unpriced::Free).create();
    for run in [s.run("fee").create(), free] {
        let agent = process.claim(run);
        let seq = agent.request("y").with_fee("tools[0] web_search").goes();
        let entry = s.entry(agent.run, seq);
        assert!(entry.held.cost() > 0);
        assert_eq!(entry.call.unwrap().unpriced.as_deref(), Some("tools[0] web_search"));
    }
    let child = process.claim(s.run("child").under(dollars.run).create());
    assert_eq!(child.request("x").unpriced().refused().code, "price_unknown");
}

pub fn what_was_admitted_survives_the_process(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    s.reopen();
    assert_eq!(s.entry(a.run, seq).state, State::Open);
    assert_eq!(s.money(a.run), (FULL, 0, 0));
}
