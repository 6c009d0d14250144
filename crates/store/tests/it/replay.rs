//! The replay rule: which recorded answer serves a request.

use outlast_core::{
    engine::{
        call::{
            admit::{Admission, Divergence},
            delivered::{Delivered, Receiver},
            settle::{Close, Settle},
        },
        rule::taking::Heir,
        run::{end_attempt::Then, process::DeclareDead},
    },
    envelope::unit::Unit,
    run::status::Status,
    words::{
        digest::MatchKey,
        id::{AttemptNo, Seq, Slot},
    },
};

use crate::{
    agent::*,
    stage::{Process, Stage},
};

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").create())
}

/// The supervisor and the agent died; others go on.
fn restarted(s: &Stage, old: &Agent) -> Agent {
    old.process.dies();
    s.reopen();
    s.process("next").claim(old.run)
}

pub fn a_paid_answer_is_replayed_to_a_restarted_agent_at_no_cost(s: &Stage) {
    let old = agent(s);
    let seq = old.buys("x", 70);
    let before = s.envelope(old.run);
    let new = restarted(s, &old);
    assert_eq!(new.request("x").replays(), seq);
    new.delivered(seq);
    assert_eq!(s.envelope(old.run), before);
    let row = s.row(old.run);
    assert_eq!((row.replayed, row.saved_nano_usd), (1, 70));
}

pub fn an_answer_that_never_reached_its_client_is_replayed_to_the_same_attempt(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.done(seq, 70);
    a.free(seq);
    assert_eq!(a.request("x").replays(), seq);
}

pub fn a_delivered_answer_is_taken(s: &Stage) {
    let a = agent(s);
    let first = a.buys("x", 70);
    let second = a.call("x");
    assert_ne!(first, second);
}

pub fn five_identical_parallel_requests_are_five_calls_before_and_after_a_restart(s: &Stage) {
    let old = agent(s);
    let calls: Vec<Seq> = (0..5).map(|_| old.call("x")).collect();
    assert_eq!(calls, [1, 2, 3, 4, 5].map(Seq));
    for &seq in &calls {
        old.done(seq, 10);
        old.delivered(seq);
    }
    let new = restarted(s, &old);
    let replayed: Vec<Seq> = (0..5).map(|_| new.request("x").replays()).collect();
    assert_eq!(replayed, calls);
    assert_eq!(new.call("x"), Seq(6));
}

pub fn a_repeated_request_after_a_disconnect_is_one_call(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.free(seq);
    assert_eq!(a.request("x").joins(), seq);
    a.done(seq, 10);
    a.free(seq);
    assert_eq!(a.request("x").replays(), seq);
    assert_eq!(s.journal(a.run).len(), 1);
}

/// An attempt that a header began, at two servers of the store.
fn at_two_servers(s: &Stage) -> (Agent, Agent) {
    let one = s.process("one").enter(s.run("r").create(), Some("a"));
    let two = one.at(&s.process("two"));
    (one, two)
}

/// Bug: six identical requests of one attempt that a balancer spread over two servers were three calls.
/// Consequence: best-of-n and polls got copies. Cause: what is being received, only the process that sent it knew.
pub fn identical_requests_of_an_attempt_at_two_servers_are_as_many_calls(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let at_once = [one.call("x"), two.call("x"), one.call("x"), two.call("x")];
    assert_eq!(at_once, [1, 2, 3, 4].map(Seq));
    for (agent, seq) in [&one, &two, &one, &two].into_iter().zip(at_once) {
        agent.done(seq, 10);
    }
    // All of them are received, and none is marked as delivered yet.
    assert_eq!(two.call("x"), Seq(5));
    two.done(Seq(5), 10);
    two.delivered(Seq(5));
    assert_eq!(one.call("x"), Seq(6));
    one.done(Seq(6), 10);
    // The next attempt's replays are of different answers, too.
    let (one, two) = (one.process.enter(one.run, Some("b")), two.process.enter(one.run, Some("b")));
    let replayed: Vec<Seq> =
        (0..3).flat_map(|_| [one.request("x").replays(), two.request("x").replays()]).collect();
    assert_eq!(replayed, [1, 2, 3, 4, 5, 6].map(Seq));
    assert_eq!(one.call("x"), Seq(7));
}

pub fn what_a_connection_gave_back_serves_at_another_server(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let seq = one.call("x");
    one.gives_back(seq);
    let Admission::Join { seq: joined, .. } = two.request("x").ask().unwrap() else {
        panic!("wanted to join")
    };
    assert_eq!(joined, seq);
    one.done(seq, 10);
    // That of the first connection comes late: it changes nothing of the second one's.
    one.gives_back(seq);
    assert_ne!(one.call("x"), seq);
    two.gives_back(seq);
    assert_eq!(one.request("x").replays(), seq);
}

/// Bug: a server's answer was given to a second request of the attempt, at another server.
/// Consequence: best-of-n and polls got copies.
/// Cause: after a commit in doubt the first server went on as another instance, and declared the one that had taken the
/// answer left.
pub fn what_a_server_was_sending_stays_taken_when_it_goes_on_as_another_instance(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let new = s.process("new");
    let (first, second) = (one.call("x"), one.call("x"));
    one.done(first, 10);
    one.done(second, 10);
    // What the client of one of them is gone for is no longer received.
    let heir = Heir { instance: new.no, received: vec![one.received(second), one.received(Seq(9))] };
    let heartbeat_seen = 0;
    let verdict = DeclareDead { instance: one.process.no, heartbeat_seen, left: true, heir: Some(heir) };
    Process::ask(&new, verdict).unwrap();
    assert_eq!(two.request("x").replays(), first);
    let third = two.call("x");
    assert_ne!(third, second);
    one.gives_back(second);
    assert_eq!(two.request("x").replays(), second);
}

/// A process that was taken for dead may have sent what another connection receives by now.
pub fn a_delivery_mark_of_another_connections_answer_changes_nothing(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let seq = one.call("x");
    one.done(seq, 10);
    one.process.dies();
    assert_eq!(two.request("x").replays(), seq);
    let late = Agent { process: two.process.clone(), ..one.clone() };
    let mark = Delivered {
        run: late.run,
        seq,
        attempt: late.attempt,
        receiver: Receiver::Connection(one.received(seq).connection),
        count: 0,
        replayed: false,
    };
    Process::ask(&late.process, mark).unwrap();
    two.gives_back(seq);
    assert_eq!(two.request("x").replays(), seq);
}

pub fn an_answer_that_a_dead_server_was_sending_is_free(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let seq = one.call("x");
    one.done(seq, 10);
    assert_ne!(two.call("x"), seq);
    one.process.dies();
    assert_eq!(two.request("x").replays(), seq);
    assert_ne!(two.call("x"), seq, "it is received once more");
}

/// Another server hears later that a client has left, and of its own death nobody hears for a lease.
pub fn a_marked_retry_gets_what_another_server_was_sending_to_it(s: &Stage) {
    let (one, two) = at_two_servers(s);
    let seq = one.call("x");
    let Admission::Join { seq: joined, .. } = two.request("x").retry(1).ask().unwrap() else {
        panic!("wanted to join")
    };
    assert_eq!(joined, seq);
    one.done(seq, 10);
    let keyed = one.request("y").keyed("k").goes();
    one.done(keyed, 10);
    assert_eq!(two.request("y").keyed("k").replays(), keyed);
    // One that stands for an error of its own asks like any other.
    let failed = two.call("z");
    let other = one.call("z");
    two.failed(failed);
    assert_ne!(two.request("z").retry(1).goes(), other);
}

pub fn a_call_in_flight_is_joined_by_the_next_attempt(s: &Stage) {
    let old = agent(s);
    let seq = old.call("x");
    old.ends(Then::Restart);
    let new = old.process.claim(old.run);
    assert_eq!(new.request("x").joins(), seq);
    old.done(seq, 10);
    new.free(seq);
    assert_eq!(new.request("x").replays(), seq);
}

pub fn a_call_in_flight_under_another_process_is_joined(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    let seq = one.enter(run, Some("a")).call("x");
    let Admission::Join { seq: joined, instance } = two.enter(run, Some("b")).request("x").ask().unwrap()
    else {
        panic!("wanted to join")
    };
    assert_eq!((joined, instance), (seq, one.no));
    let is_noted = |seq| s.entry(run, seq).call.unwrap().joined;
    assert!(is_noted(seq), "its process tells of the end");
    // Whoever joins at the call's own process learns of the end there.
    let own = two.enter(run, Some("c")).call("y");
    assert_eq!(two.enter(run, Some("d")).request("y").joins(), own);
    assert!(!is_noted(own));
}

pub fn answers_of_a_live_sibling_are_not_replayed(s: &Stage) {
    let process = s.process("p");
    let one = process.claim(s.run("r").create());
    let done = one.buys("x", 10);
    let open = one.call("y");
    let mut claim = process.claiming(one.run);
    claim.slot = Slot(1);
    let two = process.claim_by(claim);
    assert_ne!(two.call("x"), done);
    assert_ne!(two.call("y"), open);
    one.ends(Then::Restart);
    assert_eq!(two.request("x").replays(), done);
}

pub fn nothing_is_replayed_across_scopes(s: &Stage) {
    let old = agent(s);
    let seq = old.within("item:1:try:1").buys("x", 10);
    let new = restarted(s, &old);
    new.call("x");
    new.within("item:1:try:2").call("x");
    assert_eq!(new.within("item:1:try:1").request("x").replays(), seq);
}

pub fn nothing_is_replayed_across_iterations(s: &Stage) {
    let old = agent(s);
    old.buys("x", 10);
    old.ends(Then::Restart);
    let mut claim = old.process.claiming(old.run);
    claim.fresh = true;
    let fresh = old.process.claim_by(claim);
    assert_eq!(fresh.iteration, 1);
    let seq = fresh.buys("x", 10);
    let next = restarted(s, &fresh);
    assert_eq!(next.request("x").replays(), seq);
}

pub fn nothing_is_replayed_across_credentials_or_runs(s: &Stage) {
    let process = s.process("p");
    let a = process.claim(s.run("a").create());
    a.buys("x", 10);
    a.ends(Then::Restart);
    let a = process.claim(a.run);
    let mut other = a.request("x");
    let credential = outlast_core::words::digest::Digest::of(b"another user's key");
    other.admit.match_key = MatchKey::new(&other.admit.digest, &a.scope, Some(&credential));
    other.goes();
    process.claim(s.run("b").create()).call("x");
}

pub fn what_failed_was_lost_or_never_left_is_not_replayed(s: &Stage) {
    let old = agent(s);
    let failed = old.call("failed");
    old.failed(failed);
    let void = old.call("void");
    old.void(void);
    let lost = old.call("lost");
    old.lost(lost);
    let kept_nowhere = old.call("digests only");
    old.ask(Settle { answer: None, ..old.settle(kept_nowhere, Close::Done(bill(5))) }).unwrap();
    let new = restarted(s, &old);
    for text in ["failed", "void", "lost", "digests only"] {
        new.call(text);
    }
}

pub fn a_marked_retry_of_a_failed_call_is_its_retry(s: &Stage) {
    let a = agent(s);
    let failed = a.call("x");
    a.failed(failed);
    let retry = a.request("x").retry(1).goes();
    assert_eq!(s.entry(a.run, failed).retried_by, Some(retry));
    assert_eq!(s.spent(a.run, Unit::Loops), 1, "a retry adds no implicit loop");
    a.failed(retry);
    let third = a.request("x").retry(2).goes();
    assert_eq!(s.entry(a.run, retry).retried_by, Some(third));
}

pub fn a_marked_retry_stands_for_a_failure_once(s: &Stage) {
    let a = agent(s);
    let failed = a.call("x");
    a.failed(failed);
    let retry = a.request("x").retry(1).goes();
    a.done(retry, 10);
    a.delivered_to_retry(retry, 1);
    // The failure has its retry, so this one asks for what that retry's connection did not get.
    assert_eq!(a.request("x").retry(2).replays(), retry);
}

pub fn a_marked_retry_of_an_unknown_call_is_its_retry(s: &Stage) {
    let a = agent(s);
    let lost = a.call("x");
    a.lost(lost);
    let retry = a.request("x").retry(1).goes();
    let call = s.entry(a.run, retry).call.unwrap();
    assert_eq!((call.retry_of, s.entry(a.run, lost).retried_by), (Some(lost), Some(retry)));
}

pub fn a_marked_retry_after_an_error_of_ours_takes_what_is_untaken(s: &Stage) {
    let old = agent(s);
    let (one, two) = (old.buys("x", 1), old.buys("x", 1));
    let new = restarted(s, &old);
    assert_eq!(new.request("x").replays(), one);
    new.delivered(one);
    assert_eq!(new.request("x").retry(1).answered_with_error().replays(), two);
    new.delivered(two);
    new.request("x").retry(1).answered_with_error().goes();
}

pub fn a_marked_retry_takes_the_lowest_answer_not_taken(s: &Stage) {
    let a = agent(s);
    let (one, two) = (a.call("x"), a.call("x"));
    for seq in [one, two] {
        a.done(seq, 1);
    }
    a.delivered(one);
    a.free(two);
    assert_eq!(a.request("x").retry(1).replays(), two);
}

pub fn a_marked_retry_gets_again_what_a_lower_count_was_given(s: &Stage) {
    let a = agent(s);
    let (one, two) = (a.buys("x", 1), a.buys("x", 1));
    assert_eq!(a.request("x").retry(1).replays(), two);
    a.delivered_to_retry(two, 1);
    assert_eq!(a.request("x").retry(1).replays(), one);
    a.delivered_to_retry(one, 1);
    a.request("x").retry(1).goes();
}

pub fn the_same_idempotency_key_marks_a_retry(s: &Stage) {
    let a = agent(s);
    let one = a.request("x").keyed("k1").goes();
    a.done(one, 1);
    a.delivered(one);
    assert_eq!(a.request("x").keyed("k1").replays(), one);
    a.free(one);
    a.request("x").keyed("k2").goes();
}

pub fn a_failure_under_another_key_is_not_retried_by_this_one(s: &Stage) {
    let a = agent(s);
    let (one, two) = (a.request("x").keyed("k1").goes(), a.request("x").keyed("k2").goes());
    a.failed(one);
    a.done(two, 1);
    a.delivered(two);
    assert_eq!(a.request("x").keyed("k2").replays(), two);
    assert_eq!(s.entry(a.run, one).retried_by, None);
    a.free(two);
    let retry = a.request("x").keyed("k1").goes();
    assert_eq!(s.entry(a.run, one).retried_by, Some(retry));
}

pub fn a_delivery_is_marked_for_the_attempt_that_got_it(s: &Stage) {
    let old = agent(s);
    let seq = old.buys("x", 10);
    assert_eq!(s.entry(old.run, seq).delivered_to, Some(old.attempt));
    let new = restarted(s, &old);
    new.request("x").replays();
    new.delivered(seq);
    assert_eq!(s.entry(old.run, seq).delivered_to, Some(new.attempt));
    new.call("x");
}

/// Bug: a late mark of an ended attempt took the mark of the living one away.
/// Consequence: the living agent's next identical request got the same answer a second time.
/// Cause: delivery marks are lazy, and the last one written won, whoever's it was.
pub fn a_late_mark_of_an_ended_attempt_gives_no_answer_back(s: &Stage) {
    let old = agent(s);
    let seq = old.call("x");
    old.done(seq, 10);
    old.ends(Then::Restart);
    let new = old.process.claim(old.run);
    new.request("x").replays();
    new.delivered(seq);
    old.delivered(seq);
    new.call("x");
}

pub fn replays_are_served_where_new_calls_are_refused(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").limit(Unit::Calls, 1).create();
    let old = process.claim(run);
    let seq = old.buys("x", 10);
    old.ends(Then::Restart);
    let new = process.claim(run);
    new.request("y").refused();
    assert_eq!(s.status(run), Status::Halted);
    assert_eq!(new.request("x").replays(), seq);
}

fn diverged(a: &Agent, text: &str) -> Option<Divergence> {
    match a.request(text).ask().unwrap() {
        Admission::Go { diverged, .. } => diverged,
        other => panic!("wanted a new call, had {other:?}"),
    }
}

pub fn a_new_call_before_the_recorded_answers_are_taken_is_divergence_once(s: &Stage) {
    let old = agent(s);
    for text in ["a", "b", "c"] {
        old.buys(text, 10);
    }
    let new = restarted(s, &old);
    let a = new.request("a").replays();
    new.delivered(a);
    assert_eq!(diverged(&new, "else"), Some(Divergence { untaken: 2 }));
    assert_eq!(diverged(&new, "more"), None);
    let attempts = s.store().attempts(new.run).unwrap();
    let row = attempts.iter().find(|x| x.no == new.attempt).unwrap();
    assert_eq!((row.untaken, row.diverged, row.diverged_untaken), (2, Some(Seq(4)), 2));
}

pub fn an_agent_that_asks_the_same_again_does_not_diverge(s: &Stage) {
    let old = agent(s);
    for text in ["a", "b"] {
        old.buys(text, 10);
    }
    let new = restarted(s, &old);
    for text in ["b", "a"] {
        let seq = new.request(text).replays();
        new.delivered(seq);
    }
    assert_eq!(diverged(&new, "c"), None);
}

/// Bug: an answer counted as untaken while another server was sending it.
/// Consequence: an agent behind a balancer that asked on at once was halted for a divergence, and was none.
/// Cause: what is on its way, only the process that sends it knew.
pub fn an_answer_on_its_way_at_another_server_is_no_untaken_one(s: &Stage) {
    let (one, two) = (s.process("one"), s.process("two"));
    let run = s.run("r").halts_on_divergence().create();
    one.enter(run, Some("a")).buys("x", 10);
    let one = one.enter(run, Some("b"));
    let two = one.at(&two);
    let seq = one.request("x").replays();
    assert_ne!(two.call("new"), seq);
    one.gives_back(seq);
    let refused = |agent: &Agent, text: &str| match agent.request(text).ask().unwrap() {
        Admission::Refused(refusal) => refusal.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&two, "newer"), "diverged");
}

pub fn a_run_that_halts_on_divergence_is_halted_by_it(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").halts_on_divergence().create();
    let old = process.claim(run);
    old.buys("a", 10);
    old.ends(Then::Restart);
    let new = process.claim(run);
    assert_eq!(new.request("else").refused().code, "diverged");
    assert_eq!((s.status(run), s.journal(run).len()), (Status::Halted, 1));
}

/// Bug: an agent that repeated a lost call before its recorded ones had diverged.
/// Consequence: a faithful agent with parallel calls was halted after a crash.
/// Cause: the retry of a lost call was counted as something new.
pub fn the_retry_of_a_lost_call_is_no_divergence(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").halts_on_divergence().create();
    let old = process.claim(run);
    let lost = old.call("lost");
    old.buys("paid", 10);
    old.lost(lost);
    old.ends(Then::Restart);
    let new = process.claim(run);
    assert_eq!(diverged(&new, "lost"), None);
    assert_eq!(s.status(run), Status::Running);
}

/// Bug: replaying an item's answers hid that the iteration's had not been taken.
/// Consequence: a diverged batch was not shown as one.
/// Cause: an attempt's untaken answers are its iteration's, and any replay was counted off them.
pub fn answers_of_other_scopes_are_not_counted_as_taken(s: &Stage) {
    let old = agent(s);
    old.buys("plan", 10);
    let item = old.within("item:1:try:1").buys("x", 10);
    let new = restarted(s, &old);
    new.within("item:1:try:1").request("x").replays();
    new.delivered(item);
    assert_eq!(diverged(&new, "other plan"), Some(Divergence { untaken: 1 }));
}

/// A mark by an attempt or of an entry that is not there is nothing, and no error: nobody waits for it.
pub fn a_delivery_mark_of_nothing_changes_nothing(s: &Stage) {
    let a = agent(s);
    let before = crate::stage::everything(&*s.store());
    for (seq, attempt) in [(Seq(9), a.attempt), (Seq(9), AttemptNo(9))] {
        let mark = Delivered {
            run: a.run,
            seq,
            attempt,
            receiver: Receiver::Connection(0),
            count: 0,
            replayed: true,
        };
        Process::ask(&a.process, mark).unwrap();
    }
    assert_eq!(crate::stage::everything(&*s.store()), before);
}
