//! Reads the rows that operations load, inside the write transaction, in one round trip.
//!
//! The statements are pipelined; the server answers them in order. Rows are not cached between transactions, because
//! other servers write too.

use std::{cell::RefCell, pin::Pin};

use futures_util::future::try_join_all;
use outlast_core::{
    engine::Numbers,
    envelope::Budget,
    run::{Attempt, Run},
    store::{Error, load::Key},
    words::{EnvelopeNo, InstanceNo, Row, RunNo},
};

use super::{
    known::{Hold, Known},
    lookup::part,
    named::Named,
    rows, state,
    statement::{Param, many, maybe, params},
};
use crate::rows::Stored;

type Result<T> = std::result::Result<T, Error>;

/// Reads the rows that `keys` name from the database and adds them to `known`. A key without a row adds
/// nothing.
pub async fn fetch(client: &Named, keys: &[Key<'_>], known: &mut Known) -> Result<()> {
    let (lookups, batches, others) = part(keys);
    let find = &Finder { client, known: RefCell::new(known) };
    let mut all: Vec<Pin<Box<dyn Future<Output = Result<()>> + '_>>> = Vec::new();
    if !lookups.is_empty() {
        all.push(Box::pin(async { lookups.run(client).await?(&mut find.known.borrow_mut()) }));
    }
    for batch in batches {
        all.push(Box::pin(async move { batch.run(client).await?(&mut find.known.borrow_mut()) }));
    }
    all.extend(others.into_iter().map(|key| Box::pin(find.other(key)) as Pin<Box<dyn Future<Output = _>>>));
    try_join_all(all).await.map(drop)
}

struct Finder<'a> {
    client: &'a Named,
    /// Rows read so far. Borrowed only between two awaits.
    known: RefCell<&'a mut Known>,
}

impl Finder<'_> {
    /// Runs one query and adds the rows that it finds to `known`.
    async fn rows<T: Hold + Stored>(&self, rest: &str, params: &[Param<'_>]) -> Result<()> {
        let found = many::<T>(self.client, rest, params).await?;
        self.known.borrow_mut().learn(found);
        Ok(())
    }

    async fn other(&self, key: &Key<'_>) -> Result<()> {
        let client = self.client;
        match *key {
            Key::Numbers => {
                let numbers = self.numbers().await?;
                self.known.borrow_mut().numbers = Some(numbers);
            }
            Key::Budgets => self.rows::<Budget>("", params![]).await?,
            Key::OfCommand(key) => {
                let rest = "WHERE sha256(command_key) = sha256($1) ORDER BY no DESC LIMIT 1";
                self.rows::<Run>(rest, params![key.as_bytes()]).await?;
            }
            Key::Labelled(run, label) => {
                let rest = "WHERE run_no = $1 AND sha256(label) = sha256($2)";
                self.rows::<Attempt>(rest, params![run.0, label.as_bytes()]).await?;
            }
            Key::Position => {
                let position = state::position(client).await?;
                let state = &mut self.known.borrow_mut().state;
                state.position = state.position.max(position);
            }
            Key::Namespace(name) => {
                if let Some((head, old)) = state::head(client, name).await? {
                    let state = &mut self.known.borrow_mut().state;
                    state.namespaces.entry(name.to_owned()).or_insert(head);
                    state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
                }
            }
            Key::State(name) => {
                if let Some(current) = state::current(client, name).await? {
                    self.known.borrow_mut().state.keys.entry(name.clone()).or_insert(current);
                }
            }
            Key::Delivery(name) => {
                let sql = "SELECT delivery FROM outlast.deliveries WHERE name = $1";
                let found = maybe(client, sql, params![name.as_bytes()], rows::record).await?;
                if let Some(found) = found {
                    let deliveries = &mut self.known.borrow_mut().deliveries;
                    deliveries.entry(name.to_owned()).or_insert_with(|| Row::read(found));
                }
            }
            Key::Transaction(id) => {
                if let Some(outcome) = state::outcome(client, id).await? {
                    self.known.borrow_mut().state.outcomes.entry(id.to_owned()).or_insert(outcome);
                }
            }
            Key::Compactable { namespace, before, after, limit } => {
                let found = state::compactable(client, namespace, before, after, limit).await?;
                self.known.borrow_mut().state.compactable.insert(format!("{key:?}"), found);
            }
            // The other kinds are searched for.
            _ => {}
        }
        Ok(())
    }

    async fn numbers(&self) -> Result<Numbers> {
        // Under the whole store's lock no one else can take a number; a sequence would leave a gap at each rollback.
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
