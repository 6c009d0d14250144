//! Reads the rows that operations load, inside the write transaction, in one round trip.
//!
//! The statements are pipelined; the server answers them in order. Rows are not cached between transactions, because
//! other servers write too.

use std::{cell::RefCell, pin::Pin};

use futures_util::future::try_join_all;
use outlast_core::events::delivery::Delivery;

use super::{
    lookup::part,
    statement::{all, many, params},
};
use crate::{
    load::{Head, load},
    postgres::prelude::*,
    rows::Record,
};

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
        match *key {
            Key::Numbers => {
                let numbers = self.found(key).await?.pop();
                self.known.borrow_mut().numbers = numbers;
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
                let position = self.found(key).await?.pop().unwrap_or_default();
                let state = &mut self.known.borrow_mut().state;
                state.position = state.position.max(position);
            }
            Key::Namespace(name) => {
                if let Some((head, old)) = self.found::<Head>(key).await?.pop() {
                    let state = &mut self.known.borrow_mut().state;
                    state.namespaces.entry(name.to_owned()).or_insert(head);
                    state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
                }
            }
            Key::State(name) => {
                if let Some(current) = self.found(key).await?.pop() {
                    self.known.borrow_mut().state.keys.entry(name.clone()).or_insert(current);
                }
            }
            Key::Delivery(name) => {
                let found =
                    many::<Delivery>(self.client, "WHERE name = $1", params![name.as_bytes()]).await?;
                for delivery in found {
                    let deliveries = &mut self.known.borrow_mut().deliveries;
                    deliveries.entry(name.to_owned()).or_insert_with(|| Row::read(delivery));
                }
            }
            Key::Transaction(id) => {
                if let Some(outcome) = self.found(key).await?.pop() {
                    self.known.borrow_mut().state.outcomes.entry(id.to_owned()).or_insert(outcome);
                }
            }
            Key::Compactable { .. } => {
                let found = self.found(key).await?;
                self.known.borrow_mut().state.compactable.insert(format!("{key:?}"), found);
            }
            // The other kinds are searched for.
            _ => {}
        }
        Ok(())
    }

    /// Returns the rows that the query of the key finds.
    async fn found<T: Record>(&self, key: &Key<'_>) -> Result<Vec<T>> {
        let Some(load) = load(Dialect::Postgres, key) else { return Ok(Vec::new()) };
        let params: Vec<Param<'_>> = load.cells.iter().map(Cell::param).collect();
        all(self.client, &load.text, &params, rows::record).await
    }
}
