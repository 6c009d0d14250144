//! Stored bytes, found by the row id of their entry. A short value is kept in its entry's own row.

use outlast_core::{
    engine::loaded::NewPayload,
    journal::{Payload, Role},
    store::INLINE_VALUE,
    words::{RunNo, Seq},
};
use rusqlite::{Connection, OptionalExtension as _, Result, params};

use super::rows;
use crate::{
    rows::Cursor,
    tables::{self, PAYLOAD},
};

/// Bits of an id for the part number: 8,192 parts of 1 MiB.
const PART_BITS: u32 = 13;
/// Bits of an id for the role.
const ROLE_BITS: u32 = 3;

/// Largest value, in stored bytes, that is kept in its entry's row. That saves the commit of a step's result one page.
/// Longer values would spread out rows that are read together.
const SHORT: usize = 2048;
// A read that asks for values of up to `INLINE_VALUE` bytes then gets all short values.
const _: () = assert!(SHORT as i64 <= INLINE_VALUE);

const ENTRY_ID: &str = "SELECT id FROM entries WHERE run_no = ?1 AND seq = ?2";

/// Returns the id for one owner, role and part. `owner` is the row id of an entry; a negative one stands for a run.
fn id(owner: i64, role: Role, part: u32) -> i64 {
    (((owner << ROLE_BITS) | role.code()) << PART_BITS) | i64::from(part)
}

/// Returns the SQL that joins the payload `p` to its entry `e`: see `Dialect::value_join`. Longer blobs are not read: the
/// length is in the header of the row.
pub fn join(role: usize, most: usize) -> String {
    format!(
        "LEFT JOIN payloads p ON e.value IS NULL AND p.id = ((e.id << {ROLE_BITS}) | ?{role}) << {PART_BITS} \
         AND length(p.bytes) <= ?{most}"
    )
}

/// Returns whether the payload is kept in its entry's row.
pub fn is_short_value(p: &NewPayload) -> bool {
    p.role == Role::Value && p.seq != Seq(0) && p.payload.part == 0 && p.payload.bytes.len() <= SHORT
}

/// Returns the owner of the bytes of (run, seq). Seq 0 means the run itself, for its standard input.
fn owner(conn: &Connection, run: RunNo, seq: Seq) -> Result<Option<i64>> {
    match seq {
        Seq(0) => Ok(Some(-run.0)),
        seq => conn.prepare_cached(ENTRY_ID)?.query_row((run.0, seq.0), |r| r.get(0)).optional(),
    }
}

/// Inserts a payload, or replaces a part that a dead process left behind.
pub fn put(conn: &Connection, p: &NewPayload) -> Result<()> {
    let owner = owner(conn, p.run, p.seq)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    put_of(conn, owner, p)
}

/// Does the same as `put` when the row id of the entry is known.
pub fn put_of(conn: &Connection, owner: i64, p: &NewPayload) -> Result<()> {
    if is_short_value(p) {
        let mut statement = conn.prepare_cached("UPDATE entries SET value = ?2 WHERE id = ?1")?;
        return statement.execute((owner, p.payload.to_bytes())).map(drop);
    }
    if p.role == Role::Value && p.payload.part == 0 {
        let mut statement =
            conn.prepare_cached("UPDATE entries SET value = NULL WHERE id = ?1 AND value IS NOT NULL")?;
        statement.execute((owner,))?;
    }
    let mut statement = conn.prepare_cached(&format!(
        "INSERT OR REPLACE INTO payloads (id, {PAYLOAD}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
    ))?;
    statement
        .execute(params![
            id(owner, p.role, p.payload.part),
            p.payload.codec as u8,
            p.payload.key_id,
            p.payload.len as i64,
            &p.payload.sha256[..],
            &p.payload.bytes[..]
        ])
        .map(drop)
}

/// Returns the payload of entry `seq` in one role, with all parts joined; `None` if there is none.
pub fn get(conn: &Connection, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>> {
    let Some(owner) = owner(conn, run, seq)? else { return Ok(None) };
    if role == Role::Value && seq != Seq(0) {
        let mut statement = conn.prepare_cached("SELECT value FROM entries WHERE id = ?1")?;
        if let Some(value) =
            statement.query_row((owner,), |row| tables::short_value(&mut Cursor::new(row)))?
        {
            return Ok(Some(value));
        }
    }
    let sql = format!("SELECT {PAYLOAD} FROM payloads WHERE id BETWEEN ?1 AND ?2 ORDER BY id");
    let mut statement = conn.prepare_cached(&sql)?;
    let range = (id(owner, role, 0), id(owner, role, (1 << PART_BITS) - 1));
    let parts = statement.query_map(range, rows::record)?.collect::<Result<_>>()?;
    Ok(Payload::join(parts))
}

/// Deletes all payloads of a run and of its entries.
pub fn forget(conn: &Connection, run: RunNo) -> Result<()> {
    let mut of = conn.prepare_cached("DELETE FROM payloads WHERE id BETWEEN ?1 AND ?2")?;
    let mut all = |owner: i64| {
        let last = (1 << (ROLE_BITS + PART_BITS)) - 1;
        let first = owner << (ROLE_BITS + PART_BITS);
        of.execute((first, first + last)).map(drop)
    };
    all(-run.0)?;
    let mut entries = conn.prepare_cached("SELECT id FROM entries WHERE run_no = ?1")?;
    let ids: Vec<i64> = entries.query_map((run.0,), |r| r.get(0))?.collect::<Result<_>>()?;
    ids.into_iter().try_for_each(all)
}

/// Returns the newest entry whose request body is stored among the run's last 256 entries; `None` if there is none.
pub fn newest_request(conn: &Connection, run: RunNo) -> Result<Option<Seq>> {
    let sql = "SELECT e.seq FROM (SELECT id, seq FROM entries WHERE run_no = ?1 ORDER BY seq DESC LIMIT 256) e \
               WHERE EXISTS (SELECT 1 FROM payloads WHERE id = ((e.id << ?2) | ?3) << ?4) \
               ORDER BY e.seq DESC LIMIT 1";
    let role = Role::Request.code();
    conn.prepare_cached(sql)?.query_row((run.0, ROLE_BITS, role, PART_BITS), |r| r.get(0).map(Seq)).optional()
}

#[cfg(test)]
mod tests {
    use super::{super::schema, *};

    #[test]
    fn ids_of_owners_roles_and_parts_never_meet() {
        let mut seen = std::collections::BTreeSet::new();
        for owner in [i64::MIN >> 17, -2, -1, 1, 2, i64::MAX >> 17] {
            for role in [Role::Request, Role::Answer, Role::Value, Role::Stdin, Role::About] {
                for part in [0, 1, (1 << PART_BITS) - 1] {
                    assert!(seen.insert(id(owner, role, part)), "{owner} {role:?} {part}");
                }
            }
        }
    }

    /// Returns a payload of `stored` bytes.
    fn of(role: Role, stored: usize) -> NewPayload {
        let bytes = vec![7; stored];
        let mut payload = Payload::encode(&[]);
        payload.bytes = bytes.into();
        NewPayload { run: RunNo(1), seq: Seq(1), role, payload }
    }

    fn beside(conn: &Connection) -> i64 {
        conn.query_row("SELECT count(*) FROM payloads", [], |r| r.get(0)).unwrap()
    }

    #[test]
    fn a_short_value_stands_in_its_entrys_row_and_what_is_put_last_counts() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::make(&mut conn, "memory", Vec::new).unwrap();
        let columns = "run_no, seq, kind, state, attempt, scope, opened_at, held_cost, held_tokens, held_calls, \
                       spent_cost, spent_tokens, spent_calls, delivered_count, replayable";
        conn.execute(&format!("INSERT INTO entries ({columns}) VALUES (1, 1{})", ", 0".repeat(13)), [])
            .unwrap();
        let check = |role, stored: usize, wants_beside: i64| {
            put(&conn, &of(role, stored)).unwrap();
            let got = get(&conn, RunNo(1), Seq(1), role).unwrap().unwrap();
            assert_eq!(got, of(role, stored).payload, "{role:?} of {stored}");
            assert_eq!(beside(&conn), wants_beside, "{role:?} of {stored}");
        };
        check(Role::Value, 0, 0);
        check(Role::Value, SHORT, 0);
        check(Role::Value, SHORT + 1, 1);
        check(Role::Value, 9, 1);
        check(Role::Value, SHORT + 2, 1);
        check(Role::Answer, 5, 2);
        assert_eq!(get(&conn, RunNo(1), Seq(1), Role::Request).unwrap(), None);
        forget(&conn, RunNo(1)).unwrap();
        assert_eq!(beside(&conn), 0);
    }
}
