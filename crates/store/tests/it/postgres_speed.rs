//! Work of the database that must not grow with a run.

use outlast_core::{store::RunFilter, words::id::Seq};

use crate::{
    beds::{Opened, open_at},
    private_postgres::Database,
    stage::Stage,
};

/// Number of entries that the search for a step's earlier entry may read.
const FEW: u64 = 8;

/// Returns the number of index entries of the journal and its payloads that ended sessions have read.
fn read(database: &Database) -> u64 {
    let sql = "SELECT sum(idx_tup_read) FROM pg_stat_all_indexes \
               WHERE schemaname = 'outlast' AND relname IN ('entries', 'payloads')";
    database.value(sql).unwrap().parse().unwrap()
}

/// The planner learns nothing of the tables from here on.
fn never_analysed(database: &Database, tables: &[&str]) {
    for table in tables {
        database.execute(&format!("ALTER TABLE outlast.{table} SET (autovacuum_enabled = off)"));
    }
}

/// Bug: the journal of a run of 1,000 steps was read whole for each further step, until the database had analysed it.
/// Consequence: 450 steps a second where 1,000 and more are possible, and ever fewer.
/// Cause: to a planner that believes a run to be short, the run's primary key in reverse is as good as the index by key.
#[test]
fn a_step_reads_no_entries_of_other_steps_however_the_planner_sees_the_table() {
    const STEPS: u64 = 40;
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let agent = s.process("p").claim(s.run("r").create());
    let begins = |keys: &str, count| {
        for n in 0..count {
            agent.begins(&format!("{keys} {n}"));
            // What the session has learnt of the run ends with it, and its counts go to the server.
            database.cut_connections();
        }
    };
    begins("early", 4);
    // From here on the planner believes that the journal is as small as it is now.
    never_analysed(&database, &["entries", "payloads"]);
    database.execute("ANALYZE outlast.entries");
    let before = read(&database);
    begins("later", STEPS);
    let read = read(&database) - before;
    assert!((STEPS / 2..FEW * STEPS).contains(&read), "{STEPS} steps read {read} entries");
}

/// Bug: each page of a run's steps read and sorted all that was left of the run, and each step all values of the run.
/// Consequence: a run of 100,000 steps was resumed in 1.6 s where 0.3 s are enough, one of 10,000 larger ones in 10 s.
/// Cause: to a planner that believes a run to be short, a sort is as good as an index in order, and half of a key as good
/// as the whole.
#[test]
fn a_page_of_steps_reads_no_entries_of_later_pages_however_the_planner_sees_the_table() {
    const STEPS: u64 = 2000;
    const PAGE: usize = 100;
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let run = s.run("r").create();
    let agent = s.process("p").claim(run);
    never_analysed(&database, &["entries", "payloads"]);
    for n in 0..STEPS {
        agent.ask(agent.record(agent.begins(&format!("{n}")), "result")).unwrap();
    }
    database.cut_connections();
    let before = read(&database);
    let (mut after, mut found) = (Seq(0), 0);
    while let Some((last, _)) = s.store().steps(run, after, PAGE).unwrap().last() {
        (after, found) = (last.seq, found + 1);
    }
    database.cut_connections();
    let read = read(&database) - before;
    assert_eq!(found, (STEPS as usize).div_ceil(PAGE), "pages");
    assert!((2 * STEPS..4 * STEPS).contains(&read), "{STEPS} steps in pages of {PAGE} read {read} entries");
}

/// Bug: a page of runs read the specs of all runs.
/// Consequence: `outlast ls` of a large fleet took ever longer, whatever it showed.
/// Cause: to a planner that does not know how long a table is, a join of ten rows with all of it is as good as ten looks.
#[test]
fn a_page_of_runs_reads_no_specs_of_other_runs_however_the_planner_sees_the_table() {
    const PAGE: usize = 10;
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    never_analysed(&database, &["runs", "specs", "envelopes"]);
    for n in 0..20 * PAGE {
        s.run(&format!("r{n}")).create();
    }
    let read = || -> usize {
        database.cut_connections();
        let sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_all_tables \
                   WHERE schemaname = 'outlast' AND relname IN ('specs', 'envelopes')";
        database.value(sql).unwrap().parse().unwrap()
    };
    let before = read();
    assert_eq!(s.store().runs(&RunFilter { limit: PAGE, ..RunFilter::default() }).unwrap().len(), PAGE);
    let read = read() - before;
    assert!((PAGE..4 * PAGE).contains(&read), "a page of {PAGE} runs read {read} rows");
}
