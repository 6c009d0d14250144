//! Rows to structs and back, one pair of functions per table. No logic.

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
        Run, Spec,
        attempt::Attempt,
        instance::{Instance, Lease, Life},
        origin::Origin,
        status::Status,
    },
    store::StepRow,
    words::{
        digest::MatchKey,
        id::{AttemptNo, BudgetNo, EnvelopeNo, Fence, InstanceNo, Micros, RunId, RunNo, Seq, Slot},
    },
};
use rusqlite::{
    Row,
    types::{FromSqlError, Type, ValueRef},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::columns::{self, SUMS};
pub use crate::columns::{ATTEMPT, BUDGET, ENTRY, ENVELOPE, INSTANCE, LEASE, RUN};

type Result<T> = rusqlite::Result<T>;

/// A value that is not what we wrote.
fn bad(column: usize, what: impl std::fmt::Display) -> rusqlite::Error {
    let why = FromSqlError::Other(what.to_string().into());
    rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, Box::new(why))
}

pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, i: usize) -> Result<T> {
    serde_json::from_str(row.get_ref(i)?.as_str()?).map_err(|e| bad(i, e))
}

fn from_json_or_null<T: DeserializeOwned>(row: &Row<'_>, i: usize) -> Result<Option<T>> {
    match row.get_ref(i)?.as_str_or_null()? {
        None => Ok(None),
        Some(text) => serde_json::from_str(text).map(Some).map_err(|e| bad(i, e)),
    }
}

fn status(row: &Row<'_>, i: usize) -> Result<Status> {
    let code = row.get(i)?;
    columns::status_of(code).ok_or_else(|| bad(i, format!("no status {code}")))
}

fn life(row: &Row<'_>, i: usize) -> Result<Life> {
    let code = row.get(i)?;
    columns::life_of(code).ok_or_else(|| bad(i, format!("no life {code}")))
}

pub fn instance(row: &Row<'_>) -> Result<Instance> {
    Ok(Instance {
        no: InstanceNo(row.get(0)?),
        life: life(row, 1)?,
        heartbeat: row.get(2)?,
        op_counter: row.get(3)?,
        registered_at: Micros(row.get(4)?),
        last_seen: Micros(row.get(5)?),
        identity: from_json(row, 6)?,
    })
}

pub fn run(row: &Row<'_>) -> Result<Run> {
    let charges: Vec<EnvelopeNo> = from_json(row, 17)?;
    Ok(Run {
        no: RunNo(row.get(0)?),
        id: RunId::new(row.get_ref(1)?.as_str()?).map_err(|e| bad(1, e))?,
        status: status(row, 2)?,
        parent: row.get::<_, Option<i64>>(3)?.map(RunNo),
        created_at: Micros(row.get(4)?),
        began_at: row.get::<_, Option<i64>>(5)?.map(Micros),
        ended_at: row.get::<_, Option<i64>>(6)?.map(Micros),
        next_seq: Seq(row.get(7)?),
        next_attempt: AttemptNo(row.get(8)?),
        fence: Fence(row.get(9)?),
        iteration: row.get(10)?,
        explicit_loops: row.get(11)?,
        answers: row.get(12)?,
        closed: row.get(13)?,
        stop_requested: row.get(14)?,
        replayed: row.get(15)?,
        saved_nano_usd: row.get(16)?,
        charges: Arc::from(charges),
        budgets: from_json_or_null::<Vec<BudgetNo>>(row, 27)?.unwrap_or_default().into(),
        policy: from_json(row, 18)?,
        halt: from_json_or_null(row, 19)?,
        error: row.get(20)?,
        command_key: row.get(21)?,
        job: job(row)?,
        origins: from_json_or_null::<Vec<Origin>>(row, 24)?.unwrap_or_default().into(),
        turns: from_json_or_null(row, 25)?,
        wake_at: row.get::<_, Option<i64>>(26)?.map(Micros),
        approvals: from_json_or_null(row, 28)?,
    })
}

pub fn spec(row: &Row<'_>) -> Result<Spec> {
    from_json(row, 0)
}

/// Apart: the name is indexed and never changes, the counts do with each item.
fn job(row: &Row<'_>) -> Result<Option<Box<Job>>> {
    let Some(name) = row.get(22)? else { return Ok(None) };
    Ok(Some(Box::new(Job { name, counts: from_json(row, 23)? })))
}

pub fn envelope(row: &Row<'_>) -> Result<Envelope> {
    let mut e = Envelope::new(EnvelopeNo(row.get(0)?), from_json(row, 1)?, from_json(row, 2)?);
    for (i, (sum, unit)) in SUMS.into_iter().enumerate() {
        sum.of_mut(&mut e)[unit] = row.get(3 + i)?;
    }
    Ok(e)
}

pub fn budget(row: &Row<'_>) -> Result<Budget> {
    from_json(row, 1)
}

pub fn attempt(row: &Row<'_>) -> Result<Attempt> {
    Ok(Attempt {
        run: RunNo(row.get(0)?),
        no: AttemptNo(row.get(1)?),
        slot: Slot(row.get(2)?),
        label: row.get(3)?,
        instance: row.get::<_, Option<i64>>(4)?.map(InstanceNo),
        fence: row.get::<_, Option<i64>>(5)?.map(Fence),
        iteration: row.get(6)?,
        started_at: Micros(row.get(7)?),
        ended_at: row.get::<_, Option<i64>>(8)?.map(Micros),
        exit: from_json_or_null(row, 9)?,
        active_ms: row.get(10)?,
        untaken: row.get(11)?,
        diverged: row.get::<_, Option<i64>>(12)?.map(Seq),
        diverged_untaken: row.get(13)?,
        closed_before: row.get(14)?,
    })
}

pub fn lease(row: &Row<'_>) -> Result<Lease> {
    Ok(Lease {
        run: RunNo(row.get(0)?),
        slot: Slot(row.get(1)?),
        instance: InstanceNo(row.get(2)?),
        fence: Fence(row.get(3)?),
    })
}

pub fn entry(row: &Row<'_>) -> Result<Entry> {
    let amounts = |at: usize| -> Result<Amounts> {
        Ok(Amounts::of(row.get(at)?, row.get(at + 1)?).with(Unit::Calls, row.get(at + 2)?))
    };
    let kind: i64 = row.get(2)?;
    let state: i64 = row.get(3)?;
    let match_key = match row.get_ref(8)?.as_blob_or_null()? {
        None => None,
        Some(b) => Some(MatchKey(b.try_into().map_err(|_| bad(8, "a match key has 16 bytes"))?)),
    };
    let mut entry = Entry {
        run: RunNo(row.get(0)?),
        seq: Seq(row.get(1)?),
        kind: Kind::from_code(kind).ok_or_else(|| bad(2, format!("no kind {kind}")))?,
        state: State::from_code(state).ok_or_else(|| bad(3, format!("no state {state}")))?,
        attempt: AttemptNo(row.get(4)?),
        instance: row.get::<_, Option<i64>>(5)?.map(InstanceNo),
        scope: Arc::from(row.get_ref(6)?.as_str()?),
        key: row.get(7)?,
        match_key,
        opened_at: Micros(row.get(9)?),
        closed_at: row.get::<_, Option<i64>>(10)?.map(Micros),
        held: amounts(11)?,
        spent: amounts(14)?,
        delivered_to: row.get::<_, Option<i64>>(17)?.map(AttemptNo),
        delivered_count: row.get(18)?,
        retried_by: row.get::<_, Option<i64>>(19)?.map(Seq),
        replayable: row.get(20)?,
        call: None,
        step: None,
        item: None,
        approval: None,
    };
    columns::put_detail(&mut entry, row.get_ref(21)?.as_str_or_null()?).map_err(|e| bad(21, e))?;
    Ok(entry)
}

pub fn payload(row: &Row<'_>) -> Result<Payload> {
    payload_at(row, 0)
}

fn payload_at(row: &Row<'_>, at: usize) -> Result<Payload> {
    let codec: u8 = row.get(at)?;
    Ok(Payload {
        codec: Codec::from_u8(codec).map_err(|e| bad(at, e))?,
        key_id: row.get(at + 1)?,
        len: u64::try_from(row.get::<_, i64>(at + 2)?).map_err(|e| bad(at + 2, e))?,
        sha256: row
            .get_ref(at + 3)?
            .as_blob()?
            .try_into()
            .map_err(|_| bad(at + 3, "a SHA-256 has 32 bytes"))?,
        part: 0,
        bytes: Bytes::from(row.get::<_, Vec<u8>>(at + 4)?),
    })
}

/// A value that stands in its entry's row.
pub fn short_value_at(row: &Row<'_>, at: usize) -> Result<Option<Payload>> {
    let Some(blob) = row.get_ref(at)?.as_blob_or_null()? else { return Ok(None) };
    Payload::from_bytes(Bytes::copy_from_slice(blob)).map(Some).map_err(|e| bad(at, e))
}

/// A value, the entry's own or joined to it, that may be absent.
fn value_at(row: &Row<'_>, at: usize) -> Result<Option<Payload>> {
    match short_value_at(row, at)? {
        Some(value) => Ok(Some(value)),
        None if row.get_ref(at + 1)? == ValueRef::Null => Ok(None),
        None => payload_at(row, at + 1).map(Some),
    }
}

pub fn item_row(row: &Row<'_>) -> Result<ItemRow> {
    let calls: i64 = row.get(7)?;
    Ok(ItemRow {
        seq: Seq(row.get(0)?),
        key: row.get(1)?,
        attempt: AttemptNo(row.get(2)?),
        opened_at: Micros(row.get(3)?),
        closed_at: row.get::<_, Option<i64>>(4)?.map(Micros),
        spent: Amounts::of(row.get(5)?, row.get(6)?).with(Unit::Calls, calls),
        detail: from_json(row, 8)?,
    })
}

pub fn result_row(row: &Row<'_>) -> Result<(ItemRow, Option<Payload>)> {
    Ok((item_row(row)?, value_at(row, 9)?))
}

pub fn step_row(row: &Row<'_>) -> Result<(StepRow, Option<Payload>)> {
    let state: i64 = row.get(3)?;
    let step = StepRow {
        seq: Seq(row.get(0)?),
        scope: Arc::from(row.get_ref(1)?.as_str()?),
        key: row.get(2)?,
        state: State::from_code(state).ok_or_else(|| bad(3, format!("no state {state}")))?,
        closed_at: row.get::<_, Option<i64>>(4)?.map(Micros),
    };
    Ok((step, value_at(row, 5)?))
}
