//! Reads committed data.

use outlast_core::{
    engine::op::{Op, Outcome},
    envelope::{
        Envelope,
        budget::{Budget, BudgetView},
        unit::MOST_PER_CALL,
    },
    events::{Event, EventQuery, Mark, delivery::Delivery},
    journal::{Entry, Role, job::ItemRow, payload::Payload},
    run::{Run, Spec, attempt::Attempt, instance::Instance, status::Status, token::TokenKey},
    store::filter::ApprovalFilter,
    store::{
        Durability, Error, INLINE_VALUE, LedgerLine, Page, RunFilter, RunView, Sought, StepRow, Store,
        Ticket, WHOLE_VALUE,
    },
    words::id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};
use rusqlite::{Connection, params_from_iter, types::Value};

use super::{
    SqliteStore, connect, failure, log, payloads,
    query::{all, many, maybe, one},
    rows::{self, select},
};
use crate::{
    gate,
    group::Hands,
    rows::Cursor,
    tables::{self, APPROVAL, CALL, DONE, ITEM, ITEM_ROW, LIVE, OPEN, STATUSES, STEP, STEP_ROW, UNKNOWN},
};

fn view(conn: &Connection, run: Run) -> Result<RunView, Error> {
    let missing = |what: &str| Error::Corrupt { what: format!("{what} of run {} is missing", run.id) };
    let envelope = one(conn, "WHERE no = ?1", (run.envelope().0,))?;
    let spec: Option<String> =
        maybe(conn, "SELECT spec FROM specs WHERE run_no = ?1", (run.no.0,), |r| r.get(0))?;
    let spec: Spec = serde_json::from_str(&spec.ok_or_else(|| missing("the spec"))?)
        .map_err(|e| Error::Corrupt { what: format!("the spec of run {}: {e}", run.id) })?;
    let envelope = envelope.ok_or_else(|| missing("the envelope"))?;
    Ok(RunView { run, spec, envelope })
}

/// Index on the newest entries of items: a page costs its own size, whatever else the journal holds.
const ITEMS: &str = "entries e INDEXED BY entries_of_items";

fn items(values: bool) -> String {
    let wanted = format!(
        "e.run_no = ?1 AND e.kind = {ITEM} AND (e.retried_by IS NULL OR e.retried_by > ?3) \
         AND e.seq > ?2 AND e.seq <= ?3 ORDER BY e.seq LIMIT ?6"
    );
    if !values {
        return tables::select(ITEM_ROW, &format!("{ITEMS} WHERE {wanted}"));
    }
    let columns = format!("{ITEM_ROW}, {}", payloads::value());
    tables::select(&columns, &format!("{ITEMS} {} WHERE {wanted}", payloads::join()))
}

fn newest(sought: &Sought<'_>) -> String {
    let done = if sought.done { format!(" AND state = {DONE}") } else { String::new() };
    let scope = if sought.scope.is_some() { " AND scope = ?5" } else { "" };
    format!(
        "INDEXED BY entries_by_key WHERE run_no = ?1 AND kind = ?2 AND key = ?3{scope}{done} AND seq <= ?4 \
         ORDER BY seq DESC LIMIT 1"
    )
}

/// Returns the query for approvals, newest first: it walks an index from its end until it has enough rows. For one run,
/// the index of its entries of a kind is smaller.
fn approvals(filter: &ApprovalFilter) -> String {
    let open = if filter.open { format!(" AND state = {OPEN}") } else { String::new() };
    let rest = match filter.run {
        Some(_) => format!(
            "INDEXED BY entries_by_key WHERE run_no = ?2 AND kind = {APPROVAL} AND key IS NOT NULL{open}"
        ),
        None => {
            let index = if filter.open { "approvals_open" } else { "approvals" };
            format!("INDEXED BY {index} WHERE kind = {APPROVAL}{open}")
        }
    };
    select::<Entry>(&format!("{rest} ORDER BY opened_at DESC, run_no DESC, seq DESC LIMIT ?1"))
}

fn steps() -> String {
    let columns = format!("{STEP_ROW}, {}", payloads::value());
    let wanted = format!("e.run_no = ?1 AND e.kind = {STEP} AND e.seq > ?2");
    let rest = format!("entries e {} WHERE {wanted} ORDER BY e.seq LIMIT ?3", payloads::join());
    tables::select(&columns, &rest)
}

impl Store for SqliteStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Writers)
    }

    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Mine)
    }

    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        match self.file.refuse_forked() {
            Ok(()) => self.writer.ahead(op),
            Err(e) => Ok(Err(e)),
        }
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        self.with_reader(|c| {
            maybe(c, "SELECT no FROM runs WHERE id = ?1", (id.as_str(),), |r| r.get(0).map(RunNo))
        })
    }

    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        self.in_one_moment(|c| one(c, "WHERE no = ?1", (no.0,))?.map(|run| view(c, run)).transpose())
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
        if filter.jobs {
            wanted.push("job IS NOT NULL".to_owned());
        }
        params.push(Value::Integer(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
        let rest = format!("WHERE {} ORDER BY no DESC LIMIT ?{}", wanted.join(" AND "), params.len());
        self.in_one_moment(|c| {
            let runs = many(c, &rest, params_from_iter(params))?;
            runs.into_iter().map(|run| view(c, run)).collect()
        })
    }

    fn statuses(&self) -> Result<Vec<(Status, i64)>, Error> {
        let rest = "runs INDEXED BY runs_by_status GROUP BY status ORDER BY status";
        self.with_reader(|c| all(c, &tables::select(STATUSES, rest), [], rows::status_count))
    }

    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error> {
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let sql = approvals(filter);
        self.with_reader(|c| match filter.run {
            Some(run) => all(c, &sql, (limit, run.0), rows::row),
            None => all(c, &sql, (limit,), rows::row),
        })
    }

    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        self.with_reader(|c| one(c, "WHERE no = ?1", (no.0,)))
    }

    fn budgets(&self) -> Result<Vec<BudgetView>, Error> {
        self.in_one_moment(|c| {
            let budgets: Vec<Budget> = many(c, "ORDER BY no", [])?;
            let view = |budget: Budget| {
                let window = budget.window.map(|w| one(c, "WHERE no = ?1", (w.envelope.0,)));
                Ok(BudgetView { envelope: window.transpose()?.flatten(), budget })
            };
            budgets.into_iter().filter(|b| !b.removed).map(view).collect()
        })
    }

    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        self.with_reader(|c| many(c, "WHERE run_no = ?1 ORDER BY no", (run.0,)))
    }

    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        self.with_reader(|c| one(c, "WHERE run_no = ?1 AND seq = ?2", (run.0, seq.0)))
    }

    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with_reader(|c| {
            many(c, "WHERE run_no = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3", (run.0, after.0, limit))
        })
    }

    fn items(&self, run: RunNo, page: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
        let (role, most) = (Role::Value.code(), WHOLE_VALUE);
        let row = if page.values { rows::result_row } else { rows::item_row };
        self.with_reader(|c| {
            all(c, &items(page.values), (run.0, page.after.0, page.upto.0, role, most, limit), row)
        })
    }

    fn steps(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with_reader(|c| {
            let params = (run.0, after.0, limit, Role::Value.code(), INLINE_VALUE);
            all(c, &steps(), params, rows::step_row)
        })
    }

    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error> {
        let (kind, upto) = (sought.kind.code(), sought.upto.0);
        self.with_reader(|c| match sought.scope {
            Some(scope) => one(c, &newest(sought), (run.0, kind, sought.key, upto, scope)),
            None => one(c, &newest(sought), (run.0, kind, sought.key, upto)),
        })
    }

    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error> {
        self.with_reader(|c| payloads::newest_request(c, run).map_err(failure))
    }

    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        self.with_reader(|c| payloads::get(c, run, seq, role).map_err(failure))
    }

    fn events(&self, wanted: &EventQuery) -> Result<Vec<Event>, Error> {
        let limit = i64::try_from(wanted.limit).unwrap_or(i64::MAX);
        let columns = "0, no, at, run_no, seq, kind, about";
        let event = |row: &rusqlite::Row<'_>| tables::event(&mut Cursor::new(row));
        self.with_reader(|c| match wanted.run {
            Some(run) => {
                let rest =
                    "events INDEXED BY events_of_runs WHERE run_no = ?3 AND no > ?1 ORDER BY no LIMIT ?2";
                all(c, &tables::select(columns, rest), (wanted.after.no, limit, run.0), event)
            }
            None => {
                let rest = "events WHERE no > ?1 ORDER BY no LIMIT ?2";
                all(c, &tables::select(columns, rest), (wanted.after.no, limit), event)
            }
        })
    }

    fn deliveries(&self) -> Result<Vec<Delivery>, Error> {
        self.with_reader(|c| all(c, "SELECT delivery FROM deliveries ORDER BY name", [], rows::json))
    }

    fn newest_event(&self) -> Result<Mark, Error> {
        let newest =
            self.with_reader(|c| maybe(c, "SELECT max(no) FROM events", [], |r| r.get::<_, Option<i64>>(0)))?;
        Ok(Mark { transaction: 0, no: newest.flatten().unwrap_or(0) })
    }

    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        self.with_reader(|c| many(c, &format!("WHERE life = {LIVE} ORDER BY no"), []))
    }

    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        self.with_reader(|c| one(c, "WHERE no = ?1", (no.0,)))
    }

    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        // Floor division, also before 1970: a wrong clock is no reason to lose a line. Older stores have calls that
        // were charged more than `MOST_PER_CALL`; their sum would overflow. Unbacked doubt as `Entry::unbacked` has it.
        let sql = format!(
            "SELECT run_no, upstream, model, (opened_at - ((opened_at % 86400000000) + 86400000000) % 86400000000) \
             / 86400000000 AS day, sum(spent_calls), sum(min(spent_tokens, {MOST_PER_CALL})), sum(min(spent_cost, {MOST_PER_CALL})), \
             sum(CASE WHEN state = {UNKNOWN} THEN min(held_cost, {MOST_PER_CALL}) ELSE 0 END), \
             sum(CASE WHEN state = {UNKNOWN} THEN max(coalesce(detail ->> '$.reserved[0]', 0) - held_cost, 0) \
             WHEN retried_by IS NOT NULL THEN coalesce(detail ->> '$.correction.unbacked_nano_usd', 0) ELSE 0 END) \
             FROM entries WHERE kind = {CALL} AND opened_at >= ?1 AND opened_at < ?2 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        );
        let line = |row: &rusqlite::Row<'_>| tables::ledger_line(&mut Cursor::new(row));
        self.with_reader(|c| all(c, &sql, (since.0, until.0), line))
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

    fn damage(&self, reindex: bool) -> Result<Vec<String>, Error> {
        // Uses its own connection, since it holds the store's lock like any other writer. Opening it checks the log.
        let inside = gate::enter();
        let of_log = match connect::writer(self.file.path(), false) {
            Err(Error::Shorter { what, .. }) => vec![what],
            opened => {
                let (_file, conn) = opened?;
                if reindex {
                    conn.execute_batch("REINDEX").map_err(failure)?;
                }
                log::fault_of_mark(&conn).into_iter().collect()
            }
        };
        drop(inside);
        self.with_reader(|c| {
            let told = all(c, "PRAGMA integrity_check(100)", [], |r| r.get::<_, String>(0))?;
            Ok(of_log.into_iter().chain(told.into_iter().filter(|line| line != "ok")).collect())
        })
    }

    fn check(&self) -> Result<(), Error> {
        self.file.check()
    }

    fn now(&self) -> Result<Micros, Error> {
        Ok(self.clock.now())
    }

    fn place(&self) -> String {
        self.file.path().display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn a_page_of_a_resume_costs_its_size_and_no_sort() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::make(&mut conn, "memory", Vec::new).unwrap();
        let check = |sql: &str, wanted: &[&str]| {
            let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nulls = vec![rusqlite::types::Null; statement.parameter_count()];
            let plan: Vec<String> = statement
                .query_map(params_from_iter(nulls), |r| r.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert_eq!(plan, wanted, "{sql}");
        };
        let newest = "SEARCH e USING INDEX entries_of_items (run_no=? AND seq>? AND seq<?)";
        let value = "SEARCH p USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN";
        let all = |open, run| approvals(&ApprovalFilter { run, open, limit: 10 });
        check(&all(true, None), &["SCAN entries USING INDEX approvals_open"]);
        check(&all(false, None), &["SCAN entries USING INDEX approvals"]);
        let of_run = "SEARCH entries USING INDEX entries_by_key (run_no=? AND kind=? AND key>?)";
        check(&all(true, Some(RunNo(1))), &[of_run, "USE TEMP B-TREE FOR ORDER BY"]);
        check(&items(false), &[newest]);
        check(&items(true), &[newest, value]);
        check(&steps(), &["SEARCH e USING INDEX sqlite_autoindex_entries_1 (run_no=? AND seq>?)", value]);
    }
}
