//! Reads committed data.

use std::{collections::HashMap, sync::PoisonError};

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
        Durability, Error, Hint, INLINE_VALUE, LedgerLine, Losses, Page, RunFilter, RunView, Sought, StepRow,
        Store, Ticket, WHOLE_VALUE,
    },
    words::id::{EnvelopeNo, InstanceNo, Micros, RunId, RunNo, Seq},
};
use tokio_postgres::Row;

use super::{
    PostgresStore,
    link::Link,
    rows,
    statement::{Param, all, many, maybe, one, page, param, params},
    time::NOW,
};
use crate::{
    group::Hands,
    rows::Cursor,
    tables::{
        self, APPROVAL, CALL, DONE, ITEM, ITEM_ROW, LIVE, OPEN, PAYLOAD, STATUSES, STEP, STEP_ROW, UNKNOWN,
        VALUE, select,
    },
};

/// Returns the runs with their specs and envelopes, in the given order.
async fn views(client: &Link, runs: Vec<Run>) -> Result<Vec<RunView>, Error> {
    let numbers: Vec<i64> = runs.iter().map(|r| r.no.0).collect();
    let own: Vec<i64> = runs.iter().map(|r| r.envelope().0).collect();
    let sql = "SELECT run_no, spec FROM outlast.specs WHERE run_no = ANY ($1)";
    let spec = |row: &Row| Ok((rows::get::<i64>(row, 0)?, rows::json::<Spec>(row, 1)?));
    let mut specs: HashMap<_, _> = all(client, sql, params![numbers], spec).await?.into_iter().collect();
    let envelopes: Vec<Envelope> = many(client, "WHERE no = ANY ($1)", params![own]).await?;
    let mut envelopes: HashMap<_, _> = envelopes.into_iter().map(|e| (e.no, e)).collect();
    let view = |run: Run| {
        let missing = |what: &str| Error::Corrupt { what: format!("{what} of run {} is missing", run.id) };
        let spec = specs.remove(&run.no.0).ok_or_else(|| missing("the spec"))?;
        let envelope = envelopes.remove(&run.envelope()).ok_or_else(|| missing("the envelope"))?;
        Ok(RunView { run, spec, envelope })
    };
    runs.into_iter().map(view).collect()
}

/// Join of an entry's value, if it is one part of at most $5 stored bytes in role $4.
///
/// The LIMIT has each looked up by its whole key, also while the planner believes that a run has few payloads: it would
/// read all of them for each entry.
const VALUES: &str = "LEFT JOIN LATERAL (SELECT * FROM outlast.payloads WHERE run_no = e.run_no AND seq = e.seq \
    AND role = $4 AND part = 0 AND length(bytes) <= $5 LIMIT 1) p ON true";

fn token_key(row: &Row) -> Result<TokenKey, Error> {
    let bad = || Error::Corrupt { what: "a token key is not 32 bytes".into() };
    let name: &str = rows::get(row, 0)?;
    let secret: &[u8] = rows::get(row, 1)?;
    let id = name.trim_start_matches("token_key_").parse().map_err(|_| bad())?;
    Ok(TokenKey { id, secret: secret.try_into().map_err(|_| bad())? })
}

impl PostgresStore {
    fn queue(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        match self.check() {
            Ok(()) => self.writer.submit(op, durability, hands),
            Err(e) => Ticket::ready(Err(e)),
        }
    }
}

impl Store for PostgresStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Writers)
    }

    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        // The writer has a runtime of its own, which cannot be driven within another.
        let is_within = tokio::runtime::Handle::try_current().is_ok();
        self.queue(op, durability, if is_within { Hands::Writers } else { Hands::Mine })
    }

    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        match self.check() {
            Ok(()) => self.writer.ahead(op),
            Err(e) => Ok(Err(e)),
        }
    }

    fn run_no(&self, id: &RunId) -> Result<Option<RunNo>, Error> {
        let id = id.clone();
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT no FROM outlast.runs WHERE id = $1";
            Ok(maybe(c, sql, params![id.as_str()], rows::number).await?.map(RunNo))
        })
    }

    fn run(&self, no: RunNo) -> Result<Option<RunView>, Error> {
        self.readers.run(async move |c: &Link| {
            let run = many(c, "WHERE no = $1", params![no.0]).await?;
            Ok(views(c, run).await?.pop())
        })
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunView>, Error> {
        let filter = filter.clone();
        self.readers.run(async move |c: &Link| {
            let status = filter.status.map(|s| s as i64);
            let key = filter.command_key.as_ref().map(|k| k.as_bytes());
            let before = filter.before.map(|b| b.0);
            let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
            let mut wanted = vec!["true".to_owned()];
            let mut params: Vec<Param<'_>> = Vec::new();
            if filter.jobs {
                wanted.push("job IS NOT NULL".to_owned());
            }
            if let Some(status) = &status {
                params.push(param(status));
                wanted.push(format!("status = ${}", params.len()));
            }
            if let Some(key) = &key {
                params.push(param(key));
                wanted.push(format!("sha256(command_key) = sha256(${})", params.len()));
            }
            if let Some(before) = &before {
                params.push(param(before));
                wanted.push(format!("no < ${}", params.len()));
            }
            params.push(param(&limit));
            let rest = format!("WHERE {} ORDER BY no DESC LIMIT ${}", wanted.join(" AND "), params.len());
            views(c, many(c, &rest, &params).await?).await
        })
    }

    fn statuses(&self) -> Result<Vec<(Status, i64)>, Error> {
        self.readers.run(async move |c: &Link| {
            let rest = "outlast.runs GROUP BY status ORDER BY status";
            all(c, &select(STATUSES, rest), params![], rows::status_count).await
        })
    }

    fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Entry>, Error> {
        let filter = *filter;
        self.readers.run(async move |c: &Link| {
            let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
            let open = if filter.open { format!(" AND state = {OPEN}") } else { String::new() };
            let of_run = if filter.run.is_some() { " AND run_no = $2" } else { "" };
            let run = filter.run.map_or(0, |r| r.0);
            let mut params: Vec<Param<'_>> = vec![param(&limit)];
            params.extend(filter.run.map(|_| param(&run)));
            let rest = format!(
                "WHERE kind = {APPROVAL}{open}{of_run} ORDER BY opened_at DESC, run_no DESC, seq DESC LIMIT $1"
            );
            many(c, &rest, &params).await
        })
    }

    fn envelope(&self, no: EnvelopeNo) -> Result<Option<Envelope>, Error> {
        self.readers.run(async move |c: &Link| one(c, "WHERE no = $1", params![no.0]).await)
    }

    fn budgets(&self) -> Result<Vec<BudgetView>, Error> {
        self.readers.run(async move |c: &Link| {
            let budgets: Vec<Budget> = many(c, "ORDER BY no", params![]).await?;
            let windows: Vec<i64> = budgets.iter().filter_map(|b| b.window).map(|w| w.envelope.0).collect();
            let envelopes: Vec<Envelope> = many(c, "WHERE no = ANY ($1)", params![windows]).await?;
            let view = |budget: Budget| {
                let window = budget.window.map(|w| w.envelope);
                let envelope = envelopes.iter().find(|e| Some(e.no) == window).cloned();
                BudgetView { budget, envelope }
            };
            Ok(budgets.into_iter().filter(|b| !b.removed).map(view).collect())
        })
    }

    fn attempts(&self, run: RunNo) -> Result<Vec<Attempt>, Error> {
        self.readers.run(async move |c: &Link| many(c, "WHERE run_no = $1 ORDER BY no", params![run.0]).await)
    }

    fn entry(&self, run: RunNo, seq: Seq) -> Result<Option<Entry>, Error> {
        self.readers
            .run(async move |c: &Link| one(c, "WHERE run_no = $1 AND seq = $2", params![run.0, seq.0]).await)
    }

    fn entries(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<Entry>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.readers.run(async move |c: &Link| {
            let sql = rows::select::<Entry>("WHERE run_no = $1 AND seq > $2 ORDER BY seq LIMIT $3");
            page(c, &sql, params![run.0, after.0, limit], rows::row).await
        })
    }

    fn items(&self, run: RunNo, wanted: &Page) -> Result<Vec<(ItemRow, Option<Payload>)>, Error> {
        let wanted = *wanted;
        self.readers.run(async move |c: &Link| {
            let limit = i64::try_from(wanted.limit).unwrap_or(i64::MAX);
            let found = format!(
                "e.run_no = $1 AND e.kind = {ITEM} AND (e.retried_by IS NULL OR e.retried_by > $3) \
                 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq LIMIT $6"
            );
            let (role, row): (_, fn(&Row) -> _) = (
                Role::Value.code(),
                match wanted.values {
                    true => rows::result_row,
                    false => rows::item_row,
                },
            );
            let sql = match wanted.values {
                true => select(
                    &format!("{ITEM_ROW}, {VALUE}"),
                    &format!("outlast.entries e {VALUES} WHERE {found}"),
                ),
                false => select(ITEM_ROW, &format!("outlast.entries e WHERE {found}")),
            };
            let params = params![run.0, wanted.after.0, wanted.upto.0, role, WHOLE_VALUE, limit];
            page(c, &sql, params, row).await
        })
    }

    fn steps(&self, run: RunNo, after: Seq, limit: usize) -> Result<Vec<(StepRow, Option<Payload>)>, Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.readers.run(async move |c: &Link| {
            let rest = format!(
                "outlast.entries e {VALUES} WHERE e.run_no = $1 AND e.kind = {STEP} AND e.seq > $2 ORDER BY e.seq LIMIT $3"
            );
            let sql = select(&format!("{STEP_ROW}, {VALUE}"), &rest);
            let role = Role::Value.code();
            page(c, &sql, params![run.0, after.0, limit, role, INLINE_VALUE], rows::step_row).await
        })
    }

    fn newest(&self, run: RunNo, sought: &Sought<'_>) -> Result<Option<Entry>, Error> {
        let Sought { kind, done, upto, .. } = *sought;
        let (key, scope) = (sought.key.to_owned(), sought.scope.map(str::to_owned));
        self.readers.run(async move |c: &Link| {
            let done = if done { format!(" AND state = {DONE}") } else { String::new() };
            let rest = format!(
                "WHERE run_no = $1 AND kind = $2 AND sha256(key) = sha256($3) AND seq <= $4{done} \
                 AND ($5::bytea IS NULL OR sha256(scope) = sha256($5)) ORDER BY seq DESC LIMIT 1"
            );
            let scope = scope.as_deref().map(str::as_bytes);
            one(c, &rest, params![run.0, kind.code(), key.as_bytes(), upto.0, scope]).await
        })
    }

    fn newest_request(&self, run: RunNo) -> Result<Option<Seq>, Error> {
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT seq FROM (SELECT seq, role FROM outlast.payloads WHERE run_no = $1 \
                       ORDER BY seq DESC LIMIT 64) AS newest WHERE role = $2 ORDER BY seq DESC LIMIT 1";
            Ok(maybe(c, sql, params![run.0, Role::Request.code()], rows::number).await?.map(Seq))
        })
    }

    fn payload(&self, run: RunNo, seq: Seq, role: Role) -> Result<Option<Payload>, Error> {
        self.readers.run(async move |c: &Link| {
            let rest = "outlast.payloads WHERE run_no = $1 AND seq = $2 AND role = $3 ORDER BY part";
            let parts =
                all(c, &select(PAYLOAD, rest), params![run.0, seq.0, role.code()], rows::payload).await?;
            Ok(Payload::join(parts))
        })
    }

    fn events(&self, wanted: &EventQuery) -> Result<Vec<Event>, Error> {
        let EventQuery { run, after, limit } = *wanted;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.readers.run(async move |c: &Link| {
            let columns = "transaction, no, at, run_no, seq, kind, about";
            let of_run = if run.is_some() { "run_no = $4" } else { "$4::bigint IS NULL" };
            let rest = format!(
                "outlast.events WHERE {of_run} AND (transaction, no) > ($1, $2) \
                 ORDER BY transaction, no LIMIT $3"
            );
            let event = |row: &Row| tables::event(&mut Cursor::new(row));
            let run = run.map(|no| no.0);
            all(c, &select(columns, &rest), params![after.transaction, after.no, limit, run], event).await
        })
    }

    fn deliveries(&self) -> Result<Vec<Delivery>, Error> {
        self.readers.run(async move |c: &Link| {
            let sql = "SELECT delivery FROM outlast.deliveries ORDER BY name";
            all(c, sql, params![], |row| rows::json(row, 0)).await
        })
    }

    fn newest_event(&self) -> Result<Mark, Error> {
        let newest = self.readers.run(async move |c: &Link| {
            let sql = "SELECT transaction, no FROM outlast.events ORDER BY transaction DESC, no DESC LIMIT 1";
            let mark = |row: &Row| Ok(Mark { transaction: rows::get(row, 0)?, no: rows::get(row, 1)? });
            maybe(c, sql, params![], mark).await
        })?;
        Ok(newest.unwrap_or_default())
    }

    fn live_instances(&self) -> Result<Vec<Instance>, Error> {
        self.readers
            .run(async move |c: &Link| many(c, &format!("WHERE life = {LIVE} ORDER BY no"), params![]).await)
    }

    fn instance(&self, no: InstanceNo) -> Result<Option<Instance>, Error> {
        self.readers.run(async move |c: &Link| one(c, "WHERE no = $1", params![no.0]).await)
    }

    fn ledger(&self, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
        // Floor division, also before 1970: a wrong clock is no reason to lose a line.
        // The sum of bigints is numeric, and is cast back. Older stores have calls that were charged more than `MOST_PER_CALL`;
        // their sum would overflow. Unbacked doubt as `Entry::unbacked` has it.
        let sql = format!(
            "SELECT run_no, upstream, model, \
             (opened_at - ((opened_at % 86400000000) + 86400000000) % 86400000000) / 86400000000 AS day, \
             sum(spent_calls)::bigint, sum(least(spent_tokens, {MOST_PER_CALL}))::bigint, \
             sum(least(spent_cost, {MOST_PER_CALL}))::bigint, \
             sum(CASE WHEN state = {UNKNOWN} THEN least(held_cost, {MOST_PER_CALL}) ELSE 0 END)::bigint, \
             sum(CASE WHEN state = {UNKNOWN} \
             THEN greatest(coalesce((detail::json #>> '{{reserved,0}}')::bigint, 0) - held_cost, 0) \
             WHEN retried_by IS NOT NULL \
             THEN coalesce((detail::json #>> '{{correction,unbacked_nano_usd}}')::bigint, 0) ELSE 0 END)::bigint \
             FROM outlast.entries WHERE kind = {CALL} AND opened_at >= $1 AND opened_at < $2 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        );
        self.readers.run(async move |c: &Link| {
            let line = |row: &Row| tables::ledger_line(&mut Cursor::new(row));
            all(c, &sql, params![since.0, until.0], line).await
        })
    }

    fn token_keys(&self) -> Result<Vec<TokenKey>, Error> {
        let mut keys = self.readers.run(async move |c: &Link| {
            let sql = "SELECT key, value FROM outlast.meta WHERE key LIKE 'token\\_key\\_%'";
            all(c, sql, params![], token_key).await
        })?;
        keys.sort_by_key(|k| std::cmp::Reverse(k.id));
        Ok(keys)
    }

    fn check(&self) -> Result<(), Error> {
        self.readers.refuse_forked()?;
        self.same.check()
    }

    fn on_hint(&self, hint: Hint) {
        if !self.readers.is_forked() && self.hints.add(hint) {
            self.readers.hear(self.hints.clone());
        }
    }

    fn losses(&self) -> Losses {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn now(&self) -> Result<Micros, Error> {
        let told = self
            .readers
            .run(async move |c: &Link| maybe(c, &format!("SELECT {NOW}"), params![], rows::number).await)?;
        self.time.now(told.map(Micros))
    }

    fn place(&self) -> String {
        self.address.place().to_owned()
    }
    fn is_shared(&self) -> bool {
        true
    }
}
