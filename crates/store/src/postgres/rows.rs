//! Rows to structs, one function per table. No logic.
//!
//! What people or agents name is `bytea`: PostgreSQL's text cannot hold a NUL, and a name may.

use std::sync::Arc;

use bytes::Bytes;
use outlast_core::{
    envelope::{
        Envelope,
        budget::Budget,
        unit::{Amounts, Unit},
    },
    journal::{
        Entry, Kind, State,
        job::{ItemRow, Job},
        payload::{Codec, Payload},
    },
    run::{
        Run,
        attempt::Attempt,
        instance::{Instance, Lease},
        origin::Origin,
    },
    store::{Error, LedgerLine, StepRow},
    words::{
        digest::MatchKey,
        id::{AttemptNo, BudgetNo, EnvelopeNo, Fence, InstanceNo, Micros, RunId, RunNo, Seq, Slot},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio_postgres::{Row, types::FromSql};

use crate::columns::{self, SUMS};

type Result<T> = std::result::Result<T, Error>;

/// A value that is not what we wrote.
fn bad(row: &Row, i: usize, why: impl std::fmt::Display) -> Error {
    let column = row.columns().get(i).map_or("?", |c| c.name());
    Error::Corrupt { what: format!("column {column}: {why}") }
}

pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Corrupt { what: format!("a value is no JSON: {e}") })
}

pub fn get<'a, T: FromSql<'a>>(row: &'a Row, i: usize) -> Result<T> {
    row.try_get(i).map_err(|e| bad(row, i, e))
}

fn int(row: &Row, i: usize) -> Result<i64> {
    get(row, i)
}

fn maybe_int(row: &Row, i: usize) -> Result<Option<i64>> {
    get(row, i)
}

fn small(row: &Row, i: usize) -> Result<u32> {
    u32::try_from(int(row, i)?).map_err(|e| bad(row, i, e))
}

pub fn name(row: &Row, i: usize) -> Result<String> {
    let bytes: Vec<u8> = get(row, i)?;
    String::from_utf8(bytes).map_err(|e| bad(row, i, e))
}

fn maybe_name(row: &Row, i: usize) -> Result<Option<String>> {
    let bytes: Option<Vec<u8>> = get(row, i)?;
    bytes.map(String::from_utf8).transpose().map_err(|e| bad(row, i, e))
}

pub fn json<T: DeserializeOwned>(row: &Row, i: usize) -> Result<T> {
    serde_json::from_str(get(row, i)?).map_err(|e| bad(row, i, e))
}

fn maybe_json<T: DeserializeOwned>(row: &Row, i: usize) -> Result<Option<T>> {
    let text: Option<&str> = get(row, i)?;
    text.map(serde_json::from_str).transpose().map_err(|e| bad(row, i, e))
}

pub fn instance(row: &Row) -> Result<Instance> {
    let life = int(row, 1)?;
    Ok(Instance {
        no: InstanceNo(int(row, 0)?),
        life: columns::life_of(life).ok_or_else(|| bad(row, 1, format!("no life {life}")))?,
        heartbeat: int(row, 2)?,
        op_counter: int(row, 3)?,
        registered_at: Micros(int(row, 4)?),
        last_seen: Micros(int(row, 5)?),
        identity: json(row, 6)?,
    })
}

pub fn run(row: &Row) -> Result<Run> {
    let status = int(row, 2)?;
    let charges: Vec<EnvelopeNo> = json(row, 17)?;
    if charges.is_empty() {
        return Err(bad(row, 17, "a run has an envelope"));
    }
    Ok(Run {
        no: RunNo(int(row, 0)?),
        id: RunId::new(get(row, 1)?).map_err(|e| bad(row, 1, e))?,
        status: columns::status_of(status).ok_or_else(|| bad(row, 2, format!("no status {status}")))?,
        parent: maybe_int(row, 3)?.map(RunNo),
        created_at: Micros(int(row, 4)?),
        began_at: maybe_int(row, 5)?.map(Micros),
        ended_at: maybe_int(row, 6)?.map(Micros),
        next_seq: Seq(int(row, 7)?),
        next_attempt: AttemptNo(int(row, 8)?),
        fence: Fence(int(row, 9)?),
        iteration: int(row, 10)?,
        explicit_loops: get(row, 11)?,
        answers: int(row, 12)?,
        closed: int(row, 13)?,
        stop_requested: get(row, 14)?,
        replayed: int(row, 15)?,
        saved_nano_usd: int(row, 16)?,
        charges: Arc::from(charges),
        budgets: maybe_json::<Vec<BudgetNo>>(row, 27)?.unwrap_or_default().into(),
        policy: json(row, 18)?,
        halt: maybe_json(row, 19)?,
        error: maybe_name(row, 20)?,
        command_key: maybe_name(row, 21)?,
        job: job(row)?,
        origins: maybe_json::<Vec<Origin>>(row, 24)?.unwrap_or_default().into(),
        turns: maybe_json(row, 25)?,
        wake_at: maybe_int(row, 26)?.map(Micros),
        approvals: maybe_json(row, 28)?,
    })
}

/// Apart: the name is indexed and never changes, the counts do with each item.
fn job(row: &Row) -> Result<Option<Box<Job>>> {
    let Some(name) = maybe_name(row, 22)? else { return Ok(None) };
    Ok(Some(Box::new(Job { name, counts: json(row, 23)? })))
}

pub fn envelope(row: &Row) -> Result<Envelope> {
    let mut e = Envelope::new(EnvelopeNo(int(row, 0)?), json(row, 1)?, json(row, 2)?);
    for (i, (sum, unit)) in SUMS.into_iter().enumerate() {
        sum.of_mut(&mut e)[unit] = int(row, 3 + i)?;
    }
    Ok(e)
}

pub fn budget(row: &Row) -> Result<Budget> {
    json(row, 1)
}

pub fn attempt(row: &Row) -> Result<Attempt> {
    Ok(Attempt {
        run: RunNo(int(row, 0)?),
        no: AttemptNo(int(row, 1)?),
        slot: Slot(int(row, 2)?),
        label: maybe_name(row, 3)?,
        instance: maybe_int(row, 4)?.map(InstanceNo),
        fence: maybe_int(row, 5)?.map(Fence),
        iteration: int(row, 6)?,
        started_at: Micros(int(row, 7)?),
        ended_at: maybe_int(row, 8)?.map(Micros),
        exit: maybe_json(row, 9)?,
        active_ms: int(row, 10)?,
        untaken: int(row, 11)?,
        diverged: maybe_int(row, 12)?.map(Seq),
        diverged_untaken: int(row, 13)?,
        closed_before: int(row, 14)?,
    })
}

pub fn lease(row: &Row) -> Result<Lease> {
    Ok(Lease {
        run: RunNo(int(row, 0)?),
        slot: Slot(int(row, 1)?),
        instance: InstanceNo(int(row, 2)?),
        fence: Fence(int(row, 3)?),
    })
}

pub fn entry(row: &Row) -> Result<Entry> {
    let amounts = |at: usize| -> Result<Amounts> {
        Ok(Amounts::of(int(row, at)?, int(row, at + 1)?).with(Unit::Calls, int(row, at + 2)?))
    };
    let (kind, state) = (int(row, 2)?, int(row, 3)?);
    let match_key: Option<&[u8]> = get(row, 8)?;
    let match_key = match_key.map(<[u8; 16]>::try_from).transpose();
    let mut entry = Entry {
        run: RunNo(int(row, 0)?),
        seq: Seq(int(row, 1)?),
        kind: Kind::from_code(kind).ok_or_else(|| bad(row, 2, format!("no kind {kind}")))?,
        state: State::from_code(state).ok_or_else(|| bad(row, 3, format!("no state {state}")))?,
        attempt: AttemptNo(int(row, 4)?),
        instance: maybe_int(row, 5)?.map(InstanceNo),
        scope: Arc::from(name(row, 6)?),
        key: maybe_name(row, 7)?,
        match_key: match_key.map_err(|_| bad(row, 8, "a match key has 16 bytes"))?.map(MatchKey),
        opened_at: Micros(int(row, 9)?),
        closed_at: maybe_int(row, 10)?.map(Micros),
        held: amounts(11)?,
        spent: amounts(14)?,
        delivered_to: maybe_int(row, 17)?.map(AttemptNo),
        delivered_count: small(row, 18)?,
        retried_by: maybe_int(row, 19)?.map(Seq),
        replayable: get(row, 20)?,
        call: None,
        step: None,
        item: None,
        approval: None,
    };
    columns::put_detail(&mut entry, get(row, 21)?).map_err(|e| bad(row, 21, e))?;
    Ok(entry)
}

pub fn payload(row: &Row) -> Result<Payload> {
    payload_at(row, 0)
}

fn payload_at(row: &Row, at: usize) -> Result<Payload> {
    let codec = u8::try_from(int(row, at)?).map_err(|e| bad(row, at, e))?;
    let sha256: &[u8] = get(row, at + 3)?;
    Ok(Payload {
        codec: Codec::from_u8(codec).map_err(|e| bad(row, at, e))?,
        key_id: small(row, at + 1)?,
        len: u64::try_from(int(row, at + 2)?).map_err(|e| bad(row, at + 2, e))?,
        sha256: sha256.try_into().map_err(|_| bad(row, at + 3, "a SHA-256 has 32 bytes"))?,
        part: 0,
        bytes: Bytes::from(get::<Vec<u8>>(row, at + 4)?),
    })
}

/// A joined value that may be absent.
fn value_at(row: &Row, at: usize) -> Result<Option<Payload>> {
    maybe_int(row, at)?.map(|_| payload_at(row, at)).transpose()
}

pub fn item_row(row: &Row) -> Result<ItemRow> {
    Ok(ItemRow {
        seq: Seq(int(row, 0)?),
        key: name(row, 1)?,
        attempt: AttemptNo(int(row, 2)?),
        opened_at: Micros(int(row, 3)?),
        closed_at: maybe_int(row, 4)?.map(Micros),
        spent: Amounts::of(int(row, 5)?, int(row, 6)?).with(Unit::Calls, int(row, 7)?),
        detail: json(row, 8)?,
    })
}

pub fn result_row(row: &Row) -> Result<(ItemRow, Option<Payload>)> {
    Ok((item_row(row)?, value_at(row, 9)?))
}

pub fn step_row(row: &Row) -> Result<(StepRow, Option<Payload>)> {
    let state = int(row, 3)?;
    let step = StepRow {
        seq: Seq(int(row, 0)?),
        scope: Arc::from(name(row, 1)?),
        key: name(row, 2)?,
        state: State::from_code(state).ok_or_else(|| bad(row, 3, format!("no state {state}")))?,
        closed_at: maybe_int(row, 4)?.map(Micros),
    };
    Ok((step, value_at(row, 5)?))
}

/// run, upstream, model, day, calls, tokens, spent, doubt.
pub fn ledger_line(row: &Row) -> Result<LedgerLine> {
    Ok(LedgerLine {
        run: RunNo(int(row, 0)?),
        upstream: name(row, 1)?,
        model: name(row, 2)?,
        day: int(row, 3)?,
        calls: int(row, 4)?,
        tokens: int(row, 5)?,
        spent_nano_usd: int(row, 6)?,
        doubt_nano_usd: int(row, 7)?,
    })
}

pub fn number(row: &Row) -> Result<i64> {
    int(row, 0)
}
