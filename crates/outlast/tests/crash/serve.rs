//! `outlast serve` killed with a call in flight, again and again, and started on the same store and port.

use std::{
    io::Read as _,
    net::TcpStream,
    process::{Child, Stdio},
    thread,
};

use serde_json::Value;

use crate::{
    bed::{Bed, kill, until},
    web::{call, free_port, post, serve},
};

/// Amount that the provider bills for a call of [`call`], by `--usage`: 100 · 0.15 + 1000 · 0.6 usd per million.
const USAGE: [&str; 2] = ["--usage", "100,1000"];
const COST_NANO: i64 = 615_000;
/// Worth twenty.
const TWENTY: &str = "0.0123";

fn nano(entry: &Value, field: &str) -> i64 {
    entry[field].as_i64().unwrap()
}

/// Sends the call and kills the server while it is in flight. Returns the answer when there was one before.
fn lose(bed: &Bed, at: std::net::SocketAddr, text: &str) -> Option<u16> {
    let before = bed.paid();
    let mut server = serve(bed, at, &["--default-usd", TWENTY]);
    let asked = call(text);
    let caller = thread::spawn(move || post(at, &[("x-outlast-run", "r")], &asked));
    until("it is paid for, or refused", || (bed.paid() > before || caller.is_finished()).then_some(()));
    server.kill();
    caller.join().unwrap().map(|answer| answer.status)
}

#[test]
fn server_killed_forty_times_never_spends_more_than_the_budget_and_accounts_for_each_call() {
    let bed = Bed::with_mock(&USAGE);
    let at = free_port();
    let mut refused = 0;
    for i in 0..40 {
        let status = lose(&bed, at, &format!("call {i}\nmock: latency 60s"));
        refused += usize::from(status == Some(402));
        assert!(matches!(status, None | Some(402)), "call {i}: {status:?}");
    }
    let paid = bed.paid();
    assert!((15..=20).contains(&paid), "{paid} paid of a budget for 20");
    assert_eq!(paid + refused, 40);
    // The next one that comes gives the verdict on the last.
    let server = serve(&bed, at, &[]);
    let journal = bed.journal("r");
    assert_eq!(journal.len(), paid);
    assert!(journal.iter().all(|e| e["state"] == "unknown"), "{journal:?}");
    let held: i64 = journal.iter().map(|e| nano(e, "held_nano_usd")).sum();
    // The last one's cap may have been clamped to what was left.
    assert!(held >= (paid as i64 - 1) * COST_NANO && held <= 12_300_000, "{held} held for {paid}");
    let spend = bed.json(&["spend", "--by", "run"]);
    assert_eq!(
        (nano(&spend["total"], "calls"), nano(&spend["total"], "in_doubt_nano_usd")),
        (paid as i64, held)
    );
    assert_eq!(bed.status("r"), "halted");
    drop(server);
}

#[test]
fn lost_calls_that_are_repeated_make_progress_and_are_charged_as_their_retry() {
    let bed = Bed::with_mock(&[USAGE[0], USAGE[1], "--latency", "700ms"]);
    let at = free_port();
    let mut delivered = 0;
    for i in 0..20 {
        let text = format!("call {i}");
        if lose(&bed, at, &text) == Some(402) {
            break;
        }
        let mut server = serve(&bed, at, &["--default-usd", TWENTY]);
        let answer = post(at, &[("x-outlast-run", "r")], &call(&text)).unwrap();
        delivered += usize::from(answer.status == 200);
        server.kill();
        if answer.status == 402 {
            break;
        }
    }
    let paid = bed.paid();
    assert!(delivered >= 9 && paid <= 20, "{delivered} delivered, {paid} paid");
    let server = serve(&bed, at, &[]);
    let journal = bed.journal("r");
    assert_eq!(journal.len(), paid);
    let of = |state: &str| journal.iter().filter(|e| e["state"] == state).collect::<Vec<_>>();
    assert_eq!(of("done").len(), delivered);
    for lost in of("failed") {
        assert_eq!(nano(lost, "spent_nano_usd"), COST_NANO, "{lost}");
        assert!(!lost["retried_by"].is_null() && !lost["call"]["corrected_at"].is_null(), "{lost}");
    }
    assert_eq!(of("failed").len() + of("unknown").len(), paid - delivered);
    assert!(bed.spent("r", "cost_nano_usd") <= 12_300_000);
    drop(server);
}

#[test]
fn run_of_header_callers_that_was_stopped_goes_on_when_it_is_resumed() {
    let bed = Bed::new();
    let at = free_port();
    let _server = serve(&bed, at, &[]);
    let ask = |text: &str| post(at, &[("x-outlast-run", "r")], &call(text)).unwrap().status;
    assert_eq!(ask("before"), 200);
    bed.does(&["stop", "r"]).code(0).tells(&["interrupted", "outlast resume r"]);
    assert_eq!([ask("after"), ask("after"), ask("after")], [403; 3]);
    bed.does(&["resume", "r"]).code(0).tells(&["r goes on with its next request"]);
    assert_eq!((ask("after"), bed.paid()), (200, 2));
}

#[test]
fn agent_goes_on_through_the_death_of_its_server_by_its_own_retry() {
    let bed = Bed::new();
    let at = free_port();
    let mut server = serve(&bed, at, &[]);
    let headers = [("x-outlast-run", "r"), ("x-outlast-attempt", "a")];
    for i in 0..3 {
        assert_eq!(post(at, &headers, &call(&format!("call {i}"))).unwrap().status, 200);
        server.kill();
        server = serve(&bed, at, &[]);
    }
    assert_eq!((bed.paid(), bed.spent("r", "loops"), bed.spent("r", "calls")), (3, 3, 3));
    // A new label is a new attempt: all of it is replayed.
    let again = [("x-outlast-run", "r"), ("x-outlast-attempt", "b")];
    for i in 0..3 {
        assert_eq!(post(at, &again, &call(&format!("call {i}"))).unwrap().status, 200);
    }
    assert_eq!((bed.paid(), bed.spent("r", "loops")), (3, 3));
    // The mark of a delivery rides with a later commit.
    until("all three are marked", || (bed.show("r")["replayed"] == 3).then_some(()));
    drop(server);
}

#[test]
fn server_whose_log_nobody_reads_serves_on_and_can_be_stopped() {
    // Bug: a server whose standard error was a pipe that nobody read stood still once the pipe was full.
    // Consequence: every call hung, and so did its stop. Cause: log lines were written by the threads that serve.
    let bed = Bed::without_mock();
    let at = free_port();
    let (unread, full) = rustix::pipe::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&full, 4096).unwrap();
    let listen = at.to_string();
    let mut command = bed.outlast(&["serve", "--listen", &listen]);
    command
        .args(["--openai-base-url", "http://127.0.0.1:9/v1", "--outage-wait", "0"])
        .stdout(Stdio::null())
        .stderr(full);
    let mut server = Killed(command.spawn().unwrap());
    until("it serves", || TcpStream::connect(at).ok());
    // Each is a line of the log: nobody is there upstream.
    for i in 0..60 {
        assert!(post(at, &[("x-outlast-run", "r")], &call(&format!("call {i}"))).is_some(), "call {i}");
    }
    kill(server.0.id(), 15);
    let status = until("it ends", || server.0.try_wait().unwrap());
    assert!(status.success(), "{status}");
    let mut log = String::new();
    std::fs::File::from(unread).take(4000).read_to_string(&mut log).unwrap();
    assert!(log.contains("upstream unreachable"), "{log}");
}

/// Process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
