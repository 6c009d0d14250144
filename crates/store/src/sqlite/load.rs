//! Finds the rows that an operation loads, inside the write transaction.

use std::{hash::Hash, sync::Arc};

use outlast_core::{
    engine::{
        Loaded,
        loaded::{Key, Newest},
    },
    envelope::Budget,
    journal::Entry,
    run::{Attempt, Lease, Run},
    store::Error,
    words::{Map, Row, RunNo},
};
use rusqlite::{Connection, params_from_iter};

use super::{
    pending::{Cache, Pending},
    rows::{self, all, many, maybe, one},
};
use crate::{
    load::{Head, load},
    rows::{Dialect, Record, Stored},
    tables::{CALL, OPEN},
};

/// Looks keys up in the writer's cache, in the group's pending rows, and in the file.
pub struct Finder<'a> {
    pub conn: &'a Connection,
    pub cache: &'a mut Cache,
    /// Rows that this group has decided but not yet written, which queries do not see.
    pub pending: &'a Pending,
}

/// Queries that name their index, so that none of them scans a whole run.
const MATCHING: &str = "INDEXED BY entries_by_match WHERE run_no = ?1 AND match_key = ?2 ORDER BY seq";
const KEYED: &str = "INDEXED BY entries_by_key \
    WHERE run_no = ?1 AND kind = ?2 AND key = ?3 AND scope = ?4 ORDER BY seq DESC LIMIT 1";
const KEYED_UP_TO: &str = "INDEXED BY entries_by_key \
    WHERE run_no = ?1 AND kind = ?2 AND key = ?3 AND scope = ?4 AND seq <= ?5 ORDER BY seq DESC LIMIT 1";
const OPEN_ATTEMPTS: &str = "INDEXED BY attempts_open WHERE run_no = ?1 AND ended_at IS NULL ORDER BY no";

fn open_calls() -> String {
    format!("INDEXED BY calls_open WHERE state = {OPEN} AND kind = {CALL} AND instance = ?1")
}

impl Finder<'_> {
    pub fn find(&mut self, key: &Key<'_>, l: &mut Loaded) -> Result<(), Error> {
        match *key {
            Key::Numbers => l.numbers = self.found(key)?.pop(),
            Key::Instance(no) => l.extend(self.cached(|c| &mut c.instances, no, no.0)?),
            Key::RunById(id) => {
                if let Some(no) =
                    maybe(self.conn, "SELECT no FROM runs WHERE id = ?1", (id.as_str(),), |r| r.get(0))?
                {
                    l.extend(self.run(RunNo(no))?);
                }
            }
            Key::OfCommand(key) => {
                let newest = "SELECT no FROM runs WHERE command_key = ?1 ORDER BY no DESC LIMIT 1";
                if let Some(no) = maybe(self.conn, newest, (key,), |r| r.get(0))? {
                    l.extend(self.run(RunNo(no))?);
                }
            }
            Key::Run(no) => l.extend(self.run(no)?),
            Key::Envelope(no) => l.extend(self.cached(|c| &mut c.envelopes, no, no.0)?),
            Key::Budgets => l.extend(self.budgets()?.iter().cloned()),
            Key::Budget(no) => l.extend(self.budgets()?.iter().find(|b| b.no == no).cloned()),
            Key::Attempt(run, no) => {
                let found = match self.cache.open_attempt(run, no) {
                    Some(a) => Some(a.clone()),
                    None => one(self.conn, "WHERE run_no = ?1 AND no = ?2", (run.0, no.0))?,
                };
                l.extend(found);
            }
            Key::OpenAttempts(run) => l.extend(self.open_attempts(run)?.iter().cloned()),
            Key::Labelled(run, label) => {
                l.extend(many::<Attempt>(self.conn, "WHERE run_no = ?1 AND label = ?2", (run.0, label))?);
            }
            Key::Spec(run) => {
                let sql = "SELECT spec FROM specs WHERE run_no = ?1";
                let spec = maybe(self.conn, sql, (run.0,), rows::record)?;
                l.known_specs.extend(spec.map(|spec| (run, spec)));
            }
            Key::Lease(run, slot) => {
                let found: Option<Lease> = match self.cache.leases.get(&(run, slot)) {
                    Some(found) => *found,
                    None => one(self.conn, "WHERE run_no = ?1 AND slot = ?2", (run.0, slot.0))?,
                };
                self.cache.leases.insert((run, slot), found);
                l.extend(found);
            }
            Key::Leases(run) => {
                l.extend(many::<Lease>(self.conn, "WHERE run_no = ?1", (run.0,))?);
            }
            Key::LeasesOf(instance) => {
                l.extend(many::<Lease>(self.conn, "WHERE instance = ?1", (instance.0,))?);
            }
            Key::Entry(run, seq) => {
                let found = match self.pending.entry(run, seq) {
                    Some(e) => Some(e.clone()),
                    None => one(self.conn, "WHERE run_no = ?1 AND seq = ?2", (run.0, seq.0))?,
                };
                l.extend(found);
            }
            Key::Matching(run, key) => {
                l.extend(many::<Entry>(self.conn, MATCHING, (run.0, &key.0[..]))?);
            }
            Key::Newest(of) => l.extend(self.newest(&of)?),
            Key::OpenCalls(instance) => {
                l.extend(many::<Entry>(self.conn, &open_calls(), (instance.0,))?);
            }
            Key::Position => l.state.position = self.found(key)?.pop().unwrap_or_default(),
            Key::Delivery(name) => l.deliveries.extend(one(self.conn, "WHERE name = ?1", (name,))?),
            Key::Namespace(name) => {
                if let Some((head, old)) = self.found::<Head>(key)?.pop() {
                    l.state.namespaces.insert(name.to_owned(), Row::read(head));
                    l.state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
                }
            }
            Key::State(name) => {
                let found = self.found(key)?.pop();
                l.state.keys.extend(found.map(|current| (name.clone(), Row::read(current))));
            }
            Key::Transaction(_) => l.state.outcome = self.found(key)?.pop(),
            Key::Compactable { .. } => l.state.compactable = self.found(key)?,
        }
        Ok(())
    }

    /// Returns the rows that the query of the key finds.
    fn found<T: Record>(&self, key: &Key<'_>) -> Result<Vec<T>, Error> {
        let Some(load) = load(Dialect::Sqlite, key) else { return Ok(Vec::new()) };
        all(self.conn, &load.text, params_from_iter(&load.cells), rows::record)
    }

    fn run(&mut self, no: RunNo) -> Result<Option<Run>, Error> {
        self.cached(|cache| &mut cache.runs, no, no.0)
    }

    /// Returns the row with the number `no`, `n` as it is stored: from the cache, else from the file.
    fn cached<N: Eq + Hash, T: Stored + Clone>(
        &mut self,
        rows: fn(&mut Cache) -> &mut Map<N, T>,
        no: N,
        n: i64,
    ) -> Result<Option<T>, Error> {
        if let Some(row) = rows(self.cache).get(&no) {
            return Ok(Some(row.clone()));
        }
        let found: Option<T> = one(self.conn, "WHERE no = ?1", (n,))?;
        rows(self.cache).extend(found.clone().map(|row| (no, row)));
        Ok(found)
    }

    /// Loads all named budgets: they are few and rarely change.
    fn budgets(&mut self) -> Result<Arc<Vec<Budget>>, Error> {
        if let Some(budgets) = &self.cache.budgets {
            return Ok(budgets.clone());
        }
        let budgets = Arc::new(many(self.conn, "ORDER BY no", ())?);
        self.cache.budgets = Some(budgets.clone());
        Ok(budgets)
    }

    fn open_attempts(&mut self, run: RunNo) -> Result<Arc<Vec<Attempt>>, Error> {
        if let Some(open) = self.cache.open.get(&run) {
            return Ok(open.clone());
        }
        let open = Arc::new(many(self.conn, OPEN_ATTEMPTS, (run.0,))?);
        self.cache.open.insert(run, open.clone());
        Ok(open)
    }

    fn newest(&self, of: &Newest<'_>) -> Result<Option<Entry>, Error> {
        let (run, kind, upto) = (of.run.0, of.kind.code(), of.upto.map(|seq| seq.0));
        if let Some(upto) = upto {
            return one(self.conn, KEYED_UP_TO, (run, kind, of.key, of.scope, upto));
        }
        if let Some(e) = self.pending.newest(of) {
            return Ok(Some(e.clone()));
        }
        let found: Option<Entry> = one(self.conn, KEYED, (run, kind, of.key, of.scope))?;
        Ok(found.map(|e| self.pending.entry(e.run, e.seq).cloned().unwrap_or(e)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{rows::select, schema};

    /// Bug: each admission read its run's whole journal.
    /// Consequence: a call cost a millisecond after some thousand calls, and more with each.
    /// Cause: the planner preferred the order of (run_no, seq) to the index on the key that was asked for.
    #[test]
    fn no_query_of_an_operation_walks_a_run() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::make(&mut conn, "memory", Vec::new).unwrap();
        let check = |query: &str, parameters: usize, wanted: &str| {
            let of_attempts = query == OPEN_ATTEMPTS;
            let query = if of_attempts { select::<Attempt>(query) } else { select::<Entry>(query) };
            let sql = format!("EXPLAIN QUERY PLAN {query}");
            let nulls = vec![rusqlite::types::Null; parameters];
            let mut statement = conn.prepare(&sql).unwrap();
            let plan: Vec<String> = statement
                .query_map(rusqlite::params_from_iter(nulls), |r| r.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert_eq!(plan, [wanted], "{query}");
        };
        check(MATCHING, 2, "SEARCH entries USING INDEX entries_by_match (run_no=? AND match_key=?)");
        check(
            KEYED,
            4,
            "SEARCH entries USING INDEX entries_by_key (run_no=? AND kind=? AND key=? AND scope=?)",
        );
        check(
            KEYED_UP_TO,
            5,
            "SEARCH entries USING INDEX entries_by_key (run_no=? AND kind=? AND key=? AND scope=? AND seq<?)",
        );
        check(OPEN_ATTEMPTS, 1, "SEARCH attempts USING INDEX attempts_open (run_no=?)");
        check(&open_calls(), 1, "SEARCH entries USING INDEX calls_open (instance=?)");
    }
}
