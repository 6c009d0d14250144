//! Tests of busy waiting: turns that wait and turns that work, and the calls and the time that a hold saves and costs,
//! in simulated time.

use super::*;

fn uses(name: &str, input: &str, result: &str) -> Turn {
    let used = ToolUse { name: name.into(), input: input.into(), result: result.into() };
    Turn { uses: vec![used], ..Turn::default() }
}

fn shell(command: &str, result: &str) -> Turn {
    uses("Bash", &serde_json::json!({"command": command}).to_string(), result)
}

/// An empty wait of Codex for a process of its own.
fn codex_wait(n: usize, output: &str) -> Turn {
    let result = format!(
        "Chunk ID: {n:x}1\nWall time: 30.00{n} seconds\nProcess running with session ID 42\nOriginal token count: 0\n\
         Output:\n{output}"
    );
    let input = r#"{"session_id":42,"chars":"","yield_time_ms":30000,"max_output_tokens":10000}"#;
    uses("write_stdin", input, &result)
}

const KEY: Digest = Digest([7; 32]);
const ATTEMPT: AttemptNo = AttemptNo(1);

/// Feeds turns to one conversation, each a second after the one before. Returns its longest streak.
fn longest(turns: impl IntoIterator<Item = Turn>) -> u32 {
    let mut talk = Conversations::default();
    let mut most = 0;
    for (n, turn) in turns.into_iter().enumerate() {
        let at = n as i64;
        let streak = talk.judge(ATTEMPT, KEY, &turn, Micros(at * 1_000_000));
        most = most.max(streak.waits);
        talk.left(ATTEMPT, KEY, 2 * n, streak, Seq(at));
    }
    most
}

#[test]
fn polls_that_are_told_the_same_are_counted() {
    assert_eq!(longest((0..30).map(|n| codex_wait(n, ""))), 29);
    assert_eq!(longest((0..30).map(|n| shell("sleep 30; gh run view 7", &format!("queued {n}s")))), 29);
    // It sleeps, looks and reads in turn.
    let three = |n: usize| match n % 3 {
        0 => shell("sleep 20", ""),
        1 => shell("ps aux | grep make", "make running"),
        _ => uses("Read", r#"{"file_path":"build.log"}"#, "compiling"),
    };
    assert_eq!(longest((0..30).map(three)), 27);
    // A reminder that the program adds each time is nothing new.
    let reminded =
        |_| Turn { texts: vec!["<system-reminder>b1 runs</system-reminder>".into()], ..codex_wait(1, "") };
    assert_eq!(longest((0..10).map(reminded)), 9);
}

#[test]
fn work_is_never_counted() {
    let none = |what: &str, turn: &dyn Fn(usize) -> Turn| {
        assert!(longest((0..300).map(turn)) < TOLD_FROM, "{what}");
    };
    none("a build that gets on", &|n| codex_wait(1, &format!("[{n}/300] compiling")));
    none("a test loop", &|_| shell("cargo test", "test result: FAILED. 3 passed; 1 failed"));
    none("a test that is run until it fails", &|_| {
        shell("for i in 1 2 3; do make test; done; sleep 1", "ok")
    });
    none("retries with a pause", &|_| shell("sleep 10; curl -X POST http://127.0.0.1/deploy", "503"));
    none("a percentage", &|n| shell("sleep 5; cat progress", &format!("{n} %")));
    none("an edit between two looks", &|n| match n % 2 {
        0 => uses("Edit", &format!("{{\"new\":{n}}}"), "ok"),
        _ => shell("git status", "clean"),
    });
    none("a look at another file each time", &|n| shell(&format!("cat file-{n}"), "the same text"));
    none("a person who types", &|n| {
        let is_told = n % 4 == 0;
        Turn { is_told, ..shell("git status", "clean") }
    });
    none("no tool at all", &|_| Turn::default());
    none("keys for a program", &|_| uses("write_stdin", r#"{"session_id":1,"chars":"n\n"}"#, ""));
    none("news beside the result", &|n| Turn { texts: vec![format!("task {n} ended")], ..codex_wait(1, "") });
    none("two calls, one of which works", &|_| {
        let mut turn = codex_wait(1, "");
        turn.uses.extend(shell("make", "").uses);
        turn
    });
}

#[test]
fn a_streak_ends_with_the_first_news_and_is_told_once() {
    let mut turns: Vec<Turn> = (0..10).map(|n| codex_wait(n, "")).collect();
    turns.push(codex_wait(1, "done"));
    let mut talk = Conversations::default();
    let mut told = 0;
    for (n, turn) in turns.iter().enumerate() {
        let streak = talk.judge(ATTEMPT, KEY, turn, Micros(0));
        told += i32::from(streak.is_news());
        talk.left(ATTEMPT, KEY, n, streak, Seq(n as i64));
    }
    assert_eq!(told, 1);
    assert_eq!(talk.find(ATTEMPT, KEY).unwrap().streak.waits, 0);
}

#[test]
fn what_a_restarted_agent_asks_again_is_no_waiting() {
    let mut talk = Conversations::default();
    for n in 0..40 {
        let streak = talk.judge(ATTEMPT, KEY, &codex_wait(1, ""), Micros(0));
        talk.left(ATTEMPT, KEY, n, streak, Seq(n as i64));
    }
    // Replayed requests do not leave.
    let next = AttemptNo(2);
    for _ in 0..40 {
        assert_eq!(talk.judge(next, KEY, &codex_wait(1, ""), Micros(0)).waits, 0);
        assert_eq!(talk.items(next, KEY), None);
    }
    let streak = talk.judge(next, KEY, &codex_wait(1, ""), Micros(0));
    talk.left(next, KEY, 80, streak, Seq(40));
    assert_eq!(talk.judge(next, KEY, &codex_wait(1, ""), Micros(0)).waits, 1);
}

#[test]
fn only_the_end_of_another_conversation_is_news_for_one() {
    let (mut talk, other) = (Conversations::default(), Digest([8; 32]));
    talk.left(ATTEMPT, KEY, 1, Streak::default(), Seq(1));
    talk.left(ATTEMPT, other, 1, Streak::default(), Seq(2));
    talk.ended(KEY);
    talk.left(ATTEMPT, KEY, 3, Streak::default(), Seq(3));
    assert_eq!((talk.ends_of_others(KEY), talk.ends_of_others(other)), (0, 1));
    talk.ended(other);
    assert_eq!((talk.ends_of_others(KEY), talk.ends_of_others(other)), (1, 1));
}

#[test]
fn a_run_whose_other_agents_get_on_is_not_halted() {
    let poll = |talk: &mut Conversations, n: i64| {
        let streak = talk.judge(ATTEMPT, KEY, &codex_wait(1, ""), Micros(n));
        talk.left(ATTEMPT, KEY, 1, streak.clone(), Seq(n));
        streak.evidence()
    };
    let mut talk = Conversations::default();
    for n in 0..1000 {
        if n % 100 == 0 {
            talk.left(ATTEMPT, Digest([8; 32]), 1, Streak::default(), Seq(n));
        }
        assert_eq!(poll(&mut talk, n), None, "{n}");
    }
    let evidence = (1000..1200).find_map(|n| poll(&mut talk, n)).unwrap();
    assert_eq!(evidence.calls, HALTED_AT);
    assert_eq!(evidence.to_string(), "200 calls in a row since entry 1 brought nothing new: write_stdin");
}

/// An agent that waits for a process of its own, as in issue 36396 of Codex: it looks every 30 s, and each look is a call.
struct Waiting {
    /// Time at which the process ends, in milliseconds.
    ends_ms: i64,
    /// Whether somebody sees the end.
    seen: bool,
    turn: fn(usize, &str) -> Turn,
}

/// Time of a call, of a look, and between two looks at the agent's processes, in milliseconds.
const CALL_MS: i64 = 3_000;
const LOOK_MS: i64 = 30_000;
const PROCESSES_MS: i64 = 1_000;

impl Waiting {
    /// Plays it to the end. Returns the calls, and when the agent was told of the end.
    fn play(&self, holds: bool) -> (i64, i64) {
        let (mut talk, mut now, mut calls) = (Conversations::default(), 0, 0);
        loop {
            // The tool returns early if the process ends.
            now = (now + LOOK_MS).min(self.ends_ms.max(now));
            let is_over = now >= self.ends_ms;
            let turn = (self.turn)(calls as usize, if is_over { "Process exited with code 0" } else { "" });
            let at = Micros(now * 1000);
            let streak = talk.judge(ATTEMPT, KEY, &turn, at);
            if holds {
                let until = now + streak.hold_ms(Some(540_000), self.seen, at) as i64;
                now = if self.seen { until.min((self.ends_ms + PROCESSES_MS).max(now)) } else { until };
            }
            calls += 1;
            talk.left(ATTEMPT, KEY, calls as usize, streak, Seq(calls));
            now += CALL_MS;
            if is_over {
                return (calls, now);
            }
        }
    }

    fn check(&self, least_saved_percent: i64, most_late_ms: i64) {
        let (plain, held) = (self.play(false), self.play(true));
        let saved = 100 * (plain.0 - held.0) / plain.0;
        let late = held.1 - plain.1;
        assert!(saved >= least_saved_percent, "{plain:?} {held:?}: {saved} %");
        assert!(late <= most_late_ms, "{plain:?} {held:?}: {late} ms");
    }
}

#[test]
fn held_waits_for_a_process_are_a_tenth_and_no_later() {
    for minutes in [120, 345, 719, 2142] {
        let ends_ms = minutes * 60_000 + 777;
        Waiting { ends_ms, seen: true, turn: codex_wait }.check(90, 5_000);
    }
}

#[test]
fn a_wait_that_nobody_sees_is_held_for_a_quarter_of_its_time_at_most() {
    let look = |_: usize, said: &str| shell("sleep 30; gh run view 7", said);
    for minutes in [5, 30, 240] {
        let ends_ms = minutes * 60_000;
        let waiting = Waiting { ends_ms, seen: false, turn: look };
        let late = waiting.play(true).1 - waiting.play(false).1;
        assert!(late <= ends_ms / 4 + LOOK_MS + CALL_MS, "{minutes} min: {late} ms");
        assert!(late <= 480_000 + LOOK_MS + CALL_MS, "{minutes} min: {late} ms");
    }
    Waiting { ends_ms: 240 * 60_000, seen: false, turn: look }.check(80, 520_000);
}

#[test]
fn a_hold_ends_within_the_time_that_its_client_waits() {
    let streak = Streak { waits: 9, since: Some(Micros(0)), for_own: true, ..Streak::default() };
    let check = |patience_ms, seen, now_s: i64, wanted| {
        assert_eq!(streak.hold_ms(patience_ms, seen, Micros(now_s * 1_000_000)), wanted);
    };
    check(Some(540_000), true, 100, 480_000);
    check(Some(9_000), true, 100, 8_000);
    check(None, true, 100, 480_000);
    check(None, false, 100, 25_000);
    check(Some(9_000), false, 100, 8_000);
    assert_eq!(Streak { waits: 4, ..streak.clone() }.hold_ms(None, true, Micros(0)), 0);
}
