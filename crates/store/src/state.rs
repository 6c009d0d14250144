//! Writes of the state, for both databases.

use outlast_core::{
    state::{
        Name, Progress, Retention, StepKey,
        rows::{Current, Rows, Trimmed},
    },
    words::Touch,
};

use crate::rows::{Cell, Dialect, replacing};

/// Statement that writes the state, with the cells that it binds.
pub struct Change<'a> {
    pub sql: String,
    pub cells: Vec<Cell<'a>>,
    /// Whether it has to write one row, since what it names was read before. Others write any number.
    pub writes_one: bool,
}

/// Returns the statements that write the rows touched by a decision, in order: they find by name what those before them
/// have inserted.
pub fn changes<'a>(d: Dialect, rows: &'a Rows) -> Vec<Change<'a>> {
    let mut all = Vec::new();
    let mut push = |writes_one, sql: String, cells| all.push(Change { sql, cells, writes_one });
    let (o, p) = (d.schema(), d.mark());
    let key_no = key_no(d);
    for row in rows.namespaces.values().filter(|r| r.touch != Touch::Read) {
        let n = &row.value;
        let keep = match n.keep {
            Retention::All => None,
            Retention::Last(n) => Some(n),
        };
        let cells = vec![name(&n.name), int(n.commit), int(n.at.0), Cell::Int(keep), int(n.forgotten)];
        push(false, put_namespace(d), cells);
    }
    for (of, row) in &rows.keys {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => {
                push(false, insert_agent(d), vec![name(&of.namespace), name(&of.agent)]);
                push(true, insert_key(d), key_cells(of, &row.value));
            }
            Touch::Update => {
                let (sql, cells) = update_key(d, of, &row.value, &key_no);
                push(true, sql, cells);
            }
        }
    }
    // The number of a key, where it has one, spares a search by name.
    let key = |of: &'a Name| numbered(rows.keys.get(of).map_or(0, |row| row.value.no), of);
    for v in &rows.versions {
        let sql = format!(
            "INSERT INTO {o}items (position, agent_no, key_no, version, commit_no, at, run_no, attempt, value) \
             SELECT {p}5, agent_no, no, {p}6, {p}7, {p}8, {p}9, {p}10, {p}11 FROM {o}keys WHERE no = {key_no}"
        );
        let mut cells = key(&v.name);
        cells.extend([int(v.position.0), int(v.version), int(v.commit), int(v.at.0)]);
        cells.extend([Cell::Int(v.run.map(|n| n.0)), Cell::Int(v.attempt.map(|n| n.0))]);
        cells.push(Cell::Blob(v.value.as_ref().map(|v| &v.stored()[..])));
        push(true, sql, cells);
    }
    let is_named = d.is_name("name", 1);
    for c in &rows.commits {
        let sql = format!(
            "INSERT INTO {o}commits (namespace_no, commit_no, at, position, txn) \
             SELECT no, {p}2, {p}3, {p}4, {p}5 FROM {o}namespaces WHERE {is_named}"
        );
        let id = Cell::Blob(c.transaction.as_deref().map(str::as_bytes));
        push(true, sql, vec![name(&c.namespace), int(c.commit), int(c.at.0), int(c.position.0), id]);
    }
    for r in &rows.removals {
        let cells = || {
            let mut cells = match &r.key {
                Trimmed::No(no) => vec![int(*no), Cell::Blob(None), Cell::Blob(None), Cell::Blob(None)],
                Trimmed::Changed(name) => key(name),
            };
            cells.push(int(r.below));
            cells
        };
        removal(d, &key_no).into_iter().for_each(|(writes_one, sql)| push(writes_one, sql, cells()));
    }
    for f in &rows.forgettings {
        let sql = format!(
            "UPDATE {o}commits SET txn = NULL WHERE namespace_no = (SELECT no FROM {o}namespaces WHERE {is_named}) \
             AND commit_no > {p}2 AND commit_no <= {p}3 AND txn IS NOT NULL"
        );
        push(false, sql, vec![name(&f.namespace), int(f.above), int(f.to)]);
    }
    all
}

fn int<'a>(value: i64) -> Cell<'a> {
    Cell::Int(Some(value))
}

/// Both databases have the bytes of a name.
fn name(name: &str) -> Cell<'_> {
    Cell::Blob(Some(name.as_bytes()))
}

fn numbered(no: i64, of: &Name) -> Vec<Cell<'_>> {
    vec![int(no), name(&of.namespace), name(&of.agent), name(&of.key)]
}

/// Returns the number of a key: ?1, or that of the key named ?2, ?3 and ?4 if ?1 is 0, which an operation of the same
/// transaction has inserted.
fn key_no(d: Dialect) -> String {
    let (o, p) = (d.schema(), d.mark());
    let [namespace, agent, key] =
        [("n.name", 2), ("a.name", 3), ("k.key", 4)].map(|(column, i)| d.is_name(column, i));
    format!(
        "coalesce(nullif({p}1, 0), (SELECT k.no FROM {o}namespaces n \
         JOIN {o}agents a ON a.namespace_no = n.no AND {agent} JOIN {o}keys k ON k.agent_no = a.no AND {key} \
         WHERE {namespace}))"
    )
}

fn put_namespace(d: Dialect) -> String {
    let changes = ["commit_no", "at", "keep", "forgotten"];
    let insert = d.insert("namespaces", &[&["name"][..], &changes].concat());
    // PostgreSQL's index has the name's hash.
    let unique = if d == Dialect::Sqlite { "name" } else { "sha256(name)" };
    format!("{insert} {}", replacing(&[unique], &changes))
}

fn insert_agent(d: Dialect) -> String {
    let (o, p) = (d.schema(), d.mark());
    let (namespace, agent) = (d.is_name("n.name", 1), d.is_name("a.name", 2));
    format!(
        "INSERT INTO {o}agents (namespace_no, name, removed_to) SELECT n.no, {p}2, 0 FROM {o}namespaces n \
         WHERE {namespace} AND NOT EXISTS (SELECT 1 FROM {o}agents a WHERE a.namespace_no = n.no AND {agent})"
    )
}

fn insert_key(d: Dialect) -> String {
    let (o, p) = (d.schema(), d.mark());
    let (namespace, agent) = (d.is_name("n.name", 1), d.is_name("a.name", 2));
    let values: Vec<String> = (3..=14).map(|i| format!("{p}{i}")).collect();
    format!(
        "INSERT INTO {o}keys (namespace_no, agent_no, key, version, live, replaced, position, commit_no, at, first, \
         oldest, progress, stem, n) SELECT n.no, a.no, {} FROM {o}namespaces n \
         JOIN {o}agents a ON a.namespace_no = n.no AND {agent} WHERE {namespace}",
        values.join(", ")
    )
}

fn key_cells<'a>(of: &'a Name, c: &Current) -> Vec<Cell<'a>> {
    let mut cells = vec![name(&of.namespace), name(&of.agent), name(&of.key)];
    let (stem, n) = step(of, c);
    cells.extend([int(c.version), Cell::Bool(c.live), Cell::Bool(c.oldest < c.version)]);
    cells.extend([int(c.position.0), int(c.commit), int(c.at.0), int(c.first.0), int(c.oldest)]);
    cells.extend([Cell::Int(c.progress.map(Progress::code)), stem, n]);
    cells
}

fn update_key<'a>(d: Dialect, of: &'a Name, c: &Current, key_no: &str) -> (String, Vec<Cell<'a>>) {
    let (o, p) = (d.schema(), d.mark());
    let mut cells = numbered(c.no, of);
    cells.extend([int(c.version), int(c.position.0), int(c.commit), int(c.at.0)]);
    let mut set = format!("version = {p}5, position = {p}6, commit_no = {p}7, at = {p}8");
    // SQLite writes the index entries of every named column, changed or not.
    if d != Dialect::Sqlite || c.moved {
        let (stem, n) = step(of, c);
        cells.extend([Cell::Bool(c.live), Cell::Bool(c.oldest < c.version)]);
        cells.extend([Cell::Int(c.progress.map(Progress::code)), stem, n]);
        set += &format!(", live = {p}9, replaced = {p}10, progress = {p}11, stem = {p}12, n = {p}13");
    }
    (format!("UPDATE {o}keys SET {set} WHERE no = {key_no}"), cells)
}

/// Returns the cells that find a resume point, for keys whose newest value is a step's record.
fn step<'a>(of: &'a Name, c: &Current) -> (Cell<'a>, Cell<'a>) {
    let step = c.progress.and_then(|_| StepKey::of(&of.key));
    (Cell::Blob(step.map(|s| s.stem.as_bytes())), Cell::Int(step.map(|s| s.n)))
}

/// Returns the statements that remove the versions of a key below ?5, each with whether it writes one row.
fn removal(d: Dialect, key_no: &str) -> [(bool, String); 3] {
    let (o, p, greatest) = (d.schema(), d.mark(), d.greatest());
    // Positions grow with versions: the last one removed is that of the highest version.
    let agent = format!(
        "UPDATE {o}agents SET removed_to = {greatest}(removed_to, (SELECT position FROM {o}items \
         WHERE key_no = {key_no} AND version < {p}5 ORDER BY version DESC LIMIT 1)) \
         WHERE no = (SELECT agent_no FROM {o}keys WHERE no = {key_no})"
    );
    let items = format!("DELETE FROM {o}items WHERE key_no = {key_no} AND version < {p}5");
    let key = format!("UPDATE {o}keys SET oldest = {p}5, replaced = version > {p}5 WHERE no = {key_no}");
    [(true, agent), (false, items), (true, key)]
}
