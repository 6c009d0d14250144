//! Values as they pass between Python and the store: encoded and decoded bytes, changes of the state, limits.

use std::collections::HashMap;

use outlast_core::{
    engine::Change,
    envelope::{Limits, Unit},
    journal::{Payload, Role, payload::MAX_LEN},
    state::Name,
    store::Store,
    words::{RunNo, Seq},
};
use pyo3::prelude::*;

use crate::error::Failure;

/// Size in bytes above which a value is compressed without the interpreter's lock.
const LARGE: usize = 32 << 10;

/// State change as Python passes it: namespace, agent, key, value (None deletes the key), expected version (None: any).
pub type RawChange = (String, String, String, Option<Vec<u8>>, Option<i64>);

pub fn changes_of(raw: Vec<RawChange>) -> Vec<Change> {
    let change = |(namespace, agent, key, value, expected): RawChange| {
        let name = Name::new(namespace, agent, key);
        let change = match value {
            Some(value) => Change::set(name, &value),
            None => Change::delete(name),
        };
        Change { expected, ..change }
    };
    raw.into_iter().map(change).collect()
}

pub fn limits_of(by_name: &HashMap<String, i64>) -> Result<Limits, Failure> {
    let mut limits = Limits::default();
    for (name, value) in by_name {
        let unit = Unit::parse(name)
            .ok_or_else(|| Failure::new("bad_limit", format!("bad limit: no unit {name:?}"), None))?;
        limits[unit] = Some(*value);
    }
    Ok(limits)
}

/// Reads and decodes the value that an entry records; empty if the entry has none.
pub fn value(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Vec<u8>, Failure> {
    let Some(stored) = store.payload(run, seq, Role::Value)? else { return Ok(Vec::new()) };
    decoded(&stored, run, seq)
}

/// Decodes a stored value and checks it against its digest. Errors: `Corrupt`.
pub fn decoded(stored: &Payload, run: RunNo, seq: Seq) -> Result<Vec<u8>, Failure> {
    let damaged = |e| {
        let what = format!("entry {seq} of run {run}: {e}");
        Failure::from(outlast_core::store::Error::Corrupt { what })
    };
    Ok(stored.decode().map_err(damaged)?.into())
}

/// Encodes a value, compressing it on the caller's thread and never on the writer's. Errors: `value_too_large`.
pub fn encode(py: Python<'_>, value: &[u8]) -> Result<Payload, Failure> {
    if value.len() as u64 > MAX_LEN {
        let had = value.len();
        let message = format!("a value of {had} bytes is too large: at most {MAX_LEN} can be recorded");
        return Err(Failure::new("value_too_large", message, Some("store it elsewhere, and record where")));
    }
    Ok(if value.len() > LARGE { py.detach(|| Payload::encode(value)) } else { Payload::encode(value) })
}
