//! Approvals: an agent asks, a person decides, and the run waits meanwhile.

use outlast_core::{
    engine::{
        approval::{Asker, DecideApproval, RequestApproval},
        run::{
            claim::Claim,
            end_attempt::Then,
            process::Active,
            start::Start,
            tell::{Tell, Word},
        },
    },
    envelope::unit::{Limits, Unit},
    journal::{
        Kind, Role, State,
        approval::{self, Answer, ApprovalId, Status as Is},
        payload::Payload,
    },
    reads::{self, forks::Point},
    run::{
        Policy, Spec,
        rules::{Requirement, Rules},
        status::Status,
        token::Claims,
    },
    store::filter::ApprovalFilter as Filter,
    words::{
        digest::Digest,
        id::{RunId, RunNo, Seq},
    },
};

use crate::{agent::Agent, bed::BEGINNING, stage::Stage};

const HOUR: i64 = 3_600_000;

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").create())
}

/// A run with a policy of its own, and an agent on it.
fn under(s: &Stage, rules: Rules) -> Agent {
    let new = s.run("r");
    let start = Start { spec: Spec { rules: Some(rules), ..Spec::default() }, ..new.start };
    s.process("p").claim(s.ask(start).unwrap().run)
}

impl Agent {
    pub fn wants(&self, tool: &str, arguments: &str) -> RequestApproval {
        RequestApproval {
            asker: Asker::Attempt { actor: self.actor(), slot: self.slot },
            key: None,
            tool: tool.into(),
            side_effect: None,
            arguments: Payload::encode(arguments.as_bytes()),
            expires_ms: HOUR,
        }
    }

    #[track_caller]
    fn asks(&self, tool: &str, arguments: &str) -> Answer {
        self.ask(self.wants(tool, arguments)).unwrap()
    }

    /// Asks, and it is pending.
    #[track_caller]
    pub fn pends(&self, tool: &str, arguments: &str) -> ApprovalId {
        let answer = self.asks(tool, arguments);
        assert_eq!((answer.status, answer.required), (Is::Pending, true));
        answer.id.unwrap()
    }
}

fn says(id: ApprovalId, approve: bool) -> DecideApproval {
    DecideApproval { id, digest: None, approve, reason: Some("because".into()), by: "ann".into() }
}

#[track_caller]
pub fn decides(s: &Stage, id: ApprovalId, approve: bool) -> Is {
    s.ask(says(id, approve)).unwrap().status
}

fn is(s: &Stage, id: ApprovalId) -> Is {
    reads::approvals::find(&*s.store(), id).unwrap().unwrap().status
}

pub fn a_run_waits_until_a_person_decides_and_the_decision_is_durable(s: &Stage) {
    for (tool, approve, state, status) in
        [("deploy", true, State::Done, Is::Approved), ("drop", false, State::Failed, Is::Denied)]
    {
        let a = s.process("p").claim(s.run(tool).create());
        let id = a.pends(tool, r#"{"to":"prod"}"#);
        assert_eq!((s.status(a.run), is(s, id)), (Status::Waiting, Is::Pending));
        s.reopen();
        assert_eq!(s.status(a.run), Status::Waiting);
        assert_eq!(decides(s, id, approve), status);
        s.reopen();
        let entry = s.entry(a.run, id.seq);
        assert_eq!((entry.kind, entry.state, entry.instance), (Kind::Approval, state, None));
        let view = reads::approvals::find(&*s.store(), id).unwrap().unwrap();
        assert_eq!((view.status, view.detail.tool.as_str(), view.run), (status, tool, s.row(a.run).id));
        assert_eq!(&view.arguments[..], br#"{"to":"prod"}"#);
        let decision = view.detail.decision.unwrap();
        assert_eq!((decision.by.as_str(), decision.reason.as_deref()), ("ann", Some("because")));
        assert_eq!(s.status(a.run), Status::Running);
        let answer = s.process("q").ask(a.wants(tool, r#"{"to":"prod"}"#)).unwrap();
        assert_eq!((answer.id, answer.status, answer.decision), (Some(id), status, Some(decision)));
    }
}

pub fn a_run_waits_for_the_last_of_its_approvals_whatever_it_calls_meanwhile(s: &Stage) {
    let a = agent(s);
    let ids = ["1", "2", "3"].map(|n| a.pends("deploy", n));
    assert_eq!(decides(s, ids[1], true), Is::Approved);
    assert_eq!(s.status(a.run), Status::Waiting);
    a.buys("meanwhile", 10);
    assert_eq!(s.status(a.run), Status::Waiting, "a call is no person's word");
    assert_eq!(decides(s, ids[0], false), Is::Denied);
    assert_eq!(s.status(a.run), Status::Waiting);
    assert_eq!(decides(s, ids[2], true), Is::Approved);
    assert_eq!(s.status(a.run), Status::Running);
}

pub fn a_restarted_agent_finds_what_it_asked_for_pending_or_decided(s: &Stage) {
    let a = agent(s);
    let (first, second) = (a.pends("deploy", "1"), a.pends("deploy", "2"));
    a.process.dies();
    assert_eq!(s.status(a.run), Status::Interrupted);
    assert_eq!(decides(s, first, true), Is::Approved, "it is decided while nobody is there");
    assert_eq!(s.status(a.run), Status::Interrupted);
    s.refuses("instance_dead", a.wants("deploy", "3"));
    let b = s.process("q").claim(a.run);
    assert_eq!(s.status(a.run), Status::Running);
    let known = b.asks("deploy", "1");
    assert_eq!((known.id, known.status), (Some(first), Is::Approved));
    assert_eq!(s.status(a.run), Status::Running);
    assert_eq!(b.pends("deploy", "2"), second);
    assert_eq!(s.status(a.run), Status::Waiting, "it waits again");
    assert_eq!(decides(s, second, true), Is::Approved);
    assert_eq!((s.status(a.run), s.journal(a.run).len()), (Status::Running, 2));
}

pub fn a_decision_is_bound_to_the_arguments_it_was_given_for(s: &Stage) {
    let a = agent(s);
    let key = |arguments: &str, tool: &str| RequestApproval {
        key: Some("release".into()),
        ..a.wants(tool, arguments)
    };
    let id = a.ask(key(r#"{"to":"test"}"#, "deploy")).unwrap().id.unwrap();
    let others = DecideApproval { digest: Some(Digest::of(br#"{"to":"prod"}"#)), ..says(id, true) };
    s.refuses("other_arguments", others);
    let these = DecideApproval { digest: Some(Digest::of(br#"{"to":"test"}"#)), ..says(id, true) };
    assert_eq!(s.ask(these).unwrap().status, Is::Approved);
    s.refuses("other_arguments", key(r#"{"to":"prod"}"#, "deploy"));
    s.refuses("other_arguments", key(r#"{"to":"test"}"#, "drop"));
    let unkeyed = a.asks("deploy", r#"{"to":"prod"}"#);
    assert_eq!(unkeyed.status, Is::Pending, "other arguments are another question");
    assert_ne!(unkeyed.id, Some(id));
}

pub fn an_approval_is_decided_once(s: &Stage) {
    let a = agent(s);
    let id = a.pends("deploy", "1");
    assert_eq!(decides(s, id, true), Is::Approved);
    let again = DecideApproval { by: "bob".into(), ..says(id, true) };
    assert_eq!(s.ask(again).unwrap().decision.unwrap().by, "ann", "who said it first, said it");
    s.refuses("already_decided", says(id, false));
    for nobody in [ApprovalId { seq: Seq(99), ..id }, ApprovalId { run: RunNo(99), ..id }] {
        s.refuses("unknown_approval", says(nobody, true));
    }
    let call = a.buys("a call", 1);
    s.refuses("unknown_approval", says(ApprovalId { seq: call, ..id }, true));
}

pub fn a_run_that_is_over_or_halted_is_asked_and_decided_nothing_new(s: &Stage) {
    let a = agent(s);
    let id = a.pends("deploy", "1");
    a.ends(Then::Complete);
    assert_eq!(is(s, id), Is::Void);
    s.refuses("run_ended", says(id, true));
    let b = s.process("p").claim(s.run("halted").limit(Unit::Loops, 0).create());
    let (known, open) = (b.pends("deploy", "1"), b.pends("deploy", "2"));
    decides(s, known, true);
    b.ask(b.turn(None)).unwrap();
    assert_eq!(s.status(b.run), Status::Halted);
    assert_eq!(b.asks("deploy", "1").status, Is::Approved);
    s.refuses("run_halted", b.wants("deploy", "3"));
    assert_eq!(decides(s, open, true), Is::Approved);
    assert_eq!(s.status(b.run), Status::Halted, "a word on a tool is no budget");
    let c = s.process("p").claim(s.run("cancelled").create());
    let id = c.pends("deploy", "1");
    s.ask(Tell { run: c.run, word: Word::Cancel { reason: None } }).unwrap();
    s.refuses("run_ended", says(id, true));
}

pub fn a_stale_attempt_asks_nothing(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    let claims = |a: &Agent| Claims { run: a.run, attempt: a.attempt, slot: a.slot, fence: Some(a.fence) };
    let by = |a: &Agent| RequestApproval { asker: Asker::Token(claims(a)), ..a.wants("deploy", "1") };
    let id = old.ask(by(&old)).unwrap().id.unwrap();
    let new = process.claim(old.run);
    s.refuses("lease_lost", by(&old));
    s.refuses("lease_lost", old.wants("deploy", "1"));
    assert_eq!(new.ask(by(&new)).unwrap().id, Some(id), "a process with the token asks for its attempt");
    assert_eq!(s.status(new.run), Status::Waiting);
}

pub fn what_is_approved_in_one_iteration_is_asked_again_in_the_next(s: &Stage) {
    let process = s.process("p");
    let a = process.claim(s.run("r").create());
    let first = a.pends("deploy", "1");
    decides(s, first, true);
    let b = process.claim_by(Claim { fresh: true, ..process.claiming(a.run) });
    let second = b.pends("deploy", "1");
    assert_ne!(first, second);
    decides(s, second, false);
    assert_eq!(b.asks("deploy", "1").status, Is::Denied);
}

pub fn a_policy_says_which_tools_there_are_and_which_are_asked_for(s: &Stage) {
    let require = |tool: Option<&str>, side_effect: Option<&str>| Requirement {
        tool: tool.map(str::to_owned),
        side_effect: side_effect.map(str::to_owned),
    };
    let a = under(
        s,
        Rules {
            policy: "careful".into(),
            tools: Some(vec!["search".into(), "deploy".into()]),
            require: vec![require(Some("deploy"), None), require(None, Some("write"))],
        },
    );
    let effect = |tool: &str, effect: &str| RequestApproval {
        side_effect: Some(effect.into()),
        ..a.wants(tool, "{}")
    };
    let free = a.ask(effect("search", "read")).unwrap();
    assert_eq!(free, Answer::not_required());
    assert!(s.journal(a.run).is_empty(), "what nobody is asked for is not recorded");
    let blocked = a.asks("drop", "{}");
    assert_eq!((blocked.status, blocked.required), (Is::Blocked, true));
    assert_eq!(a.asks("drop", "{}"), blocked);
    assert_eq!((s.status(a.run), s.journal(a.run).len()), (Status::Running, 1));
    s.refuses("already_decided", says(blocked.id.unwrap(), true));
    assert_eq!(a.ask(effect("search", "write")).unwrap().status, Is::Pending);
    a.pends("deploy", "{}");
    let rules = |run| s.view(run).spec.rules.map(|r| r.policy);
    let laxer = Rules { policy: "lax".into(), ..Rules::default() };
    let child = s.run("child").under(a.run);
    let child = Start { spec: Spec { rules: Some(laxer), ..Spec::default() }, ..child.start };
    let child = s.ask(child).unwrap().run;
    assert_eq!((rules(a.run).as_deref(), rules(child).as_deref()), (Some("careful"), Some("careful")));
}

/// Bug: a tool call that states that it has no side effect was refused, or waited for a person. Cause: an empty side
/// effect was taken for a bad one, or for none stated.
pub fn a_call_without_a_side_effect_waits_for_nobody_unless_a_rule_names_its_tool(s: &Stage) {
    let read = |a: &Agent, tool: &str| {
        a.ask(RequestApproval { side_effect: Some(String::new()), ..a.wants(tool, "{}") }).unwrap()
    };
    let free = s.process("q").claim(s.run("free").create());
    assert_eq!(read(&free, "search"), Answer::not_required());
    assert_eq!(free.asks("search", "{}").status, Is::Pending, "what states nothing is asked about");
    let named = |tool: Option<&str>, effect: Option<&str>| Requirement {
        tool: tool.map(str::to_owned),
        side_effect: effect.map(str::to_owned),
    };
    let require = vec![named(Some("deploy"), None), named(None, Some("write"))];
    let ruled = under(s, Rules { policy: "careful".into(), require, ..Rules::default() });
    assert_eq!(read(&ruled, "search"), Answer::not_required());
    assert_eq!(read(&ruled, "deploy").status, Is::Pending);
}

pub fn bad_requests_for_an_approval_write_nothing(s: &Stage) {
    let a = agent(s);
    let good = a.wants("deploy", "{}");
    for bad in [
        RequestApproval { tool: String::new(), ..good.clone() },
        RequestApproval { tool: "a\nb".into(), ..good.clone() },
        RequestApproval { tool: "x".repeat(257), ..good.clone() },
        RequestApproval { side_effect: Some("a\nb".into()), ..good.clone() },
        RequestApproval { key: Some("k".repeat(513)), ..good.clone() },
        RequestApproval { expires_ms: 0, ..good.clone() },
        RequestApproval { arguments: Payload::encode(&[b' '; approval::MOST_ARGUMENTS + 1]), ..good.clone() },
    ] {
        s.refuses("bad_approval", bad);
    }
    for n in 0..approval::MOST_PENDING {
        a.pends("deploy", &n.to_string());
    }
    s.refuses("too_many_approvals", a.wants("deploy", "one more"));
    assert_eq!(a.asks("deploy", "0").status, Is::Pending, "and those there are go on");
}

pub fn approvals_are_listed_newest_first_by_run_and_by_status(s: &Stage) {
    let (a, b) = (agent(s), s.process("q").claim(s.run("other").create()));
    let mut ids = Vec::new();
    for (agent, n) in [(&a, "1"), (&b, "2"), (&a, "3")] {
        s.wait_a_moment();
        ids.push(agent.pends("deploy", n));
    }
    decides(s, ids[0], true);
    a.buys("a call", 1);
    let listed = |run: Option<RunNo>, open: bool, status: Option<Is>, limit: usize| {
        let all = reads::approvals::list(&*s.store(), &Filter { run, open, limit }, status).unwrap();
        all.into_iter().map(|v| v.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(None, false, None, 9), [ids[2], ids[1], ids[0]]);
    assert_eq!(listed(None, true, None, 9), [ids[2], ids[1]]);
    assert_eq!(listed(Some(a.run), false, None, 9), [ids[2], ids[0]]);
    assert_eq!(listed(Some(a.run), true, None, 9), [ids[2]]);
    assert_eq!(listed(None, false, Some(Is::Approved), 9), [ids[0]]);
    assert_eq!(listed(None, false, None, 1), [ids[2]]);
    let nobody = ApprovalId { run: a.run, seq: Seq(99) };
    assert_eq!(reads::approvals::find(&*s.store(), nobody).unwrap(), None);
}

pub fn a_fork_shares_what_was_approved_and_asks_for_the_rest(s: &Stage) {
    let a = agent(s);
    let (approved, denied) = (a.pends("deploy", "1"), a.pends("deploy", "2"));
    decides(s, approved, true);
    decides(s, denied, false);
    let point = Point::Seq(Seq(s.row(a.run).next_seq.0 - 1));
    let id = RunId::new("f").unwrap();
    let prepared = reads::forks::prepare(&*s.store(), a.run, &point, id, Limits::default()).unwrap();
    let f = s.process("q").claim(s.ask(prepared).unwrap().run);
    let shared = f.asks("deploy", "1");
    assert_eq!(
        (shared.status, shared.id),
        (Is::Approved, Some(ApprovalId { run: f.run, seq: approved.seq }))
    );
    assert_eq!(s.store().payload(f.run, approved.seq, Role::About).unwrap().unwrap().len, 1);
    f.pends("deploy", "2");
}

pub fn an_approval_that_expires_is_a_no_and_lets_its_run_go_on(s: &Stage) {
    let a = agent(s);
    let (short, long) = (
        a.ask(RequestApproval { expires_ms: 1000, ..a.wants("deploy", "1") }).unwrap().id.unwrap(),
        a.pends("deploy", "2"),
    );
    s.advance_ms(999);
    assert_eq!(is(s, short), Is::Pending);
    s.advance_ms(1);
    assert_eq!((is(s, short), is(s, long)), (Is::Timeout, Is::Pending));
    s.refuses("approval_expired", says(short, true));
    let told = a.asks("deploy", "1");
    assert_eq!((told.status, told.decision), (Is::Timeout, None));
    assert_eq!((s.entry(a.run, short.seq).state, s.status(a.run)), (State::Failed, Status::Waiting));
    assert_eq!(a.asks("deploy", "1").status, Is::Timeout, "it stays so");
    s.refuses("approval_expired", says(short, true));
    s.advance_ms(HOUR as u64);
    let active = vec![Active { run: a.run, attempt: a.attempt, ms: 1 }];
    assert_eq!(a.process.renews(active)[0].status, Status::Running, "its driver's heart sees it");
    assert!(s.row(a.run).approvals.unwrap().is_empty());
    a.buys("a call", 1);
    assert_eq!(s.status(a.run), Status::Running, "nobody waits for what has expired");
    assert_eq!(a.asks("deploy", "2").status, Is::Timeout);
}

/// Bug: an approval that was asked for while the clock was a day ahead expired a day late.
/// Consequence: an agent waited for a person for a day and an hour, where it had said an hour.
/// Cause: the deadline stood, whatever the clock said afterwards.
pub fn an_approval_asked_for_by_a_clock_that_was_ahead_expires_in_time(s: &Stage) {
    let a = agent(s);
    s.advance_ms(86_400_000);
    let id = a.pends("deploy", "1");
    s.set_clock(BEGINNING);
    a.pends("deploy", "1");
    s.advance_ms(HOUR as u64 - 1);
    a.pends("deploy", "1");
    s.advance_ms(1);
    assert_eq!((is(s, id), a.asks("deploy", "1").status), (Is::Timeout, Is::Timeout));
    assert_eq!(s.status(a.run), Status::Running, "nobody waits any more");
}

pub fn the_wall_clock_stands_still_while_a_run_waits_where_its_policy_says_so(s: &Stage) {
    for (name, pause_wall) in [("pauses", true), ("does_not", false)] {
        let new = s.run(name).limit(Unit::WallMs, 10_000);
        let start = Start { policy: Policy { pause_wall, ..Policy::default() }, ..new.start };
        let a = s.process("p").claim(s.ask(start).unwrap().run);
        s.advance_ms(4_000);
        let id = a.pends("deploy", "1");
        s.advance_ms(60_000);
        let wall = |s: &Stage| s.row(a.run).wall_ms(s.store().now().unwrap());
        assert_eq!(wall(s), if pause_wall { 4_000 } else { 64_000 }, "{name}");
        decides(s, id, true);
        s.advance_ms(5_000);
        assert_eq!(wall(s), if pause_wall { 9_000 } else { 69_000 }, "{name}");
        let halted = || {
            a.process.renews(vec![Active { run: a.run, attempt: a.attempt, ms: 1 }]);
            s.status(a.run) == Status::Halted
        };
        assert_eq!(halted(), !pause_wall, "{name}");
        s.advance_ms(1_000);
        assert!(halted(), "{name}");
    }
}
