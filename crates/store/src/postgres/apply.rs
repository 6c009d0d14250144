//! Writing back what a decision touched.

use outlast_core::{
    engine::loaded::{Loaded, NewPayload, Row, Touch},
    envelope::{
        Envelope,
        unit::{Amounts, Unit},
    },
    journal::Entry,
    run::{Run, attempt::Attempt, instance::Instance},
    store::Error,
};
use tokio_postgres::Client;

use super::{
    connect::failure,
    rows::to_json,
    state,
    statement::{Param, insert, param, params, write_one},
};
use crate::columns::{self, ATTEMPT, ENTRY, ENVELOPE, INSTANCE, PAYLOAD, RUN, SUMS};

/// Writes the touched rows, envelopes before runs before entries: the order in which they would be
/// locked.
pub async fn apply(client: &Client, l: &Loaded) -> Result<(), Error> {
    for (i, touch) in touched(&l.instances) {
        match touch {
            Touch::Insert => insert_instance(client, i).await?,
            _ => update_instance(client, i).await?,
        }
    }
    for (e, touch) in touched(&l.envelopes) {
        match touch {
            Touch::Insert => insert_envelope(client, e).await?,
            _ => update_envelope(client, e).await?,
        }
    }
    for (r, touch) in touched(&l.runs) {
        match touch {
            Touch::Insert => insert_run(client, r).await?,
            _ => update_run(client, r).await?,
        }
    }
    for (budget, _) in touched(&l.budgets) {
        let sql = "INSERT INTO outlast.budgets (no, budget) VALUES ($1, $2) \
                   ON CONFLICT (no) DO UPDATE SET budget = excluded.budget";
        write_one(client, sql, params![budget.no.0, to_json(budget)?]).await?;
    }
    for (no, spec) in &l.specs {
        let sql = "INSERT INTO outlast.specs (run_no, spec) VALUES ($1, $2) \
                   ON CONFLICT (run_no) DO UPDATE SET spec = excluded.spec";
        write_one(client, sql, params![no.0, to_json(spec)?]).await?;
    }
    for (a, touch) in touched(&l.attempts) {
        match touch {
            Touch::Insert => insert_attempt(client, a).await?,
            _ => update_attempt(client, a).await?,
        }
    }
    for (x, _) in touched(&l.leases) {
        let sql = "INSERT INTO outlast.leases (run_no, slot, instance, fence) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (run_no, slot) DO UPDATE SET instance = excluded.instance, fence = excluded.fence";
        write_one(client, sql, params![x.run.0, x.slot.0, x.instance.0, x.fence.0]).await?;
    }
    for (e, touch) in touched(&l.entries) {
        match touch {
            Touch::Insert => insert_entry(client, e).await?,
            _ => update_entry(client, e).await?,
        }
    }
    for p in &l.payloads {
        put_payload(client, p).await?;
    }
    state::apply(client, &l.state).await?;
    for (run, envelope, namespace) in &l.forgotten {
        forget(client, run.0, envelope.0, namespace.as_bytes()).await?;
    }
    Ok(())
}

async fn delete(client: &Client, sql: &str, params: &[Param<'_>]) -> Result<(), Error> {
    client.execute_typed(sql, params).await.map(drop).map_err(failure)
}

/// Deletes what is a run's.
async fn forget(client: &Client, run: i64, envelope: i64, namespace: &[u8]) -> Result<(), Error> {
    for table in ["payloads", "entries", "attempts", "leases", "specs"] {
        delete(client, &format!("DELETE FROM outlast.{table} WHERE run_no = $1"), params![run]).await?;
    }
    for sql in state::FORGET {
        delete(client, sql, params![namespace]).await?;
    }
    delete(client, "DELETE FROM outlast.runs WHERE no = $1", params![run]).await?;
    delete(client, "DELETE FROM outlast.envelopes WHERE no = $1", params![envelope]).await
}

fn touched<T>(rows: &[Row<T>]) -> impl Iterator<Item = (&T, Touch)> {
    rows.iter().filter(|r| r.touch != Touch::Read).map(|r| (&r.value, r.touch))
}

/// The bytes of a name that may be absent.
fn bytes(name: &Option<String>) -> Option<&[u8]> {
    name.as_deref().map(str::as_bytes)
}

fn maybe_json<T: serde::Serialize>(value: &Option<T>) -> Result<Option<String>, Error> {
    value.as_ref().map(to_json).transpose()
}

async fn insert_instance(client: &Client, i: &Instance) -> Result<(), Error> {
    write_one(
        client,
        &insert("instances", INSTANCE),
        params![
            i.no.0,
            i.life as i64,
            i.heartbeat,
            i.op_counter,
            i.registered_at.0,
            i.last_seen.0,
            to_json(&i.identity)?
        ],
    )
    .await
}

async fn update_instance(client: &Client, i: &Instance) -> Result<(), Error> {
    // Not `op_counter`: the group writes it last.
    let sql = "UPDATE outlast.instances SET life = $2, heartbeat = $3, last_seen = $4 WHERE no = $1";
    write_one(client, sql, params![i.no.0, i.life as i64, i.heartbeat, i.last_seen.0]).await
}

/// The parameters of an envelope's sums, in the order of `SUMS`.
fn sums(e: &Envelope) -> impl Iterator<Item = Param<'_>> {
    SUMS.iter().map(|(sum, unit)| param(&sum.of(e)[*unit]))
}

async fn insert_envelope(client: &Client, e: &Envelope) -> Result<(), Error> {
    let (owner, limits) = (to_json(&e.owner)?, to_json(&e.limits)?);
    let mut params = vec![param(&e.no.0), param(&owner), param(&limits)];
    params.extend(sums(e));
    write_one(client, &insert("envelopes", ENVELOPE), &params).await
}

async fn update_envelope(client: &Client, e: &Envelope) -> Result<(), Error> {
    let limits = to_json(&e.limits)?;
    let mut params = vec![param(&e.no.0), param(&limits)];
    params.extend(sums(e));
    let sql = "UPDATE outlast.envelopes SET limits = $2, reserved_cost = $3, reserved_tokens = $4, \
               reserved_calls = $5, doubt_cost = $6, doubt_tokens = $7, spent_cost = $8, spent_tokens = $9, \
               spent_calls = $10, spent_loops = $11, spent_active_ms = $12, spent_restarts = $13 WHERE no = $1";
    write_one(client, sql, &params).await
}

async fn insert_run(client: &Client, r: &Run) -> Result<(), Error> {
    write_one(
        client,
        &insert("runs", RUN),
        params![
            r.no.0,
            r.id.as_str(),
            r.status as i64,
            r.parent.map(|n| n.0),
            r.created_at.0,
            r.began_at.map(|t| t.0),
            r.ended_at.map(|t| t.0),
            r.next_seq.0,
            r.next_attempt.0,
            r.fence.0,
            r.iteration,
            r.explicit_loops,
            r.answers,
            r.closed,
            r.stop_requested,
            r.replayed,
            r.saved_nano_usd,
            to_json(&r.charges)?,
            to_json(&r.policy)?,
            maybe_json(&r.halt)?,
            bytes(&r.error),
            bytes(&r.command_key),
            r.job.as_ref().map(|j| j.name.as_bytes()),
            r.job.as_ref().map(|j| to_json(&j.counts)).transpose()?,
            (!r.origins.is_empty()).then(|| to_json(&r.origins)).transpose()?,
            maybe_json(&r.turns)?,
            r.wake_at.map(|t| t.0),
            (!r.budgets.is_empty()).then(|| to_json(&r.budgets)).transpose()?,
            maybe_json(&r.approvals)?
        ],
    )
    .await
}

async fn update_run(client: &Client, r: &Run) -> Result<(), Error> {
    write_one(
        client,
        "UPDATE outlast.runs SET status = $2, began_at = $3, ended_at = $4, next_seq = $5, next_attempt = $6, \
         fence = $7, iteration = $8, explicit_loops = $9, answers = $10, closed = $11, stop_requested = $12, \
         replayed = $13, saved_nano_usd = $14, halt = $15, error = $16, counts = $17, turns = $18, wake_at = $19, \
          budgets = $20, approvals = $21 WHERE no = $1",
        params![
            r.no.0,
            r.status as i64,
            r.began_at.map(|t| t.0),
            r.ended_at.map(|t| t.0),
            r.next_seq.0,
            r.next_attempt.0,
            r.fence.0,
            r.iteration,
            r.explicit_loops,
            r.answers,
            r.closed,
            r.stop_requested,
            r.replayed,
            r.saved_nano_usd,
            maybe_json(&r.halt)?,
            bytes(&r.error),
            r.job.as_ref().map(|j| to_json(&j.counts)).transpose()?,
            maybe_json(&r.turns)?,
            r.wake_at.map(|t| t.0),
            (!r.budgets.is_empty()).then(|| to_json(&r.budgets)).transpose()?,
            maybe_json(&r.approvals)?
        ],
    )
    .await
}

async fn insert_attempt(client: &Client, a: &Attempt) -> Result<(), Error> {
    write_one(
        client,
        &insert("attempts", ATTEMPT),
        params![
            a.run.0,
            a.no.0,
            a.slot.0,
            bytes(&a.label),
            a.instance.map(|n| n.0),
            a.fence.map(|n| n.0),
            a.iteration,
            a.started_at.0,
            a.ended_at.map(|t| t.0),
            maybe_json(&a.exit)?,
            a.active_ms,
            a.untaken,
            a.diverged.map(|n| n.0),
            a.diverged_untaken,
            a.closed_before
        ],
    )
    .await
}

async fn update_attempt(client: &Client, a: &Attempt) -> Result<(), Error> {
    write_one(
        client,
        "UPDATE outlast.attempts SET ended_at = $3, exit = $4, active_ms = $5, untaken = $6, diverged = $7, \
         diverged_untaken = $8 WHERE run_no = $1 AND no = $2",
        params![
            a.run.0,
            a.no.0,
            a.ended_at.map(|t| t.0),
            maybe_json(&a.exit)?,
            a.active_ms,
            a.untaken,
            a.diverged.map(|n| n.0),
            a.diverged_untaken
        ],
    )
    .await
}

/// Cost, tokens, calls: what an entry can hold and spend.
fn triple(a: &Amounts) -> (i64, i64, i64) {
    (a.cost(), a.tokens(), a[Unit::Calls])
}

fn detail(e: &Entry) -> Result<Option<String>, Error> {
    let failed = |e| Error::Corrupt { what: format!("a value is no JSON: {e}") };
    columns::detail(e).transpose().map_err(failed)
}

async fn insert_entry(client: &Client, e: &Entry) -> Result<(), Error> {
    let ((hc, ht, hn), (sc, st, sn)) = (triple(&e.held), triple(&e.spent));
    write_one(
        client,
        &insert("entries", &format!("{ENTRY}, model, upstream")),
        params![
            e.run.0,
            e.seq.0,
            e.kind.code(),
            e.state.code(),
            e.attempt.0,
            e.instance.map(|n| n.0),
            e.scope.as_bytes(),
            bytes(&e.key),
            e.match_key.as_ref().map(|k| &k.0[..]),
            e.opened_at.0,
            e.closed_at.map(|t| t.0),
            hc,
            ht,
            hn,
            sc,
            st,
            sn,
            e.delivered_to.map(|n| n.0),
            i64::from(e.delivered_count),
            e.retried_by.map(|n| n.0),
            e.replayable,
            detail(e)?,
            e.call.as_ref().map(|c| c.model.as_bytes()),
            e.call.as_ref().map(|c| c.upstream.as_bytes())
        ],
    )
    .await
}

async fn update_entry(client: &Client, e: &Entry) -> Result<(), Error> {
    let ((hc, ht, hn), (sc, st, sn)) = (triple(&e.held), triple(&e.spent));
    write_one(
        client,
        "UPDATE outlast.entries SET state = $3, attempt = $4, instance = $5, closed_at = $6, held_cost = $7, \
         held_tokens = $8, held_calls = $9, spent_cost = $10, spent_tokens = $11, spent_calls = $12, \
         delivered_to = $13, delivered_count = $14, retried_by = $15, replayable = $16, detail = $17 \
         WHERE run_no = $1 AND seq = $2",
        params![
            e.run.0,
            e.seq.0,
            e.state.code(),
            e.attempt.0,
            e.instance.map(|n| n.0),
            e.closed_at.map(|t| t.0),
            hc,
            ht,
            hn,
            sc,
            st,
            sn,
            e.delivered_to.map(|n| n.0),
            i64::from(e.delivered_count),
            e.retried_by.map(|n| n.0),
            e.replayable,
            detail(e)?
        ],
    )
    .await
}

async fn put_payload(client: &Client, p: &NewPayload) -> Result<(), Error> {
    let len = i64::try_from(p.payload.len)
        .map_err(|_| Error::Corrupt { what: format!("a payload of {} bytes", p.payload.len) })?;
    write_one(
        client,
        &format!(
            "{} ON CONFLICT (run_no, seq, role, part) DO UPDATE SET codec = excluded.codec, \
             key_id = excluded.key_id, len = excluded.len, sha256 = excluded.sha256, bytes = excluded.bytes",
            insert("payloads", &format!("run_no, seq, role, part, {PAYLOAD}"))
        ),
        params![
            p.run.0,
            p.seq.0,
            p.role.code(),
            i64::from(p.payload.part),
            p.payload.codec as i64,
            i64::from(p.payload.key_id),
            len,
            &p.payload.sha256[..],
            &p.payload.bytes[..]
        ],
    )
    .await
}
