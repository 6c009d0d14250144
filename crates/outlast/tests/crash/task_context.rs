//! `outlast ctx`: what is set is there after any death, its mirror is whole, and only the run's own attempt writes.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::{
    bed::{Bed, Done, until},
    loop_bed::supervised,
};

/// Runs a script under `outlast run --run r`.
fn under(bed: &Bed, flags: &[&str], body: &str) -> Done {
    bed.run(supervised(bed, flags, "sh", "agent.sh", body))
}

fn mirror(bed: &Bed) -> Value {
    serde_json::from_str(&bed.text("state/runs.db.runs/r/active_state.json")).unwrap()
}

#[test]
fn what_was_set_before_a_kill_is_there_for_the_next_attempt_and_for_python() {
    let bed = Bed::without_mock();
    let done = under(
        &bed,
        &[],
        r#"if [ "$OUTLAST_ATTEMPT" = 1 ]; then
            outlast ctx set task_id=T-7 issue_number=1411 progress_stage="it's
tests" pr=12
            rm "$OUTLAST_STATE_FILE"
            kill -9 $$
        fi
        cp "$OUTLAST_STATE_FILE" ../mirror
        stat -c %a "$OUTLAST_STATE_FILE" > ../mode
        echo "$OUTLAST_RECOVERED $OUTLAST_ATTEMPT $OUTLAST_LAST_EXIT" > ../told
        outlast ctx get --json > ../got
        outlast ctx set progress_stage=done"#,
    );
    done.code(0);
    let told: Value = serde_json::from_str(&bed.text("mirror")).unwrap();
    assert!(told["timestamp"].as_str().unwrap().ends_with('Z'));
    let mut wanted = json!({
        "schema": 1, "run_id": "r", "attempt": 2, "task_id": "T-7", "issue_number": "1411",
        "progress_stage": "it's\ntests", "memory_refs": {}, "context": {"pr": "12"},
    });
    wanted["timestamp"] = told["timestamp"].clone();
    assert_eq!(told, wanted);
    assert_eq!((bed.text("mode").as_str(), bed.text("told").as_str()), ("600\n", "1 2 killed by SIGKILL\n"));
    assert_eq!(serde_json::from_str::<Value>(&bed.text("got")).unwrap()["context"]["pr"], "12");
    assert_eq!(mirror(&bed)["progress_stage"], "done");
    // The rows of `run.context`, all of them in one commit.
    let history = bed.json(&["state", "history", "context", "task_id", "--namespace", "run:r"]);
    let first = &history["versions"][0];
    assert_eq!(
        (&first["commit"], &first["run"], &first["attempt"]),
        (&1.into(), &"r".into(), &1.into()),
        "{first}"
    );
    let stage = bed.json(&["state", "history", "context", "progress_stage", "--namespace", "run:r"]);
    assert_eq!(stage["versions"][0]["commit"], 1);
}

#[test]
fn child_of_an_attempt_that_is_over_writes_nothing() {
    let bed = Bed::without_mock();
    under(
        &bed,
        &[],
        r#"if [ "$OUTLAST_ATTEMPT" = 1 ]; then
            echo "$OUTLAST_TOKEN" > ../stale
            outlast ctx set progress_stage=one
            kill -9 $$
        fi
        OUTLAST_TOKEN=$(cat ../stale) outlast ctx set progress_stage=stale 2> ../refused && exit 9
        outlast ctx get progress_stage > ../got"#,
    )
    .code(0);
    assert!(bed.text("refused").contains("attempt 1, and it is over"), "{}", bed.text("refused"));
    assert_eq!(bed.text("got"), "one\n");
}

#[test]
fn context_is_written_from_within_a_run_only_and_looked_at_from_anywhere() {
    let bed = Bed::without_mock();
    under(&bed, &[], "outlast ctx set branch_name=b").code(0);
    bed.does(&["ctx", "set", "a=b"]).code(1).tells(&["belongs to no run", "shell-init"]);
    bed.does(&["ctx", "get"]).code(1);
    bed.does(&["ctx", "get", "branch_name", "--of", "r"]).code(0).tells(&["b"]);
    bed.does(&["ctx", "get", "task_id", "--of", "r"]).code(1).tells(&["not set"]);
    let mut forged = bed.outlast(&["ctx", "set", "a=b"]);
    forged.env("OUTLAST_RUN_ID", "r").env("OUTLAST_TOKEN", format!("ol_{}", "A".repeat(72)));
    bed.run(forged).code(1).tells(&["OUTLAST_TOKEN"]);
    assert_eq!(bed.json(&["ctx", "get", "--of", "r"])["context"], json!({"branch_name": "b"}));
}

#[test]
fn references_are_kept_as_given_and_a_recovery_says_what_became_of_their_files() {
    let bed = Bed::without_mock();
    bed.write("work/notes.md", "one");
    bed.write("work/gone.md", "one");
    bed.write("work/same.md", "one");
    let done = under(
        &bed,
        &[],
        r#"eval "$(outlast shell-init --run l)" || exit
        if outlast_recover; then outlast ctx refs --json > ../refs; outlast_done; exit; fi
        outlast_begin t
        outlast ctx ref notes=notes.md gone=gone.md same=same.md graph=mcp://memory/n42 url="https://x/?a='b'"
        echo two > notes.md; rm gone.md; kill -9 $$"#,
    )
    .code(0);
    for told in ["notes (notes.md) has changed", "gone (gone.md) is gone"] {
        assert!(done.text.contains(told), "{}", done.text);
    }
    assert!(!done.text.contains("same.md") && !done.text.contains("mcp:"), "{}", done.text);
    let refs: Value = serde_json::from_str(&bed.text("refs")).unwrap();
    let now: Vec<_> =
        refs["references"].as_array().unwrap().iter().map(|r| (&r["name"], &r["now"])).collect();
    let wanted = json!([
        ["gone", "gone"],
        ["graph", "unchecked"],
        ["notes", "changed"],
        ["same", "same"],
        ["url", "unchecked"]
    ]);
    assert_eq!(json!(now), wanted);
    assert_eq!(mirror(&bed)["memory_refs"]["url"], json!({"uri": "https://x/?a='b'"}));
}

#[test]
fn state_file_of_a_newer_version_or_of_somebody_else_is_left_alone_and_said() {
    for (text, told) in [
        (r#"{"schema": 99, "task_id": "of the future"}"#, "schema 99"),
        (r#"{"task_id": "of a trap"}"#, "no state file of Outlast"),
        ("# my notes", "no state file of Outlast"),
    ] {
        let bed = Bed::without_mock();
        bed.write("work/mine.json", text);
        let done = under(
            &bed,
            &["--state-file", "mine.json"],
            "outlast ctx set task_id=T && outlast ctx get task_id",
        );
        done.code(0).tells(&[told, "left alone", "safe in the store", "\nT\n"]);
        assert_eq!(bed.text("work/mine.json"), text);
    }
    // In the run's own directory, too: written there by a newer outlast.
    let bed = Bed::without_mock();
    let body = r#"[ "$OUTLAST_ATTEMPT" = 2 ] || { echo '{"schema": 7}' > "$OUTLAST_STATE_FILE"; kill -9 $$; }
        outlast ctx set task_id=T"#;
    under(&bed, &[], body).code(0).tells(&["schema 7"]);
    assert_eq!(mirror(&bed), json!({"schema": 7}));
}

#[test]
fn state_file_is_kept_with_its_run_and_no_other_run_takes_it_by_a_variable() {
    let bed = Bed::without_mock();
    let body = r#"[ "$OUTLAST_ATTEMPT" = 2 ] || kill -9 $PPID $$
        outlast ctx set task_id=T
        outlast run --run inner -- sh -c 'echo "$OUTLAST_STATE_FILE" > ../inner'"#;
    let typed = supervised(&bed, &["--state-file", "mine.json"], "sh", "agent.sh", body);
    bed.run(typed).code(137);
    bed.does(&["resume", "r"]).code(0);
    let told: Value = serde_json::from_str(&bed.text("work/mine.json")).unwrap();
    assert_eq!((&told["task_id"], &told["attempt"]), (&"T".into(), &2.into()));
    assert!(bed.text("inner").ends_with("/inner/active_state.json\n"), "{}", bed.text("inner"));
    let mode = std::fs::metadata(bed.path("work/mine.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn home_that_cannot_be_written_loses_nothing_but_the_mirror() {
    // /proc is as read-only as it gets, for root too.
    let bed = Bed::without_mock();
    let body = "outlast ctx set task_id=T && outlast ctx get task_id";
    let mut typed = supervised(&bed, &["--state-file", "/proc/active_state.json"], "sh", "agent.sh", body);
    typed.env("HOME", "/proc");
    bed.run(typed).code(0).tells(&["cannot write /proc/active_state.json", "safe in the store", "\nT\n"]);
    // With the store there too, nothing is begun, and it says so.
    let mut nowhere = supervised(&bed, &[], "sh", "agent.sh", body);
    nowhere.env("HOME", "/proc").env_remove("OUTLAST_STORE");
    bed.run(nowhere).code(69).tells(&["cannot open the store", "--store"]);
}

#[test]
fn mirror_is_whole_whenever_it_is_read_and_the_last_of_many_writers_wins() {
    let bed = Bed::without_mock();
    let body = r#"for w in 1 2 3 4; do
            (for i in 1 2 3 4 5 6; do outlast ctx set "w$w=$i" || touch ../failed; done) &
        done
        wait
        touch ../over; until [ -e ../seen ]; do sleep 0.02; done"#;
    let run = bed.start(supervised(&bed, &[], "sh", "agent.sh", body));
    let file = "state/runs.db.runs/r/active_state.json";
    let mut read = 0;
    until("all have written", || {
        let text = bed.text(file);
        if !text.is_empty() {
            serde_json::from_str::<Value>(&text).unwrap();
            read += 1;
        }
        bed.path("over").exists().then_some(())
    });
    let last = mirror(&bed);
    bed.write("seen", "");
    run.done().code(0);
    assert!(read > 5 && !bed.path("failed").exists());
    assert_eq!(last["context"], json!({"w1": "6", "w2": "6", "w3": "6", "w4": "6"}));
    let left: Vec<_> = std::fs::read_dir(bed.path("state/runs.db.runs/r"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{left:?}");
}

#[test]
fn progress_that_is_set_makes_no_crash_loop_and_circles_do() {
    for (stage, code) in [("$OUTLAST_ATTEMPT", 0), ("same", 78)] {
        let bed = Bed::without_mock();
        // Deaths are counted over resumptions, and these wait for no backoff.
        let body = format!(
            "outlast ctx set progress_stage=\"{stage}\"; [ \"$OUTLAST_ATTEMPT\" -lt 8 ] || exit 0
            [ \"$OUTLAST_ATTEMPT\" -eq 5 ] || kill -9 $PPID; exit 3\n"
        );
        let body = body.replace(
            "[ \"$OUTLAST_ATTEMPT\" -eq 5 ] || kill",
            if code == 0 { "kill" } else { "[ \"$OUTLAST_ATTEMPT\" -ge 5 ] || kill" },
        );
        let mut last = bed.run(supervised(&bed, &[], "sh", "agent.sh", &body)).code;
        for _ in 0..8 {
            if last != 137 {
                break;
            }
            last = bed.does(&["resume", "r"]).code;
        }
        assert_eq!(last, code, "stage {stage}");
    }
}
