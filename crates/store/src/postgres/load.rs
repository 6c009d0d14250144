//! Reads the rows that operations load, inside the write transaction, in one round trip: those of a small group by one
//! statement (`lookup`), others by one statement for each kind of key.
//!
//! The statements are pipelined; the server answers them in order. Rows are not cached between transactions, because
//! other servers write too.

use std::{cell::RefCell, pin::Pin};

use futures_util::future::try_join_all;
use outlast_core::{
    engine::loaded::Numbers,
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

use super::{
    known::{Hold, Known},
    lookup::{Lookups, last_entry},
    named::Named,
    rows, state,
    statement::{Param, all, many, maybe, params},
};
use crate::{
    rows::Stored,
    tables::{CALL, OPEN},
};

type Result<T> = std::result::Result<T, Error>;

/// Keys of one batch, those of one kind together.
#[derive(Default)]
struct Batch<'a> {
    instances: Vec<i64>,
    runs: Vec<i64>,
    run_ids: Vec<&'a str>,
    envelopes: Vec<i64>,
    budgets: Vec<i64>,
    attempts: (Vec<i64>, Vec<i64>),
    open_attempts: Vec<i64>,
    specs: Vec<i64>,
    leases: (Vec<i64>, Vec<i64>),
    leases_of_runs: Vec<i64>,
    leases_of_instances: Vec<i64>,
    entries: (Vec<i64>, Vec<i64>),
    matching: (Vec<i64>, Vec<Vec<u8>>),
    newest: Sought<'a>,
    open_calls: Vec<i64>,
    /// Keys that a group seldom has several of, each with a statement of its own.
    others: Vec<Key<'a>>,
}

/// Searches for newest entries, as one array for each parameter: element n of every array belongs to search
/// n.
#[derive(Default)]
struct Sought<'a> {
    runs: Vec<i64>,
    kinds: Vec<i64>,
    keys: Vec<&'a [u8]>,
    scopes: Vec<&'a [u8]>,
    upto: Vec<i64>,
}

impl<'a> Batch<'a> {
    fn of(keys: &[Key<'a>]) -> Batch<'a> {
        let mut b = Batch::default();
        for key in keys {
            match *key {
                Key::Instance(no) => b.instances.push(no.0),
                Key::Run(no) => b.runs.push(no.0),
                Key::RunById(id) => b.run_ids.push(id.as_str()),
                Key::Envelope(no) => b.envelopes.push(no.0),
                Key::Budget(no) => b.budgets.push(no.0),
                Key::Attempt(run, no) => push(&mut b.attempts, (run.0, no.0)),
                Key::OpenAttempts(run) => b.open_attempts.push(run.0),
                Key::Spec(run) => b.specs.push(run.0),
                Key::Lease(run, slot) => push(&mut b.leases, (run.0, slot.0)),
                Key::Leases(run) => b.leases_of_runs.push(run.0),
                Key::LeasesOf(instance) => b.leases_of_instances.push(instance.0),
                Key::Entry(run, seq) => push(&mut b.entries, (run.0, seq.0)),
                Key::Matching(run, key) => push(&mut b.matching, (run.0, key.0.to_vec())),
                Key::Newest(Newest { run, kind, scope, key, upto }) => {
                    b.newest.runs.push(run.0);
                    b.newest.kinds.push(kind.code());
                    b.newest.keys.push(key.as_bytes());
                    b.newest.scopes.push(scope.as_bytes());
                    b.newest.upto.push(upto.map_or(i64::MAX, |seq| seq.0));
                }
                Key::OpenCalls(instance) => b.open_calls.push(instance.0),
                Key::Numbers
                | Key::Budgets
                | Key::Labelled(..)
                | Key::Position
                | Key::Namespace(_)
                | Key::State(_)
                | Key::Transaction(_)
                | Key::Delivery(_)
                | Key::Compactable { .. } => b.others.push(*key),
            }
        }
        b
    }
}

fn push<A, B>((first, second): &mut (Vec<A>, Vec<B>), (a, b): (A, B)) {
    first.push(a);
    second.push(b);
}

/// Condition that finds rows by two columns, given as two arrays.
macro_rules! pairs {
    ($first:literal, $second:literal) => {
        concat!("JOIN unnest($1, $2) AS sought(a, b) ON ", $first, " = a AND ", $second, " = b")
    };
}
/// Reads the rows that `keys` name from the database and adds them to `known`. A key without a row adds
/// nothing.
pub async fn fetch(client: &Named, keys: &[Key<'_>], known: &mut Known) -> Result<()> {
    let open_calls = format!("WHERE state = {OPEN} AND kind = {CALL} AND instance = ANY($1)");
    let find = &Finder { client, known: RefCell::new(known) };
    let (lookups, rest) = Lookups::of(keys);
    let b = &Batch::of(&rest);
    let mut all: Vec<Pin<Box<dyn Future<Output = Result<()>> + '_>>> = Vec::new();
    if !lookups.is_empty() {
        all.push(Box::pin(find.single(&lookups)));
    }
    // One statement for all keys of a kind, if there are any.
    macro_rules! rows {
        ($row:ty, $rest:expr, $keys:expr $(, $more:expr)*) => {
            if !$keys.is_empty() {
                all.push(Box::pin(async { find.rows::<$row>($rest, params![$keys $(, $more)*]).await }));
            }
        };
    }
    rows!(Instance, "WHERE no = ANY($1)", b.instances);
    rows!(Run, "WHERE no = ANY($1)", b.runs);
    rows!(Run, "WHERE id = ANY($1)", b.run_ids);
    rows!(Envelope, "WHERE no = ANY($1)", b.envelopes);
    rows!(Budget, "WHERE no = ANY($1)", b.budgets);
    rows!(Attempt, pairs!("run_no", "no"), b.attempts.0, b.attempts.1);
    rows!(Attempt, "WHERE run_no = ANY($1) AND ended_at IS NULL", b.open_attempts);
    rows!(Lease, pairs!("run_no", "slot"), b.leases.0, b.leases.1);
    rows!(Lease, "WHERE run_no = ANY($1)", b.leases_of_runs);
    rows!(Lease, "WHERE instance = ANY($1)", b.leases_of_instances);
    rows!(Entry, pairs!("run_no", "seq"), b.entries.0, b.entries.1);
    rows!(Entry, pairs!("run_no", "match_key"), b.matching.0, b.matching.1);
    rows!(Entry, &open_calls, b.open_calls);
    if !b.newest.runs.is_empty() {
        all.push(Box::pin(find.newest(b)));
    }
    if !b.specs.is_empty() {
        all.push(Box::pin(find.specs(&b.specs)));
    }
    all.extend(b.others.iter().map(|key| Box::pin(find.other(key)) as Pin<Box<dyn Future<Output = _>>>));
    try_join_all(all).await.map(drop)
}

/// Returns the query for the newest entries under some keys.
fn newest() -> String {
    let last = last_entry("(r, k, sha256(sought_key), sha256(sought_scope), upto)");
    format!(
        "SELECT {} FROM unnest($1, $2, $3, $4, $5) AS sought(r, k, sought_key, sought_scope, upto) \
         CROSS JOIN LATERAL ({last}) AS found \
         WHERE run_no = r AND kind = k AND key = sought_key AND scope = sought_scope",
        Entry::NAMES
    )
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

    async fn single(&self, lookups: &Lookups<'_>) -> Result<()> {
        let learn = lookups.run(self.client).await?;
        learn(&mut self.known.borrow_mut())
    }

    async fn newest(&self, b: &Batch<'_>) -> Result<()> {
        let of = &b.newest;
        let params = params![of.runs, of.kinds, of.keys, of.scopes, of.upto];
        let found = all(self.client, &newest(), params, rows::record::<Entry>).await?;
        self.known.borrow_mut().learn(found);
        Ok(())
    }

    async fn specs(&self, runs: &Vec<i64>) -> Result<()> {
        let sql = "SELECT run_no, spec FROM outlast.specs WHERE run_no = ANY($1)";
        let spec = |row: &tokio_postgres::Row| {
            Ok((RunNo(rows::get(row, 0)?), Row::read(rows::json::<Spec>(row, 1)?)))
        };
        let found = all(self.client, sql, params![*runs], spec).await?;
        let specs = &mut self.known.borrow_mut().specs;
        for (run, spec) in found {
            specs.entry(run).or_insert(spec);
        }
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
            // The other kinds are read in batches.
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
