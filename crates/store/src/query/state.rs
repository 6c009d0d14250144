//! Reads of the state. Each is one statement, hence one moment.

use std::{borrow::Cow, sync::OnceLock};

use bytes::Bytes;
use outlast_core::{
    engine,
    state::{
        At, Item, Listed, Namespace, Position, Progress, ResumePoint, Retention, StepKey, furthest,
        prefix_end,
    },
    store::{
        Answer, Error, Question, Which,
        state::{Event, EventPage, EventRange, History, Moment, Scan},
    },
    words::{AttemptNo, Micros, RunNo},
};

use super::{
    Database, Query,
    Value::{self, Blob, Int},
    limit,
};
use crate::rows::{Columns, Cursor, Dialect, Read, Record};

/// Answers a question about the state. Errors: `NotLoaded` for any other question.
pub fn answer<D: Database>(db: &D, question: &Question) -> Result<Answer, Error> {
    let d = D::DIALECT;
    let o = d.schema();
    Ok(match question {
        Question::State { namespace, agent, key } => {
            // The most frequent read: its text is built once.
            static TEXTS: [OnceLock<String>; 3] = [const { OnceLock::new() }; 3];
            let text = TEXTS[d as usize]
                .get_or_init(|| of_key(d, &format!("JOIN {o}items i ON i.position = k.position"), ""));
            Answer::State(version(db, text.as_str(), [namespace, agent, key], None)?)
        }
        Question::StateAt { namespace, agent, key, which } => {
            let p = d.mark();
            let (joins, rest, at) = match which {
                Which::Version(version) => {
                    let joins = format!("LEFT JOIN {o}items i ON i.key_no = k.no AND i.version = {p}4");
                    (joins, format!("AND {p}4 BETWEEN 1 AND k.version"), *version)
                }
                Which::At(at) => {
                    let (bound, value) = bound(d, *at, 4);
                    (stood(d, &bound), format!("AND k.first <= {bound}"), value)
                }
            };
            Answer::StateAt(version(db, of_key(d, &joins, &rest), [namespace, agent, key], Some(at))?)
        }
        Question::StateHistory { namespace, agent, key, after, limit: most } => {
            Answer::StateHistory(history(db, [namespace, agent, key], *after, *most)?)
        }
        Question::StateKeys { scan } => Answer::StateKeys(listed(db, scan)?),
        Question::StateScan { scan } => Answer::StateScan(items(db, scan)?),
        Question::StateEvents { range } => Answer::StateEvents(events(db, range)?),
        Question::ResumePoint { namespace, agent, prefix } => {
            Answer::ResumePoint(resume_point(db, namespace, agent, prefix)?)
        }
        Question::StatePosition {} => {
            let text = format!("SELECT coalesce(max(position), 0) FROM {o}items");
            Answer::StatePosition(db.row(Query::new(text, []))?.unwrap_or_default())
        }
        Question::Namespace { name } => {
            let text = format!("SELECT {NAMESPACE} FROM {o}namespaces WHERE {}", d.is_name("name", 1));
            Answer::Namespace(db.row(Query::new(text, [blob(name)]))?)
        }
        Question::Namespaces { after, limit: most } => {
            let (behind, order) = (d.name_is("name", ">", 2), d.in_order("name"));
            let wanted = after.as_ref().map_or_else(String::new, |_| format!("WHERE {behind} "));
            let text =
                format!("SELECT {NAMESPACE} FROM {o}namespaces {wanted}ORDER BY {order} LIMIT {}1", d.mark());
            let mut values = vec![limit(*most)];
            values.extend(after.as_deref().map(blob));
            Answer::Namespaces(db.rows(Query::new(text, values))?)
        }
        Question::Agents { namespace, after, limit: most } => {
            let (behind, order) = (d.name_is("a.name", ">", 3), d.in_order("a.name"));
            let wanted = after.as_ref().map_or_else(String::new, |_| format!(" AND {behind}"));
            let text = format!(
                "SELECT a.name FROM {o}agents a WHERE a.namespace_no = {}{wanted} ORDER BY {order} LIMIT {}2",
                namespace_no(d),
                d.mark()
            );
            let mut values = vec![blob(namespace), limit(*most)];
            values.extend(after.as_deref().map(blob));
            Answer::Agents(db.rows(Query::new(text, values))?)
        }
        Question::TransactionOutcome { id } => {
            let text = format!(
                "SELECT commit_no, at FROM {o}commits {}WHERE txn IS NOT NULL AND {} LIMIT 1",
                d.indexed_by("commits_by_transaction"),
                d.is_name("txn", 1)
            );
            Answer::TransactionOutcome(db.row(Query::new(text, [blob(id)]))?)
        }
        _ => return Err(engine::Error::NotLoaded("a question about the state").into()),
    })
}

/// Names are blobs in both databases, compared by their bytes.
fn blob(name: &str) -> Value {
    Blob(name.as_bytes().to_vec())
}

/// Columns of [`Raw`], from `keys k` and `items i`.
const RAW: &str = "k.key, k.oldest, i.version, i.value, i.commit_no, i.at, i.run_no, i.attempt, i.position";

/// Columns of a [`Namespace`].
const NAMESPACE: &str = "name, commit_no, at, keep, forgotten";

/// Returns the query for the number of the namespace $1. As a scalar value rather than a join, it lets PostgreSQL's
/// planner know that an index which begins with it returns the rest in order, so that no more than a page is read.
fn namespace_no(d: Dialect) -> String {
    format!("(SELECT n.no FROM {}namespaces n WHERE {})", d.schema(), d.is_name("n.name", 1))
}

/// Returns the query for the number of the agent $2 in the namespace $1.
fn agent_no(d: Dialect) -> String {
    let is = d.is_name("a.name", 2);
    format!("(SELECT a.no FROM {}agents a WHERE a.namespace_no = {} AND {is})", d.schema(), namespace_no(d))
}

/// Returns the tables and the condition that find the key $3 of the agent $2 in the namespace $1.
fn key(d: Dialect) -> (String, String) {
    let o = d.schema();
    let tables = format!(
        "{o}namespaces n JOIN {o}agents a ON a.namespace_no = n.no AND {} \
         JOIN {o}keys k ON k.agent_no = a.no AND {}",
        d.is_name("a.name", 2),
        d.is_name("k.key", 3)
    );
    (tables, d.is_name("n.name", 1))
}

/// Returns the last position that counts at `at`, in which the number is parameter `i`, and that number.
fn bound(d: Dialect, at: At, i: usize) -> (String, i64) {
    let (o, p) = (d.schema(), d.mark());
    let plain = || format!("CAST({p}{i} AS bigint)");
    let last = |column: &str, order: &str, index: &str| {
        format!(
            "coalesce((SELECT c.position FROM {o}commits c {index}WHERE c.namespace_no = {} \
             AND c.{column} <= {p}{i} ORDER BY {order} LIMIT 1), 0)",
            namespace_no(d)
        )
    };
    match at {
        At::Newest => (plain(), i64::MAX),
        At::Position(position) => (plain(), position.0),
        At::Commit(number) => (last("commit_no", "c.commit_no DESC", ""), number),
        At::Time(time) => {
            (last("at", "c.at DESC, c.commit_no DESC", &d.indexed_by("commits_by_time")), time.0)
        }
    }
}

/// Returns the join of the version of the key `k` that was the newest at `bound`.
fn stood(d: Dialect, bound: &str) -> String {
    match d {
        Dialect::Sqlite => format!(
            "LEFT JOIN items i ON i.position = (SELECT x.position FROM items x INDEXED BY items_by_key \
             WHERE x.key_no = k.no AND x.position <= {bound} ORDER BY x.position DESC LIMIT 1)"
        ),
        Dialect::Postgres | Dialect::PostgresRow => format!(
            "LEFT JOIN LATERAL (SELECT x.* FROM outlast.items x WHERE x.key_no = k.no AND x.position <= {bound} \
             ORDER BY x.position DESC LIMIT 1) i ON true"
        ),
    }
}

/// A key and one version of it, as stored.
struct Raw {
    key: String,
    oldest: i64,
    /// `None` if that version was removed by compaction.
    version: Option<RawVersion>,
}

struct RawVersion {
    version: i64,
    stored: Option<Bytes>,
    commit: i64,
    at: Micros,
    run: Option<RunNo>,
    attempt: Option<AttemptNo>,
    position: Position,
}

impl Record for Raw {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Raw, R> {
        let (key, oldest) = (row.utf8()?, row.int()?);
        let Some(version) = row.maybe_int()? else { return Ok(Raw { key, oldest, version: None }) };
        let version = RawVersion {
            version,
            stored: row.maybe_blob()?.map(Bytes::copy_from_slice),
            commit: row.int()?,
            at: Micros(row.int()?),
            run: row.maybe_int()?.map(RunNo),
            attempt: row.maybe_int()?.map(AttemptNo),
            position: Position(row.int()?),
        };
        Ok(Raw { key, oldest, version: Some(version) })
    }
}

fn compacted(key: String, oldest: i64) -> Error {
    engine::Error::Compacted { key, oldest }.into()
}

impl Raw {
    fn listed(self) -> Result<Listed, Error> {
        let v = self.version.ok_or_else(|| compacted(self.key.clone(), self.oldest))?;
        Ok(Listed { key: self.key, version: v.version, commit: v.commit, at: v.at })
    }

    /// Decodes the item. Called on the caller's thread, as all callers share PostgreSQL's readers. Errors: `Compacted` if
    /// the version was removed; `Corrupt`.
    fn item(self, namespace: &str, agent: &str) -> Result<Item, Error> {
        let v = self.version.ok_or_else(|| compacted(self.key.clone(), self.oldest))?;
        let key = self.key;
        let damaged = |e| Error::Corrupt { what: format!("version {} of key {key:?}: {e}", v.version) };
        let value = v.stored.map(outlast_core::state::Value::decode).transpose().map_err(damaged)?;
        Ok(Item {
            namespace: namespace.to_owned(),
            agent: agent.to_owned(),
            key,
            version: v.version,
            value,
            commit: v.commit,
            at: v.at,
            run: v.run,
            attempt: v.attempt,
            position: v.position,
        })
    }
}

/// Returns the query for at most one version of a key. `joins` join it as `i` to the key `k`.
fn of_key(d: Dialect, joins: &str, rest: &str) -> String {
    let (tables, is_it) = key(d);
    format!("SELECT {RAW} FROM {tables} {joins} WHERE {is_it} {rest}")
}

/// Reads at most one version of a key; `at` is parameter 4.
fn version<D: Database>(
    db: &D,
    text: impl Into<Cow<'static, str>>,
    names: [&String; 3],
    at: Option<i64>,
) -> Result<Option<Item>, Error> {
    let mut values: Vec<Value> = names.iter().map(|name| blob(name)).collect();
    values.extend(at.map(Int));
    let found: Option<Raw> = db.row(Query::new(text, values))?;
    found.map(|raw| raw.item(names[0], names[1])).transpose()
}

fn history<D: Database>(db: &D, names: [&String; 3], after: i64, most: usize) -> Result<History, Error> {
    let (tables, is_it) = key(D::DIALECT);
    let (versions, last) = match D::DIALECT {
        Dialect::Sqlite => ("LEFT JOIN items i ON i.key_no = k.no AND i.version > ?4", " LIMIT ?5"),
        Dialect::Postgres | Dialect::PostgresRow => (
            "LEFT JOIN LATERAL (SELECT x.* FROM outlast.items x WHERE x.key_no = k.no AND x.version > $4 \
             ORDER BY x.version LIMIT $5) i ON true",
            "",
        ),
    };
    let text = format!("SELECT {RAW} FROM {tables} {versions} WHERE {is_it} ORDER BY i.version{last}");
    let [namespace, agent, key] = names;
    let values = [blob(namespace), blob(agent), blob(key), Int(after), row_or_more(most)];
    let rows: Vec<Raw> = db.rows(Query::new(text, values))?;
    let oldest = rows.first().map_or(0, |raw| raw.oldest);
    let versions = rows.into_iter().filter(|raw| raw.version.is_some()).take(most);
    Ok(History { items: versions.map(|raw| raw.item(namespace, agent)).collect::<Result<_, _>>()?, oldest })
}

/// Returns the limit of a page whose first row tells more than its version: it is read for an empty page too.
fn row_or_more(rows: usize) -> Value {
    limit(rows.max(1))
}

/// Returns the bounds and the order of a scan's keys, and the parameters: namespace, agent, where the keys begin, their
/// number, and where they end, if they do.
fn keys_of(d: Dialect, scan: &Scan) -> (String, Vec<Value>) {
    let prefix = scan.prefix.as_bytes();
    let behind = scan.after.as_ref().map(String::as_bytes).filter(|after| *after >= prefix);
    let (low, is) = match behind {
        Some(after) => (after, ">"),
        None => (prefix, ">="),
    };
    let end = prefix_end(prefix);
    let high = end.as_ref().map_or_else(String::new, |_| format!(" AND {}", d.name_is("k.key", "<", 5)));
    let text = format!(
        " AND {}{high} ORDER BY {} LIMIT {}4",
        d.name_is("k.key", is, 3),
        d.in_order("k.key"),
        d.mark()
    );
    let mut values = vec![blob(&scan.namespace), blob(&scan.agent), Blob(low.to_vec()), limit(scan.limit)];
    values.extend(end.map(Blob));
    (text, values)
}

/// Returns the tables and conditions of an agent's live keys, with a join, within bounds that [`keys_of`] made.
fn live(d: Dialect, join: &str, keys: &str) -> String {
    let (o, by, is_live) = (d.schema(), d.indexed_by("keys_live"), d.is("k.live"));
    format!("{o}keys k {by}{join}WHERE k.agent_no = {} AND {is_live}{keys}", agent_no(d))
}

fn listed<D: Database>(db: &D, scan: &Scan) -> Result<Vec<Listed>, Error> {
    let d = D::DIALECT;
    let (keys, mut values) = keys_of(d, scan);
    let text = match scan.at {
        At::Newest => format!("SELECT {} FROM {}", bare("k"), live(d, "", &keys)),
        _ => scanned(d, scan, &bare("i"), &keys, &mut values),
    };
    db.rows::<Raw>(Query::new(text, values))?.into_iter().map(Raw::listed).collect()
}

/// Returns the columns of [`Raw`] without the value and its writer, from `keys k` alone or from a version of it.
fn bare(version: &str) -> String {
    format!(
        "k.key, k.oldest, {version}.version, CAST(NULL AS bytea), {version}.commit_no, {version}.at, \
         CAST(NULL AS bigint), CAST(NULL AS bigint), {version}.position"
    )
}

fn items<D: Database>(db: &D, scan: &Scan) -> Result<Vec<Item>, Error> {
    let d = D::DIALECT;
    let (keys, mut values) = keys_of(d, scan);
    let text = match (scan.at, d) {
        (At::Newest, Dialect::Sqlite) => {
            let versions = "JOIN items i ON i.position = k.position ";
            format!("SELECT {RAW} FROM {}", live(d, versions, &keys))
        }
        // The page of keys first, then their versions.
        (At::Newest, _) => format!(
            "SELECT {RAW} FROM (SELECT k.* FROM {}) k JOIN outlast.items i ON i.position = k.position ORDER BY k.key",
            live(d, "", &keys)
        ),
        _ => scanned(d, scan, RAW, &keys, &mut values),
    };
    let rows: Vec<Raw> = db.rows(Query::new(text, values))?;
    rows.into_iter().map(|raw| raw.item(&scan.namespace, &scan.agent)).collect()
}

/// Returns the query for the keys of a scan as they stood at its time, and adds its parameter 6. A key whose version of
/// that time is gone has NULLs.
fn scanned(d: Dialect, scan: &Scan, columns: &str, keys: &str, values: &mut Vec<Value>) -> String {
    let (bound, value) = bound(d, scan.at, 6);
    // Where the prefix has no end, the parameter of the end is not used.
    values.resize_with(5, || Blob(Vec::new()));
    values.push(Int(value));
    format!(
        "SELECT {columns} FROM {}keys k {} WHERE k.agent_no = {} AND k.first <= {bound} \
         AND (i.version IS NULL OR i.value IS NOT NULL){keys}",
        d.schema(),
        stood(d, &bound),
        agent_no(d)
    )
}

fn events<D: Database>(db: &D, range: &EventRange) -> Result<EventPage, Error> {
    let d = D::DIALECT;
    let (o, p) = (d.schema(), d.mark());
    let before = match range.from {
        None => At::Position(Position(0)),
        Some(Moment::Commit(n)) => At::Commit(n.saturating_sub(1)),
        Some(Moment::Time(t)) => At::Time(Micros(t.0.saturating_sub(1))),
    };
    let until = match range.to {
        None => At::Newest,
        Some(Moment::Commit(n)) => At::Commit(n),
        Some(Moment::Time(t)) => At::Time(t),
    };
    let ((low, low_value), (high, high_value)) = (bound(d, before, 5), bound(d, until, 6));
    let low = format!("{}({low}, {p}3)", d.greatest());
    let (versions, last) = match d {
        Dialect::Sqlite => (
            format!(
                "LEFT JOIN items i INDEXED BY items_by_agent ON i.agent_no = a.no AND i.position > {low} \
                 AND i.position <= {high}"
            ),
            " LIMIT ?4",
        ),
        // Compared as pairs, so that only the agent's own index applies: the index on the order of all writes would scan
        // those of other agents.
        Dialect::Postgres | Dialect::PostgresRow => {
            let agent = agent_no(d);
            let versions = format!(
                "LEFT JOIN (SELECT x.* FROM outlast.items x WHERE (x.agent_no, x.position) > ({agent}, {low}) \
                 AND (x.agent_no, x.position) <= ({agent}, {high}) ORDER BY x.agent_no, x.position LIMIT $4) i \
                 ON true"
            );
            (versions, "")
        }
    };
    let key = d.lookup("keys", "k", "k.no = i.key_no");
    let commit = d.lookup("commits", "c", "c.namespace_no = n.no AND c.commit_no = i.commit_no");
    // A single row without a version only says whether compaction removed events.
    let text = format!(
        "SELECT a.removed_to > {low}, c.txn, {RAW} FROM {o}namespaces n \
         JOIN {o}agents a ON a.namespace_no = n.no AND {} {versions} {key} {commit} \
         WHERE {} ORDER BY i.position{last}",
        d.is_name("a.name", 2),
        d.is_name("n.name", 1)
    );
    let (namespace, agent) = (&range.namespace, &range.agent);
    let values = [
        blob(namespace),
        blob(agent),
        Int(range.after.0),
        row_or_more(range.limit),
        Int(low_value),
        Int(high_value),
    ];
    let rows: Vec<Changed> = db.rows(Query::new(text, values))?;
    let compacted = rows.first().is_some_and(|row| row.compacted);
    let event = |(transaction, raw): (Option<String>, Raw)| {
        Ok(Event { item: raw.item(namespace, agent)?, transaction })
    };
    let events = rows.into_iter().filter_map(|row| row.event).take(range.limit).map(event);
    Ok(EventPage { events: events.collect::<Result<_, Error>>()?, compacted })
}

/// Row of [`events`].
struct Changed {
    compacted: bool,
    /// Id of the transaction, and the version that it made.
    event: Option<(Option<String>, Raw)>,
}

impl Record for Changed {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Changed, R> {
        let compacted = row.bool()?;
        let id = row.maybe_utf8()?;
        let is_there = Cursor::at(row.row, row.next).maybe_blob()?.is_some();
        let event = if is_there { Some((id, Raw::of_row(row)?)) } else { None };
        Ok(Changed { compacted, event })
    }
}

impl Record for Namespace {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Namespace, R> {
        Ok(Namespace {
            name: row.utf8()?,
            commit: row.int()?,
            at: Micros(row.int()?),
            keep: row.maybe_int()?.map_or(Retention::All, Retention::Last),
            forgotten: row.int()?,
        })
    }
}

/// Returns the statements that delete the namespace ?1. If the store's newest version is in it, that version is kept: its
/// position would be given again.
pub fn forget(d: Dialect) -> [String; 5] {
    let o = d.schema();
    let own = format!("(SELECT no FROM {o}namespaces WHERE {})", d.is_name("name", 1));
    [
        format!(
            "DELETE FROM {o}items WHERE agent_no IN (SELECT no FROM {o}agents WHERE namespace_no = {own}) \
             AND position < (SELECT max(position) FROM {o}items)"
        ),
        format!("DELETE FROM {o}keys WHERE namespace_no = {own}"),
        format!("DELETE FROM {o}agents WHERE namespace_no = {own}"),
        format!("DELETE FROM {o}commits WHERE namespace_no = {own}"),
        format!("DELETE FROM {o}namespaces WHERE {}", d.is_name("name", 1)),
    ]
}

/// Returns the furthest step done, and the furthest begun, among the keys that begin with `prefix`.
fn resume_point<D: Database>(
    db: &D,
    namespace: &str,
    agent: &str,
    prefix: &str,
) -> Result<ResumePoint, Error> {
    let d = D::DIALECT;
    let o = d.schema();
    if StepKey::is_stem(prefix) {
        let furthest = |progress: Progress| {
            format!(
                "SELECT * FROM (SELECT k.key, k.progress, k.n FROM {o}keys k {}WHERE k.agent_no = {} \
                 AND k.stem IS NOT NULL AND {} AND k.progress = {} ORDER BY k.n DESC LIMIT 1) f",
                d.indexed_by("keys_steps"),
                agent_no(d),
                d.is_name("k.stem", 3),
                progress.code()
            )
        };
        let text = format!("{} UNION ALL {}", furthest(Progress::Done), furthest(Progress::Pending));
        let rows: Vec<Step> = db.rows(Query::new(text, [blob(namespace), blob(agent), blob(prefix)]))?;
        let mut done = None;
        let mut pending = None;
        for step in rows {
            match step.progress {
                Some(Progress::Done) => done = step.n,
                _ => pending = step.n.map(|n| (n, step.key)),
            }
        }
        // Steps with leading zeros that an older version wrote have no stem.
        if let Some(done) = done {
            let (pending, pending_key) = pending.unzip();
            return Ok(ResumePoint { done, pending, pending_key });
        }
    }
    let scan = Scan {
        namespace: namespace.to_owned(),
        agent: agent.to_owned(),
        prefix: prefix.to_owned(),
        limit: usize::MAX,
        ..Scan::default()
    };
    let (keys, values) = keys_of(d, &scan);
    let text = format!(
        "SELECT k.key, k.progress, k.n FROM {o}keys k WHERE k.agent_no = {} AND k.progress IS NOT NULL{keys}",
        agent_no(d)
    );
    let steps: Vec<Step> = db.rows(Query::new(text, values))?;
    Ok(furthest(prefix, steps.iter().filter_map(|step| Some((step.key.as_str(), step.progress?)))))
}

/// A key that records a step, with the step's progress and number.
struct Step {
    key: String,
    progress: Option<Progress>,
    n: Option<i64>,
}

impl Record for Step {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Step, R> {
        let (key, progress) = (row.utf8()?, row.maybe_int()?.and_then(Progress::from_code));
        Ok(Step { key, progress, n: row.maybe_int()? })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rusqlite::{Connection, params_from_iter};

    use super::*;
    use crate::sqlite;

    /// SQLite's plans of the queries that a question makes. No query finds anything.
    struct Plans {
        conn: Connection,
        lines: RefCell<Vec<String>>,
    }

    impl Database for Plans {
        const DIALECT: Dialect = Dialect::Sqlite;

        fn rows<T: Record>(&self, query: Query) -> Result<Vec<T>, Error> {
            let mut plan = self.conn.prepare(&format!("EXPLAIN QUERY PLAN {}", query.text)).unwrap();
            let values = params_from_iter(query.values.iter().map(Value::cell));
            let lines = plan.query_map(values, |row| row.get(3)).unwrap();
            self.lines.borrow_mut().extend(lines.map(|line| line.unwrap()));
            Ok(Vec::new())
        }

        fn own_answer(&self, _: &Question) -> Result<Answer, Error> {
            Err(Error::Closed)
        }
    }

    #[test]
    fn no_query_of_the_state_walks_more_than_it_returns() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(sqlite::schema::STATE).unwrap();
        let plans = Plans { conn, lines: RefCell::default() };
        let check = |question: &Question, wanted: &str| {
            answer(&plans, question).unwrap();
            let lines = plans.lines.take();
            // `f` is one row that was found.
            let walks =
                |line: &String| line.contains("TEMP B-TREE") || line.starts_with("SCAN") && line != "SCAN f";
            assert!(!lines.iter().any(walks), "{question:?}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains(wanted)), "{question:?}: {lines:#?}");
        };
        let [namespace, agent, key] = ["n", "a", "k"].map(str::to_owned);
        let at = |which| Question::StateAt {
            namespace: namespace.clone(),
            agent: agent.clone(),
            key: key.clone(),
            which,
        };
        let newest = Question::State { namespace: namespace.clone(), agent: agent.clone(), key: key.clone() };
        check(&newest, "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)");
        check(&at(Which::Version(2)), "items_by_version (key_no=? AND version=?)");
        check(&at(At::Time(Micros(7)).into()), "commits_by_time (namespace_no=? AND at<?)");
        check(&at(At::Commit(7).into()), "items_by_key (key_no=? AND rowid<?)");
        let scan = |at| Scan { prefix: "k".into(), at, limit: 9, ..Scan::default() };
        let live = "keys_live (agent_no=? AND key>? AND key<?)";
        check(&Question::StateKeys { scan: scan(At::Newest) }, live);
        check(&Question::StateScan { scan: scan(At::Newest) }, live);
        check(&Question::StateScan { scan: scan(At::Commit(7)) }, "(agent_no=? AND key>? AND key<?)");
        for (from, to) in [
            (None, None),
            (Some(Moment::Commit(2)), Some(Moment::Commit(7))),
            (Some(Moment::Time(Micros(2))), Some(Moment::Time(Micros(7)))),
        ] {
            let range = EventRange { from, to, limit: 9, ..EventRange::default() };
            check(&Question::StateEvents { range }, "items_by_agent (agent_no=? AND rowid>? AND rowid<?)");
        }
        check(
            &Question::StateHistory {
                namespace: namespace.clone(),
                agent: agent.clone(),
                key: key.clone(),
                after: 3,
                limit: 9,
            },
            "items_by_version (key_no=? AND version>?)",
        );
        let prefix = key.clone();
        check(
            &Question::ResumePoint { namespace: namespace.clone(), agent, prefix },
            "keys_steps (agent_no=? AND stem=? AND progress=?)",
        );
        let (after, limit) = (Some("a".to_owned()), 9);
        check(&Question::Agents { namespace, after, limit }, "(namespace_no=? AND name>?)");
        check(&Question::TransactionOutcome { id: key }, "commits_by_transaction (txn=?)");
    }
}
