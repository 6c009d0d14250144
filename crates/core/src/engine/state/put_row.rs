//! Put row: writes a row of one of Outlast's own tables, which no other verb writes.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        state::put::{Author, Change},
    },
    state::{Committed, Value, own::Table},
    words::id::Micros,
};

/// Writes a row of `table`, whose older versions go as the table says.
///
/// Errors: `Conflict` if the row's version is not the expected one. An error writes nothing.
#[derive(Clone, Debug)]
pub struct PutRow {
    pub table: Table,
    pub key: Arc<str>,
    pub value: Value,
    /// Version that must be the newest (0: never written); `None` checks nothing.
    pub expected: Option<i64>,
}

impl PutRow {
    fn change(&self) -> Change {
        let (name, value) = (self.table.name(&self.key), Some(self.value.clone()));
        Change { name, value, expected: self.expected, unchanged_since: None }
    }

    pub fn needs(&self) -> Vec<Need> {
        vec![self.change().need()]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        let committed = Change::apply(&[self.change()], l, Author::Outlast, None, now)?;
        let keep = self.table.keep();
        if let Some(row) = l.state.namespaces.get_mut(self.table.namespace()) {
            row.touched().keep = keep;
        }
        Ok(committed)
    }
}
