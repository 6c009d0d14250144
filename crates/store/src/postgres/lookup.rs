//! Searches for rows by their keys: those of a small group joined into one statement, others by a statement for each kind
//! of key, with arrays.
//!
//! A statement costs the server more than the row that it finds. A group of one operation reads some eight rows, each by a
//! unique index.

use std::mem::{Discriminant, discriminant};

use outlast_core::{engine::loaded::Newest, run::Spec};

use super::{
    rows::{get, select},
    statement::Ask as _,
    write::shifted,
};
use crate::{
    postgres::prelude::*,
    rows::{Columns as _, Cursor, Write},
    tables::{CALL, OPEN},
};

type Result<T> = std::result::Result<T, Error>;

/// Largest number of rows of one kind that are looked up beside each other: a slot's lease and the adopter's.
const MOST: usize = 2;

/// Largest number of envelopes: a run's own, those above it and its budgets'.
const MOST_ENVELOPES: usize = 4;

/// Largest number of keys of a group that is small.
const SMALL: usize = 16;

/// Search for the rows of one key.
struct Search<'k> {
    rows: Rows,
    values: Vec<Cell<'k>>,
    /// Whether it finds one row at most.
    is_unique: bool,
}

/// Rows that a search finds, whatever its values.
struct Rows {
    /// Beginning of the query, up to the table.
    select: String,
    place: Place,
    /// Number of columns. The first of them is never NULL.
    width: usize,
    /// Adds the row that begins at a column to what is known.
    learn: fn(&tokio_postgres::Row, usize, &mut Known) -> Result<()>,
}

/// Place of the rows in the table.
enum Place {
    /// Columns that have the values, in order, and a condition beside them.
    Columns(&'static [&'static str], String),
    /// The newest entry under a key.
    Newest,
}

/// Searches of one statement: lookups that find one row at most, each another one.
pub struct Lookups<'k>(Vec<Search<'k>>);

/// Searches of one kind, as one array for each of their values.
pub struct Batch<'k> {
    kind: Discriminant<Key<'k>>,
    rows: Rows,
    arrays: Vec<Vec<Cell<'k>>>,
}

/// Parts `keys` into lookups of one statement, batches, and the keys that groups seldom have several of.
///
/// Groups of several operations name several rows of a kind: they are read by statements with arrays, so that the number of
/// different statements stays small.
pub fn part<'k>(keys: &'k [Key<'k>]) -> (Lookups<'k>, Vec<Batch<'k>>, Vec<&'k Key<'k>>) {
    let (mut lookups, mut batches, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let of_a_kind = |key: &Key<'_>| keys.iter().filter(|o| discriminant(*o) == discriminant(key)).count();
    let most = |key: &Key<'_>| if matches!(key, Key::Envelope(_)) { MOST_ENVELOPES } else { MOST };
    let is_small = keys.len() <= SMALL
        && keys.iter().all(|key| of_a_kind(key) <= most(key) || search(key).is_none_or(|s| !s.is_unique));
    // In one order, for equal texts.
    let mut sorted: Vec<&'k Key<'k>> = keys.iter().collect();
    sorted.sort();
    for key in sorted {
        match search(key) {
            None => others.push(key),
            Some(search) if is_small && search.is_unique => lookups.push(search),
            Some(search) => add(&mut batches, discriminant(key), search),
        }
    }
    (Lookups(lookups), batches, others)
}

fn add<'k>(batches: &mut Vec<Batch<'k>>, kind: Discriminant<Key<'k>>, search: Search<'k>) {
    match batches.iter_mut().find(|batch| batch.kind == kind) {
        Some(batch) => {
            batch.arrays.iter_mut().zip(search.values).for_each(|(array, value)| array.push(value))
        }
        None => {
            let arrays = search.values.into_iter().map(|value| vec![value]).collect();
            batches.push(Batch { kind, rows: search.rows, arrays });
        }
    }
}

impl Lookups<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the rows and adds them to what is known.
    pub async fn run(&self, client: &Named) -> Result<impl FnOnce(&mut Known) -> Result<()>> {
        let mut params: Vec<Param<'_>> = Vec::new();
        let (mut columns, mut joins) = (Vec::new(), String::new());
        for (i, search) in self.0.iter().enumerate() {
            columns.push(format!("found_{i}.*"));
            let sql = shifted(&search.rows.of_one(), params.len());
            joins.extend([" LEFT JOIN (", &sql, ") AS found_", &i.to_string(), " ON true"]);
            params.extend(search.values.iter().map(Cell::param));
        }
        let sql = format!("SELECT {} FROM (SELECT 1) AS base{joins}", columns.join(", "));
        let rows = client.query(&sql, &params).await.map_err(failure)?;
        Ok(move |known: &mut Known| {
            let Some(row) = rows.first() else { return Ok(()) };
            let mut at = 0;
            for Search { rows: found, .. } in &self.0 {
                if row.maybe_int(at)?.is_some() {
                    (found.learn)(row, at, known)?;
                }
                at += found.width;
            }
            Ok(())
        })
    }
}

impl Batch<'_> {
    /// Reads the rows and adds them to what is known.
    pub async fn run(self, client: &Named) -> Result<impl FnOnce(&mut Known) -> Result<()>> {
        let (sql, values) = (self.rows.of_many(self.arrays.len()), Values::Many(self.arrays));
        let rows = client.query(&sql, &values.params()).await.map_err(failure)?;
        Ok(move |known: &mut Known| rows.iter().try_for_each(|row| (self.rows.learn)(row, 0, known)))
    }
}

impl Rows {
    /// Returns the query of one search, whose values are its parameters.
    fn of_one(&self) -> String {
        match &self.place {
            Place::Columns(columns, and) => {
                let equal = columns.iter().zip(1..).map(|(column, i)| format!("{column} = ${i}"));
                format!("{} WHERE {}{and}", self.select, equal.collect::<Vec<_>>().join(" AND "))
            }
            Place::Newest => {
                let last = last_entry("($1, $2, sha256($3), sha256($4), $5)");
                format!(
                    "SELECT {} FROM ({last}) AS last \
                     WHERE run_no = $1 AND kind = $2 AND key = $3 AND scope = $4",
                    Entry::NAMES
                )
            }
        }
    }

    /// Returns the query of many searches, whose values are the elements of its parameters.
    fn of_many(&self, count: usize) -> String {
        let arrays = (1..=count).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ");
        let names = (1..=count).map(|i| format!("sought_{i}")).collect::<Vec<_>>().join(", ");
        let sought = format!("unnest({arrays}) AS sought({names})");
        match &self.place {
            Place::Columns(columns, and) => {
                let equal = columns.iter().zip(1..).map(|(column, i)| format!("{column} = sought_{i}"));
                format!("{} JOIN {sought} ON {}{and}", self.select, equal.collect::<Vec<_>>().join(" AND "))
            }
            Place::Newest => {
                let last = last_entry("(sought_1, sought_2, sha256(sought_3), sha256(sought_4), sought_5)");
                format!(
                    "SELECT {} FROM {sought} CROSS JOIN LATERAL ({last}) AS found \
                     WHERE run_no = sought_1 AND kind = sought_2 AND key = sought_3 AND scope = sought_4",
                    Entry::NAMES
                )
            }
        }
    }
}

/// Returns the search for the rows that a key names; `None` for a key that is read by itself.
fn search<'k>(key: &'k Key<'k>) -> Option<Search<'k>> {
    let one = |search: Search<'k>| Some(Search { is_unique: true, ..search });
    match key {
        Key::Instance(no) => one(of::<Instance>(&["no"], [int(no.0)])),
        Key::Run(no) => one(of::<Run>(&["no"], [int(no.0)])),
        Key::RunById(id) => one(of::<Run>(&["id"], [Cell::Text(Some(id.as_str().into()))])),
        Key::Envelope(no) => one(of::<Envelope>(&["no"], [int(no.0)])),
        Key::Budget(no) => one(of::<Budget>(&["no"], [int(no.0)])),
        Key::Attempt(run, no) => one(of::<Attempt>(&["run_no", "no"], [int(run.0), int(no.0)])),
        Key::Lease(run, slot) => one(of::<Lease>(&["run_no", "slot"], [int(run.0), int(slot.0)])),
        Key::Entry(run, seq) => one(of::<Entry>(&["run_no", "seq"], [int(run.0), int(seq.0)])),
        Key::Newest(newest) => one(newest_entry(newest)),
        Key::Spec(run) => one(spec(*run)),
        Key::OpenAttempts(run) => {
            Some(with(of::<Attempt>(&["run_no"], [int(run.0)]), " AND ended_at IS NULL".into()))
        }
        Key::Leases(run) => Some(of::<Lease>(&["run_no"], [int(run.0)])),
        Key::LeasesOf(instance) => Some(of::<Lease>(&["instance"], [int(instance.0)])),
        Key::Matching(run, key) => {
            Some(of::<Entry>(&["run_no", "match_key"], [int(run.0), Cell::Blob(Some(&key.0))]))
        }
        Key::OpenCalls(instance) => {
            let is_open = format!(" AND state = {OPEN} AND kind = {CALL}");
            Some(with(of::<Entry>(&["instance"], [int(instance.0)]), is_open))
        }
        Key::Numbers
        | Key::Budgets
        | Key::OfCommand(_)
        | Key::Labelled(..)
        | Key::Position
        | Key::Namespace(_)
        | Key::State(_)
        | Key::Transaction(_)
        | Key::Delivery(_)
        | Key::Compactable { .. } => None,
    }
}

fn of<'k, T: Hold + Stored>(
    columns: &'static [&'static str],
    values: impl Into<Vec<Cell<'k>>>,
) -> Search<'k> {
    let rows = Rows {
        select: select::<T>(""),
        place: Place::Columns(columns, String::new()),
        width: T::COLUMNS.iter().filter(|column| column.write != Write::Aside).count(),
        learn: |row, at, known| {
            known.learn(vec![T::read(&mut Cursor::at(row, at))?]);
            Ok(())
        },
    };
    Search { rows, values: values.into(), is_unique: false }
}

/// Adds a condition to a search by columns.
fn with(mut search: Search<'_>, condition: String) -> Search<'_> {
    if let Place::Columns(_, and) = &mut search.rows.place {
        *and = condition;
    }
    search
}

fn spec<'k>(run: RunNo) -> Search<'k> {
    let rows = Rows {
        select: "SELECT run_no, spec FROM outlast.specs".into(),
        place: Place::Columns(&["run_no"], String::new()),
        width: 2,
        learn: |row, at, known| {
            let spec = Row::read(rows::json::<Spec>(row, at + 1)?);
            known.specs.entry(RunNo(get(row, at)?)).or_insert(spec);
            Ok(())
        },
    };
    Search { rows, values: vec![int(run.0)], is_unique: false }
}

fn newest_entry<'k>(newest: &Newest<'k>) -> Search<'k> {
    let Newest { run, kind, scope, key, upto } = *newest;
    let found = of::<Entry>(
        &[],
        [
            int(run.0),
            int(kind.code()),
            Cell::Name(Some(key)),
            Cell::Name(Some(scope)),
            int(upto.map_or(i64::MAX, |seq| seq.0)),
        ],
    );
    Search { rows: Rows { place: Place::Newest, ..found.rows }, ..found }
}

/// Returns the query for the last entry up to `place` in the index of keys: its run, kind, hashes of key and scope, and
/// number. The entry found may be of another key.
///
/// Compared as one row, and in that index's order: equalities with `ORDER BY seq` let the planner walk the run's primary
/// key backwards instead, over all entries of other keys.
fn last_entry(place: &str) -> String {
    select::<Entry>(&format!(
        "WHERE key IS NOT NULL AND (run_no, kind, sha256(key), sha256(scope), seq) <= {place} \
         ORDER BY run_no DESC, kind DESC, sha256(key) DESC, sha256(scope) DESC, seq DESC LIMIT 1"
    ))
}

fn int<'k>(value: i64) -> Cell<'k> {
    Cell::Int(Some(value))
}
