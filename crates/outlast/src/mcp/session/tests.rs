//! The session's answers to deaths, cancellations and decisions, in each order.

use outlast_core::{
    journal::Opening,
    words::{InstanceNo, OpNo, RunNo},
};
use serde_json::Value;

use super::*;

const CALL: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"append","arguments":{"x":1}}}"#;
const DONE: &str = r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#;

fn opening(seq: i64) -> Opening {
    Opening { run: RunNo(1), seq: Seq(seq), instance: InstanceNo(1), op: OpNo(1) }
}

fn send(seq: i64) -> Verdict {
    Verdict::Send { opening: opening(seq), key: "k".into(), new: true, sent: true, asks: false, earlier: 0 }
}

/// A session whose server is up.
struct Stage {
    session: Session,
}

impl Stage {
    fn with(tools: Tools) -> Stage {
        let (mut session, deeds) = Session::new(tools);
        assert_eq!(deeds, [Deed::Start { pause_ms: 0 }]);
        assert!(session.started().is_empty());
        Stage { session }
    }

    fn new() -> Stage {
        Stage::with(Tools::default())
    }

    fn client(&mut self, line: &str) -> Vec<Deed> {
        self.session.on(Event::Client(line.as_bytes().to_vec()))
    }

    fn server(&mut self, line: &str) -> Vec<Deed> {
        self.session.on(Event::Server(line.as_bytes().to_vec()))
    }

    fn dies(&mut self) -> Vec<Deed> {
        self.session.on(Event::ServerEnded("signal 9".into()))
    }

    /// A call that is with the server; `manner` as the tools say.
    fn out(&mut self) {
        assert!(matches!(&self.client(CALL)[..], [Deed::Reserve { no: 0, leaves: true, anew: false, .. }]));
        let deeds = self.session.on(Event::Reserved(0, Ok(send(5))));
        let [Deed::ToServer(line)] = &deeds[..] else { panic!("{deeds:?}") };
        let line: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(line["params"]["_meta"]["outlast/idempotencyKey"], "k");
    }
}

fn shown(deed: &Deed) -> (Value, Option<Seq>) {
    let Deed::ToClient { line, mark } = deed else { panic!("not shown: {deed:?}") };
    (serde_json::from_slice(line).unwrap(), *mark)
}

fn to_server(line: &str) -> Deed {
    Deed::ToServer(line.as_bytes().to_vec())
}

#[test]
fn an_answer_is_shown_after_it_is_recorded() {
    let mut s = Stage::new();
    s.out();
    let deeds = s.server(DONE);
    let [Deed::Record { no: 0, body, failed: false, .. }] = &deeds[..] else { panic!("{deeds:?}") };
    assert_eq!(body, r#""result":{"content":[]}"#);
    let deeds = s.session.on(Event::Recorded(0, Ok(())));
    assert_eq!(deeds, [Deed::ToClient { line: DONE.into(), mark: Some(Seq(5)) }]);
}

#[test]
fn an_answer_that_cannot_be_recorded_is_not_shown() {
    let mut s = Stage::new();
    s.out();
    s.server(DONE);
    let deeds = s.session.on(Event::Recorded(0, Err("disk".into())));
    let (line, mark) = shown(&deeds[0]);
    assert!(line["error"]["message"].as_str().unwrap().contains("could not be recorded: disk"));
    assert_eq!(mark, None);
}

#[test]
fn a_call_that_cannot_be_reserved_is_not_made() {
    let mut s = Stage::new();
    s.client(CALL);
    let deeds = s.session.on(Event::Reserved(0, Err("lost".into())));
    let (line, _) = shown(&deeds[0]);
    assert!(line["error"]["message"].as_str().unwrap().contains("the tool was not called: lost"));
    assert_eq!(deeds.len(), 1);
}

#[test]
fn a_call_that_its_server_died_in_is_told_and_never_sent_again() {
    let mut s = Stage::new();
    s.out();
    let deeds = s.dies();
    let [Deed::GiveUp { no: 0, .. }, Deed::Start { .. }] = &deeds[..] else { panic!("{deeds:?}") };
    assert!(s.session.started().is_empty(), "nothing is sent to the next server");
    let told = Verdict::Answer { seq: Some(Seq(5)), body: message::told("unknown", Value::Null) };
    let deeds = s.session.on(Event::GivenUp(0, Ok(told)));
    let (line, mark) = shown(&deeds[0]);
    assert_eq!((line["result"]["isError"].as_bool(), mark), (Some(true), Some(Seq(5))));
}

#[test]
fn a_call_that_may_be_repeated_is_sent_to_the_next_server() {
    let mut s = Stage::with(Tools::new(false, vec!["append".into()], Vec::new()));
    s.out();
    assert!(matches!(&s.dies()[..], [Deed::Start { .. }]));
    assert!(matches!(&s.session.started()[..], [Deed::ToServer(_)]));
    assert!(matches!(&s.server(DONE)[..], [Deed::Record { no: 0, .. }]));
}

#[test]
fn a_call_that_is_reserved_while_the_server_is_down_is_marked_before_it_leaves() {
    let mut s = Stage::new();
    s.dies();
    assert!(matches!(&s.client(CALL)[..], [Deed::Reserve { leaves: false, .. }]));
    let Verdict::Send { opening, key, new, .. } = send(5) else { unreachable!() };
    let verdict = Verdict::Send { opening, key, new, sent: false, asks: false, earlier: 0 };
    assert!(s.session.on(Event::Reserved(0, Ok(verdict))).is_empty());
    assert_eq!(s.session.started(), [Deed::Leave { no: 0, opening }]);
    assert!(matches!(&s.session.on(Event::Left(0, Ok(())))[..], [Deed::ToServer(_)]));
}

#[test]
fn the_session_is_opened_again_as_the_client_opened_it() {
    let mut s = Stage::new();
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"new":1e400}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let level = r#"{"id":1,"method":"logging/setLevel","params":{"level":"debug"}}"#;
    assert_eq!(s.client(initialize), [to_server(initialize)]);
    assert_eq!(s.server(r#"{"id":0,"result":{}}"#).len(), 1);
    assert_eq!(s.client(initialized), [to_server(initialized)]);
    s.client(level);
    s.server(r#"{"id":1,"result":{}}"#);
    let list = r#"{"id":2,"method":"tools/list"}"#;
    assert_eq!(s.client(list), [to_server(list)]);
    s.dies();
    let again = initialize.replace("\"id\":0", "\"id\":\"outlast-1\"");
    assert_eq!(s.session.started(), [to_server(&again)]);
    // What comes meanwhile waits, and the greeting's answer is ours.
    let ping = r#"{"id":3,"method":"ping"}"#;
    assert!(s.client(ping).is_empty());
    let deeds = s.server(r#"{"id":"outlast-1","result":{}}"#);
    let level = level.replace("\"id\":1", "\"id\":\"outlast-2\"");
    assert_eq!(deeds, [initialized, &level, list, ping].map(to_server));
    assert!(s.server(r#"{"id":"outlast-2","result":{}}"#).is_empty());
    assert_eq!(s.server(r#"{"id":2,"result":{"tools":[]}}"#).len(), 1);
}

#[test]
fn a_question_of_a_server_that_died_is_withdrawn_and_its_answer_dropped() {
    let mut s = Stage::new();
    assert_eq!(s.server(r#"{"id":9,"method":"elicitation/create"}"#).len(), 1);
    let deeds = s.dies();
    let (line, _) = shown(&deeds[0]);
    assert_eq!(
        (&line["method"], &line["params"]["requestId"]),
        (&json!("notifications/cancelled"), &json!(9))
    );
    s.session.started();
    assert!(s.client(r#"{"id":9,"result":{}}"#).is_empty());
    s.server(r#"{"id":9,"method":"elicitation/create"}"#);
    assert_eq!(s.client(r#"{"id":9,"result":{}}"#).len(), 1);
}

#[test]
fn a_cancelled_call_is_recorded_if_its_answer_comes_and_not_shown() {
    let mut s = Stage::new();
    s.out();
    let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":7}}"#;
    assert_eq!(s.client(cancel), [to_server(cancel)]);
    assert!(matches!(&s.server(DONE)[..], [Deed::Record { .. }]));
    assert!(s.session.on(Event::Recorded(0, Ok(()))).is_empty());
}

#[test]
fn a_call_that_is_cancelled_before_it_left_never_leaves() {
    let mut s = Stage::new();
    s.client(CALL);
    assert!(s.client(r#"{"method":"notifications/cancelled","params":{"requestId":7}}"#).is_empty());
    assert!(matches!(&s.session.on(Event::Reserved(0, Ok(send(5))))[..], [Deed::GiveUp { .. }]));
}

fn asked(seq: i64) -> Verdict {
    Verdict::Send { opening: opening(seq), key: "k".into(), new: true, sent: false, asks: true, earlier: 0 }
}

#[test]
fn a_call_that_a_person_approves_is_marked_and_sent() {
    let mut s = Stage::new();
    s.client(CALL);
    let deeds = s.session.on(Event::Reserved(0, Ok(asked(5))));
    assert!(matches!(&deeds[..], [Deed::Approve { no: 0, patience_ms: PATIENCE_MS, .. }]));
    let deeds = s.session.on(Event::Approved(0, Ok(Approval::Given)));
    assert_eq!(deeds, [Deed::Leave { no: 0, opening: opening(5) }]);
    assert!(matches!(&s.session.on(Event::Left(0, Ok(())))[..], [Deed::ToServer(_)]));
}

#[test]
fn a_call_that_nobody_decided_in_time_waits_on_when_it_is_made_again() {
    let mut s = Stage::new();
    s.client(CALL);
    s.session.on(Event::Reserved(0, Ok(asked(5))));
    let pending = message::told("pending", Value::Null);
    let deeds = s.session.on(Event::Approved(0, Ok(Approval::Pending(pending))));
    let (line, mark) = shown(&deeds[0]);
    assert_eq!((line["result"]["isError"].as_bool(), mark), (Some(true), None));
    let deeds = s.client(&CALL.replace("\"id\":7", "\"id\":8"));
    let [Deed::Approve { no: 1, opening: same, .. }] = &deeds[..] else { panic!("{deeds:?}") };
    assert_eq!(*same, opening(5));
}

#[test]
fn a_client_that_hears_of_progress_waits_as_long_as_it_takes() {
    let mut s = Stage::new();
    s.client(&CALL.replace("\"arguments\"", "\"_meta\":{\"progressToken\":\"t\"},\"arguments\""));
    let deeds = s.session.on(Event::Reserved(0, Ok(asked(5))));
    assert!(matches!(&deeds[..], [Deed::Approve { patience_ms: PROGRESS_MS, .. }]));
    for n in 1..4 {
        let deeds = s.session.on(Event::Approved(0, Ok(Approval::Pending(String::new()))));
        let (line, _) = shown(&deeds[0]);
        assert_eq!((&line["params"]["progressToken"], &line["params"]["progress"]), (&json!("t"), &json!(n)));
        assert!(matches!(&deeds[1], Deed::Approve { .. }));
    }
}

#[test]
fn a_refusal_is_recorded_before_it_is_shown() {
    let mut s = Stage::new();
    s.client(CALL);
    s.session.on(Event::Reserved(0, Ok(asked(5))));
    let deeds = s.session.on(Event::Approved(0, Ok(Approval::Refused("denied".into()))));
    assert!(matches!(&deeds[..], [Deed::Record { failed: true, .. }]));
    let deeds = s.session.on(Event::Recorded(0, Ok(())));
    assert_eq!(shown(&deeds[0]).0["result"]["content"][0]["text"], "denied");
}

#[test]
fn reads_are_live_once_this_life_has_left_the_path_of_the_last() {
    let mut s = Stage::with(Tools::new(false, vec!["get".into()], Vec::new()));
    let call = |id: i64, tool: &str| {
        format!(r#"{{"id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#)
    };
    let replayed = |seq: i64| Verdict::Answer { seq: Some(Seq(seq)), body: "\"result\":{}".into() };
    // Two answers of the life before; the first is taken, and then comes a call that it did not make.
    assert!(matches!(&s.client(&call(1, "get"))[..], [Deed::Reserve { anew: false, .. }]));
    s.session.on(Event::Reserved(0, Ok(replayed(1))));
    s.client(&call(2, "other"));
    let new = Verdict::Send {
        opening: opening(3),
        key: "k".into(),
        new: true,
        sent: true,
        asks: false,
        earlier: 2,
    };
    s.session.on(Event::Reserved(1, Ok(new)));
    assert!(matches!(&s.client(&call(3, "get"))[..], [Deed::Reserve { anew: true, .. }]));
}

#[test]
fn a_server_that_does_not_stay_up_is_given_up_and_everybody_told() {
    let mut s = Stage::new();
    s.client(r#"{"id":1,"method":"initialize"}"#);
    for _ in 1..MOST_STARTS {
        assert!(matches!(&s.dies()[..], [Deed::Start { .. }]));
        assert_eq!(s.session.started().len(), 1, "asked again");
    }
    let deeds = s.dies();
    let (line, _) = shown(&deeds[0]);
    assert!(line["error"]["message"].as_str().unwrap().contains("the last time with signal 9"));
    assert!(matches!(&deeds[1], Deed::Quit { why: Some(_) }));
}

#[test]
fn what_is_no_message_is_refused_and_what_is_unknown_passes() {
    let mut s = Stage::new();
    for (line, code) in [("{", -32700), ("[]", INVALID), ("{}", INVALID)] {
        assert_eq!(shown(&s.client(line)[0]).0["error"]["code"], code, "{line}");
    }
    let bad = r#"{"id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#;
    assert_eq!(shown(&s.client(bad)[0]).0["error"]["code"], PARAMS);
    assert!(s.client(r#"{"method":"tools/call","params":{"name":"a"}}"#).is_empty(), "nobody could be told");
    assert!(s.client(" ").is_empty());
    let odd = r#"{"method":"server/discover","id":"x", "params":{"?":1.0}}"#;
    assert_eq!(s.client(odd), [to_server(odd)]);
    s.out();
    assert_eq!(shown(&s.client(CALL)[0]).0["error"]["code"], INVALID, "an id that is in use");
}

#[test]
fn the_recorder_ends_when_its_client_is_gone_and_no_answer_is_due() {
    let mut s = Stage::new();
    s.out();
    assert!(s.session.on(Event::ClientClosed).is_empty());
    s.server(DONE);
    let deeds = s.session.on(Event::Recorded(0, Ok(())));
    assert!(matches!(deeds.last(), Some(Deed::Quit { why: None })));
}

fn lost(s: &mut Stage, line: &str, taken: bool) -> Vec<Deed> {
    s.session.on(Event::Lost { line: line.as_bytes().to_vec(), why: "broke off".into(), taken })
}

#[test]
fn a_lost_answer_of_a_tool_that_acts_is_told_and_its_server_stays() {
    let mut s = Stage::new();
    s.out();
    assert!(matches!(&lost(&mut s, CALL, true)[..], [Deed::GiveUp { no: 0, refused: None, .. }]));
    assert_eq!(s.client(r#"{"id":8,"method":"ping"}"#).len(), 1, "the server is up");
}

#[test]
fn a_call_that_the_server_did_not_take_is_void() {
    let mut s = Stage::with(Tools::new(false, vec!["append".into()], Vec::new()));
    s.out();
    let deeds = lost(&mut s, CALL, false);
    assert!(
        matches!(&deeds[..], [Deed::GiveUp { refused: Some(why), .. }] if why == "broke off"),
        "{deeds:?}"
    );
}

#[test]
fn a_lost_read_is_sent_again_and_given_up_in_the_end() {
    let mut s = Stage::with(Tools::new(false, vec!["append".into()], Vec::new()));
    s.out();
    for _ in 1..MOST_STARTS {
        assert!(matches!(&lost(&mut s, CALL, true)[..], [Deed::ToServer(_)]));
    }
    assert!(matches!(&lost(&mut s, CALL, true)[..], [Deed::GiveUp { refused: None, .. }]));
    let list = r#"{"id":9,"method":"tools/list"}"#;
    s.client(list);
    for _ in 1..MOST_STARTS {
        assert_eq!(lost(&mut s, list, true), [to_server(list)]);
    }
    let (line, _) = shown(&lost(&mut s, list, true)[0]);
    assert!(line["error"]["message"].as_str().unwrap().contains("broke off"));
    assert!(lost(&mut s, list, true).is_empty(), "its client has its answer");
}

/// A session that the client has opened.
fn greeted() -> Stage {
    let mut s = Stage::new();
    s.client(r#"{"id":1,"method":"initialize","params":{}}"#);
    s.server(r#"{"id":1,"result":{}}"#);
    s.client(r#"{"method":"notifications/initialized"}"#);
    s
}

#[test]
fn a_forgotten_session_is_opened_anew_and_what_met_it_is_sent_again() {
    let mut s = greeted();
    s.out();
    let list = r#"{"id":9,"method":"tools/list"}"#;
    s.client(list);
    let deeds = s.session.on(Event::Forgotten(CALL.into()));
    assert_eq!(deeds, [to_server(r#"{"id":"outlast-1","method":"initialize","params":{}}"#)]);
    assert!(s.session.on(Event::Forgotten(list.into())).is_empty(), "one new session serves all");
    let answer = r#"{"id":3,"result":{}}"#;
    assert!(s.session.on(Event::Forgotten(answer.into())).is_empty());
    let deeds = s.server(r#"{"id":"outlast-1","result":{}}"#);
    let [initialized, Deed::ToServer(call), again] = &deeds[..] else { panic!("{deeds:?}") };
    assert_eq!(*initialized, to_server(r#"{"method":"notifications/initialized"}"#));
    assert!(String::from_utf8_lossy(call).contains("append"));
    assert_eq!(*again, to_server(list));
}

#[test]
fn a_server_that_forgets_each_session_is_given_up() {
    let mut s = greeted();
    let list = r#"{"id":9,"method":"tools/list"}"#;
    s.client(list);
    for n in 1..MOST_STARTS {
        s.session.on(Event::Forgotten(list.into()));
        s.server(&format!(r#"{{"id":"outlast-{n}","result":{{}}}}"#));
    }
    let deeds = s.session.on(Event::Forgotten(list.into()));
    assert!(deeds.iter().any(|d| matches!(d, Deed::Quit { why: Some(_) })), "{deeds:?}");
}

/// A call of 2026-07-28: it names its version.
fn alone() -> String {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"#;
    CALL.replace("\"arguments\"", &format!("{meta}\"arguments\""))
}

#[test]
fn whatever_outlast_answers_itself_names_its_type_where_the_era_wants_it() {
    let told = || message::told("x", json!({}));
    let events: [(&str, Vec<Event>); 4] = [
        ("recorded", vec![Event::Reserved(0, Ok(Verdict::Answer { seq: None, body: told() }))]),
        (
            "unknown",
            vec![
                Event::Reserved(0, Ok(send(5))),
                Event::ServerEnded("signal 9".into()),
                Event::GivenUp(0, Ok(Verdict::Answer { seq: Some(Seq(5)), body: told() })),
            ],
        ),
        (
            "pending",
            vec![Event::Reserved(0, Ok(asked(5))), Event::Approved(0, Ok(Approval::Pending(told())))],
        ),
        (
            "denied",
            vec![
                Event::Reserved(0, Ok(asked(5))),
                Event::Approved(0, Ok(Approval::Refused("x".into()))),
                Event::Recorded(0, Ok(())),
            ],
        ),
    ];
    for (what, events) in events {
        for (call, wanted) in [(alone(), json!("complete")), (CALL.to_owned(), Value::Null)] {
            let mut s = Stage::new();
            s.client(&call);
            let deeds = events.iter().flat_map(|event| s.session.on(copied(event))).collect::<Vec<_>>();
            let answer = deeds.iter().find(|deed| matches!(deed, Deed::ToClient { .. })).unwrap();
            assert_eq!(shown(answer).0["result"]["resultType"], wanted, "{what}");
        }
    }
}

fn copied(event: &Event) -> Event {
    match event {
        Event::Reserved(no, Ok(verdict)) => Event::Reserved(*no, Ok(verdict.clone())),
        Event::GivenUp(no, Ok(verdict)) => Event::GivenUp(*no, Ok(verdict.clone())),
        Event::Approved(no, Ok(approval)) => Event::Approved(*no, Ok(approval.clone())),
        Event::Recorded(no, recorded) => Event::Recorded(*no, recorded.clone()),
        Event::ServerEnded(how) => Event::ServerEnded(how.clone()),
        other => panic!("{other:?}"),
    }
}

/// Bug: an answer with neither result nor error was passed over. Consequence: its call waited for ever. Cause: nothing
/// was to be recorded, so nothing was done.
#[test]
fn an_answer_that_says_nothing_leaves_its_call_in_doubt() {
    for line in [r#"{"id":7}"#, r#"{"id":7,"result":null}"#] {
        let mut s = Stage::new();
        s.out();
        assert!(matches!(&s.server(line)[..], [Deed::GiveUp { no: 0, refused: None, .. }]), "{line}");
    }
}

#[test]
fn that_a_cancelled_call_was_cancelled_is_no_outcome_of_it() {
    let cancelled = r#"{"id":7,"error":{"code":-32800,"message":"Request cancelled"}}"#;
    let mut s = Stage::new();
    s.out();
    s.client(r#"{"method":"notifications/cancelled","params":{"requestId":7}}"#);
    assert!(matches!(&s.server(cancelled)[..], [Deed::GiveUp { no: 0, refused: None, .. }]));
    let mut s = Stage::new();
    s.out();
    assert!(matches!(&s.server(cancelled)[..], [Deed::Record { .. }]), "its client did not cancel it");
}

#[test]
fn a_call_that_is_cancelled_while_it_is_marked_is_not_sent() {
    let cancel = r#"{"method":"notifications/cancelled","params":{"requestId":7}}"#;
    let mut s = Stage::new();
    s.client(CALL);
    s.session.on(Event::Reserved(0, Ok(asked(5))));
    s.session.on(Event::Approved(0, Ok(Approval::Given)));
    assert!(s.client(cancel).is_empty());
    assert!(matches!(&s.session.on(Event::Left(0, Ok(())))[..], [Deed::GiveUp { refused: Some(_), .. }]));
}

#[test]
fn what_a_server_says_to_nobody_is_logged() {
    let mut s = Stage::new();
    for line in ["starting up\u{1b}[2J", "[]", r#"{"id":99,"result":{}}"#] {
        assert_eq!(s.server(line), [Deed::Stray(line.into())]);
    }
}
