//! Writing back what a decision touched.

use outlast_core::{
    attempt::Attempt,
    envelope::Envelope,
    id::{EnvelopeNo, RunNo},
    instance::Instance,
    journal::Entry,
    loaded::{Loaded, Touch},
    payload::Payload,
    run::Run,
    unit::{Amounts, Unit},
};
use rusqlite::{Connection, Result, params};

use super::{
    cache::Cache,
    payloads,
    query::execute,
    rows::{self, to_json},
    state,
};
use crate::columns::{self, SUMS};

/// Writes the touched rows. Prepared once per connection.
///
/// `before` is what was loaded: a status that did not change is not written, because SQLite would rewrite
/// its index too, a page more in each commit.
pub fn apply(conn: &Connection, before: &Cache, l: &Loaded) -> Result<()> {
    for row in &l.instances {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => insert_instance(conn, &row.value)?,
            Touch::Update => update_instance(conn, &row.value)?,
        }
    }
    for row in &l.envelopes {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => insert_envelope(conn, &row.value)?,
            Touch::Update => update_envelope(conn, &row.value)?,
        }
    }
    for row in &l.runs {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => insert_run(conn, &row.value)?,
            Touch::Update => {
                if before.runs.get(&row.value.no).is_none_or(|old| old.status != row.value.status) {
                    move_run(conn, &row.value)?;
                }
                if before.runs.get(&row.value.no).is_none_or(|old| old.budgets != row.value.budgets) {
                    charge_run(conn, &row.value)?;
                }
                update_run(conn, &row.value)?;
            }
        }
    }
    for row in l.budgets.iter().filter(|row| row.touch != Touch::Read) {
        let sql = "INSERT OR REPLACE INTO budgets (no, budget) VALUES (?1, ?2)";
        execute(conn, sql, params![row.value.no.0, to_json(&row.value)?])?;
    }
    for (no, spec) in &l.specs {
        execute(
            conn,
            "INSERT OR REPLACE INTO specs (run_no, spec) VALUES (?1, ?2)",
            params![no.0, to_json(spec)?],
        )?;
    }
    for row in &l.attempts {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => insert_attempt(conn, &row.value)?,
            Touch::Update => update_attempt(conn, &row.value)?,
        }
    }
    for row in l.leases.iter().filter(|r| r.touch != Touch::Read) {
        let x = &row.value;
        execute(
            conn,
            "INSERT INTO leases (run_no, slot, instance, fence) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (run_no, slot) DO UPDATE SET instance = excluded.instance, fence = excluded.fence",
            params![x.run.0, x.slot.0, x.instance.0, x.fence.0],
        )?;
    }
    for row in &l.entries {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => insert_entry(conn, &row.value, None)?,
            Touch::Update => update_entry(conn, &row.value)?,
        }
    }
    l.payloads.iter().try_for_each(|p| payloads::put(conn, p))?;
    state::apply(conn, &l.state)?;
    l.forgotten.iter().try_for_each(|(run, envelope, namespace)| forget(conn, *run, *envelope, namespace))
}

/// Deletes what is a run's.
fn forget(conn: &Connection, run: RunNo, envelope: EnvelopeNo, namespace: &str) -> Result<()> {
    payloads::forget(conn, run)?;
    for table in ["entries", "attempts", "leases", "specs"] {
        execute(conn, &format!("DELETE FROM {table} WHERE run_no = ?1"), (run.0,))?;
    }
    state::forget(conn, namespace)?;
    execute(conn, "DELETE FROM runs WHERE no = ?1", (run.0,))?;
    execute(conn, "DELETE FROM envelopes WHERE no = ?1", (envelope.0,))
}

/// `INSERT INTO table (columns) VALUES (?1, …, ?n)`.
fn insert(table: &str, columns: &str, n: usize) -> String {
    let places: Vec<String> = (1..=n).map(|i| format!("?{i}")).collect();
    format!("INSERT INTO {table} ({columns}) VALUES ({})", places.join(", "))
}

fn insert_instance(conn: &Connection, i: &Instance) -> Result<()> {
    execute(
        conn,
        &insert("instances", rows::INSTANCE, 7),
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
}

fn update_instance(conn: &Connection, i: &Instance) -> Result<()> {
    execute(
        conn,
        "UPDATE instances SET life = ?2, heartbeat = ?3, last_seen = ?4 WHERE no = ?1",
        params![i.no.0, i.life as i64, i.heartbeat, i.last_seen.0],
    )
}

fn insert_envelope(conn: &Connection, e: &Envelope) -> Result<()> {
    let sums = SUMS.map(|(sum, unit)| sum.of(e)[unit]);
    let mut statement = conn.prepare_cached(&insert("envelopes", rows::ENVELOPE, 14))?;
    statement.raw_bind_parameter(1, e.no.0)?;
    statement.raw_bind_parameter(2, to_json(&e.owner)?)?;
    statement.raw_bind_parameter(3, to_json(&e.limits)?)?;
    for (i, sum) in sums.into_iter().enumerate() {
        statement.raw_bind_parameter(4 + i, sum)?;
    }
    statement.raw_execute().map(drop)
}

fn update_envelope(conn: &Connection, e: &Envelope) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "UPDATE envelopes SET limits = ?2, reserved_cost = ?3, reserved_tokens = ?4, reserved_calls = ?5,
         doubt_cost = ?6, doubt_tokens = ?7, spent_cost = ?8, spent_tokens = ?9, spent_calls = ?10,
         spent_loops = ?11, spent_active_ms = ?12, spent_restarts = ?13 WHERE no = ?1",
    )?;
    statement.raw_bind_parameter(1, e.no.0)?;
    statement.raw_bind_parameter(2, to_json(&e.limits)?)?;
    for (i, (sum, unit)) in SUMS.into_iter().enumerate() {
        statement.raw_bind_parameter(3 + i, sum.of(e)[unit])?;
    }
    statement.raw_execute().map(drop)
}

fn insert_run(conn: &Connection, r: &Run) -> Result<()> {
    execute(
        conn,
        &insert("runs", rows::RUN, 29),
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
            r.halt.as_ref().map(to_json).transpose()?,
            r.error,
            r.command_key,
            r.job.as_ref().map(|j| j.name.as_str()),
            r.job.as_ref().map(|j| to_json(&j.counts)).transpose()?,
            (!r.origins.is_empty()).then(|| to_json(&r.origins)).transpose()?,
            r.turns.as_ref().map(to_json).transpose()?,
            r.wake_at.map(|t| t.0),
            (!r.budgets.is_empty()).then(|| to_json(&r.budgets)).transpose()?,
            r.approvals.as_ref().map(to_json).transpose()?
        ],
    )
}

fn charge_run(conn: &Connection, r: &Run) -> Result<()> {
    let budgets = (!r.budgets.is_empty()).then(|| to_json(&r.budgets)).transpose()?;
    execute(conn, "UPDATE runs SET budgets = ?2 WHERE no = ?1", params![r.no.0, budgets])
}

fn move_run(conn: &Connection, r: &Run) -> Result<()> {
    execute(conn, "UPDATE runs SET status = ?2 WHERE no = ?1", params![r.no.0, r.status as i64])
}

pub fn update_run(conn: &Connection, r: &Run) -> Result<()> {
    execute(
        conn,
        "UPDATE runs SET began_at = ?2, ended_at = ?3, next_seq = ?4, next_attempt = ?5, fence = ?6, iteration = ?7,
         explicit_loops = ?8, answers = ?9, closed = ?10, stop_requested = ?11, replayed = ?12,
         saved_nano_usd = ?13, halt = ?14, error = ?15, counts = ?16, turns = ?17, wake_at = ?18,
         approvals = ?19 WHERE no = ?1",
        params![
            r.no.0,
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
            r.halt.as_ref().map(to_json).transpose()?,
            r.error,
            r.job.as_ref().map(|j| to_json(&j.counts)).transpose()?,
            r.turns.as_ref().map(to_json).transpose()?,
            r.wake_at.map(|t| t.0),
            r.approvals.as_ref().map(to_json).transpose()?
        ],
    )
}

fn insert_attempt(conn: &Connection, a: &Attempt) -> Result<()> {
    execute(
        conn,
        &insert("attempts", rows::ATTEMPT, 15),
        params![
            a.run.0,
            a.no.0,
            a.slot.0,
            a.label,
            a.instance.map(|n| n.0),
            a.fence.map(|n| n.0),
            a.iteration,
            a.started_at.0,
            a.ended_at.map(|t| t.0),
            a.exit.as_ref().map(to_json).transpose()?,
            a.active_ms,
            a.untaken,
            a.diverged.map(|n| n.0),
            a.diverged_untaken,
            a.closed_before
        ],
    )
}

fn update_attempt(conn: &Connection, a: &Attempt) -> Result<()> {
    execute(
        conn,
        "UPDATE attempts SET ended_at = ?3, exit = ?4, active_ms = ?5, untaken = ?6, diverged = ?7,
         diverged_untaken = ?8 WHERE run_no = ?1 AND no = ?2",
        params![
            a.run.0,
            a.no.0,
            a.ended_at.map(|t| t.0),
            a.exit.as_ref().map(to_json).transpose()?,
            a.active_ms,
            a.untaken,
            a.diverged.map(|n| n.0),
            a.diverged_untaken
        ],
    )
}

fn triple(a: &Amounts) -> (i64, i64, i64) {
    (a.cost(), a.tokens(), a[Unit::Calls])
}

fn detail(e: &Entry) -> Result<Option<String>> {
    let failed = |e| rusqlite::Error::ToSqlConversionFailure(Box::new(e));
    columns::detail(e).transpose().map_err(failed)
}

/// With its value, where that is there already and short.
pub fn insert_entry(conn: &Connection, e: &Entry, value: Option<&Payload>) -> Result<()> {
    let ((hc, ht, hn), (sc, st, sn)) = (triple(&e.held), triple(&e.spent));
    execute(
        conn,
        "INSERT INTO entries (run_no, seq, kind, state, attempt, instance, scope, key, match_key, opened_at,
         closed_at, held_cost, held_tokens, held_calls, spent_cost, spent_tokens, spent_calls, delivered_to,
         delivered_count, retried_by, replayable, detail, model, upstream, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,
         ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25)",
        params![
            e.run.0,
            e.seq.0,
            e.kind.code(),
            e.state.code(),
            e.attempt.0,
            e.instance.map(|n| n.0),
            &*e.scope,
            e.key,
            e.match_key.map(|k| k.0),
            e.opened_at.0,
            e.closed_at.map(|t| t.0),
            hc,
            ht,
            hn,
            sc,
            st,
            sn,
            e.delivered_to.map(|n| n.0),
            e.delivered_count,
            e.retried_by.map(|n| n.0),
            e.replayable,
            detail(e)?,
            e.call.as_ref().map(|c| c.model.as_str()),
            e.call.as_ref().map(|c| c.upstream.as_str()),
            value.map(Payload::to_bytes)
        ],
    )
}

pub fn update_entry(conn: &Connection, e: &Entry) -> Result<()> {
    let ((hc, ht, hn), (sc, st, sn)) = (triple(&e.held), triple(&e.spent));
    execute(
        conn,
        "UPDATE entries SET state = ?3, attempt = ?4, instance = ?5, closed_at = ?6, held_cost = ?7,
         held_tokens = ?8, held_calls = ?9, spent_cost = ?10, spent_tokens = ?11, spent_calls = ?12,
         delivered_to = ?13, delivered_count = ?14, retried_by = ?15, replayable = ?16, detail = ?17
         WHERE run_no = ?1 AND seq = ?2",
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
            e.delivered_count,
            e.retried_by.map(|n| n.0),
            e.replayable,
            detail(e)?
        ],
    )
}
