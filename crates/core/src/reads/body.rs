//! Stored request bodies, restored from their record and the records it is based on.

use bytes::Bytes;

use crate::{
    body::{BodyRecord, Restoring},
    journal::Role,
    store::{Error, Store},
    words::{RunNo, Seq},
};

/// Returns the body that entry `seq` of `run` sent; `None` where none is kept (`record` is `answers` or `digests`).
///
/// Errors: those of the store; `Corrupt` where a base record is missing, or the restored bytes are not what was sent.
pub fn stored(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<Vec<u8>>, Error> {
    let corrupt =
        |e: &dyn std::fmt::Display| Error::Corrupt { what: format!("the request of entry {seq}: {e}") };
    let read = |seq: Seq| -> Result<Option<BodyRecord>, Error> {
        let Some(payload) = store.payload(run, seq, Role::Request)? else { return Ok(None) };
        let bytes: Bytes = payload.decode().map_err(|e| corrupt(&e))?;
        BodyRecord::from_bytes(bytes).map(Some).map_err(|e| corrupt(&e))
    };
    let Some(newest) = read(seq)? else { return Ok(None) };
    let mut restoring = Restoring::new(&newest).map_err(|e| corrupt(&e))?;
    while let Some(wanted) = restoring.wants() {
        let below =
            read(wanted)?.ok_or_else(|| corrupt(&format_args!("that of entry {wanted} is missing")))?;
        restoring.give(&below).map_err(|e| corrupt(&e))?;
    }
    restoring.finish().map(Some).map_err(|e| corrupt(&e))
}
