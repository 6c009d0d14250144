//! Lookups of a small group, joined into one statement: each is by a unique index and finds one row at most.
//!
//! A statement costs the server more than the row that it finds. A group of one operation reads some eight rows.

use std::mem::discriminant;

use outlast_core::{
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
    words::{id::RunNo, row::Row},
};

use super::{
    error::failure,
    known::{Hold, Known},
    named::Named,
    rows::{self, get, select},
    statement::{Ask as _, Param},
    write::shifted,
};
use crate::rows::{Cell, Columns as _, Cursor, Stored, Write};

type Result<T> = std::result::Result<T, Error>;

/// Largest number of rows of one kind that are looked up beside each other: a slot's lease and the adopter's.
const MOST: usize = 2;

/// Largest number of envelopes: a run's own, those above it and its budgets'.
const MOST_ENVELOPES: usize = 4;

/// Largest number of keys of a group that is small.
const SMALL: usize = 16;

/// Search for one row.
struct Lookup<'a> {
    sql: String,
    values: Vec<Cell<'a>>,
    /// Number of columns that it finds. The first of them is never NULL.
    width: usize,
    /// Adds the row that begins at a column to what is known.
    learn: fn(&tokio_postgres::Row, usize, &mut Known) -> Result<()>,
}

/// Lookups of one statement.
pub struct Lookups<'a>(Vec<Lookup<'a>>);

impl<'a> Lookups<'a> {
    /// Takes from `keys` what can be looked up in one statement, and returns it with the rest.
    ///
    /// Groups of several operations name several rows of a kind: they are read by statements with arrays, so that the
    /// number of different statements stays small.
    pub fn of(keys: &[Key<'a>]) -> (Lookups<'a>, Vec<Key<'a>>) {
        let none = || (Lookups(Vec::new()), keys.to_vec());
        if keys.len() > SMALL {
            return none();
        }
        let mut single = Vec::new();
        let mut rest = Vec::new();
        for key in keys {
            match lookup(key) {
                Some(lookup) => single.push((*key, lookup)),
                None => rest.push(*key),
            }
        }
        let of_a_kind = |key: &Key<'_>| {
            single.iter().filter(|(other, _)| discriminant(other) == discriminant(key)).count()
        };
        let most = |key: &Key<'_>| if matches!(key, Key::Envelope(_)) { MOST_ENVELOPES } else { MOST };
        if single.iter().any(|(key, _)| of_a_kind(key) > most(key)) {
            return none();
        }
        // In one order, for equal texts.
        single.sort_by_key(|(key, _)| *key);
        (Lookups(single.into_iter().map(|(_, lookup)| lookup).collect()), rest)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the rows and adds them to what is known.
    pub async fn run(&self, client: &Named) -> Result<impl FnOnce(&mut Known) -> Result<()>> {
        let mut params: Vec<Param<'_>> = Vec::new();
        let (mut columns, mut joins) = (Vec::new(), String::new());
        for (i, lookup) in self.0.iter().enumerate() {
            columns.push(format!("found_{i}.*"));
            let sql = shifted(&lookup.sql, params.len());
            joins.extend([" LEFT JOIN (", &sql, ") AS found_", &i.to_string(), " ON true"]);
            params.extend(lookup.values.iter().map(Cell::param));
        }
        let sql = format!("SELECT {} FROM (SELECT 1) AS base{joins}", columns.join(", "));
        let rows = client.query(&sql, &params).await.map_err(failure)?;
        Ok(move |known: &mut Known| {
            let Some(row) = rows.first() else { return Ok(()) };
            let mut at = 0;
            for lookup in &self.0 {
                if row.maybe_int(at)?.is_some() {
                    (lookup.learn)(row, at, known)?;
                }
                at += lookup.width;
            }
            Ok(())
        })
    }
}

/// Returns the search for the row that a key names; `None` for a key that may name several, or is seldom read.
fn lookup<'a>(key: &Key<'a>) -> Option<Lookup<'a>> {
    Some(match *key {
        Key::Instance(no) => of::<Instance>("WHERE no = $1", [int(no.0)]),
        Key::Run(no) => of::<Run>("WHERE no = $1", [int(no.0)]),
        Key::RunById(id) => of::<Run>("WHERE id = $1", [Cell::Text(Some(id.as_str().into()))]),
        Key::Envelope(no) => of::<Envelope>("WHERE no = $1", [int(no.0)]),
        Key::Budget(no) => of::<Budget>("WHERE no = $1", [int(no.0)]),
        Key::Attempt(run, no) => of::<Attempt>("WHERE run_no = $1 AND no = $2", [int(run.0), int(no.0)]),
        Key::Lease(run, slot) => of::<Lease>("WHERE run_no = $1 AND slot = $2", [int(run.0), int(slot.0)]),
        Key::Entry(run, seq) => of::<Entry>("WHERE run_no = $1 AND seq = $2", [int(run.0), int(seq.0)]),
        Key::Newest(newest) => newest_entry(&newest),
        Key::Spec(run) => Lookup {
            sql: "SELECT run_no, spec FROM outlast.specs WHERE run_no = $1".into(),
            values: vec![int(run.0)],
            width: 2,
            learn: |row, at, known| {
                let spec = Row::read(rows::json::<Spec>(row, at + 1)?);
                known.specs.entry(RunNo(get(row, at)?)).or_insert(spec);
                Ok(())
            },
        },
        _ => return None,
    })
}

fn of<'a, T: Hold + Stored>(rest: &str, values: impl Into<Vec<Cell<'a>>>) -> Lookup<'a> {
    Lookup {
        sql: select::<T>(rest),
        values: values.into(),
        width: T::COLUMNS.iter().filter(|column| column.write != Write::Aside).count(),
        learn: |row, at, known| {
            known.learn(vec![T::read(&mut Cursor::at(row, at))?]);
            Ok(())
        },
    }
}

fn newest_entry<'a>(newest: &Newest<'a>) -> Lookup<'a> {
    let Newest { run, kind, scope, key, upto } = *newest;
    let values = [
        int(run.0),
        int(kind.code()),
        Cell::Name(Some(key)),
        Cell::Name(Some(scope)),
        int(upto.map_or(i64::MAX, |seq| seq.0)),
    ];
    let last = last_entry("($1, $2, sha256($3), sha256($4), $5)");
    let found = of::<Entry>("", values);
    let sql = format!(
        "SELECT {} FROM ({last}) AS last WHERE run_no = $1 AND kind = $2 AND key = $3 AND scope = $4",
        Entry::NAMES
    );
    Lookup { sql, ..found }
}

/// Returns the query for the last entry up to `place` in the index of keys: its run, kind, hashes of key and scope, and
/// number. The entry found may be of another key.
///
/// Compared as one row, and in that index's order: equalities with `ORDER BY seq` let the planner walk the run's primary
/// key backwards instead, over all entries of other keys.
pub fn last_entry(place: &str) -> String {
    select::<Entry>(&format!(
        "WHERE key IS NOT NULL AND (run_no, kind, sha256(key), sha256(scope), seq) <= {place} \
         ORDER BY run_no DESC, kind DESC, sha256(key) DESC, sha256(scope) DESC, seq DESC LIMIT 1"
    ))
}

fn int<'a>(value: i64) -> Cell<'a> {
    Cell::Int(Some(value))
}
