//! Loading what an operation names, inside the write transaction.
//!
//! Row by row, as SQLite's does, and without a memory between transactions: other servers write.

use outlast_core::{
    engine::loaded::{Loaded, Need, Numbers, Row},
    journal::{Entry, Kind, job},
    run::{Spec, attempt::Attempt},
    store::Error,
    words::id::{AttemptNo, EnvelopeNo, InstanceNo, RunNo, Seq, Slot},
};
use tokio_postgres::Client;

use super::{
    rows, state,
    statement::{all, maybe, params},
};
use crate::columns::{ATTEMPT, BUDGET, ENTRY, ENVELOPE, INSTANCE, LEASE, RUN, select};

/// Loads one operation's needs.
pub async fn load(client: &Client, needs: &[Need]) -> Result<Loaded, Error> {
    let mut loading = Loading { client, l: Loaded::default() };
    for need in needs {
        loading.one(need).await?;
    }
    Ok(loading.l)
}

/// Beyond every place.
const LAST: Seq = Seq(i64::MAX);

struct Loading<'a> {
    client: &'a Client,
    l: Loaded,
}

impl Loading<'_> {
    async fn one(&mut self, need: &Need) -> Result<(), Error> {
        match need {
            Need::Numbers => self.numbers().await,
            Need::Instance(no) => self.instance(*no).await,
            Need::RunById(id) => {
                let sql = "SELECT no FROM outlast.runs WHERE id = $1";
                match maybe(self.client, sql, params![id.as_str()], rows::number).await? {
                    Some(no) => self.run(RunNo(no)).await,
                    None => Ok(()),
                }
            }
            Need::Run(no) => self.run(*no).await,
            Need::Envelopes(numbers) => self.envelopes(numbers).await,
            Need::Budgets => {
                let sql = select(BUDGET, "outlast.budgets ORDER BY no");
                let found = all(self.client, &sql, params![], rows::budget).await?;
                self.l.budgets.extend(found.into_iter().map(Row::read));
                Ok(())
            }
            Need::Budget(no) => {
                let sql = select(BUDGET, "outlast.budgets WHERE no = $1");
                let found = maybe(self.client, &sql, params![no.0], rows::budget).await?;
                self.l.budgets.extend(found.map(Row::read));
                Ok(())
            }
            Need::Windows(_) => Ok(()),
            Need::Attempt(run, no) => self.attempt(*run, *no).await,
            Need::Spec(run) => {
                let sql = "SELECT spec FROM outlast.specs WHERE run_no = $1";
                let spec = |row: &tokio_postgres::Row| rows::json::<Spec>(row, 0);
                let found = maybe(self.client, sql, params![run.0], spec).await?;
                self.l.known_specs.extend(found.map(|spec| (*run, spec)));
                Ok(())
            }
            Need::OpenAttempts(run) => self.open(*run).await,
            Need::Labelled(run, label) => {
                let sql =
                    select(ATTEMPT, "outlast.attempts WHERE run_no = $1 AND sha256(label) = sha256($2)");
                let label = label.as_bytes();
                let found = all(self.client, &sql, params![run.0, label], rows::attempt).await?;
                found.into_iter().for_each(|a| self.add_attempt(a));
                Ok(())
            }
            Need::Lease(run, slot) => self.lease(*run, *slot).await,
            Need::Leases(run) => {
                let sql = select(LEASE, "outlast.leases WHERE run_no = $1 ORDER BY slot");
                for lease in all(self.client, &sql, params![run.0], rows::lease).await? {
                    self.l.leases.push(Row::read(lease));
                    self.instance(lease.instance).await?;
                }
                Ok(())
            }
            Need::Entry(run, seq) => self.chain(*run, *seq).await,
            Need::Item(run, key) => {
                if let Some(e) = self.keyed(*run, Kind::Item, job::SCOPE, key, LAST).await? {
                    if let Some(no) = e.instance {
                        self.instance(no).await?;
                    }
                    self.add_entry(e);
                }
                Ok(())
            }
            Need::Matching(run, key) => {
                let rest = "outlast.entries WHERE run_no = $1 AND match_key = $2 ORDER BY seq";
                let sql = select(ENTRY, rest);
                let found = all(self.client, &sql, params![run.0, &key.0[..]], rows::entry).await?;
                found.into_iter().for_each(|e| self.add_entry(e));
                Ok(())
            }
            Need::Keyed(run, kind, scope, key) => {
                let found = self.keyed(*run, *kind, scope, key, LAST).await?;
                found.into_iter().for_each(|e| self.add_entry(e));
                Ok(())
            }
            Need::KeyedUpTo(run, kind, scope, key, upto) => {
                let found = self.keyed(*run, *kind, scope, key, *upto).await?;
                found.into_iter().for_each(|e| self.add_entry(e));
                Ok(())
            }
            Need::OwnedBy(instance) => self.owned(*instance).await,
            Need::State(name) => state::load_key(self.client, &mut self.l, name).await,
            Need::Transaction(id) => {
                self.l.state.outcome = state::outcome(self.client, id).await?;
                Ok(())
            }
            Need::Namespace(name) => state::load_namespace(self.client, &mut self.l, name).await,
            Need::Compactable { namespace, before, after, limit } => {
                state::load_compactable(self.client, &mut self.l, namespace, *before, *after, *limit).await
            }
        }
    }

    /// The newest entry of this kind, scope and key up to a place.
    async fn keyed(
        &self,
        run: RunNo,
        kind: Kind,
        scope: &str,
        key: &str,
        upto: Seq,
    ) -> Result<Option<Entry>, Error> {
        let sql = select(
            ENTRY,
            "outlast.entries WHERE run_no = $1 AND kind = $2 AND sha256(key) = sha256($3) \
             AND sha256(scope) = sha256($4) AND seq <= $5 ORDER BY seq DESC LIMIT 1",
        );
        let (kind, key, scope) = (kind.code(), key.as_bytes(), scope.as_bytes());
        maybe(self.client, &sql, params![run.0, kind, key, scope, upto.0], rows::entry).await
    }

    async fn numbers(&mut self) -> Result<(), Error> {
        // Under the lock nobody else takes a number; a sequence would leave gaps at each rollback.
        let sql = "SELECT (SELECT coalesce(max(no), 0) + 1 FROM outlast.runs), \
                   (SELECT coalesce(max(no), 0) + 1 FROM outlast.envelopes), \
                   (SELECT coalesce(max(no), 0) + 1 FROM outlast.instances)";
        let next = maybe(self.client, sql, params![], |row| {
            Ok(Numbers {
                run: RunNo(rows::get(row, 0)?),
                envelope: EnvelopeNo(rows::get(row, 1)?),
                instance: InstanceNo(rows::get(row, 2)?),
            })
        });
        self.l.numbers = next.await?.unwrap_or_default();
        Ok(())
    }

    async fn instance(&mut self, no: InstanceNo) -> Result<(), Error> {
        if self.l.instance(no).is_none() {
            let sql = select(INSTANCE, "outlast.instances WHERE no = $1");
            let found = maybe(self.client, &sql, params![no.0], rows::instance).await?;
            self.l.instances.extend(found.map(Row::read));
        }
        Ok(())
    }

    async fn run(&mut self, no: RunNo) -> Result<(), Error> {
        if self.l.run(no).is_ok() {
            return Ok(());
        }
        let sql = select(RUN, "outlast.runs WHERE no = $1");
        let Some(run) = maybe(self.client, &sql, params![no.0], rows::run).await? else { return Ok(()) };
        self.envelopes(&run.charges).await?;
        self.l.runs.push(Row::read(run));
        Ok(())
    }

    async fn envelopes(&mut self, numbers: &[EnvelopeNo]) -> Result<(), Error> {
        let missing: Vec<i64> =
            numbers.iter().filter(|e| self.l.envelope(**e).is_err()).map(|e| e.0).collect();
        if !missing.is_empty() {
            let sql = select(ENVELOPE, "outlast.envelopes WHERE no = ANY ($1) ORDER BY no");
            let found = all(self.client, &sql, params![missing], rows::envelope).await?;
            self.l.envelopes.extend(found.into_iter().map(Row::read));
        }
        match numbers.iter().find(|e| self.l.envelope(**e).is_err()) {
            None => Ok(()),
            Some(e) => Err(Error::Corrupt { what: format!("envelope {e} is missing") }),
        }
    }

    async fn attempt(&mut self, run: RunNo, no: AttemptNo) -> Result<(), Error> {
        if self.l.attempt(run, no).is_none() {
            let sql = select(ATTEMPT, "outlast.attempts WHERE run_no = $1 AND no = $2");
            let found = maybe(self.client, &sql, params![run.0, no.0], rows::attempt).await?;
            self.l.attempts.extend(found.map(Row::read));
        }
        Ok(())
    }

    async fn open(&mut self, run: RunNo) -> Result<(), Error> {
        let rest = "outlast.attempts WHERE run_no = $1 AND ended_at IS NULL ORDER BY no";
        let sql = select(ATTEMPT, rest);
        let found = all(self.client, &sql, params![run.0], rows::attempt).await?;
        found.into_iter().for_each(|a| self.add_attempt(a));
        Ok(())
    }

    async fn lease(&mut self, run: RunNo, slot: Slot) -> Result<(), Error> {
        if self.l.lease(run, slot).is_some() {
            return Ok(());
        }
        let sql = select(LEASE, "outlast.leases WHERE run_no = $1 AND slot = $2");
        if let Some(lease) = maybe(self.client, &sql, params![run.0, slot.0], rows::lease).await? {
            self.l.leases.push(Row::read(lease));
            self.instance(lease.instance).await?;
        }
        Ok(())
    }

    async fn chain(&mut self, run: RunNo, seq: Seq) -> Result<(), Error> {
        let sql = select(ENTRY, "outlast.entries WHERE run_no = $1 AND seq = $2");
        let (mut next, mut seen) = (vec![seq], Vec::new());
        while let Some(seq) = next.pop() {
            if seen.contains(&seq) {
                continue;
            }
            seen.push(seq);
            if self.l.entry(run, seq).is_none() {
                let found = maybe(self.client, &sql, params![run.0, seq.0], rows::entry).await?;
                self.l.entries.extend(found.map(Row::read));
            }
            let Some(e) = self.l.entry(run, seq) else { continue };
            next.extend(e.call.as_ref().and_then(|c| c.retry_of));
            next.extend(e.within());
            if e.step.as_ref().is_some_and(|d| d.untaken > 0) {
                self.attempt(run, e.attempt).await?;
            }
        }
        Ok(())
    }

    async fn owned(&mut self, instance: InstanceNo) -> Result<(), Error> {
        let sql = select(
            ENTRY,
            "outlast.entries WHERE state = 0 AND kind = 0 AND instance = $1 ORDER BY run_no, seq",
        );
        let entries = all(self.client, &sql, params![instance.0], rows::entry).await?;
        let sql = select(LEASE, "outlast.leases WHERE instance = $1 ORDER BY run_no, slot");
        let leases = all(self.client, &sql, params![instance.0], rows::lease).await?;
        let runs: Vec<RunNo> = entries.iter().map(|e| e.run).chain(leases.iter().map(|x| x.run)).collect();
        let around: Vec<(RunNo, Seq)> =
            entries.iter().flat_map(|e| e.linked().map(|seq| (e.run, seq))).collect();
        entries.into_iter().for_each(|e| self.add_entry(e));
        for (run, seq) in around {
            self.chain(run, seq).await?;
        }
        for lease in leases {
            if self.l.lease(lease.run, lease.slot).is_none() {
                self.l.leases.push(Row::read(lease));
            }
        }
        for no in runs {
            if self.l.run(no).is_err() {
                self.run(no).await?;
                self.open(no).await?;
            }
        }
        Ok(())
    }

    fn add_attempt(&mut self, a: Attempt) {
        if self.l.attempt(a.run, a.no).is_none() {
            self.l.attempts.push(Row::read(a));
        }
    }

    fn add_entry(&mut self, e: Entry) {
        if self.l.entry(e.run, e.seq).is_none() {
            self.l.entries.push(Row::read(e));
        }
    }
}
