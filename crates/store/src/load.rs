//! Rows that an operation loads and that nothing else finds, the state's among them: their queries and how they are read,
//! once for both databases.

use std::borrow::Cow;

use outlast_core::{
    engine::{Numbers, loaded::Key},
    state::{
        Committed, Namespace, Position, Progress,
        outcome::AT_ONCE,
        rows::{Compactable, Current},
    },
    words::{EnvelopeNo, InstanceNo, Micros, RunNo},
};

use crate::rows::{Cell, Columns, Cursor, Dialect, Read, Record};

/// Query for the rows of one key, with its parameters in the order of their numbers.
pub struct Load<'k> {
    pub text: Cow<'static, str>,
    pub cells: Vec<Cell<'k>>,
}

/// Returns the query for what `key` names; `None` for a row of a table, which each database finds in its own way.
pub fn load<'k>(d: Dialect, key: &Key<'k>) -> Option<Load<'k>> {
    let o = d.schema();
    let (text, cells): (Cow<'static, str>, _) = match *key {
        // PostgreSQL's are read under the whole store's lock, so no one else can take one. A sequence would leave a gap at
        // each rollback.
        Key::Numbers => {
            let next = |table: &str| format!("(SELECT coalesce(max(no), 0) + 1 FROM {o}{table})");
            (format!("SELECT {}", ["runs", "envelopes", "instances"].map(next).join(", ")).into(), vec![])
        }
        Key::Position => (format!("SELECT coalesce(max(position), 0) FROM {o}items").into(), vec![]),
        Key::Namespace(name) => (head(d).into(), vec![blob(name), int(AT_ONCE as i64 - 1)]),
        Key::State(name) => {
            (current(d).into(), vec![blob(&name.namespace), blob(&name.agent), blob(&name.key)])
        }
        Key::Transaction(id) => {
            let (by, is) = (d.indexed_by("commits_by_transaction"), d.is_name("txn", 1));
            let text =
                format!("SELECT commit_no, at FROM {o}commits {by}WHERE txn IS NOT NULL AND {is} LIMIT 1");
            (text.into(), vec![blob(id)])
        }
        Key::Compactable { namespace, before, after, limit } => {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            (compactable(d).into(), vec![blob(namespace), int(before.unwrap_or(0)), int(after), int(limit)])
        }
        _ => return None,
    };
    Some(Load { text, cells })
}

fn int<'k>(value: i64) -> Cell<'k> {
    Cell::Int(Some(value))
}

fn blob(name: &str) -> Cell<'_> {
    Cell::Blob(Some(name.as_bytes()))
}

impl Record for Numbers {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Numbers, R> {
        Ok(Numbers {
            run: RunNo(row.int()?),
            envelope: EnvelopeNo(row.int()?),
            instance: InstanceNo(row.int()?),
        })
    }
}

/// A namespace, and the commit up to which its transaction ids may be forgotten (see `Rows::old_ids`), with its time.
pub type Head = (Namespace, Option<(i64, Micros)>);

/// Query for a namespace, and for the commit as many places behind the first whose transaction id is kept.
fn head(d: Dialect) -> &'static str {
    match d {
        Dialect::Sqlite => {
            "SELECT n.name, n.commit_no, n.at, n.keep, n.forgotten, c.commit_no, c.at \
             FROM namespaces n LEFT JOIN commits c ON c.namespace_no = n.no AND c.commit_no = \
             (SELECT o.commit_no FROM commits o WHERE o.namespace_no = n.no AND o.commit_no > n.forgotten \
              ORDER BY o.commit_no LIMIT 1 OFFSET ?2) WHERE n.name = ?1"
        }
        Dialect::Postgres | Dialect::PostgresRow => {
            "SELECT n.name, n.commit_no, n.at, n.keep, n.forgotten, o.commit_no, o.at \
             FROM outlast.namespaces n LEFT JOIN LATERAL (SELECT c.commit_no, c.at FROM outlast.commits c \
             WHERE c.namespace_no = n.no AND c.commit_no > n.forgotten ORDER BY c.commit_no LIMIT 1 OFFSET $2) o \
             ON true WHERE sha256(n.name) = sha256($1)"
        }
    }
}

impl Record for Head {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Head, R> {
        let namespace = Namespace::of_row(row)?;
        Ok((namespace, row.maybe_int()?.zip(row.maybe_int()?.map(Micros))))
    }
}

/// Returns the query for the newest version of a key, as a decision has it.
fn current(d: Dialect) -> String {
    let (o, [namespace, agent, key]) = (d.schema(), [("n.name", 1), ("a.name", 2), ("k.key", 3)]);
    let is = |(column, i): (&str, usize)| d.is_name(column, i);
    format!(
        "SELECT k.version, k.live, k.position, k.commit_no, k.at, k.first, k.oldest, k.progress, k.no \
         FROM {o}namespaces n JOIN {o}agents a ON a.namespace_no = n.no AND {} \
         JOIN {o}keys k ON k.agent_no = a.no AND {} WHERE {}",
        is(agent),
        is(key),
        is(namespace)
    )
}

impl Record for Current {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Current, R> {
        Ok(Current {
            version: row.int()?,
            live: row.bool()?,
            position: Position(row.int()?),
            commit: row.int()?,
            at: Micros(row.int()?),
            first: Position(row.int()?),
            oldest: row.int()?,
            progress: row.maybe_int()?.and_then(Progress::from_code),
            moved: false,
            no: row.int()?,
        })
    }
}

impl Record for Committed {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Committed, R> {
        Ok(Committed { commit: row.int()?, at: Micros(row.int()?), versions: Vec::new() })
    }
}

/// Returns the query for the keys of a namespace that have older versions, with the version that each had at a commit.
fn compactable(d: Dialect) -> String {
    let (o, p) = (d.schema(), d.mark());
    let (by_key, replaced) = (d.indexed_by("items_by_key"), d.indexed_by("keys_with_history"));
    let (is_replaced, is_namespace) = (d.is("k.replaced"), d.is_name("n.name", 1));
    format!(
        "SELECT k.no, k.oldest, k.version, coalesce((SELECT i.version FROM {o}items i {by_key}\
         WHERE i.key_no = k.no AND i.position <= coalesce((SELECT c.position FROM {o}commits c \
         WHERE c.namespace_no = n.no AND c.commit_no <= {p}2 ORDER BY c.commit_no DESC LIMIT 1), 0) \
         ORDER BY i.position DESC LIMIT 1), k.oldest) \
         FROM {o}namespaces n JOIN {o}keys k {replaced}ON k.namespace_no = n.no AND {is_replaced} \
         WHERE {is_namespace} AND k.no > {p}3 ORDER BY k.no LIMIT {p}4"
    )
}

impl Record for Compactable {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Compactable, R> {
        Ok(Compactable { no: row.int()?, oldest: row.int()?, version: row.int()?, at_commit: row.int()? })
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::state::Name;
    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::schema::STATE;

    #[test]
    fn no_query_of_the_state_walks_more_than_it_returns() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(STATE).unwrap();
        let check = |key: Key<'_>, wanted: &[&str]| {
            let sql = load(Dialect::Sqlite, &key).unwrap().text;
            let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
            let plan: Vec<String> = statement
                .query_map(rusqlite::params_from_iter(nulls), |r| r.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            let walks = plan.iter().any(|p| p.contains("SCAN") || p.contains("TEMP B-TREE"));
            assert!(!walks, "{sql}: {plan:?}");
            for wanted in wanted {
                assert!(plan.iter().any(|p| p.contains(wanted)), "{sql}: {plan:?}");
            }
        };
        let name = Name::new("n", "a", "k");
        check(Key::Namespace("n"), &["PRIMARY KEY (namespace_no=? AND commit_no>?)"]);
        check(Key::State(&name), &[]);
        check(Key::Transaction("t"), &["commits_by_transaction (txn=?)"]);
        let compactable = Key::Compactable { namespace: "n", before: None, after: 0, limit: 1 };
        check(
            compactable,
            &["keys_with_history (namespace_no=? AND no>?)", "items_by_key (key_no=? AND rowid<?)"],
        );
        check(Key::Position, &[]);
    }
}
