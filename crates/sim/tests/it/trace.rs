//! Traces: a history of a real store's rows is one of the model, and histories that are wrong are refused, each as what it is.

use outlast_core::journal::{Kind, State};
use outlast_sim::trace::check;
use serde_json::{Value, json};

const LIMIT: i64 = 100;

/// A run of process 1, which dies; its tool call was sent, and one of its calls is lost. Process 2 goes on: it repeats the
/// lost call, which leaves it the reservation, settles it, and is told of the tool.
fn sound() -> Vec<Value> {
    vec![
        process(1, 0),
        envelope(0, 0, 0),
        json!({"table": "runs", "no": 1, "charges": [1]}),
        attempt(1, 1, false),
        lease(1, 1),
        envelope(40, 0, 0),
        call(1, State::Open, 1, 40, 0, 1),
        envelope(0, 0, 30),
        call(1, State::Done, 1, 0, 30, 1),
        tool(2, State::Open, 1, 0),
        tool(2, State::Open, 1, 1),
        envelope(50, 0, 30),
        call(3, State::Open, 1, 50, 0, 1),
        // Process 1 is declared dead, with what it had open.
        process(1, 1),
        json!({"table": "envelopes", "no": 1, "limits": [LIMIT, null, null],
            "reserved": [50, 0, 0], "doubt": [50, 0], "spent": [30, 0, 2]}),
        attempt(1, 1, true),
        lost(3, 50, 0),
        process(2, 0),
        attempt(2, 2, false),
        lease(2, 2),
        tool(2, State::Unknown, 1, 1),
        json!({"table": "envelopes", "no": 1, "limits": [LIMIT, null, null],
            "reserved": [60, 0, 1], "doubt": [10, 0], "spent": [30, 0, 2]}),
        lost(3, 10, 0),
        call(4, State::Open, 2, 50, 0, 1),
        json!({"table": "envelopes", "no": 1, "limits": [LIMIT, null, null],
            "reserved": [0, 0, 0], "doubt": [0, 0], "spent": [80, 0, 3]}),
        call(4, State::Done, 2, 0, 25, 1),
        json!({"table": "entries", "run": 1, "seq": 3, "kind": 0, "state": State::Failed as i64, "attempt": 1, "instance": 1,
            "opened_by": 3, "held": [0, 0, 0], "spent": [25, 0, 1], "overrun": [null, null]}),
    ]
}

fn process(no: i64, life: i64) -> Value {
    json!({"table": "instances", "no": no, "life": life})
}

fn attempt(no: i64, process: i64, ended: bool) -> Value {
    json!({"table": "attempts", "run": 1, "no": no, "slot": 0, "instance": process, "fence": no, "ended": ended})
}

fn lease(process: i64, fence: i64) -> Value {
    json!({"table": "leases", "run": 1, "slot": 0, "instance": process, "fence": fence})
}

/// The run's envelope, with a call in flight where something is reserved.
fn envelope(reserved: i64, doubt: i64, spent: i64) -> Value {
    let (open, done) = (i64::from(reserved > 0), i64::from(spent > 0));
    json!({"table": "envelopes", "no": 1, "limits": [LIMIT, null, null],
        "reserved": [reserved, 0, open], "doubt": [doubt, 0], "spent": [spent, 0, done]})
}

fn call(seq: i64, state: State, of: i64, held: i64, spent: i64, calls: i64) -> Value {
    let (open, done) = if held > 0 { (calls, 0) } else { (0, calls) };
    json!({"table": "entries", "run": 1, "seq": seq, "kind": 0, "state": state as i64, "attempt": of, "instance": of,
        "opened_by": seq, "held": [held, 0, open], "spent": [spent, 0, done], "overrun": [null, null]})
}

fn lost(seq: i64, held: i64, spent: i64) -> Value {
    json!({"table": "entries", "run": 1, "seq": seq, "kind": 0, "state": State::Unknown as i64, "attempt": 1, "instance": 1,
        "opened_by": seq, "held": [held, 0, 0], "spent": [spent, 0, 1], "overrun": [null, null]})
}

fn tool(seq: i64, state: State, of: i64, sends: i64) -> Value {
    json!({"table": "entries", "run": 1, "seq": seq, "kind": Kind::Tool as i64, "state": state as i64, "attempt": of,
        "instance": of, "opened_by": seq + of - 1, "held": [0, 0, 0], "spent": [0, 0, 0], "overrun": [null, null],
        "sends": sends})
}

fn text(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn a_sound_trace_is_one_of_the_model() {
    assert_eq!(check(&text(&sound())), Ok(27));
    // A kill cuts a trace behind an operation, never within one.
    let rows = sound();
    let whole = (1..=rows.len()).filter(|n| check(&text(&rows[..*n])).is_ok()).count();
    assert!((10..rows.len()).contains(&whole), "{whole}");
}

/// Plants a change into the sound trace. Its first fault has to be `wanted`.
#[track_caller]
fn refuses(wanted: &str, plant: impl Fn(&mut Vec<Value>)) {
    let mut rows = sound();
    plant(&mut rows);
    assert_ne!(rows, sound(), "nothing was planted");
    let found = check(&text(&rows)).expect_err("nobody noticed").to_string();
    assert!(found.contains(wanted), "found as: {found}");
}

#[test]
fn wrong_traces_are_refused_as_what_they_are() {
    refuses("closed, and was never reserved", |rows| drop(rows.drain(5..7)));
    refuses("settled twice", |rows| rows.insert(9, call(1, State::Failed, 1, 0, 30, 1)));
    refuses("settled twice", |rows| rows.insert(9, call(1, State::Done, 1, 0, 31, 1)));
    refuses("its entries add up to", |rows| drop(rows.remove(7)));
    refuses("its entries add up to", |rows| rows[5] = envelope(41, 0, 0));
    refuses("over the limit of 100", |rows| {
        rows[5] = envelope(140, 0, 0);
        rows[6] = call(1, State::Open, 1, 140, 0, 1);
    });
    refuses("a charge that nobody reserved", |rows| rows[8] = call(1, State::Done, 1, 0, 41, 1));
    refuses("changed what it holds", |rows| rows.insert(7, call(1, State::Open, 1, 39, 0, 1)));
    refuses("sent before it was reserved", |rows| {
        rows[9] = tool(2, State::Open, 1, 2);
        rows.remove(10);
    });
    refuses("closed, and was never reserved", |rows| rows[9] = tool(2, State::Done, 1, 1));
    // The next life sends what the first had sent.
    refuses("sent again, and may have been done", |rows| rows[20] = tool(2, State::Open, 2, 2));
    refuses("sent again, and may have been done", |rows| {
        rows[20] = tool(2, State::Done, 2, 2);
    });
    let fenced = "an attempt that is over, or has lost its lease";
    refuses(fenced, |rows| rows.insert(20, tool(4, State::Open, 1, 0)));
    refuses(fenced, |rows| rows[19] = lease(2, 3));
    refuses("taken from a process that lives and drives it", |rows| {
        rows.truncate(11);
        rows.extend([process(2, 0), attempt(1, 1, true), attempt(2, 2, false), lease(2, 2)]);
    });
    refuses("got a second open attempt", |rows| drop(rows.remove(15)));
    refuses("under an old fence", |rows| rows[19] = lease(2, 1));
    refuses("a number that was given out", |rows| rows[18] = attempt(1, 2, false));
    refuses("is dead or not there", |rows| {
        rows[18] = attempt(2, 1, false);
    });
    refuses("registered twice", |rows| rows.insert(17, process(1, 0)));
    // A lost call is given up, and still holds something.
    refuses("holds something", |rows| rows[26]["held"] = json!([10, 0, 0]));
    refuses("not a row of a trace", |rows| rows[3] = json!({"table": "attempts"}));
}
