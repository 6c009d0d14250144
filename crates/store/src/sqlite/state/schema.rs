//! Tables of the state, and the queries whose cost depends on an index.

// A namespace, an agent and a key are stored once, under a number; versions refer to the key's number. Names are
// blobs, compared by their UTF-8 bytes, NUL included. `position` is the order of all writes; every index on `items`
// ends in it, as it is the table's key. `keys` holds the newest version of each key, so that listing reads no
// versions. Its `replaced` says that older versions exist, so that most new versions change no index of `keys`. Its
// `stem` and `n` are set while the value records a step's progress.
pub const TABLES: &str = "
CREATE TABLE namespaces (
    no INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, commit_no INTEGER NOT NULL, at INTEGER NOT NULL,
    keep INTEGER, forgotten INTEGER NOT NULL);

CREATE TABLE agents (
    no INTEGER PRIMARY KEY, namespace_no INTEGER NOT NULL, name BLOB NOT NULL, removed_to INTEGER NOT NULL,
    UNIQUE (namespace_no, name));

CREATE TABLE keys (
    no INTEGER PRIMARY KEY, namespace_no INTEGER NOT NULL, agent_no INTEGER NOT NULL, key BLOB NOT NULL,
    version INTEGER NOT NULL, live INTEGER NOT NULL, replaced INTEGER NOT NULL, position INTEGER NOT NULL, commit_no INTEGER NOT NULL,
    at INTEGER NOT NULL, first INTEGER NOT NULL, oldest INTEGER NOT NULL, progress INTEGER, stem BLOB, n INTEGER,
    UNIQUE (agent_no, key));
CREATE INDEX keys_live ON keys (agent_no, key) WHERE live = 1;
CREATE INDEX keys_steps ON keys (agent_no, stem, progress, n) WHERE stem IS NOT NULL;
CREATE INDEX keys_with_history ON keys (namespace_no, no) WHERE replaced = 1;

CREATE TABLE items (
    position INTEGER PRIMARY KEY, agent_no INTEGER NOT NULL, key_no INTEGER NOT NULL, version INTEGER NOT NULL,
    commit_no INTEGER NOT NULL, at INTEGER NOT NULL, run_no INTEGER, attempt INTEGER, value BLOB);
CREATE UNIQUE INDEX items_by_version ON items (key_no, version);
CREATE INDEX items_by_key ON items (key_no);
CREATE INDEX items_by_agent ON items (agent_no);

CREATE TABLE commits (
    namespace_no INTEGER NOT NULL, commit_no INTEGER NOT NULL, at INTEGER NOT NULL, position INTEGER NOT NULL,
    txn BLOB, PRIMARY KEY (namespace_no, commit_no)) WITHOUT ROWID;
CREATE INDEX commits_by_time ON commits (namespace_no, at, commit_no);
CREATE INDEX commits_by_transaction ON commits (txn) WHERE txn IS NOT NULL;
";

/// Query for a namespace, and the commit ?2 places behind the first whose transaction id is kept.
pub const HEAD: &str = "SELECT n.name, n.commit_no, n.at, n.keep, n.forgotten, c.commit_no, c.at \
    FROM namespaces n LEFT JOIN commits c ON c.namespace_no = n.no AND c.commit_no = \
    (SELECT o.commit_no FROM commits o WHERE o.namespace_no = n.no AND o.commit_no > n.forgotten \
     ORDER BY o.commit_no LIMIT 1 OFFSET ?2) WHERE n.name = ?1";

pub const BY_TRANSACTION: &str =
    "SELECT commit_no, at FROM commits INDEXED BY commits_by_transaction WHERE txn = ?1 LIMIT 1";

pub const COMPACTABLE: &str = "SELECT no, oldest, version, \
    (SELECT i.version FROM items i INDEXED BY items_by_key WHERE i.key_no = k.no AND i.position <= ?3 \
     ORDER BY i.position DESC LIMIT 1) \
    FROM keys k INDEXED BY keys_with_history WHERE namespace_no = ?1 AND replaced = 1 AND no > ?2 \
    ORDER BY no LIMIT ?4";

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    #[test]
    fn no_query_of_the_state_walks_more_than_it_returns() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        let check = |sql: &str, wanted: &[&str]| {
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
        check(HEAD, &["PRIMARY KEY (namespace_no=? AND commit_no>?)"]);
        check(BY_TRANSACTION, &["commits_by_transaction (txn=?)"]);
        check(COMPACTABLE, &["keys_with_history (namespace_no=? AND no>?)"]);
        check("SELECT max(position) FROM items", &[]);
    }
}
