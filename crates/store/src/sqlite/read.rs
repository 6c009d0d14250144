//! Reading what is committed.

use outlast_core::{
    attempt::Attempt,
    envelope::Envelope,
    id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
    instance::Instance,
    journal::{Entry, Kind, Role},
    op::{Durability, Op},
    payload::Payload,
    run::{Run, Spec},
    store::{Error, LedgerLine, RunFilter, RunView, Store, Ticket},
    token::TokenKey,
};
use rusqlite::{Connection, OptionalExtension as _, Params, params_from_iter, types::Value};

use super::{SqliteStore, failure, rows};
use crate::columns::select;

fn maybe<T, P: Params>(
    conn: &Connection,
    sql: &str,
    params: P,
    map: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Error> {
    conn.prepare_cached(sql).and_then(|mut s| s.query_row(params, map).optional()).map_err(failure)
}

fn all<T, P: Params>(
    conn: &Connection,
    sql: &str,
    params: P,
    map: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, Error> {
    let mut statement = conn.prepare_cached(sql).map_err(failure)?;
    let rows = statement.query_map(params, map).map_err(failure)?;
    rows.collect::<rusqlite::Result<_>>().map_err(failure)
}

fn view(conn: &Connection, run: Run) -> Result<RunView, Error> {
    let missing = |what: &str| Error::Corrupt { what: format!("{what} of run {} is missing", run.id) };
    let sql = select(rows::ENVELOPE, "envelopes WHERE no = ?1");
    let envelope = maybe(conn, &sql, (run.envelope().0,), rows::envelope)?;
    let spec: Option<String> =
        maybe(conn, "SELECT spec FROM specs WHERE run_no = ?1", (run.no.0,), |r| r.get(0))?;
    let spec: Spec = serde_json::from_str(&spec.ok_or_else(|| missing("the spec"))?)
        .map_err(|e| Error::Corrupt { what: format!("the spec of run {}: {e}", run.id) })?;
    let envelope = envelope.ok_or_else(|| missing("the envelope"))?;
    Ok(RunView { run, spec, envelope })
}

impl Store for SqliteStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability)
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        self.with_reader(|c| {
            maybe(c, "SELECT no FROM runs WHERE id = ?1", (id.as_str(),), |r| r.get(0).map(RunNo))
        })
    }

    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        self.with_reader(|c| {
            let sql = select(rows::RUN, "runs WHERE no = ?1");
            maybe(c, &sql, (no.0,), rows::run)?.map(|run| view(c, run)).transpose()
        })
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error> {
        let mut wanted = vec!["1 = 1".to_owned()];
        let mut params: Vec<Value> = Vec::new();
        let mut put = |clause: &str, value: Value| {
            params.push(value);
            wanted.push(format!("{clause} ?{}", params.len()));
        };
        if let Some(status) = filter.status {
            put("status =", Value::Integer(status as i64));
        }
        if let Some(key) = &filter.command_key {
            put("command_key =", Value::Text(key.clone()));
        }
        if let Some(before) = filter.before {
            put("no <", Value::Integer(before.0));
        }
        params.push(Value::Integer(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
        let rest = format!("runs WHERE {} ORDER BY no DESC LIMIT ?{}", wanted.join(" AND "), params.len());
        self.with_reader(|c| {
            let runs = all(c, &select(rows::RUN, &rest), params_from_iter(params), rows::run)?;
            runs.into_iter().map(|run| view(c, run)).collect()
        })
    }

    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        self.with_reader(|c| {
            maybe(c, &select(rows::ENVELOPE, "envelopes WHERE no = ?1"), (no.0,), rows::envelope)
        })
    }

    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        self.with_reader(|c| {
            let sql = select(rows::ATTEMPT, "attempts WHERE run_no = ?1 ORDER BY no");
            all(c, &sql, (run.0,), rows::attempt)
        })
    }

    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        self.with_reader(|c| {
            let sql = select(rows::ENTRY, "entries WHERE run_no = ?1 AND seq = ?2");
            maybe(c, &sql, (run.0, seq.0), rows::entry)
        })
    }

    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with_reader(|c| {
            let sql = select(rows::ENTRY, "entries WHERE run_no = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3");
            all(c, &sql, (run.0, after.0, limit), rows::entry)
        })
    }

    fn newest(&self, run: RunNo, kind: Kind, key: &str) -> Result<Option<Entry>, Error> {
        self.with_reader(|c| {
            let sql = select(
                rows::ENTRY,
                "entries INDEXED BY entries_by_key WHERE run_no = ?1 AND kind = ?2 AND key = ?3 AND state = 1 \
                 ORDER BY seq DESC LIMIT 1",
            );
            maybe(c, &sql, (run.0, kind.code(), key), rows::entry)
        })
    }

    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error> {
        self.with_reader(|c| {
            let sql = "SELECT seq FROM (SELECT seq, role FROM payloads WHERE run_no = ?1 ORDER BY seq DESC LIMIT 64) \
                       WHERE role = ?2 ORDER BY seq DESC LIMIT 1";
            maybe(c, sql, (run.0, Role::Request.code()), |r| r.get(0).map(Seq))
        })
    }

    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Vec<Payload>, Error> {
        self.with_reader(|c| {
            let sql =
                select(rows::PAYLOAD, "payloads WHERE run_no = ?1 AND seq = ?2 AND role = ?3 ORDER BY part");
            all(c, &sql, (run.0, seq.0, role.code()), rows::payload)
        })
    }

    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        self.with_reader(|c| {
            all(c, &select(rows::INSTANCE, "instances WHERE life = 0 ORDER BY no"), [], rows::instance)
        })
    }

    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        self.with_reader(|c| {
            maybe(c, &select(rows::INSTANCE, "instances WHERE no = ?1"), (no.0,), rows::instance)
        })
    }

    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        // Floor division, also before 1970: a clock that was wrong is no reason to lose a line.
        let sql = "SELECT run_no, model, (opened_at - ((opened_at % 86400000000) + 86400000000) % 86400000000) \
                   / 86400000000 AS day, sum(spent_calls), sum(spent_tokens), sum(spent_cost), \
                   sum(CASE WHEN state = 4 THEN held_cost ELSE 0 END) FROM entries \
                   WHERE kind = 0 AND opened_at >= ?1 AND opened_at < ?2 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
        self.with_reader(|c| {
            all(c, sql, (since.0, until.0), |r| {
                Ok(LedgerLine {
                    run: RunNo(r.get(0)?),
                    model: r.get(1)?,
                    day: r.get(2)?,
                    calls: r.get(3)?,
                    tokens: r.get(4)?,
                    spent_nano_usd: r.get(5)?,
                    doubt_nano_usd: r.get(6)?,
                })
            })
        })
    }

    fn token_keys(&self) -> Result<Vec<TokenKey>, Error> {
        self.with_reader(|c| {
            let sql = "SELECT key, value FROM meta WHERE key LIKE 'token_key_%' ORDER BY length(key) DESC, key DESC";
            let rows = all(c, sql, [], |r| Ok((r.get::<_, String>(0)?, r.get::<_, Vec<u8>>(1)?)))?;
            let bad = || Error::Corrupt { what: "a token key is not 32 bytes".into() };
            rows.into_iter()
                .map(|(name, value)| {
                    let id = name.trim_start_matches("token_key_").parse().map_err(|_| bad())?;
                    Ok(TokenKey { id, secret: value.try_into().map_err(|_| bad())? })
                })
                .collect()
        })
    }

    fn now(&self) -> Result<Micros, Error> {
        Ok(self.clock.now())
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}
