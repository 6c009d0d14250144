//! Loading what an operation names, inside the write transaction.

use std::sync::Arc;

use outlast_core::{
    engine::loaded::{Loaded, Need, Numbers, Row},
    envelope::budget::Budget,
    journal::{Kind, job},
    run::{attempt::Attempt, instance::Lease},
    store::Error,
    words::id::{AttemptNo, EnvelopeNo, InstanceNo, RunNo, Seq, Slot},
};
use rusqlite::{Connection, OptionalExtension as _, Params};

use super::{cache::Cache, failure, pending::Pending, rows, state};
use crate::columns::select;

/// Loads one operation's needs.
pub struct Loader<'a> {
    pub conn: &'a Connection,
    pub cache: &'a mut Cache,
    /// What this group has written so far, and no query sees.
    pub pending: &'a Pending,
}

/// Queries that name their index: none of them may walk a run.
const MATCHING: &str =
    "entries INDEXED BY entries_by_match WHERE run_no = ?1 AND match_key = ?2 ORDER BY seq";
const KEYED: &str = "entries INDEXED BY entries_by_key \
    WHERE run_no = ?1 AND kind = ?2 AND key = ?3 AND scope = ?4 ORDER BY seq DESC LIMIT 1";
const KEYED_UP_TO: &str = "entries INDEXED BY entries_by_key \
    WHERE run_no = ?1 AND kind = ?2 AND key = ?3 AND scope = ?4 AND seq <= ?5 ORDER BY seq DESC LIMIT 1";
const OPEN_ATTEMPTS: &str =
    "attempts INDEXED BY attempts_open WHERE run_no = ?1 AND ended_at IS NULL ORDER BY no";
const OPEN_CALLS: &str = "entries INDEXED BY calls_open WHERE state = 0 AND kind = 0 AND instance = ?1";

type Map<T> = fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>;

impl Loader<'_> {
    pub fn load(&mut self, needs: &[Need]) -> Result<Loaded, Error> {
        let mut l = Loaded::default();
        for need in needs {
            self.one(&mut l, need)?;
        }
        Ok(l)
    }

    fn one(&mut self, l: &mut Loaded, need: &Need) -> Result<(), Error> {
        match need {
            Need::Numbers => {
                let next = |table: &str| -> Result<i64, Error> {
                    let sql = format!("SELECT coalesce(max(no), 0) + 1 FROM {table}");
                    let mut statement = self.conn.prepare_cached(&sql).map_err(failure)?;
                    statement.query_row([], |r| r.get(0)).map_err(failure)
                };
                l.numbers = Numbers {
                    run: RunNo(next("runs")?),
                    envelope: EnvelopeNo(next("envelopes")?),
                    instance: InstanceNo(next("instances")?),
                };
            }
            Need::Instance(no) => self.instance(l, *no)?,
            Need::RunById(id) => {
                let sql = "SELECT no FROM runs WHERE id = ?1";
                if let Some(no) = self.maybe(sql, (id.as_str(),), |r| r.get(0))? {
                    self.run(l, RunNo(no))?;
                }
            }
            Need::Run(no) => self.run(l, *no)?,
            Need::Envelopes(numbers) => numbers.iter().try_for_each(|no| self.envelope(l, *no))?,
            Need::Budgets => l.budgets.extend(self.budgets()?.iter().cloned().map(Row::read)),
            Need::Budget(no) => {
                l.budgets.extend(self.budgets()?.iter().find(|b| b.no == *no).cloned().map(Row::read));
            }
            Need::Windows(_) => {}
            Need::Attempt(run, no) => self.attempt(l, *run, *no)?,
            Need::Spec(run) => {
                let sql = "SELECT spec FROM specs WHERE run_no = ?1";
                let spec = self.maybe(sql, (run.0,), rows::spec)?;
                l.known_specs.extend(spec.map(|spec| (*run, spec)));
            }
            Need::OpenAttempts(run) => {
                for a in self.open(*run)?.iter() {
                    add_attempt(l, a.clone());
                }
            }
            Need::Labelled(run, label) => {
                let sql = select(rows::ATTEMPT, "attempts WHERE run_no = ?1 AND label = ?2");
                for a in self.all(&sql, (run.0, label), rows::attempt)? {
                    add_attempt(l, a);
                }
            }
            Need::Lease(run, slot) => self.lease(l, *run, *slot)?,
            Need::Leases(run) => {
                let sql = select(rows::LEASE, "leases WHERE run_no = ?1 ORDER BY slot");
                for lease in self.all(&sql, (run.0,), rows::lease)? {
                    l.leases.push(Row::read(lease));
                    self.instance(l, lease.instance)?;
                }
            }
            Need::Entry(run, seq) => self.chain(l, *run, *seq)?,
            Need::Item(run, key) => {
                let sql = select(rows::ENTRY, KEYED);
                let params = (run.0, Kind::Item.code(), key, job::SCOPE);
                if let Some(e) = self.maybe(&sql, params, rows::entry)? {
                    if let Some(no) = e.instance {
                        self.instance(l, no)?;
                    }
                    l.entries.push(Row::read(e));
                }
            }
            Need::Matching(run, key) => {
                let sql = select(rows::ENTRY, MATCHING);
                for e in self.all(&sql, (run.0, &key.0[..]), rows::entry)? {
                    if l.entry(e.run, e.seq).is_none() {
                        l.entries.push(Row::read(e));
                    }
                }
            }
            Need::Keyed(run, kind, scope, key) => {
                let found = match self.pending.keyed(*run, *kind, scope, key) {
                    Some(e) => Some(e.clone()),
                    None => {
                        let sql = select(rows::ENTRY, KEYED);
                        let found = self.maybe(&sql, (run.0, kind.code(), key, scope), rows::entry)?;
                        found.map(|e| self.pending.entry(e.run, e.seq).cloned().unwrap_or(e))
                    }
                };
                l.entries.extend(found.map(Row::read));
            }
            Need::KeyedUpTo(run, kind, scope, key, upto) => {
                let sql = select(rows::ENTRY, KEYED_UP_TO);
                let found = self.maybe(&sql, (run.0, kind.code(), key, scope, upto.0), rows::entry)?;
                l.entries.extend(found.map(Row::read));
            }
            Need::OwnedBy(instance) => self.owned(l, *instance)?,
            Need::State(name) => state::load_key(self.conn, l, name)?,
            Need::Transaction(id) => l.state.outcome = state::outcome(self.conn, id)?,
            Need::Namespace(name) => state::load_namespace(self.conn, l, name)?,
            Need::Compactable { namespace, before, after, limit } => {
                state::load_compactable(self.conn, l, namespace, *before, *after, *limit)?;
            }
        }
        Ok(())
    }

    fn instance(&mut self, l: &mut Loaded, no: InstanceNo) -> Result<(), Error> {
        if l.instance(no).is_some() {
            return Ok(());
        }
        if !self.cache.instances.contains_key(&no) {
            let sql = select(rows::INSTANCE, "instances WHERE no = ?1");
            let Some(i) = self.maybe(&sql, (no.0,), rows::instance)? else { return Ok(()) };
            self.cache.instances.insert(no, i);
        }
        l.instances.extend(self.cache.instances.get(&no).cloned().map(Row::read));
        Ok(())
    }

    fn run(&mut self, l: &mut Loaded, no: RunNo) -> Result<(), Error> {
        if l.run(no).is_ok() {
            return Ok(());
        }
        if !self.cache.runs.contains_key(&no) {
            let sql = select(rows::RUN, "runs WHERE no = ?1");
            let Some(run) = self.maybe(&sql, (no.0,), rows::run)? else { return Ok(()) };
            self.cache.runs.insert(no, run);
        }
        let Some(run) = self.cache.runs.get(&no).cloned() else { return Ok(()) };
        for &e in run.charges.iter() {
            self.envelope(l, e)?;
        }
        l.runs.push(Row::read(run));
        Ok(())
    }

    fn envelope(&mut self, l: &mut Loaded, no: EnvelopeNo) -> Result<(), Error> {
        if l.envelope(no).is_ok() {
            return Ok(());
        }
        if !self.cache.envelopes.contains_key(&no) {
            let sql = select(rows::ENVELOPE, "envelopes WHERE no = ?1");
            let found = self.maybe(&sql, (no.0,), rows::envelope)?;
            let e = found.ok_or_else(|| Error::Corrupt { what: format!("envelope {no} is missing") })?;
            self.cache.envelopes.insert(no, e);
        }
        l.envelopes.extend(self.cache.envelopes.get(&no).cloned().map(Row::read));
        Ok(())
    }

    /// All of them: they are few, and change seldom.
    fn budgets(&mut self) -> Result<Arc<Vec<Budget>>, Error> {
        if let Some(budgets) = &self.cache.budgets {
            return Ok(budgets.clone());
        }
        let sql = select(rows::BUDGET, "budgets ORDER BY no");
        let budgets = Arc::new(self.all(&sql, (), rows::budget)?);
        self.cache.budgets = Some(budgets.clone());
        Ok(budgets)
    }

    fn attempt(&mut self, l: &mut Loaded, run: RunNo, no: AttemptNo) -> Result<(), Error> {
        if l.attempt(run, no).is_some() {
            return Ok(());
        }
        if let Some(a) = self.cache.open_attempt(run, no) {
            add_attempt(l, a.clone());
            return Ok(());
        }
        let sql = select(rows::ATTEMPT, "attempts WHERE run_no = ?1 AND no = ?2");
        if let Some(a) = self.maybe(&sql, (run.0, no.0), rows::attempt)? {
            add_attempt(l, a);
        }
        Ok(())
    }

    fn open(&mut self, run: RunNo) -> Result<Arc<Vec<Attempt>>, Error> {
        if let Some(open) = self.cache.open.get(&run) {
            return Ok(open.clone());
        }
        let sql = select(rows::ATTEMPT, OPEN_ATTEMPTS);
        let open = Arc::new(self.all(&sql, (run.0,), rows::attempt)?);
        self.cache.open.insert(run, open.clone());
        Ok(open)
    }

    fn lease(&mut self, l: &mut Loaded, run: RunNo, slot: Slot) -> Result<(), Error> {
        if l.lease(run, slot).is_some() {
            return Ok(());
        }
        let lease: Option<Lease> = match self.cache.leases.get(&(run, slot)) {
            Some(lease) => Some(*lease),
            None => {
                let sql = select(rows::LEASE, "leases WHERE run_no = ?1 AND slot = ?2");
                self.maybe(&sql, (run.0, slot.0), rows::lease)?
            }
        };
        if let Some(lease) = lease {
            self.cache.leases.insert((run, slot), lease);
            l.leases.push(Row::read(lease));
            self.instance(l, lease.instance)?;
        }
        Ok(())
    }

    fn chain(&mut self, l: &mut Loaded, run: RunNo, seq: Seq) -> Result<(), Error> {
        let sql = select(rows::ENTRY, "entries WHERE run_no = ?1 AND seq = ?2");
        let mut next = vec![seq];
        while let Some(seq) = next.pop() {
            if l.entry(run, seq).is_some() {
                continue;
            }
            let found = match self.pending.entry(run, seq) {
                Some(e) => Some(e.clone()),
                None => self.maybe(&sql, (run.0, seq.0), rows::entry)?,
            };
            let Some(e) = found else { continue };
            next.extend(e.call.as_ref().and_then(|c| c.retry_of));
            next.extend(e.within());
            if e.step.as_ref().is_some_and(|d| d.untaken > 0) {
                self.attempt(l, run, e.attempt)?;
            }
            l.entries.push(Row::read(e));
        }
        Ok(())
    }

    fn owned(&mut self, l: &mut Loaded, instance: InstanceNo) -> Result<(), Error> {
        let sql = select(rows::ENTRY, OPEN_CALLS);
        let entries = self.all(&sql, (instance.0,), rows::entry)?;
        let sql = select(rows::LEASE, "leases WHERE instance = ?1");
        let leases = self.all(&sql, (instance.0,), rows::lease)?;
        let runs: Vec<RunNo> = entries.iter().map(|e| e.run).chain(leases.iter().map(|x| x.run)).collect();
        let around: Vec<(RunNo, Seq)> =
            entries.iter().flat_map(|e| e.linked().map(|seq| (e.run, seq))).collect();
        l.entries.extend(entries.into_iter().map(Row::read));
        for (run, seq) in around {
            self.chain(l, run, seq)?;
        }
        l.leases.extend(leases.into_iter().map(Row::read));
        for no in runs {
            self.run(l, no)?;
            for a in self.open(no)?.iter() {
                add_attempt(l, a.clone());
            }
        }
        Ok(())
    }

    fn maybe<T, P: Params>(
        &self,
        sql: &str,
        params: P,
        map: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        let mut statement = self.conn.prepare_cached(sql).map_err(failure)?;
        statement.query_row(params, map).optional().map_err(failure)
    }

    fn all<T, P: Params>(&self, sql: &str, params: P, map: Map<T>) -> Result<Vec<T>, Error> {
        let mut statement = self.conn.prepare_cached(sql).map_err(failure)?;
        let rows = statement.query_map(params, map).map_err(failure)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failure)
    }
}

fn add_attempt(l: &mut Loaded, a: Attempt) {
    if l.attempt(a.run, a.no).is_none() {
        l.attempts.push(Row::read(a));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    /// Bug: each admission read its run's whole journal.
    /// Consequence: a call cost a millisecond after some thousand calls, and more with each.
    /// Cause: the planner preferred the order of (run_no, seq) to the index on the key that was asked for.
    #[test]
    fn no_query_of_an_operation_walks_a_run() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::make(&mut conn, "memory", Vec::new).unwrap();
        let check = |query: &str, parameters: usize, wanted: &str| {
            let sql = format!("EXPLAIN QUERY PLAN SELECT * FROM {query}");
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
        check(OPEN_CALLS, 1, "SEARCH entries USING INDEX calls_open (instance=?)");
    }
}
