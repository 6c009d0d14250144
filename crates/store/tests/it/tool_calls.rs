//! Tool calls that go through Outlast: reserved, sent, answered; replayed, sent again or in doubt after a death.

use outlast_core::{
    engine::{
        call::delivered::{Delivered, Receiver},
        tool::{GiveBackTool, GiveUpTool, ReserveTool, Reserved, ResolveTool, Said, SendTool},
    },
    envelope::unit::{Limits, Unit},
    journal::{Kind, Opening, Role, State, payload::Payload},
    reads::{self, forks::Point},
    words::{
        digest::Digest,
        id::{OpNo, RunId, RunNo, Seq},
    },
};

use crate::{agent::*, stage::Stage};

/// Operations of an agent's recorder on tool calls. The recorders of an attempt are processes of their own.
impl Agent {
    fn reserving(&self, arguments: &str) -> ReserveTool {
        ReserveTool {
            actor: self.actor(),
            slot: self.slot,
            scope: self.scope.clone(),
            server: "files".into(),
            tool: "append".into(),
            id: None,
            arguments: Digest::of(arguments.as_bytes()),
            about: Payload::encode(arguments.as_bytes()),
            repeatable: false,
            leaves: true,
            anew: false,
        }
    }

    fn named(&self, arguments: &str, id: &str) -> ReserveTool {
        ReserveTool { id: Some(id.into()), ..self.reserving(arguments) }
    }

    #[track_caller]
    fn sends(&self, reserve: ReserveTool) -> Opening {
        match self.ask(reserve).unwrap() {
            Reserved::Send { opening, .. } => opening,
            other => panic!("not to be sent: {other:?}"),
        }
    }

    fn answers(&self, opening: Opening, text: &str) {
        let value = Payload::encode(text.as_bytes());
        let record = outlast_core::engine::step::Record {
            opening,
            value,
            failed: false,
            again: false,
            changes: Vec::new(),
        };
        self.ask(record).unwrap();
    }

    fn gets(&self, seq: Seq) {
        let (run, attempt) = (self.run, self.attempt);
        let receiver = Receiver::Process(self.process.no);
        self.ask(Delivered { run, seq, attempt, receiver, count: 0, replayed: false }).unwrap();
    }

    /// A whole call: sent, answered, delivered.
    #[track_caller]
    fn calls_tool(&self, reserve: ReserveTool, answer: &str) -> Seq {
        let opening = self.sends(reserve);
        self.answers(opening, answer);
        self.gets(opening.seq);
        opening.seq
    }
}

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").create())
}

/// The next life of the agent's run, after its process died.
fn next(s: &Stage, old: &Agent) -> Agent {
    old.process.dies();
    s.process("next").claim(old.run)
}

/// The same attempt under another process, as a proxy that is started again.
fn other_proxy(s: &Stage, a: &Agent) -> Agent {
    Agent { process: s.process("proxy"), ..a.clone() }
}

fn value(s: &Stage, run: RunNo, seq: Seq) -> Vec<u8> {
    s.store().payload(run, seq, Role::Value).unwrap().unwrap().decode().unwrap().into()
}

pub fn a_tool_call_is_reserved_on_disk_and_its_answer_replayed(s: &Stage) {
    let a = agent(s);
    let opening = a.sends(a.named("x", "toolu_1"));
    s.reopen();
    let entry = s.entry(a.run, opening.seq);
    assert_eq!(
        (entry.kind, entry.state, entry.key.as_deref()),
        (Kind::Tool, State::Open, Some("files/append"))
    );
    let tool = entry.tool.unwrap();
    assert_eq!((tool.sends, tool.id.as_deref()), (1, Some("toolu_1")));
    a.answers(opening, "done it");
    let new = next(s, &a);
    let wanted = Reserved::Recorded { seq: opening.seq, state: State::Done };
    assert_eq!(new.ask(new.named("x", "toolu_1")).unwrap(), wanted);
    assert_eq!(new.ask(new.named("x", "toolu_1")).unwrap(), wanted, "the same id again is the same call");
    assert_eq!(value(s, a.run, opening.seq), b"done it");
    assert_eq!(s.entry(a.run, opening.seq).attempt, a.attempt, "the attempt that made it stays");
}

pub fn a_call_that_was_never_sent_is_simply_sent(s: &Stage) {
    let a = agent(s);
    let waits = |a: &Agent| ReserveTool { leaves: false, ..a.reserving("x") };
    let opening = a.sends(waits(&a));
    assert!(!s.entry(a.run, opening.seq).tool.unwrap().is_sent());
    let new = next(s, &a);
    let Reserved::Send { opening: again, new: false } = new.ask(waits(&new)).unwrap() else {
        panic!("not sent")
    };
    assert_eq!(again.seq, opening.seq);
    let send = SendTool { opening: again, attempt: new.attempt, slot: new.slot };
    assert_eq!(new.ask(send.clone()).unwrap(), 1);
    assert!(s.entry(a.run, again.seq).tool.unwrap().is_sent());
    s.refuses("already_taken", SendTool { opening: Opening { op: opening.op, ..again }, ..send });
    // From here on a death leaves it in doubt.
    let third = next(s, &new);
    assert_eq!(third.ask(waits(&third)).unwrap(), Reserved::InDoubt { seq: again.seq });
}

pub fn a_call_that_was_sent_and_cut_off_is_in_doubt_until_somebody_says(s: &Stage) {
    let a = agent(s);
    let seq = a.sends(a.reserving("x")).seq;
    let b = next(s, &a);
    assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::InDoubt { seq });
    assert_eq!(s.entry(a.run, seq).state, State::Unknown);
    // A second equal call beside it is another one: its nth of the life before does not exist.
    let second = b.sends(b.reserving("x"));
    assert_ne!(second.seq, seq);
    b.answers(second, "two");
    b.gets(second.seq);
    b.gets(seq);
    // Told, the agent may make it: the next equal call of this life is new.
    assert!(b.sends(b.reserving("x")).seq > second.seq);
    // The next life is told the same in the same place.
    let c = next(s, &b);
    assert_eq!(c.ask(c.reserving("x")).unwrap(), Reserved::InDoubt { seq });
    assert_eq!(c.ask(c.reserving("x")).unwrap(), Reserved::Recorded { seq: second.seq, state: State::Done });
}

pub fn a_call_that_may_be_repeated_is_sent_again(s: &Stage) {
    let a = agent(s);
    let reads = |a: &Agent| ReserveTool { repeatable: true, ..a.reserving("x") };
    let first = a.sends(reads(&a));
    let b = next(s, &a);
    let again = b.sends(reads(&b));
    assert_eq!(again.seq, first.seq);
    assert_eq!(s.entry(a.run, again.seq).tool.unwrap().sends, 2);
    let late = outlast_core::engine::step::Record {
        opening: first,
        value: Payload::encode(b"late"),
        failed: false,
        again: false,
        changes: Vec::new(),
    };
    s.refuses("already_taken", late);
    b.answers(again, "fresh");
}

pub fn the_nth_equal_call_is_the_nth_of_the_life_before(s: &Stage) {
    let a = agent(s);
    let made: Vec<Seq> = ["1", "2", "3"].map(|answer| a.calls_tool(a.reserving("x"), answer)).into();
    let b = next(s, &a);
    // Two at once, before either has its answer.
    for seq in &made[..2] {
        assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::Recorded { seq: *seq, state: State::Done });
    }
    made[..2].iter().for_each(|seq| b.gets(*seq));
    assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::Recorded { seq: made[2], state: State::Done });
    b.gets(made[2]);
    assert!(matches!(b.ask(b.reserving("x")).unwrap(), Reserved::Send { new: true, .. }));
}

pub fn an_answer_that_reached_nobody_is_found_in_the_same_attempt_too(s: &Stage) {
    let a = agent(s);
    let proxy = other_proxy(s, &a);
    let told = proxy.calls_tool(proxy.reserving("x"), "told");
    let untold = proxy.sends(proxy.reserving("x"));
    proxy.answers(untold, "untold");
    let cut = proxy.sends(proxy.reserving("x"));
    proxy.process.dies();
    let again = other_proxy(s, &a);
    assert_eq!(
        again.ask(again.reserving("x")).unwrap(),
        Reserved::Recorded { seq: untold.seq, state: State::Done }
    );
    assert_eq!(again.ask(again.reserving("x")).unwrap(), Reserved::InDoubt { seq: cut.seq });
    assert!(told < untold.seq);
}

pub fn a_call_under_a_new_id_repeats_only_what_reached_nobody(s: &Stage) {
    let a = agent(s);
    let told = a.calls_tool(a.named("x", "toolu_1"), "told");
    let cut = a.sends(a.named("x", "toolu_2"));
    let b = next(s, &a);
    // The model asked anew, and nobody knows whether the last time had an effect.
    assert_eq!(b.ask(b.named("x", "toolu_9")).unwrap(), Reserved::InDoubt { seq: cut.seq });
    b.gets(cut.seq);
    assert!(matches!(b.ask(b.named("x", "toolu_10")).unwrap(), Reserved::Send { new: true, .. }));
    assert_eq!(b.ask(b.named("x", "toolu_2")).unwrap(), Reserved::InDoubt { seq: cut.seq });
    assert_eq!(b.ask(b.named("x", "toolu_1")).unwrap(), Reserved::Recorded { seq: told, state: State::Done });
}

/// Bug: a client died with an answer that its model had not seen, and its resumed model made the call again. Consequence:
/// the effect was there twice. Cause: what reached the client counted as known to the model.
pub fn an_answer_that_its_client_lost_is_given_to_the_same_call_under_a_new_id(s: &Stage) {
    let a = agent(s);
    let lost = a.calls_tool(a.named("x", "toolu_1"), "done it");
    let back = |seq| GiveBackTool { run: a.run, seq, op: s.entry(a.run, seq).opened_by };
    // What another operation has opened under this number since is not meant.
    s.refuses("unknown_entry", GiveBackTool { op: OpNo(7), ..back(lost) });
    assert_eq!(a.ask(back(lost)).unwrap(), State::Done);
    assert_eq!(a.ask(back(lost)).unwrap(), State::Done);
    let b = next(s, &a);
    let wanted = Reserved::Recorded { seq: lost, state: State::Done };
    assert_eq!(b.ask(b.named("x", "toolu_2")).unwrap(), wanted);
    b.gets(lost);
    assert!(matches!(b.ask(b.named("x", "toolu_3")).unwrap(), Reserved::Send { new: true, .. }));
    // The call is known by both ids from now on.
    assert_eq!(s.entry(a.run, lost).tool.unwrap().later_ids, ["toolu_2"]);
    let c = next(s, &b);
    for id in ["toolu_1", "toolu_2"] {
        assert_eq!(c.ask(c.named("x", id)).unwrap(), wanted, "{id}");
    }
    // So is the word that a call is in doubt. An open call has no answer to give back.
    let cut = c.sends(c.named("y", "toolu_4"));
    assert_eq!(c.ask(back(cut.seq)).unwrap(), State::Open);
    let d = next(s, &c);
    assert_eq!(d.ask(d.named("y", "toolu_5")).unwrap(), Reserved::InDoubt { seq: cut.seq });
    d.gets(cut.seq);
    assert_eq!(d.ask(back(cut.seq)).unwrap(), State::Unknown);
    let e = next(s, &d);
    assert_eq!(e.ask(e.named("y", "toolu_6")).unwrap(), Reserved::InDoubt { seq: cut.seq });
    s.refuses("unknown_entry", GiveBackTool { seq: Seq(99), ..back(lost) });
}

pub fn a_call_of_a_live_process_is_joined_by_its_id_and_left_alone_without(s: &Stage) {
    let a = agent(s);
    let (one, two) = (other_proxy(s, &a), other_proxy(s, &a));
    let named = one.sends(one.named("x", "toolu_1"));
    assert_eq!(two.ask(two.named("x", "toolu_1")).unwrap(), Reserved::InFlight { seq: named.seq });
    assert_eq!(one.ask(one.named("x", "toolu_1")).unwrap(), Reserved::InFlight { seq: named.seq });
    let plain = one.sends(one.reserving("y"));
    assert_ne!(two.sends(two.reserving("y")).seq, plain.seq, "a sibling's call is its own");
    assert_ne!(one.sends(one.reserving("y")).seq, plain.seq, "as is the second of two at once");
    // The next attempt waits for what a live process of the last one still does.
    a.process.dies();
    let b = s.process("next").claim(a.run);
    assert!(matches!(b.ask(b.reserving("y")).unwrap(), Reserved::InFlight { .. }));
}

pub fn a_read_is_made_anew_where_recorded_answers_are_passed_over(s: &Stage) {
    let a = agent(s);
    let old = a.calls_tool(a.reserving("x"), "old");
    let b = next(s, &a);
    let anew = ReserveTool { anew: true, repeatable: true, ..b.reserving("x") };
    assert_ne!(b.sends(anew).seq, old);
}

pub fn what_is_given_up_is_void_or_unknown(s: &Stage) {
    let a = agent(s);
    let reserved = a.sends(ReserveTool { leaves: false, ..a.reserving("x") });
    assert_eq!(a.ask(GiveUpTool { opening: reserved, refused: false }).unwrap(), State::Void);
    let sent = a.sends(a.reserving("x"));
    assert_ne!(sent.seq, reserved.seq);
    assert_eq!(a.ask(GiveUpTool { opening: sent, refused: false }).unwrap(), State::Unknown);
    s.refuses("already_settled", GiveUpTool { opening: sent, refused: false });
    let refused = a.sends(a.reserving("y"));
    assert_eq!(a.ask(GiveUpTool { opening: refused, refused: true }).unwrap(), State::Void);
    let b = next(s, &a);
    assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::InDoubt { seq: sent.seq });
}

/// Bug: a call that an earlier life had sent became void where a later one's server refused it.
/// Consequence: the same call of the life after that was another call for the tool: it got another idempotency key.
/// Cause: the refusal was taken for the end of all sendings (found by the simulator, seed 51215).
pub fn a_refusal_says_nothing_of_what_an_earlier_life_sent(s: &Stage) {
    let a = agent(s);
    let read = |of: &Agent| ReserveTool { repeatable: true, id: Some("call_1".into()), ..of.reserving("x") };
    let sent = a.sends(read(&a));
    let b = next(s, &a);
    let again = b.sends(read(&b));
    assert_eq!(again.seq, sent.seq);
    assert_eq!(b.ask(GiveUpTool { opening: again, refused: true }).unwrap(), State::Unknown);
    let c = next(s, &b);
    assert_eq!(c.ask(read(&c)).unwrap(), Reserved::InDoubt { seq: sent.seq });
}

pub fn a_person_says_what_came_of_a_tool_call(s: &Stage) {
    let a = agent(s);
    let seqs = ["x", "y", "z"].map(|text| a.sends(a.reserving(text)).seq);
    let waits = a.sends(ReserveTool { leaves: false, ..a.reserving("w") }).seq;
    let resolve =
        |seq: Seq, said: Said| ResolveTool { run: a.run, seq, seen: s.entry(a.run, seq).instance, said };
    let word = || Payload::encode(b"said");
    s.refuses("tool_running", resolve(seqs[0], Said::Rerun));
    let b = next(s, &a);
    s.refuses("not_in_doubt", resolve(waits, Said::Rerun));
    s.refuses("unknown_entry", ResolveTool { seq: Seq(99), ..resolve(waits, Said::Rerun) });
    s.refuses("already_taken", ResolveTool { seen: None, ..resolve(seqs[0], Said::Rerun) });
    // This life was told of the first before the person looked.
    assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::InDoubt { seq: seqs[0] });
    b.gets(seqs[0]);
    s.ask(resolve(seqs[0], Said::Done(word()))).unwrap();
    s.ask(resolve(seqs[1], Said::Failed(word()))).unwrap();
    s.ask(resolve(seqs[2], Said::Rerun)).unwrap();
    s.refuses("already_settled", resolve(seqs[0], Said::Rerun));
    assert!(s.entry(a.run, seqs[0]).tool.unwrap().resolved);
    assert_eq!(value(s, a.run, seqs[0]), b"said");
    assert_eq!(b.ask(b.reserving("x")).unwrap(), Reserved::Recorded { seq: seqs[0], state: State::Done });
    assert_eq!(b.ask(b.reserving("y")).unwrap(), Reserved::Recorded { seq: seqs[1], state: State::Failed });
    assert!(matches!(b.ask(b.reserving("z")).unwrap(), Reserved::Send { new: true, .. }));
}

pub fn a_stale_attempt_sends_no_tool_call(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    let waiting = old.sends(ReserveTool { leaves: false, ..old.reserving("x") });
    process.claim(old.run);
    s.refuses("lease_lost", old.reserving("y"));
    s.refuses("lease_lost", SendTool { opening: waiting, attempt: old.attempt, slot: old.slot });
}

pub fn a_halted_run_sends_no_tool_call_and_replays_its_answers(s: &Stage) {
    let a = s.process("p").claim(s.run("r").limit(Unit::Calls, 0).create());
    let seq = a.sends(a.named("x", "toolu_1"));
    a.answers(seq, "one");
    let waiting = a.sends(ReserveTool { leaves: false, ..a.reserving("w") });
    a.request("a call that is refused").refused();
    s.refuses("run_halted", a.named("y", "toolu_2"));
    s.refuses("run_halted", SendTool { opening: waiting, attempt: a.attempt, slot: a.slot });
    assert!(matches!(a.ask(a.named("x", "toolu_1")).unwrap(), Reserved::Recorded { .. }));
}

pub fn tool_calls_of_other_arguments_servers_and_scopes_are_others(s: &Stage) {
    let a = agent(s);
    a.calls_tool(a.reserving("x"), "one");
    let b = next(s, &a);
    let same = b.reserving("x");
    for other in [
        b.reserving("y"),
        ReserveTool { server: "mail".into(), ..same.clone() },
        ReserveTool { tool: "write".into(), ..same.clone() },
        ReserveTool { scope: "i7".into(), ..same.clone() },
    ] {
        assert!(matches!(b.ask(other).unwrap(), Reserved::Send { new: true, .. }));
    }
    assert!(matches!(b.ask(same).unwrap(), Reserved::Recorded { .. }));
}

pub fn a_fork_shares_answers_of_tools_in_their_order(s: &Stage) {
    let a = agent(s);
    let made = ["1", "2"].map(|answer| a.calls_tool(a.reserving("x"), answer));
    let named = a.calls_tool(a.named("y", "toolu_1"), "named");
    let id = RunId::new("f").unwrap();
    let point = Point::Seq(Seq(s.row(a.run).next_seq.0 - 1));
    let fork = reads::forks::prepare(&*s.store(), a.run, &point, id, Limits::default()).unwrap();
    let run = s.ask(fork).unwrap().run;
    let f = s.process("q").claim(run);
    for seq in made {
        assert_eq!(f.ask(f.reserving("x")).unwrap(), Reserved::Recorded { seq, state: State::Done });
        assert_eq!(s.entry(a.run, seq).instance, Some(a.process.no), "the origin's own row stays");
    }
    assert!(matches!(f.ask(f.reserving("x")).unwrap(), Reserved::Send { new: true, .. }));
    assert!(matches!(f.ask(f.named("y", "toolu_2")).unwrap(), Reserved::Send { new: true, .. }));
    let wanted = Reserved::Recorded { seq: named, state: State::Done };
    assert_eq!(f.ask(f.named("y", "toolu_1")).unwrap(), wanted);
}
