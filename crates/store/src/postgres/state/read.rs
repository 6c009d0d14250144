//! Reads the state. Each read is one statement, hence one snapshot and one round trip.

use bytes::Bytes;
use outlast_core::{
    engine,
    state::{
        At, Committed, Item, Listed, Namespace, Position, Progress, ResumePoint, StepKey, Value, furthest,
        prefix_end,
    },
    store::{
        Error, Which,
        state::{Event, EventPage, EventRange, History, Moment, Reads, Scan},
    },
    words::id::{AttemptNo, Micros, RunNo},
};
use tokio_postgres::Row;

use super::{Result, count, namespace, outcome, position};
use crate::postgres::{
    PostgresStore,
    link::Link,
    rows::{get, name as text},
    statement::{Param, all, maybe, param, params},
};

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

/// Columns of `Raw`, from `keys k` and `items i`.
const RAW: &str = "k.key, k.oldest, i.version, i.value, i.commit_no, i.at, i.run_no, i.attempt, i.position";

/// Columns of `Raw` with NULL for the value.
const BARE: &str =
    "k.key, k.oldest, i.version, NULL::bytea, i.commit_no, i.at, i.run_no, i.attempt, i.position";

/// Join of a namespace and an agent in it, parameters 1 and 2.
const AGENT: &str = "outlast.namespaces n JOIN outlast.agents a \
    ON a.namespace_no = n.no AND sha256(a.name) = sha256($2)";

/// Join of a key, parameter 3, to `AGENT`.
const KEY: &str = "JOIN outlast.keys k ON k.agent_no = a.no AND sha256(k.key) = sha256($3)";

const HERE: &str = "WHERE sha256(n.name) = sha256($1)";

/// Query for the agent's number. As a scalar value rather than a join, it lets the planner know that an index that
/// begins with it returns the rest in order, so that no more than a page is read.
const AGENT_NO: &str = "(SELECT a.no FROM outlast.namespaces n JOIN outlast.agents a \
    ON a.namespace_no = n.no AND sha256(a.name) = sha256($2) WHERE sha256(n.name) = sha256($1))";

/// Query for the namespace's number.
const NAMESPACE_NO: &str = "(SELECT n.no FROM outlast.namespaces n WHERE sha256(n.name) = sha256($1))";

/// Join of the version of the key that was the newest at `b.p`.
const STOOD: &str = "LEFT JOIN LATERAL (SELECT x.* FROM outlast.items x \
    WHERE x.key_no = k.no AND x.position <= b.p ORDER BY x.position DESC LIMIT 1) i ON true";

fn raw(r: &Row) -> Result<Raw> {
    let version = get::<Option<i64>>(r, 2)?.map(|version| {
        Ok::<_, Error>(RawVersion {
            version,
            stored: get::<Option<Vec<u8>>>(r, 3)?.map(Bytes::from),
            commit: get(r, 4)?,
            at: Micros(get(r, 5)?),
            run: get::<Option<i64>>(r, 6)?.map(RunNo),
            attempt: get::<Option<i64>>(r, 7)?.map(AttemptNo),
            position: Position(get(r, 8)?),
        })
    });
    Ok(Raw { key: text(r, 0)?, oldest: get(r, 1)?, version: version.transpose()? })
}

impl Raw {
    /// Returns the key and its version. Errors: `Compacted` if that version was removed.
    fn kept(self) -> Result<(String, RawVersion)> {
        let (key, oldest) = (self.key, self.oldest);
        match self.version {
            Some(v) => Ok((key, v)),
            None => Err(engine::Error::Compacted { key, oldest }.into()),
        }
    }

    /// Decodes the item. Called on the caller's thread, as all callers share the readers' thread.
    fn item(self, namespace: &str, agent: &str) -> Result<Item> {
        let (key, v) = self.kept()?;
        let damaged = |e| Error::Corrupt { what: format!("version {} of key {key:?}: {e}", v.version) };
        let value = v.stored.map(Value::decode).transpose().map_err(damaged)?;
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

/// Returns the SQL for the last position that counts at `at`, and the value of its parameter `$n`.
fn bound(at: At, n: usize) -> (String, i64) {
    let last = |column: &str| {
        format!(
            "coalesce((SELECT c.position FROM outlast.commits c WHERE c.namespace_no = {NAMESPACE_NO} \
             AND c.{column} <= ${n} ORDER BY c.{column} DESC, c.commit_no DESC LIMIT 1), 0)"
        )
    };
    match at {
        At::Newest => (format!("${n}::bigint"), i64::MAX),
        At::Position(p) => (format!("${n}::bigint"), p.0),
        At::Commit(number) => (last("commit_no"), number),
        At::Time(t) => (last("at"), t.0),
    }
}

/// Returns the SQL for the bounds and order of a scan's keys, with the parameters 3 (low), 4 (end) and 5 (limit).
fn keys_of(scan: &Scan) -> (String, Vec<u8>, Option<Vec<u8>>) {
    let prefix = scan.prefix.as_bytes();
    let behind = scan.after.as_ref().map(String::as_bytes).filter(|after| *after >= prefix);
    let (low, is) = match behind {
        Some(after) => (after, ">"),
        None => (prefix, ">="),
    };
    let end = prefix_end(prefix);
    // The index covers only the first bytes: they bound the scan, and the whole key decides.
    let high = match end {
        Some(_) => {
            "AND substring(k.key from 1 for 512) <= substring($4::bytea from 1 for 512) AND k.key < $4"
        }
        None => "AND $4::bytea IS NULL",
    };
    let sql = format!(
        "AND substring(k.key from 1 for 512) >= substring($3::bytea from 1 for 512) AND k.key {is} $3 {high} \
         ORDER BY substring(k.key from 1 for 512), k.key LIMIT $5"
    );
    (sql, low.to_vec(), end)
}

impl PostgresStore {
    /// Returns at most one version of a key. The caller's SQL defines `b.p`, `$4` and the join of `i`.
    fn one_version(
        &self,
        names: [&str; 3],
        columns: &'static str,
        rest: String,
        value: Option<i64>,
    ) -> Result<Option<Item>> {
        let [namespace, agent, key] = names.map(str::to_owned);
        let found = self.readers.run(async move |c: &Link| {
            let sql = format!("SELECT {columns} FROM {AGENT} {KEY} {rest}");
            let names = [namespace.as_bytes(), agent.as_bytes(), key.as_bytes()];
            let mut params: Vec<Param<'_>> = names.iter().map(param).collect();
            params.extend(value.as_ref().map(param));
            maybe(c, &sql, &params, raw).await
        })?;
        found.map(|raw| raw.item(names[0], names[1])).transpose()
    }

    fn scanned(&self, scan: &Scan, columns: &'static str) -> Result<Vec<Raw>> {
        let scan = scan.clone();
        self.readers.run(async move |c: &Link| {
            let (keys, low, end) = keys_of(&scan);
            let (namespace, agent) = (scan.namespace.as_bytes(), scan.agent.as_bytes());
            let (low, end, limit) = (low.as_slice(), end.as_deref(), count(scan.limit));
            let (bound, value) = bound(scan.at, 6);
            if scan.at == At::Newest {
                // Selects the page of keys first, then their versions.
                let sql = format!(
                    "SELECT {columns} FROM (SELECT k.* FROM outlast.keys k WHERE k.agent_no = {AGENT_NO} \
                     AND k.live {keys}) k JOIN outlast.items i ON i.position = k.position ORDER BY k.key"
                );
                return all(c, &sql, params![namespace, agent, low, end, limit], raw).await;
            }
            let sql = format!(
                "SELECT {columns} FROM outlast.keys k CROSS JOIN (SELECT {bound} AS p) b {STOOD} \
                 WHERE k.agent_no = {AGENT_NO} AND k.first <= b.p \
                 AND (i.version IS NULL OR i.value IS NOT NULL) {keys}"
            );
            all(c, &sql, params![namespace, agent, low, end, limit, value], raw).await
        })
    }
}

impl Reads for PostgresStore {
    fn state(&self, ns: &str, agent: &str, key: &str) -> Result<Option<Item>> {
        let rest = format!("JOIN outlast.items i ON i.position = k.position {HERE}");
        self.one_version([ns, agent, key], RAW, rest, None)
    }

    fn state_at(&self, ns: &str, agent: &str, key: &str, which: Which) -> Result<Option<Item>> {
        let (rest, value) = match which {
            Which::Version(version) => {
                let versions = "LEFT JOIN outlast.items i ON i.key_no = k.no AND i.version = $4";
                (format!("{versions} {HERE} AND $4 BETWEEN 1 AND k.version"), version)
            }
            Which::At(at) => {
                let (bound, value) = bound(at, 4);
                let then = format!("CROSS JOIN LATERAL (SELECT {bound} AS p) b {STOOD}");
                (format!("{then} {HERE} AND k.first <= b.p"), value)
            }
        };
        self.one_version([ns, agent, key], RAW, rest, Some(value))
    }

    fn state_history(&self, ns: &str, agent: &str, key: &str, after: i64, limit: usize) -> Result<History> {
        let names = [ns, agent, key].map(str::to_owned);
        let rows = self.readers.run(async move |c: &Link| {
            let sql = format!(
                "SELECT {RAW} FROM {AGENT} {KEY} LEFT JOIN LATERAL (SELECT x.* FROM outlast.items x \
                 WHERE x.key_no = k.no AND x.version > $4 ORDER BY x.version LIMIT $5) i ON true \
                 {HERE} ORDER BY i.version"
            );
            let [namespace, agent, key] = [&names[0], &names[1], &names[2]].map(|n| n.as_bytes());
            all(c, &sql, params![namespace, agent, key, after, count(limit)], raw).await
        })?;
        let oldest = rows.first().map_or(0, |r| r.oldest);
        let versions = rows.into_iter().filter(|r| r.version.is_some());
        let items = versions.map(|r| r.item(ns, agent)).collect::<Result<_>>()?;
        Ok(History { items, oldest })
    }

    fn state_keys(&self, scan: &Scan) -> Result<Vec<Listed>> {
        let listed = |raw: Raw| {
            let (key, v) = raw.kept()?;
            Ok(Listed { key, version: v.version, commit: v.commit, at: v.at })
        };
        self.scanned(scan, BARE)?.into_iter().map(listed).collect()
    }

    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>> {
        let rows = self.scanned(scan, RAW)?;
        rows.into_iter().map(|raw| raw.item(&scan.namespace, &scan.agent)).collect()
    }

    fn state_events(&self, range: &EventRange) -> Result<EventPage> {
        let asked = range.clone();
        let rows = self.readers.run(async move |c: &Link| {
            let before = match asked.from {
                None => At::Position(Position(0)),
                Some(Moment::Commit(n)) => At::Commit(n.saturating_sub(1)),
                Some(Moment::Time(t)) => At::Time(Micros(t.0.saturating_sub(1))),
            };
            let until = match asked.to {
                None => At::Newest,
                Some(Moment::Commit(n)) => At::Commit(n),
                Some(Moment::Time(t)) => At::Time(t),
            };
            let ((low, low_value), (high, high_value)) = (bound(before, 5), bound(until, 6));
            // Compared as pairs, so that only the agent's own index applies: the index on the order of all writes
            // would scan those of other agents.
            let sql = format!(
                "SELECT {RAW}, c.txn, a.removed_to > b.low FROM {AGENT} \
                 CROSS JOIN (SELECT greatest({low}, $3::bigint) AS low) b \
                 LEFT JOIN (SELECT x.* FROM outlast.items x \
                 WHERE (x.agent_no, x.position) > ({AGENT_NO}, greatest({low}, $3::bigint)) \
                 AND (x.agent_no, x.position) <= ({AGENT_NO}, {high}) \
                 ORDER BY x.agent_no, x.position LIMIT $4) i ON true \
                 LEFT JOIN outlast.keys k ON k.no = i.key_no \
                 LEFT JOIN outlast.commits c ON c.namespace_no = k.namespace_no AND c.commit_no = i.commit_no \
                 {HERE} ORDER BY i.position"
            );
            let (namespace, agent) = (asked.namespace.as_bytes(), asked.agent.as_bytes());
            let (after, limit) = (asked.after.0, count(asked.limit));
            let params = params![namespace, agent, after, limit, low_value, high_value];
            all(c, &sql, params, |r| {
                // A single row without a version only says whether compaction removed events.
                let event = match get::<Option<i64>>(r, 2)? {
                    None => None,
                    Some(_) => {
                        let id = get::<Option<&[u8]>>(r, 9)?.map(|_| text(r, 9)).transpose()?;
                        Some((raw(r)?, id))
                    }
                };
                Ok((event, get::<bool>(r, 10)?))
            })
            .await
        })?;
        let compacted = rows.first().is_some_and(|r| r.1);
        let event = |(raw, transaction): (Raw, Option<String>)| {
            Ok(Event { item: raw.item(&range.namespace, &range.agent)?, transaction })
        };
        let events = rows.into_iter().filter_map(|r| r.0).map(event).collect::<Result<_>>()?;
        Ok(EventPage { events, compacted })
    }

    fn resume_point(&self, ns: &str, agent: &str, prefix: &str) -> Result<ResumePoint> {
        let [ns, agent, prefix] = [ns, agent, prefix].map(str::to_owned);
        self.readers.run(async move |c: &Link| {
            let (ns, agent) = (ns.as_bytes(), agent.as_bytes());
            if StepKey::is_stem(&prefix) {
                let far = |p: Progress| {
                    format!(
                        "LEFT JOIN LATERAL (SELECT k.n, k.key FROM outlast.keys k WHERE k.agent_no = a.no \
                         AND k.stem IS NOT NULL AND sha256(k.stem) = sha256($3) AND k.progress = {} \
                         ORDER BY k.n DESC LIMIT 1)",
                        p.code()
                    )
                };
                let sql = format!(
                    "SELECT d.n, p.n, p.key FROM {AGENT} {} d ON true {} p ON true {HERE}",
                    far(Progress::Done),
                    far(Progress::Pending)
                );
                let stem = prefix.as_bytes();
                let found = maybe(c, &sql, params![ns, agent, stem], |r| {
                    let pending = get::<Option<i64>>(r, 1)?;
                    let pending_key = pending.map(|_| text(r, 2)).transpose()?;
                    Ok((get::<Option<i64>>(r, 0)?, pending, pending_key))
                })
                .await?;
                match found {
                    None => return Ok(ResumePoint::NONE),
                    Some((Some(done), pending, pending_key)) => {
                        return Ok(ResumePoint { done, pending, pending_key });
                    }
                    // Steps with leading zeros that an older version wrote have no stem.
                    Some((None, ..)) => {}
                }
            }
            let scan = Scan { prefix: prefix.clone(), limit: usize::MAX, ..Scan::default() };
            let (keys, low, end) = keys_of(&scan);
            let sql = format!(
                "SELECT k.key, k.progress FROM outlast.keys k WHERE k.agent_no = {AGENT_NO} \
                 AND k.progress IS NOT NULL {keys}"
            );
            let (low, end, limit) = (low.as_slice(), end.as_deref(), i64::MAX);
            let params = params![ns, agent, low, end, limit];
            let steps = all(c, &sql, params, |r| Ok((text(r, 0)?, get::<i64>(r, 1)?))).await?;
            let steps = steps.iter().filter_map(|(k, p)| Some((k.as_str(), Progress::from_code(*p)?)));
            Ok(furthest(&prefix, steps))
        })
    }

    fn state_position(&self) -> Result<Position> {
        self.readers.run(async move |c: &Link| position(c).await)
    }

    fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let name = name.to_owned();
        self.readers.run(async move |c: &Link| {
            let sql =
                "SELECT name, commit_no, at, keep, forgotten FROM outlast.namespaces WHERE sha256(name) = sha256($1)";
            maybe(c, sql, params![name.as_bytes()], namespace).await
        })
    }

    fn namespaces(&self, after: Option<&str>, limit: usize) -> Result<Vec<Namespace>> {
        let after = after.map(str::to_owned);
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT name, commit_no, at, keep, forgotten FROM outlast.namespaces WHERE $1::bytea IS NULL \
                       OR (substring(name from 1 for 512) >= substring($1 from 1 for 512) AND name > $1) \
                       ORDER BY substring(name from 1 for 512), name LIMIT $2";
            let after = after.as_deref().map(str::as_bytes);
            all(c, sql, params![after, count(limit)], namespace).await
        })
    }

    fn agents(&self, ns: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let (ns, after) = (ns.to_owned(), after.map(str::to_owned));
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT a.name FROM outlast.namespaces n JOIN outlast.agents a ON a.namespace_no = n.no \
                       WHERE sha256(n.name) = sha256($1) AND ($2::bytea IS NULL OR \
                       (substring(a.name from 1 for 512) >= substring($2 from 1 for 512) AND a.name > $2)) \
                       ORDER BY substring(a.name from 1 for 512), a.name LIMIT $3";
            let after = after.as_deref().map(str::as_bytes);
            all(c, sql, params![ns.as_bytes(), after, count(limit)], |r| text(r, 0)).await
        })
    }

    fn transaction_outcome(&self, id: &str) -> Result<Option<Committed>> {
        let id = id.to_owned();
        self.readers.run(async move |c: &Link| outcome(c, &id).await)
    }
}
