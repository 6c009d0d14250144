//! Text of the one statement of a small group, written once for each form of a group.
//!
//! The text is some kilobytes long, and the steps of a run differ in their values only.

use std::{borrow::Cow, cell::RefCell, collections::HashMap, fmt::Write as _, sync::Arc};

use super::{
    locks::Locks,
    memory::{NUMBER, Table},
    named::MOST,
    schema_name::SchemaName,
    time::NOW,
    write::{self, Part},
};

/// Expressions that fail a statement where they are reached: a row is not as remembered, and the server's connection is
/// another session's. They are of no constants, which would be computed as the statement is planned.
const STALE: &str = "(txid_current() / 0)";
const ELSEWHERE: &str = "sqrt(-txid_current()::float8)::bigint";

/// Form of a group: all that the text of its statement depends on.
///
/// The text binds the token; both halves of each locked part's key; the time and how far it may be off; key and version of
/// each row that is checked; and the values of each write, with the version of the row that it updates.
#[derive(PartialEq, Eq, Hash)]
pub struct Wording {
    pub is_synced: bool,
    /// Number of parts that are locked, beside the store itself.
    pub parts: usize,
    /// Tables of the rows that are checked and not written.
    pub checked: Vec<Table>,
    pub written: Vec<Written>,
}

/// Write of a group, with the number of values that it binds.
#[derive(PartialEq, Eq, Hash)]
pub struct Written {
    pub sql: Cow<'static, str>,
    pub writes: Option<&'static str>,
    pub values: usize,
    /// Whether it updates its row only if that has a version, which is bound behind the values.
    pub is_checked: bool,
}

/// Texts that a session has sent.
#[derive(Default)]
pub struct Wordings(RefCell<HashMap<Wording, Arc<str>>>);

impl Wordings {
    pub fn text(&self, wording: Wording, schema: &SchemaName) -> Arc<str> {
        let mut texts = self.0.borrow_mut();
        if let Some(text) = texts.get(&wording) {
            return text.clone();
        }
        if texts.len() >= MOST {
            texts.clear();
        }
        let text: Arc<str> = wording.text(schema).into();
        texts.insert(wording, text.clone());
        text
    }
}

impl Wording {
    /// Writes the statement: a CASE, which takes its conditions in order, and a query of the WITH runs when its rows are
    /// counted, or at the end.
    fn text(&self, schema: &SchemaName) -> String {
        let mut bound = 0;
        let mut next = || {
            bound += 1;
            format!("${bound}")
        };
        let is_ours = format!("coalesce(current_setting('outlast_session.token', true), '') = {}", next());
        // As `SETTINGS` have it. What else they set, the session began with.
        let is_synced = match self.is_synced {
            true => {
                "current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) <> ''"
            }
            false => "set_config('synchronous_commit', 'off', true) <> ''",
        };
        let mut steps = vec![(is_ours, ELSEWHERE), (is_synced.to_owned(), STALE)];
        // Locks come first of all and in their order, as in `Locks`.
        steps.push((Locks::beside_others(schema), STALE));
        for _ in 0..self.parts {
            steps.push((format!("pg_advisory_xact_lock({}, {}) IS NOT NULL", next(), next()), STALE));
        }
        steps.push((format!("abs({NOW} - {}) <= {}", next(), next()), STALE));
        for table in &self.checked {
            let found = table.version(next(), &mut next);
            steps.push((format!("({found} FOR NO KEY UPDATE) = {}", next()), STALE));
        }
        let written: Vec<(String, usize)> = self.written.iter().map(Written::with_check).collect();
        let parts = self.written.iter().zip(&written);
        let parts = parts.map(|(of, (sql, values))| Part { sql, writes: of.writes, values: *values });
        let (parts, counts) = write::joined(parts, bound);
        let counts = if counts.is_empty() { "true" } else { &counts };
        let whole =
            steps.iter().rev().fold(format!("{NUMBER} / ({counts})::int"), |rest, (step, otherwise)| {
                format!("CASE WHEN {step} THEN {rest} ELSE {otherwise} END")
            });
        format!("WITH {parts} SELECT {whole}")
    }
}

impl Written {
    /// Returns the statement, and the number of all values that it binds.
    ///
    /// An update that has waited for another looks at the version once more, as the other left it.
    fn with_check(&self) -> (String, usize) {
        let (mut sql, mut values) = (self.sql.clone().into_owned(), self.values);
        if self.is_checked {
            values += 1;
            let _ = write!(sql, " AND xmin::text::bigint = ${values}");
        }
        (sql, values)
    }
}
