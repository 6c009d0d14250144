//! Stores of the format before: brought to today's once, with a copy kept, and never under a process that uses them.

use std::{fs, path::Path, sync::Arc};

use outlast_core::{
    engine::run::{process::Register, start::Start},
    events::{EventQuery, Mark},
    journal::{Kind, LedgerLine, State},
    run::{Own, instance::Identity},
    store::{Ask as _, Durability, Store},
    words::id::{Micros, RunId},
};
use outlast_store::{FORMAT, OLDEST};
use rusqlite::Connection;

use crate::{
    beds::{open_at, place},
    private_postgres::Database,
};

/// Checks that the run of an older format is there, with its line of the ledger and the sums of its calls.
fn has_run(store: &dyn Store) {
    let no = store.run_no(&RunId::new("kept").unwrap()).unwrap().unwrap();
    let lines = store.sums(no).unwrap();
    let line = LedgerLine { calls: 2, tokens: 10, spent_nano_usd: 18, ..lines[0].clone() };
    assert_eq!((lines.len(), &lines[0]), (1, &line));
    assert_eq!(store.ledger(Micros(0), Micros(i64::MAX)).unwrap(), lines);
    let own = Own { calls: 2, tokens: 10, cost_nano_usd: 18, estimated_calls: 1, ..Own::default() };
    assert_eq!(store.run(no).unwrap().unwrap().run.own, own);
}

/// Adds a run and a process that has left nothing but its row.
fn use_it(store: &Arc<dyn Store>, pid: u32) {
    let identity =
        Identity { host: "elsewhere".into(), pid, program: "outlast run".into(), ..Identity::default() };
    store.ask(Register { identity }, Durability::Synced).wait().unwrap();
    store.ask(Start::new(RunId::new("kept").unwrap()), Durability::Synced).wait().unwrap();
}

/// Columns that stores of an older format lack, each with its table, by the first format that has them.
const SINCE: [(i64, &str, &str); 4] =
    [(4, "entries", "opened_by"), (5, "entries", "taken"), (5, "attempts", "receiving"), (6, "runs", "own")];

/// SQL that takes from a new store what an older format lacks.
fn without(format: i64, prefix: &str) -> String {
    let lacking = SINCE.into_iter().filter(|(since, ..)| *since > format);
    let columns =
        lacking.map(|(_, table, column)| format!("ALTER TABLE {prefix}{table} DROP COLUMN {column};"));
    columns.chain([format!("DROP TABLE {prefix}sums; DROP INDEX {prefix}calls_in_time;")]).collect()
}

/// SQL that adds two calls to the run, the second of them charged by an estimate.
fn calls(table: &str) -> String {
    let call = |seq, cost, detail| {
        format!(
            "INSERT INTO {table} (run_no, seq, kind, state, attempt, scope, opened_at, held_cost, held_tokens, \
             held_calls, spent_cost, spent_tokens, spent_calls, delivered_count, replayable, model, upstream, detail) \
             VALUES (1, {seq}, {}, {}, 1, 'i0', 0, 0, 0, 0, {cost}, 5, 1, 0, false, 'm', 'u', '{detail}');",
            Kind::Call.code(),
            State::Done.code(),
        )
    };
    call(1, 7, "{}") + &call(2, 11, r#"{"estimated":true}"#)
}

/// Makes a store of an older format, whose process was last seen at `seen`.
fn old_file(path: &Path, format: i64, seen: &str) {
    use_it(&open_at(place(path), true).unwrap(), 77);
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(&format!(
        "{} {} UPDATE instances SET last_seen = {seen}; PRAGMA user_version = {format};",
        calls("entries"),
        without(format, "")
    ))
    .unwrap();
}

fn format(path: &Path) -> i64 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |r| r.get(0)).unwrap()
}

const LONG_AGO: &str = "0";
/// As it was registered: the test's clock stands still.
const NOW: &str = "last_seen";

#[test]
fn a_file_of_an_older_format_is_brought_to_this_one_once_and_its_copy_is_kept() {
    for older in OLDEST..FORMAT {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db");
        old_file(&path, older, LONG_AGO);
        // As a migration leaves it that was killed.
        let unfinished = directory.path().join(format!("outlast.db.format-{older}-unfinished"));
        fs::write(&unfinished, b"half of it").unwrap();
        has_run(&*open_at(place(&path), false).unwrap());
        assert_eq!(format(&path), FORMAT);

        let copy = directory.path().join(format!("outlast.db.format-{older}"));
        assert_eq!(format(&copy), older);
        let runs: i64 = Connection::open(&copy)
            .unwrap()
            .query_row("SELECT count(*) FROM runs", [], |r| r.get(0))
            .unwrap();
        assert_eq!(runs, 1);
        assert!(!unfinished.exists());
        fs::remove_file(&copy).unwrap();
        has_run(&*open_at(place(&path), false).unwrap());
        assert!(!copy.exists(), "it was migrated a second time");
    }
}

#[test]
fn a_file_that_a_process_of_the_version_before_uses_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    old_file(&path, 3, NOW);
    let refused = open_at(place(&path), false).map(drop).unwrap_err().to_string();
    assert!(refused.contains("outlast run (pid 77 on elsewhere)"), "{refused}");
    assert_eq!(format(&path), 3);
    assert!(!directory.path().join("outlast.db.format-3").exists());
}

/// Bug: an open store was written on after a process of another version had changed its format.
/// Consequence: rows of one format in a store of another, which no version reads rightly.
/// Cause: the format's number was read when the store was opened, and never again.
#[test]
fn an_open_file_takes_nothing_while_it_has_another_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let store = open_at(place(&path), true).unwrap();
    let start = |id: &str| {
        let verb = Start::new(RunId::new(id).unwrap());
        store.ask(verb, Durability::Synced).wait().map(drop).map_err(|e| e.code())
    };
    start("before").unwrap();
    for (found, code) in
        [(FORMAT + 1, Err("store_newer")), (FORMAT - 1, Err("store_older")), (FORMAT, Ok(()))]
    {
        Connection::open(&path).unwrap().pragma_update(None, "user_version", found).unwrap();
        for id in ["one", "two"] {
            assert_eq!(start(id), code, "{found}");
        }
    }
}

#[test]
fn a_database_of_an_older_format_is_brought_to_this_one() {
    for older in OLDEST..FORMAT {
        let database = Database::new();
        use_it(&open_at(&database.url(), true).unwrap(), 77);
        let sql = |sql: &str| database.execute(sql);
        sql(&calls("outlast.entries"));
        sql(&without(older, "outlast."));
        // Events were ordered by their transactions.
        sql("ALTER TABLE outlast.events ALTER COLUMN transaction SET DEFAULT txid_current()");
        sql("UPDATE outlast.events SET transaction = txid_current()");
        sql(&format!("UPDATE outlast.meta SET value = '{older}' WHERE key = 'format'"));
        let refused = open_at(&database.url(), false).map(drop).unwrap_err().to_string();
        assert!(refused.contains("outlast run (pid 77 on elsewhere)"), "{refused}");
        sql("UPDATE outlast.instances SET last_seen = 0");
        let store = open_at(&database.url(), false).unwrap();
        has_run(&*store);
        let read = |after| store.events(&EventQuery { after, limit: 100, run: None }).unwrap();
        let told = read(Mark::default());
        let new = store.ask(Start::new(RunId::new("new").unwrap()), Durability::Synced).wait().unwrap();
        let since: Vec<_> = read(told[told.len() - 1].mark).into_iter().map(|event| event.run).collect();
        assert_eq!(since, [Some(new.run)], "a reader goes on behind what it was told before");
        let format =
            database.value("SELECT convert_from(value, 'UTF8') FROM outlast.meta WHERE key = 'format'");
        assert_eq!(format, Some(FORMAT.to_string()));
    }
}
