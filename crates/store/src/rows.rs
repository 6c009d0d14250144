//! Conversion of structs to rows and back, defined once for both databases.
//!
//! `tables` lists the columns of each table. Each database binds `Cell`s and reads columns in its own types. The SQL
//! that writes a row is built here.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use outlast_core::envelope::{Amounts, Unit};
use serde::{Serialize, de::DeserializeOwned};

pub type Json<T> = serde_json::Result<T>;

/// Value of one column.
#[derive(PartialEq)]
pub enum Cell<'a> {
    Int(Option<i64>),
    Bool(bool),
    /// Ids and JSON documents.
    Text(Option<Cow<'a, str>>),
    /// Names chosen by people or agents. Stored as bytes in PostgreSQL, whose text cannot hold a NUL.
    Name(Option<&'a str>),
    Blob(Option<&'a [u8]>),
}

impl Cell<'_> {
    pub fn is_null(&self) -> bool {
        matches!(self, Cell::Int(None) | Cell::Text(None) | Cell::Name(None) | Cell::Blob(None))
    }
}

pub fn int<'a>(value: i64) -> Json<Cell<'a>> {
    Ok(Cell::Int(Some(value)))
}

pub fn maybe_int<'a>(value: Option<i64>) -> Json<Cell<'a>> {
    Ok(Cell::Int(value))
}

pub fn name(value: &str) -> Json<Cell<'_>> {
    Ok(Cell::Name(Some(value)))
}

pub fn maybe_name(value: &Option<String>) -> Json<Cell<'_>> {
    Ok(Cell::Name(value.as_deref()))
}

pub fn json<'a, T: Serialize + ?Sized>(value: &T) -> Json<Cell<'a>> {
    maybe_json(Some(value))
}

pub fn maybe_json<'a, T: Serialize + ?Sized>(value: Option<&T>) -> Json<Cell<'a>> {
    let text = value.map(serde_json::to_string).transpose()?;
    Ok(Cell::Text(text.map(Cow::Owned)))
}

/// Encodes a list as JSON; an empty list is NULL.
pub fn list<'a, T: Serialize>(values: &[T]) -> Json<Cell<'a>> {
    maybe_json((!values.is_empty()).then_some(values))
}

/// Rule for when a column is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Part of the row's key, never changed.
    Key,
    /// Written when the row is inserted, never changed. A debug build holds each update of SQLite to that.
    Once,
    /// Written when the row is inserted; a statement of its own writes the rare change.
    Apart,
    /// Written with each change of the row.
    Always,
    /// Written with each change, though the value rarely differs. SQLite writes it only if it does: writing a status
    /// rewrites its index, which costs each commit one more page.
    Seldom,
    /// Written when the row is inserted. Queries filter by the column; no struct has a field for it.
    Aside,
}

pub struct Column<T: 'static> {
    pub name: &'static str,
    pub write: Write,
    pub cell: fn(&T) -> Json<Cell<'_>>,
}

/// A struct that is stored as a row of a table.
pub trait Stored: Sized + Send + 'static {
    const TABLE: &'static str;
    /// Names of the columns that `read` reads, as SQL.
    const NAMES: &'static str;
    const COLUMNS: &'static [Column<Self>];

    fn texts() -> &'static [OnceLock<Texts>; 3];
    fn read<R: Columns>(row: &mut Cursor<'_, R>) -> Result<Self, R::Error>;
}

/// Value that a row of a query is read as: a table's row, or columns of several.
pub trait Record: Sized + Send + 'static {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Self, R>;
}

impl<T: Stored> Record for T {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<T, R> {
        T::read(row)
    }
}

/// Returns the cells of `row` whose `Write` rule satisfies `write`.
pub fn cells<T: Stored>(row: &T, write: impl Fn(Write) -> bool) -> Json<Vec<Cell<'_>>> {
    T::COLUMNS.iter().filter(|column| write(column.write)).map(|column| (column.cell)(row)).collect()
}

/// Form of the SQL that writes rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite, one row a statement.
    Sqlite,
    /// PostgreSQL, any number of rows a statement: each parameter is an array with an element for each row.
    Postgres,
    /// PostgreSQL, one row a statement, which costs the server less than arrays of one element.
    PostgresRow,
}

/// Statements that write a table's rows. `insert` and `upsert` bind all cells in order. `update` binds the key's cells
/// and then those for which `Dialect::rewrites` holds.
pub struct Texts {
    pub insert: String,
    pub update: String,
    pub upsert: String,
}

impl Dialect {
    pub fn texts<T: Stored>(self) -> &'static Texts {
        T::texts()[self as usize].get_or_init(|| {
            let names = |of: &dyn Fn(Write) -> bool| -> Vec<&str> {
                T::COLUMNS.iter().filter(|column| of(column.write)).map(|column| column.name).collect()
            };
            let keys = names(&|write| write == Write::Key);
            let changes = names(&|write| self.rewrites(write));
            let insert = self.insert(T::TABLE, &names(&|_| true));
            let upsert = format!("{insert} {}", replacing(&keys, &changes));
            Texts { insert, update: self.update(T::TABLE, &keys, &changes), upsert }
        })
    }

    /// Returns whether an update of a row writes a column with this rule.
    pub fn rewrites(self, write: Write) -> bool {
        write == Write::Always || write == Write::Seldom && self != Dialect::Sqlite
    }

    /// Returns what stands before a table's name.
    pub fn schema(self) -> &'static str {
        if self == Dialect::Sqlite { "" } else { "outlast." }
    }

    /// Returns what stands before a parameter's number.
    pub fn mark(self) -> char {
        if self == Dialect::Sqlite { '?' } else { '$' }
    }

    fn place(self, i: usize) -> String {
        format!("{}{i}", self.mark())
    }

    /// Returns the condition that a column is true, as a partial index has it.
    pub fn is(self, column: &str) -> String {
        if self == Dialect::Sqlite { format!("{column} = 1") } else { column.to_owned() }
    }

    /// Returns the condition that a column has the name which is parameter `i`. PostgreSQL's indexes have a name's hash.
    pub fn is_name(self, column: &str, i: usize) -> String {
        let p = self.mark();
        match self {
            Dialect::Sqlite => format!("{column} = {p}{i}"),
            Dialect::Postgres | Dialect::PostgresRow => format!("{} = sha256({p}{i})", self.indexed(column)),
        }
    }

    /// Returns a name as an index has it that is asked by [`Dialect::is_name`].
    pub fn indexed(self, column: &str) -> String {
        match self {
            Dialect::Sqlite => column.to_owned(),
            Dialect::Postgres | Dialect::PostgresRow => format!("sha256({column})"),
        }
    }

    /// Returns the condition that a name's bytes compare in this way with parameter `i`. PostgreSQL's indexes have only
    /// the first bytes: they bound the scan, and the whole name decides.
    pub fn name_is(self, column: &str, way: &str, i: usize) -> String {
        let p = self.mark();
        if self == Dialect::Sqlite {
            return format!("{column} {way} {p}{i}");
        }
        let bound = if way.starts_with('>') { ">=" } else { "<=" };
        format!(
            "substring({column} from 1 for 512) {bound} substring({p}{i}::bytea from 1 for 512) \
             AND {column} {way} {p}{i}"
        )
    }

    /// Returns the order of a name's bytes, as an index has it.
    pub fn in_order(self, column: &str) -> String {
        match self {
            Dialect::Sqlite => column.to_owned(),
            Dialect::Postgres | Dialect::PostgresRow => {
                format!("substring({column} from 1 for 512), {column}")
            }
        }
    }

    pub fn least(self) -> &'static str {
        if self == Dialect::Sqlite { "min" } else { "least" }
    }

    pub fn greatest(self) -> &'static str {
        if self == Dialect::Sqlite { "max" } else { "greatest" }
    }

    /// Names the index that SQLite's planner has to use for the table before it. PostgreSQL's knows the table's size.
    pub fn indexed_by(self, index: &str) -> String {
        if self == Dialect::Sqlite { format!("INDEXED BY {index} ") } else { String::new() }
    }

    /// Returns the condition that a column's text contains the value of `text`, an expression.
    pub fn contains(self, column: &str, text: &str) -> String {
        let at = if self == Dialect::Sqlite { "instr" } else { "strpos" };
        format!("{at}({column}, {text}) > 0")
    }

    /// Returns the join of the one row of a table, under the name `as_`, that meets the condition; NULLs if none does.
    /// PostgreSQL looks each up: its planner takes a table that it has not analysed yet for a long one, and a page whose
    /// size is a parameter for a large one, and would read all of the joined table.
    pub fn lookup(self, table: &str, as_: &str, condition: &str) -> String {
        match self {
            Dialect::Sqlite => format!("LEFT JOIN {table} {as_} ON {condition}"),
            Dialect::Postgres | Dialect::PostgresRow => format!(
                "LEFT JOIN LATERAL (SELECT {as_}.* FROM outlast.{table} {as_} WHERE {condition} LIMIT 1) {as_} ON true"
            ),
        }
    }

    /// Returns the number at a path in a column of JSON: NULL if there is none.
    pub fn number_at(self, column: &str, path: &[&str]) -> String {
        if self != Dialect::Sqlite {
            return format!("({column}::json #>> '{{{}}}')::bigint", path.join(","));
        }
        let step = |step: &&str| match step.parse::<usize>() {
            Ok(index) => format!("[{index}]"),
            Err(_) => format!(".{step}"),
        };
        format!("{column} ->> '${}'", path.iter().map(step).collect::<String>())
    }

    fn places(self, count: usize) -> String {
        let places: Vec<String> = (1..=count).map(|i| self.place(i)).collect();
        places.join(", ")
    }

    /// Returns a statement that inserts rows with the columns `names`, bound in order.
    pub fn insert(self, table: &str, names: &[&str]) -> String {
        let (schema, places) = (self.schema(), self.places(names.len()));
        let rows = match self {
            Dialect::Sqlite | Dialect::PostgresRow => format!("VALUES ({places})"),
            Dialect::Postgres => format!("SELECT * FROM unnest({places})"),
        };
        format!("INSERT INTO {schema}{table} ({}) {rows}", names.join(", "))
    }

    /// Returns a statement that sets the columns `changes` of the rows with these keys. The keys are bound first.
    pub fn update(self, table: &str, keys: &[&str], changes: &[&str]) -> String {
        let table = format!("{}{table}", self.schema());
        let names = [keys, changes].concat();
        let each = |names: &[&str], from: usize, one: &dyn Fn(&str, usize) -> String| -> Vec<String> {
            names.iter().zip(from..).map(|(name, i)| one(name, i)).collect()
        };
        if self == Dialect::Postgres {
            let found = each(keys, 0, &|name, _| format!("old.{name} = new.{name}"));
            let changed = each(changes, 0, &|name, _| format!("{name} = new.{name}"));
            return format!(
                "UPDATE {table} AS old SET {} FROM unnest({}) AS new ({}) WHERE {}",
                changed.join(", "),
                self.places(names.len()),
                names.join(", "),
                found.join(" AND ")
            );
        }
        let one = |name: &str, i: usize| format!("{name} = {}", self.place(i));
        let (found, changed) = (each(keys, 1, &one), each(changes, keys.len() + 1, &one));
        format!("UPDATE {table} SET {} WHERE {}", changed.join(", "), found.join(" AND "))
    }

    /// Returns `SELECT columns of T FROM table rest`.
    pub fn select<T: Stored>(self, rest: &str) -> String {
        // One piece: this is built for each lookup.
        ["SELECT ", T::NAMES, " FROM ", self.schema(), T::TABLE, " ", rest].concat()
    }
}

/// Returns the clause of an insert that replaces `changes` of rows with the same keys.
pub fn replacing(keys: &[&str], changes: &[&str]) -> String {
    let changed: Vec<String> = changes.iter().map(|name| format!("{name} = excluded.{name}")).collect();
    format!("ON CONFLICT ({}) DO UPDATE SET {}", keys.join(", "), changed.join(", "))
}

/// A row returned by a database.
pub trait Columns {
    type Error;

    fn maybe_int(&self, i: usize) -> Result<Option<i64>, Self::Error>;
    fn maybe_bool(&self, i: usize) -> Result<Option<bool>, Self::Error>;
    fn maybe_text(&self, i: usize) -> Result<Option<&str>, Self::Error>;
    fn maybe_name(&self, i: usize) -> Result<Option<&str>, Self::Error>;
    fn maybe_blob(&self, i: usize) -> Result<Option<&[u8]>, Self::Error>;
    /// Makes the error for a column whose value is not one that Outlast writes.
    fn bad(&self, i: usize, why: String) -> Self::Error;
}

/// Reads the columns of a row in order.
pub struct Cursor<'a, R> {
    pub row: &'a R,
    pub next: usize,
}

pub type Read<T, R> = Result<T, <R as Columns>::Error>;

impl<'a, R: Columns> Cursor<'a, R> {
    pub fn new(row: &'a R) -> Self {
        Self::at(row, 0)
    }

    pub fn at(row: &'a R, next: usize) -> Self {
        Self { row, next }
    }

    pub fn step(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Makes the error for the column read last, whose value is not one that Outlast writes.
    pub fn bad(&self, why: impl std::fmt::Display) -> R::Error {
        self.row.bad(self.next - 1, why.to_string())
    }

    pub fn wanted<T>(&self, value: Option<T>) -> Read<T, R> {
        value.ok_or_else(|| self.bad("it is NULL"))
    }

    pub fn maybe_int(&mut self) -> Read<Option<i64>, R> {
        let i = self.step();
        self.row.maybe_int(i)
    }

    pub fn int(&mut self) -> Read<i64, R> {
        let value = self.maybe_int()?;
        self.wanted(value)
    }

    /// Reads an integer that fits `T`, usually one that is never negative.
    pub fn small<T: TryFrom<i64, Error: std::fmt::Display>>(&mut self) -> Read<T, R> {
        T::try_from(self.int()?).map_err(|e| self.bad(e))
    }

    pub fn bool(&mut self) -> Read<bool, R> {
        let i = self.step();
        let value = self.row.maybe_bool(i)?;
        self.wanted(value)
    }

    pub fn maybe_text(&mut self) -> Read<Option<&'a str>, R> {
        let i = self.step();
        self.row.maybe_text(i)
    }

    pub fn text(&mut self) -> Read<&'a str, R> {
        let value = self.maybe_text()?;
        self.wanted(value)
    }

    pub fn maybe_name(&mut self) -> Read<Option<&'a str>, R> {
        let i = self.step();
        self.row.maybe_name(i)
    }

    pub fn name(&mut self) -> Read<&'a str, R> {
        let value = self.maybe_name()?;
        self.wanted(value)
    }

    pub fn maybe_blob(&mut self) -> Read<Option<&'a [u8]>, R> {
        let i = self.step();
        self.row.maybe_blob(i)
    }

    pub fn blob(&mut self) -> Read<&'a [u8], R> {
        let value = self.maybe_blob()?;
        self.wanted(value)
    }

    /// Reads a name that both databases have as bytes.
    pub fn maybe_utf8(&mut self) -> Read<Option<String>, R> {
        let bytes = self.maybe_blob()?;
        bytes.map(|b| std::str::from_utf8(b).map(str::to_owned)).transpose().map_err(|e| self.bad(e))
    }

    pub fn utf8(&mut self) -> Read<String, R> {
        let name = self.maybe_utf8()?;
        self.wanted(name)
    }

    pub fn maybe_json<T: DeserializeOwned>(&mut self) -> Read<Option<T>, R> {
        let text = self.maybe_text()?;
        text.map(serde_json::from_str).transpose().map_err(|e| self.bad(e))
    }

    pub fn json<T: DeserializeOwned>(&mut self) -> Read<T, R> {
        let value = self.maybe_json()?;
        self.wanted(value)
    }

    pub fn list<T: DeserializeOwned>(&mut self) -> Read<Arc<[T]>, R> {
        Ok(self.maybe_json::<Vec<T>>()?.unwrap_or_default().into())
    }

    /// Reads an enum value by its stored number.
    pub fn code<T>(&mut self, what: &str, of: impl Fn(i64) -> Option<T>) -> Read<T, R> {
        let code = self.int()?;
        of(code).ok_or_else(|| self.bad(format!("no {what} {code}")))
    }

    /// Reads cost, tokens and calls: the amounts that can be reserved and spent for an entry.
    pub fn amounts(&mut self) -> Read<Amounts, R> {
        Ok(Amounts::of(self.int()?, self.int()?).with(Unit::Calls, self.int()?))
    }
}
