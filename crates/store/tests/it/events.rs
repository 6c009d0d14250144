//! Events: what happened, written with what it tells of, and given out once to whoever goes on from a mark.

use outlast_core::{
    engine::{
        notify::PutDelivery,
        run::{
            end_attempt::Then,
            forget::{Forget, Forgot},
            tell::{Tell, Word},
        },
    },
    envelope::unit::Unit,
    events::{Event, EventQuery, Kind, Mark, delivery::Delivery},
    run::status::Status,
    words::id::{RunNo, Seq},
};
use serde_json::{Value, json};

use crate::{
    agent::{FLOOR, FULL},
    approvals,
    runs::raising,
    stage::{FOREVER, Stage},
};

/// Events after `after` that the store gives out now.
fn after(s: &Stage, after: Mark) -> Vec<Event> {
    s.store().events(&EventQuery { after, limit: 1000, ..EventQuery::default() }).unwrap()
}

fn kinds(events: &[Event]) -> Vec<Kind> {
    events.iter().map(|e| e.kind).collect()
}

/// Events of a run and kind, with their entries and what they tell.
fn told(s: &Stage, run: RunNo, kind: Kind) -> Vec<(Option<Seq>, Value)> {
    let wanted = EventQuery { run: Some(run), limit: 1000, ..EventQuery::default() };
    let events = s.store().events(&wanted).unwrap();
    events.into_iter().filter(|e| e.kind == kind).map(|e| (e.seq, e.about)).collect()
}

pub fn what_happens_to_a_run_is_an_event_of_its_commit_and_ordinary_work_is_none(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let begun = after(s, Mark::default());
    assert_eq!(kinds(&begun), [Kind::RunCreated, Kind::Status, Kind::AttemptBegan]);
    assert_eq!(begun[0].about, json!({"run": "r"}));
    assert_eq!((&begun[1].about["from"], &begun[1].about["to"]), (&json!("interrupted"), &json!("running")));
    let mark = s.store().newest_event().unwrap();
    assert_eq!(mark, begun[2].mark);
    let step = a.begins("fetch");
    a.ask(a.record(step, "page")).unwrap();
    a.buys("ask", 10);
    assert_eq!(after(s, mark), [], "ordinary work");
    s.ask(Tell { run: a.run, word: Word::Cancel { reason: Some("enough".into()) } }).unwrap();
    a.ends(Then::Complete);
    s.reopen();
    let ended = after(s, mark);
    assert!(ended.iter().all(|e| e.run == Some(a.run) && e.mark > mark), "{ended:?}");
    let status = ended.iter().find(|e| e.kind == Kind::Status).unwrap();
    assert_eq!((&status.about["to"], &status.about["message"]), (&json!("cancelled"), &json!("enough")));
    let exit = ended.iter().find(|e| e.kind == Kind::AttemptEnded).unwrap();
    assert_eq!((&exit.about["attempt"], &exit.about["died"]), (&json!(1), &json!(false)));
    // Page by page, each once.
    let (mut all, mut at) = (Vec::new(), Mark::default());
    loop {
        let page = s.store().events(&EventQuery { after: at, limit: 2, run: None }).unwrap();
        let Some(last) = page.last() else { break };
        at = last.mark;
        all.extend(page);
    }
    assert_eq!(all.len(), 5, "{all:?}");
}

pub fn a_budget_tells_each_share_of_its_limit_once(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(10 * FULL).limit(Unit::Calls, 1000).create());
    for n in 0..9 {
        a.buys(&format!("call {n}"), FULL);
    }
    let shares = told(s, a.run, Kind::Budget);
    let percents: Vec<&Value> = shares.iter().map(|e| &e.1["percent"]).collect();
    assert_eq!(percents, [&json!(50), &json!(80)]);
    let wanted = json!({"unit": "cost_nano_usd", "percent": 80, "spent": 8 * FULL, "limit": 10 * FULL});
    assert_eq!(shares[1].1, wanted);
}

/// Bug: raising the budget of a halted run sent its owner "nobody drives it". Cause: any step to `interrupted` that was no
/// stop counted as a death.
pub fn a_halted_run_that_is_given_room_is_not_told_as_a_death(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(FLOOR - 1).create());
    a.request("too dear").refused();
    a.ends(Then::Interrupt { by_person: false });
    let mut raise = raising(a.run);
    raise.add[Unit::CostNanoUsd] = Some(FULL);
    assert_eq!(s.ask(raise).unwrap(), Status::Interrupted);
    let last = told(s, a.run, Kind::Status).pop().unwrap().1;
    assert_eq!(
        [&last["from"], &last["to"], &last["by_person"]],
        [&json!("halted"), &json!("interrupted"), &json!(true)]
    );
}

pub fn a_lost_call_and_a_bill_beyond_its_hold_are_told(s: &Stage) {
    let process = s.process("p");
    let a = process.claim(s.run("r").create());
    let over = a.call("over");
    a.done(over, FULL + 7);
    let lost = a.call("lost");
    process.dies();
    let ended = told(s, a.run, Kind::AttemptEnded);
    assert_eq!((&ended[0].1["died"], &ended[0].1["exit"]["lost"]), (&json!(true), &json!(true)));
    let overrun = json!({"nano_usd": 7, "tokens": 7});
    assert_eq!(told(s, a.run, Kind::Overrun), [(Some(over), overrun)]);
    let doubt = told(s, a.run, Kind::Doubt);
    assert_eq!((doubt.len(), doubt[0].0, &doubt[0].1["held_nano_usd"]), (1, Some(lost), &json!(FULL)));
}

pub fn an_approval_is_told_when_it_is_asked_for_and_when_it_is_decided(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let id = a.pends("deploy", "{}");
    let shown = json!(id.to_string());
    let asked = told(s, a.run, Kind::ApprovalAsked);
    assert_eq!(
        (asked[0].0, &asked[0].1["id"], &asked[0].1["tool"]),
        (Some(id.seq), &shown, &json!("deploy"))
    );
    a.pends("deploy", "{}");
    approvals::decides(s, id, true);
    let decided = told(s, a.run, Kind::ApprovalDecided);
    assert_eq!((decided.len(), &decided[0].1["approve"], &decided[0].1["id"]), (1, &json!(true), &shown));
    assert_eq!(told(s, a.run, Kind::ApprovalAsked).len(), 1, "asked once");
}

pub fn what_a_refusal_leaves_unwritten_is_no_event(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    a.ends(Then::Complete);
    let mark = after(s, Mark::default()).last().unwrap().mark;
    s.refuses("run_ended", Tell { run: a.run, word: Word::Cancel { reason: None } });
    assert_eq!(after(s, mark), []);
}

pub fn a_removed_run_leaves_one_event_and_no_number_is_given_out_twice(s: &Stage) {
    let first = s.process("p").claim(s.run("gone").create());
    let last = s.run("stays").create();
    first.ends(Then::Complete);
    // Two runs are created, one begins and is completed.
    let mark = after(s, Mark::default()).last().unwrap().mark;
    let forget = Forget { run: first.run, above: Vec::new(), ended_before: FOREVER, seen: last };
    assert_eq!(s.ask(forget).unwrap(), Forgot::Gone);
    let left = after(s, mark);
    assert_eq!((kinds(&left), &left[0].about), (vec![Kind::RunRemoved], &json!({"run": "gone"})));
    let wanted = EventQuery { run: Some(first.run), limit: 100, ..EventQuery::default() };
    assert_eq!(kinds(&s.store().events(&wanted).unwrap()), [Kind::RunRemoved]);
}

pub fn one_of_two_deliverers_writes_and_the_other_learns_it(s: &Stage) {
    let (p, q) = (s.process("p"), s.process("q"));
    let of = |holder, version| {
        let cursor = Mark { transaction: 0, no: 7 };
        let delivery =
            Delivery { name: "phone".into(), version, holder: Some(holder), cursor, ..Delivery::default() };
        PutDelivery { delivery }
    };
    assert!(s.ask(of(p.no, 0)).unwrap());
    assert!(!s.ask(of(q.no, 0)).unwrap(), "it saw no row, and there is one");
    s.reopen();
    let stored = s.store().deliveries().unwrap();
    assert_eq!((stored.len(), stored[0].holder, stored[0].version), (1, Some(p.no), 1));
    assert_eq!(stored[0].cursor, Mark { transaction: 0, no: 7 });
    assert!(s.ask(of(q.no, 1)).unwrap());
    assert_eq!(s.store().deliveries().unwrap()[0].holder, Some(q.no));
}
