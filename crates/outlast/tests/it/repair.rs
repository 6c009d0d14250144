//! A store that holds less than was committed, from outside: refused, told, accepted.

use std::{fs, path::Path, sync::Arc};

use outlast_core::{
    engine::run::start::Start,
    journal::payload::Payload,
    store::{Ask as _, Durability, Store},
    words::{
        clock::{ManualClock, SeededEntropy},
        id::{Micros, RunId},
    },
};
use outlast_store::Options;

use crate::line::outlast;

/// Runs a command and returns its output, of both streams.
fn told(dir: &Path, line: &[&str], code: i32) -> String {
    let done = outlast(dir).args(line).env("OUTLAST_STORE", "runs.db").assert().code(code);
    let output = done.get_output();
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

/// Leaves a store as a killed process does, with one run in its log.
fn killed(dir: &Path) {
    let [db, log, mark] = ["runs.db", "runs.db-wal", "runs.db-mark"].map(|name| dir.join(name));
    told(dir, &["budgets", "set", "team", "--usd", "5"], 0);
    let store = opened(dir);
    store.run_verb(Start::new(RunId::new("r1").unwrap()), Durability::Synced).unwrap();
    let files = [&db, &log, &mark].map(|path| (path, fs::read(path).unwrap()));
    drop(store);
    files.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
}

fn opened(dir: &Path) -> Arc<dyn Store> {
    let options = Options {
        durability: Default::default(),
        clock: Arc::new(ManualClock::new(Micros(1_800_000_000_000_000))),
        entropy: Arc::new(SeededEntropy::new(1)),
        create: true,
        store_wait: outlast_store::STORE_WAIT,
    };
    outlast_store::open(dir.join("runs.db").to_str().unwrap(), options).unwrap()
}

#[test]
fn a_store_that_lost_its_log_is_refused_until_a_person_accepts_that() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    killed(dir);
    fs::remove_file(dir.join("runs.db-wal")).unwrap();
    let refused = told(dir, &["ls"], 69);
    assert!(refused.contains("is gone") && refused.contains("--accept-shorter"), "{refused}");
    let refused = told(dir, &["doctor"], 69);
    assert!(refused.contains("--accept-shorter") && refused.contains("sync"), "{refused}");
    let asked = told(dir, &["repair"], 1);
    assert!(
        asked.contains("missing: ") && asked.contains("left: the file, as the last checkpoint"),
        "{asked}"
    );
    let accepted = told(dir, &["repair", "runs.db", "--accept-shorter"], 0);
    assert!(accepted.contains("given up: "), "{accepted}");
    assert!(told(dir, &["verify"], 0).contains("no damage"));
    assert!(told(dir, &["repair"], 0).contains("nothing is missing"));
}

#[test]
fn what_is_left_of_a_cut_log_is_kept_beside_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    killed(dir);
    let log = dir.join("runs.db-wal");
    let cut = &fs::read(&log).unwrap()[..1000];
    fs::write(&log, cut).unwrap();
    let accepted = told(dir, &["repair", "--accept-shorter", "--json"], 0);
    let accepted: serde_json::Value = serde_json::from_str(&accepted).unwrap();
    assert_eq!(accepted["accepted"], true, "{accepted}");
    assert_eq!(fs::read(accepted["kept"].as_str().unwrap()).unwrap(), cut);
    assert!(told(dir, &["verify"], 0).contains("no damage"));
}

// Bug: `verify` said no damage where a run's standard input was. Consequence: the agent read other bytes than it was
// given, after a restart. Cause: values were looked for by kinds of entries, and a run's own has none.
#[test]
fn verify_looks_at_a_runs_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = opened(dir);
    let stdin = Some(Payload::encode(b"what the agent reads"));
    let start = Start { stdin, ..Start::new(RunId::new("r1").unwrap()) };
    store.run_verb(start, Durability::Synced).unwrap();
    drop(store);
    assert!(told(dir, &["verify"], 0).contains("no damage"));
    let change = "UPDATE payloads SET bytes = zeroblob(length(bytes))";
    assert_eq!(rusqlite::Connection::open(dir.join("runs.db")).unwrap().execute(change, []).unwrap(), 1);
    assert!(told(dir, &["verify"], 1).contains("damaged: run r1: the stdin of entry 0 is damaged: "));
}
