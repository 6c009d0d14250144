//! Lists that are printed as they are read, so that memory does not grow with their rows.

use std::cell::{Cell, RefCell};

use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap as _},
};
use serde_json::{Map, Value};

use super::{
    look::{Page, Unwritten},
    table::Table,
};

/// Number of rows of a table that are read before they are printed: its columns are as wide as these need.
const ROWS: usize = 1_000;

impl Page<'_> {
    /// Writes one indented JSON document that has a list: the fields of `head`, the list under `key`, then the fields of
    /// `tail`, which is called after the last row.
    ///
    /// Errors: of the output, and that of the first row that could not be read. The document is cut off there.
    pub fn json_list<T: Serialize, E: From<Unwritten>>(
        &mut self,
        head: Map<String, Value>,
        key: &str,
        rows: impl Iterator<Item = Result<T, E>>,
        tail: impl FnOnce() -> Map<String, Value>,
    ) -> Result<(), E> {
        let failed = Cell::new(None);
        let rows = Rows { rows: RefCell::new(rows), failed: &failed };
        let write = || {
            let mut to = serde_json::Serializer::pretty(&mut *self.out);
            let mut document = to.serialize_map(None)?;
            head.iter().try_for_each(|(key, value)| document.serialize_entry(key, value))?;
            document.serialize_entry(key, &rows)?;
            tail().iter().try_for_each(|(key, value)| document.serialize_entry(key, value))?;
            document.end()
        };
        let written = write();
        match failed.take() {
            Some(error) => Err(error),
            None => {
                written.map_err(|e| Unwritten(e.into()))?;
                Ok(self.bytes(b"\n")?)
            }
        }
    }

    /// Writes the rows of a table, or the line `none` if there is none.
    ///
    /// Errors: of the output, and that of the first row that could not be read.
    pub fn table<E: From<Unwritten>>(
        &mut self,
        mut table: Table,
        rows: impl Iterator<Item = Result<Vec<super::table::Cell>, E>>,
        none: &str,
    ) -> Result<(), E> {
        let (look, mut is_any) = (self.look, false);
        for row in rows {
            table.row(row?);
            is_any = true;
            if table.len() == ROWS {
                self.text(&table.render_rows(look, 0))?;
            }
        }
        match is_any {
            true if table.is_empty() => Ok(()),
            true => Ok(self.text(&table.render_rows(look, 0))?),
            false => Ok(self.line(none)?),
        }
    }
}

/// Rows that are read while they are written. An error of reading ends the writing, and is kept in `failed`.
struct Rows<'a, I, E> {
    rows: RefCell<I>,
    failed: &'a Cell<Option<E>>,
}

impl<T: Serialize, E, I: Iterator<Item = Result<T, E>>> Serialize for Rows<'_, I, E> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut rows = self.rows.borrow_mut();
        let read = rows.by_ref().map_while(|row| row.map_err(|error| self.failed.set(Some(error))).ok());
        let written = to.collect_seq(read)?;
        let failed = self.failed.take();
        let is_whole = failed.is_none();
        self.failed.set(failed);
        if is_whole { Ok(written) } else { Err(S::Error::custom("a row could not be read")) }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, iter};

    use serde_json::json;

    use super::*;
    use crate::render::look::Look;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    // Bug: lists were gathered, made one JSON value, and then printed. Consequence: `journal --json` of a million entries
    // took 5 GB. Cause: a document was printed from a value that holds all of it.
    #[test]
    fn a_row_is_written_before_the_next_but_one_is_read() {
        struct Out<'a>(&'a Cell<usize>);
        impl io::Write for Out<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.set(self.0.get() + String::from_utf8_lossy(bytes).matches("row").count());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Cell::new(0);
        let rows = (0..5 * ROWS).map(|n| {
            assert!(n - written.get() <= ROWS, "row {n} is read when {} are written", written.get());
            Ok::<_, Unwritten>("row")
        });
        let mut out = Out(&written);
        let mut page = Page::new(&mut out, Look::default());
        page.json_list(Map::new(), "list", rows.clone(), Map::new).unwrap();
        written.set(0);
        let table = Table::new(["name"]);
        page.table(table, rows.map(|row| row.map(|r| vec![r.into()])), "no row").unwrap();
        assert_eq!(written.get(), 5 * ROWS);
    }

    #[test]
    fn a_list_stands_between_its_head_and_its_tail() {
        let mut out = Vec::new();
        let rows = [1, 2].into_iter().map(Ok::<_, Unwritten>);
        Page::new(&mut out, Look { json: true, color: false })
            .json_list(object(json!({"run": "a"})), "rows", rows, || object(json!({"more": true})))
            .unwrap();
        let wanted = "{\n  \"run\": \"a\",\n  \"rows\": [\n    1,\n    2\n  ],\n  \"more\": true\n}\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_the_error_of_the_list() {
        let mut out = Vec::new();
        let rows = iter::once(Ok(1)).chain(iter::once_with(|| Err(Unwritten(io::Error::other("torn")))));
        let had = Page::new(&mut out, Look::default()).json_list(Map::new(), "rows", rows, Map::new);
        assert_eq!(had.unwrap_err().0.to_string(), "torn");
    }
}
