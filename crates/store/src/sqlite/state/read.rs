//! Reads the state.

use outlast_core::{
    engine,
    state::{
        At, Committed, Item, Listed, Namespace, Position, Progress, ResumePoint, StepKey, furthest,
        prefix_end,
    },
    store::{
        Error, Which,
        state::{Event, EventPage, EventRange, History, Moment, Reads, Scan},
    },
};
use rusqlite::{Connection, params_from_iter, types::Value as Sql};

use super::{
    ITEM, Result, all, bound, count, item, maybe, namespace, namespace_no, newest_until, outcome, position,
    schema::{EVENTS, FURTHEST, LISTED, LIVE, STOOD},
    text,
};
use crate::{sqlite::SqliteStore, tables::select};

/// Key's own row, with the columns that reads need.
struct Key {
    no: i64,
    namespace: i64,
    version: i64,
    first: i64,
    oldest: i64,
}

fn find_key(conn: &Connection, ns: &str, agent: &str, key: &str) -> Result<Option<Key>> {
    let sql = "SELECT k.no, n.no, k.version, k.first, k.oldest FROM namespaces n \
               JOIN agents a ON a.namespace_no = n.no AND a.name = ?2 \
               JOIN keys k ON k.agent_no = a.no AND k.key = ?3 WHERE n.name = ?1";
    maybe(conn, sql, [ns, agent, key].map(str::as_bytes), |r| {
        let (no, namespace) = (r.get(0)?, r.get(1)?);
        Ok(Key { no, namespace, version: r.get(2)?, first: r.get(3)?, oldest: r.get(4)? })
    })
}

/// Returns the numbers of a namespace and of an agent in it.
fn find_agent(conn: &Connection, ns: &str, agent: &str) -> Result<Option<(i64, i64)>> {
    let sql = "SELECT n.no, a.no FROM namespaces n JOIN agents a ON a.namespace_no = n.no AND a.name = ?2 \
               WHERE n.name = ?1";
    maybe(conn, sql, [ns, agent].map(str::as_bytes), |r| Ok((r.get(0)?, r.get(1)?)))
}

fn gone(key: &str, oldest: i64) -> Error {
    engine::Error::Compacted { key: key.to_owned(), oldest }.into()
}

/// Returns the bounds of the keys that a scan asks for, and their parameters 2 and 3. Parameter 1 is the agent's
/// number, parameter 4 the limit.
fn bounds(scan: &Scan, agent: i64) -> (String, Vec<Sql>) {
    let prefix = scan.prefix.as_bytes();
    let behind = scan.after.as_ref().map(String::as_bytes).filter(|after| *after >= prefix);
    let (low, low_is) = match behind {
        Some(after) => (after, ">"),
        None => (prefix, ">="),
    };
    let end = prefix_end(prefix);
    let high = if end.is_some() { "AND k.key < ?3" } else { "AND ?3 IS NULL" };
    let clause = format!(" AND k.key {low_is} ?2 {high} ORDER BY k.key LIMIT ?4");
    let end = end.map_or(Sql::Null, Sql::Blob);
    (clause, vec![Sql::Integer(agent), Sql::Blob(low.to_vec()), end, Sql::Integer(count(scan.limit))])
}

impl SqliteStore {
    /// Returns the rows of a scan, with `columns` from `now` or `stood`. A row whose first column is NULL stands for a
    /// version removed by compaction.
    fn scanned<T>(
        &self,
        scan: &Scan,
        (now, stood): (&str, &str),
        map: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        self.in_one_moment(|c| {
            let Some((ns, agent)) = find_agent(c, &scan.namespace, &scan.agent)? else {
                return Ok(Vec::new());
            };
            let (clause, mut params) = bounds(scan, agent);
            if scan.at == At::Newest {
                return all(c, &format!("{now}{clause}"), params_from_iter(params), map);
            }
            params.push(Sql::Integer(bound(c, ns, scan.at)?.0));
            let rows = all(c, &format!("{stood}{clause}"), params_from_iter(params), |r| {
                if r.get_ref("version")? == rusqlite::types::ValueRef::Null {
                    return Ok(Err((text(r, 0)?, r.get::<_, i64>("oldest")?)));
                }
                map(r).map(Ok)
            })?;
            rows.into_iter().map(|r| r.map_err(|(key, oldest)| gone(&key, oldest))).collect()
        })
    }
}

impl SqliteStore {
    fn version(&self, ns: &str, agent: &str, key: &str, version: i64) -> Result<Option<Item>> {
        self.in_one_moment(|c| {
            let found = find_key(c, ns, agent, key)?;
            let Some(k) = found.filter(|k| (1..=k.version).contains(&version)) else { return Ok(None) };
            if version < k.oldest {
                return Err(gone(key, k.oldest));
            }
            let sql =
                select(ITEM, "keys k JOIN items i ON i.key_no = k.no AND i.version = ?2 WHERE k.no = ?1");
            maybe(c, &sql, (k.no, version), |r| item(r, ns, agent))
        })
    }
}

impl Reads for SqliteStore {
    fn state(&self, ns: &str, agent: &str, key: &str) -> Result<Option<Item>> {
        let rest = "namespaces n JOIN agents a ON a.namespace_no = n.no AND a.name = ?2 \
                    JOIN keys k ON k.agent_no = a.no AND k.key = ?3 \
                    JOIN items i ON i.position = k.position WHERE n.name = ?1";
        self.with_reader(|c| {
            let names = [ns, agent, key].map(str::as_bytes);
            maybe(c, &select(ITEM, rest), names, |r| item(r, ns, agent))
        })
    }

    fn state_at(&self, ns: &str, agent: &str, key: &str, which: Which) -> Result<Option<Item>> {
        let at = match which {
            Which::At(At::Newest) => return self.state(ns, agent, key),
            Which::At(at) => at,
            Which::Version(version) => return self.version(ns, agent, key, version),
        };
        self.in_one_moment(|c| {
            let Some(k) = find_key(c, ns, agent, key)? else { return Ok(None) };
            let bound = bound(c, k.namespace, at)?;
            if k.first > bound.0 {
                return Ok(None);
            }
            let Some(position) = newest_until(c, k.no, bound, |r| r.get::<_, i64>(0))? else {
                return Err(gone(key, k.oldest));
            };
            let sql = select(ITEM, "items i JOIN keys k ON k.no = i.key_no WHERE i.position = ?1");
            maybe(c, &sql, (position,), |r| item(r, ns, agent))
        })
    }

    fn state_history(&self, ns: &str, agent: &str, key: &str, after: i64, limit: usize) -> Result<History> {
        self.in_one_moment(|c| {
            let Some(k) = find_key(c, ns, agent, key)? else { return Ok(History::default()) };
            let sql = select(
                ITEM,
                "keys k JOIN items i ON i.key_no = k.no WHERE k.no = ?1 AND i.version > ?2 \
                 ORDER BY i.version LIMIT ?3",
            );
            let items = all(c, &sql, (k.no, after, count(limit)), |r| item(r, ns, agent))?;
            Ok(History { items, oldest: k.oldest })
        })
    }

    fn state_keys(&self, scan: &Scan) -> Result<Vec<Listed>> {
        let now = select("k.key, k.version, k.commit_no, k.at", LISTED);
        let stood = select("k.key, i.version, i.commit_no, i.at, k.oldest", STOOD);
        self.scanned(scan, (&now, &stood), |r| {
            let (version, commit) = (r.get(1)?, r.get(2)?);
            Ok(Listed { key: text(r, 0)?, version, commit, at: outlast_core::words::id::Micros(r.get(3)?) })
        })
    }

    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>> {
        let (now, stood) = (select(ITEM, LIVE), select(&format!("{ITEM}, k.oldest"), STOOD));
        self.scanned(scan, (&now, &stood), |r| item(r, &scan.namespace, &scan.agent))
    }

    fn state_events(&self, range: &EventRange) -> Result<EventPage> {
        self.in_one_moment(|c| {
            let found = find_agent(c, &range.namespace, &range.agent)?;
            let Some((ns, agent)) = found else { return Ok(EventPage::default()) };
            let before = match range.from {
                None => Position(0),
                Some(Moment::Commit(n)) => bound(c, ns, At::Commit(n.saturating_sub(1)))?,
                Some(Moment::Time(t)) => {
                    bound(c, ns, At::Time(outlast_core::words::id::Micros(t.0.saturating_sub(1))))?
                }
            };
            let until = match range.to {
                None => At::Newest,
                Some(Moment::Commit(n)) => At::Commit(n),
                Some(Moment::Time(t)) => At::Time(t),
            };
            let (after, until) = (before.max(range.after), bound(c, ns, until)?);
            let sql = select(&format!("{ITEM}, c.txn"), EVENTS);
            let params = (ns, agent, after.0, until.0, count(range.limit));
            let events = all(c, &sql, params, |r| {
                let transaction = r.get::<_, Option<Vec<u8>>>(8)?.map(|_| text(r, 8)).transpose()?;
                Ok(Event { item: item(r, &range.namespace, &range.agent)?, transaction })
            })?;
            let sql = "SELECT removed_to FROM agents WHERE no = ?1";
            let removed: Option<i64> = maybe(c, sql, (agent,), |r| r.get(0))?;
            Ok(EventPage { events, compacted: removed.is_some_and(|p| p > after.0) })
        })
    }

    fn resume_point(&self, ns: &str, agent: &str, prefix: &str) -> Result<ResumePoint> {
        self.in_one_moment(|c| {
            let Some((_, agent)) = find_agent(c, ns, agent)? else {
                return Ok(ResumePoint::NONE);
            };
            if StepKey::is_stem(prefix) {
                let far = |p: Progress| -> Result<Option<(i64, String)>> {
                    maybe(c, FURTHEST, (agent, prefix.as_bytes(), p.code()), |r| Ok((r.get(0)?, text(r, 1)?)))
                };
                if let Some((done, _)) = far(Progress::Done)? {
                    let (pending, pending_key) = far(Progress::Pending)?.unzip();
                    return Ok(ResumePoint { done, pending, pending_key });
                }
                // Steps with leading zeros that an older version wrote have no stem.
            }
            let scan = Scan { prefix: prefix.into(), limit: usize::MAX, ..Scan::default() };
            let (clause, params) = bounds(&scan, agent);
            let sql = format!(
                "SELECT k.key, k.progress FROM keys k WHERE k.agent_no = ?1 AND k.progress IS NOT NULL{clause}"
            );
            let keys = all(c, &sql, params_from_iter(params), |r| Ok((text(r, 0)?, r.get::<_, i64>(1)?)))?;
            let steps = keys.iter().filter_map(|(k, p)| Some((k.as_str(), Progress::from_code(*p)?)));
            Ok(furthest(prefix, steps))
        })
    }

    fn state_position(&self) -> Result<Position> {
        self.with_reader(position)
    }

    fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let sql = "SELECT name, commit_no, at, keep, forgotten FROM namespaces WHERE name = ?1";
        self.with_reader(|c| maybe(c, sql, (name.as_bytes(),), namespace))
    }

    fn namespaces(&self, after: Option<&str>, limit: usize) -> Result<Vec<Namespace>> {
        // The empty text is a name too, so "behind none" is NULL.
        let sql = "SELECT name, commit_no, at, keep, forgotten FROM namespaces WHERE ?1 IS NULL OR name > ?1 \
                   ORDER BY name LIMIT ?2";
        self.with_reader(|c| all(c, sql, (after.map(str::as_bytes), count(limit)), namespace))
    }

    fn agents(&self, ns: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let sql = "SELECT name FROM agents WHERE namespace_no = ?1 AND (?2 IS NULL OR name > ?2) \
                   ORDER BY name LIMIT ?3";
        self.in_one_moment(|c| {
            let Some(no) = namespace_no(c, ns)? else { return Ok(Vec::new()) };
            all(c, sql, (no, after.map(str::as_bytes), count(limit)), |r| text(r, 0))
        })
    }

    fn transaction_outcome(&self, id: &str) -> Result<Option<Committed>> {
        self.with_reader(|c| outcome(c, id))
    }
}
