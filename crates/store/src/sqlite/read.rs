//! Answers questions from the file.

use outlast_core::{
    engine::{Op, Outcome},
    store::{Answer, Durability, Error, Question, Store, Ticket},
};

use super::{
    SqliteStore, connect, failure, log, payloads,
    rows::{self, all},
};
use crate::{
    gate,
    group::Hands,
    query::{self, Database, Query, Value},
    rows::{Dialect, Record},
};

impl Database for SqliteStore {
    const DIALECT: Dialect = Dialect::Sqlite;

    fn rows<T: Record>(&self, query: Query) -> Result<Vec<T>, Error> {
        let cells = rusqlite::params_from_iter(query.values.iter().map(Value::cell));
        self.with_reader(|c| all(c, &query.text, cells, rows::record))
    }

    fn own_answer(&self, question: &Question) -> Result<Answer, Error> {
        Ok(match question {
            Question::NewestRequest { run } => Answer::NewestRequest(
                self.with_reader(|c| payloads::newest_request(c, *run).map_err(failure))?,
            ),
            Question::Payload { run, seq, role } => {
                Answer::Payload(self.with_reader(|c| payloads::get(c, *run, *seq, *role).map_err(failure))?)
            }
            _ => Answer::Now(self.clock.now()),
        })
    }
}

impl Store for SqliteStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Writers)
    }

    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Mine)
    }

    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        match self.file.refuse_forked() {
            Ok(()) => self.writer.ahead(op),
            Err(e) => Ok(Err(e)),
        }
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        query::answer(self, question)
    }

    fn damage(&self, reindex: bool) -> Result<Vec<String>, Error> {
        // Uses its own connection, since it holds the store's lock like any other writer. Opening it checks the log.
        let inside = gate::enter();
        let of_log = match connect::writer(self.file.path(), false) {
            Err(Error::Shorter { what, .. }) => vec![what],
            opened => {
                let (_file, conn) = opened?;
                if reindex {
                    conn.execute_batch("REINDEX").map_err(failure)?;
                }
                log::fault_of_mark(&conn).into_iter().collect()
            }
        };
        drop(inside);
        self.with_reader(|c| {
            let told = all(c, "PRAGMA integrity_check(100)", [], |r| r.get::<_, String>(0))?;
            Ok(of_log.into_iter().chain(told.into_iter().filter(|line| line != "ok")).collect())
        })
    }

    fn check(&self) -> Result<(), Error> {
        self.file.check()
    }

    fn place(&self) -> String {
        self.file.path().display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        journal::Kind,
        store::{ApprovalFilter, Sought},
        words::RunNo,
    };
    use rusqlite::{Connection, params_from_iter};

    use super::*;
    use crate::{
        query::{approvals, items, ledger_text, newest, steps},
        sqlite::schema,
        tables::{budget_views, run_views},
    };

    #[test]
    fn a_page_of_a_resume_costs_its_size_and_no_sort() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::make(&mut conn, "memory", Vec::new).unwrap();
        let plan = |sql: &str| -> Vec<String> {
            let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
            let lines = statement.query_map(params_from_iter(nulls), |r| r.get(3)).unwrap();
            lines.collect::<Result<_, _>>().unwrap()
        };
        let check = |sql: &str, wanted: &[&str]| assert_eq!(plan(sql), wanted, "{sql}");
        for scope in [None, Some("1".to_owned())] {
            let sought = Sought { scope, ..Sought::done(Kind::Checkpoint, "cursor") };
            let plan = plan(&newest(Dialect::Sqlite, &sought));
            assert!(plan.iter().all(|line| !line.contains("TEMP B-TREE")), "{plan:?}");
        }
        let of_calls = plan(&ledger_text(Dialect::Sqlite));
        let in_time = "SEARCH entries USING INDEX calls_in_time (opened_at>? AND opened_at<?)";
        assert!(of_calls.iter().any(|line| line == in_time), "{of_calls:?}");
        let of_items = "SEARCH e USING INDEX entries_of_items (run_no=? AND seq>? AND seq<?)";
        let value = "SEARCH p USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN";
        let all = |open, run| approvals(Dialect::Sqlite, &ApprovalFilter { run, open, limit: 10 });
        check(&all(true, None), &["SCAN entries USING INDEX approvals_open"]);
        check(&all(false, None), &["SCAN entries USING INDEX approvals"]);
        let of_run = "SEARCH entries USING INDEX entries_by_key (run_no=? AND kind=? AND key>?)";
        check(&all(true, Some(RunNo(1))), &[of_run, "USE TEMP B-TREE FOR ORDER BY"]);
        check(&items(Dialect::Sqlite, false), &[of_items]);
        check(&items(Dialect::Sqlite, true), &[of_items, value]);
        check(
            &steps(Dialect::Sqlite),
            &["SEARCH e USING INDEX sqlite_autoindex_entries_1 (run_no=? AND seq>?)", value],
        );
        let [run, spec, envelope] = ["runs", "s", "e"].map(|table| {
            let joined = if table == "runs" { "" } else { " LEFT-JOIN" };
            format!("SEARCH {table} USING INTEGER PRIMARY KEY (rowid=?){joined}")
        });
        check(&run_views(Dialect::Sqlite, "WHERE no = ?1"), &[&run, &spec, &envelope]);
        check(&budget_views(Dialect::Sqlite), &["SCAN b", &envelope]);
    }
}
