//! Finds the rows that an operation loads, inside the write transaction, in one round trip per batch of keys.
//!
//! Rows are not cached between transactions, because other servers write too. The statements of a batch are pipelined;
//! the server answers them in order.

use std::cell::RefCell;

use futures_util::future::try_join_all;
use outlast_core::{
    engine::loaded::{Loaded, Numbers, Table},
    envelope::{Envelope, budget::Budget},
    journal::Entry,
    run::{
        Run, Spec,
        attempt::Attempt,
        instance::{Instance, Lease},
    },
    store::{
        Error,
        load::{Key, Newest},
    },
    words::{
        id::{EnvelopeNo, InstanceNo, RunNo},
        row::Row,
    },
};
use tokio_postgres::Client;

use super::{
    rows, state,
    statement::{Param, many, maybe, params},
};
use crate::{
    rows::Stored,
    tables::{CALL, OPEN},
};

/// Adds the rows that `keys` name to `into`.
pub async fn fetch(client: &Client, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
    let finder = Finder { client, into: RefCell::new(into) };
    try_join_all(keys.iter().map(|key| finder.find(key))).await.map(drop)
}

struct Finder<'a> {
    client: &'a Client,
    /// Borrowed only between two awaits.
    into: RefCell<&'a mut Loaded>,
}

impl Finder<'_> {
    async fn find(&self, key: &Key<'_>) -> Result<(), Error> {
        let client = self.client;
        match *key {
            Key::Numbers => {
                let numbers = self.numbers().await?;
                self.into.borrow_mut().numbers = Some(numbers);
                Ok(())
            }
            Key::Instance(no) => self.rows::<Instance>("WHERE no = $1", params![no.0]).await,
            Key::RunById(id) => self.rows::<Run>("WHERE id = $1", params![id.as_str()]).await,
            Key::Run(no) => self.rows::<Run>("WHERE no = $1", params![no.0]).await,
            Key::Envelope(no) => self.rows::<Envelope>("WHERE no = $1", params![no.0]).await,
            Key::Budgets => self.rows::<Budget>("", params![]).await,
            Key::Budget(no) => self.rows::<Budget>("WHERE no = $1", params![no.0]).await,
            Key::Attempt(run, no) => {
                let rest = "WHERE run_no = $1 AND no = $2";
                self.rows::<Attempt>(rest, params![run.0, no.0]).await
            }
            Key::OpenAttempts(run) => {
                let rest = "WHERE run_no = $1 AND ended_at IS NULL";
                self.rows::<Attempt>(rest, params![run.0]).await
            }
            Key::Labelled(run, label) => {
                let rest = "WHERE run_no = $1 AND sha256(label) = sha256($2)";
                self.rows::<Attempt>(rest, params![run.0, label.as_bytes()]).await
            }
            Key::Spec(run) => {
                let sql = "SELECT spec FROM outlast.specs WHERE run_no = $1";
                let spec = maybe(client, sql, params![run.0], |row| rows::json::<Spec>(row, 0)).await?;
                self.into.borrow_mut().known_specs.extend(spec.map(|spec| (run, spec)));
                Ok(())
            }
            Key::Delivery(name) => {
                let sql = "SELECT delivery FROM outlast.deliveries WHERE name = $1 FOR UPDATE";
                let found = maybe(client, sql, params![name.as_bytes()], |row| rows::json(row, 0)).await?;
                self.into.borrow_mut().deliveries.extend(found);
                Ok(())
            }
            Key::Lease(run, slot) => {
                let rest = "WHERE run_no = $1 AND slot = $2";
                self.rows::<Lease>(rest, params![run.0, slot.0]).await
            }
            Key::Leases(run) => self.rows::<Lease>("WHERE run_no = $1", params![run.0]).await,
            Key::LeasesOf(instance) => self.rows::<Lease>("WHERE instance = $1", params![instance.0]).await,
            Key::Entry(run, seq) => {
                let rest = "WHERE run_no = $1 AND seq = $2";
                self.rows::<Entry>(rest, params![run.0, seq.0]).await
            }
            Key::Matching(run, key) => {
                let rest = "WHERE run_no = $1 AND match_key = $2";
                self.rows::<Entry>(rest, params![run.0, &key.0[..]]).await
            }
            Key::Newest(Newest { run, kind, scope, key, upto }) => {
                let rest = "WHERE run_no = $1 AND kind = $2 AND sha256(key) = sha256($3) \
                            AND sha256(scope) = sha256($4) AND seq <= $5 ORDER BY seq DESC LIMIT 1";
                let upto = upto.map_or(i64::MAX, |seq| seq.0);
                let (key, scope) = (key.as_bytes(), scope.as_bytes());
                self.rows::<Entry>(rest, params![run.0, kind.code(), key, scope, upto]).await
            }
            Key::OpenCalls(instance) => {
                let rest = format!("WHERE state = {OPEN} AND kind = {CALL} AND instance = $1");
                self.rows::<Entry>(&rest, params![instance.0]).await
            }
            Key::Position => {
                let position = state::position(client).await?;
                self.into.borrow_mut().state.position = position;
                Ok(())
            }
            Key::Namespace(name) => {
                if let Some((head, old)) = state::head(client, name).await? {
                    let state = &mut self.into.borrow_mut().state;
                    state.namespaces.insert(name.to_owned(), Row::read(head));
                    state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
                }
                Ok(())
            }
            Key::State(name) => {
                let found = state::current(client, name).await?.map(|c| (name.clone(), Row::read(c)));
                self.into.borrow_mut().state.keys.extend(found);
                Ok(())
            }
            Key::Transaction(id) => {
                let outcome = state::outcome(client, id).await?;
                self.into.borrow_mut().state.outcome = outcome;
                Ok(())
            }
            Key::Compactable { namespace, before, after, limit } => {
                let found = state::compactable(client, namespace, before, after, limit).await?;
                self.into.borrow_mut().state.compactable = found;
                Ok(())
            }
        }
    }

    /// Adds the rows of one query.
    async fn rows<T: Table + Stored>(&self, rest: &str, params: &[Param<'_>]) -> Result<(), Error> {
        let found = many::<T>(self.client, rest, params).await?;
        self.into.borrow_mut().extend(found);
        Ok(())
    }

    async fn numbers(&self) -> Result<Numbers, Error> {
        // Under the lock no one else can take a number; a sequence would leave a gap at each rollback.
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
        Ok(next.await?.unwrap_or_default())
    }
}
