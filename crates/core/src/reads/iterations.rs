//! Inputs of a loop's iterations.

use crate::{
    engine::run::iteration::key,
    journal::{Kind, Payload, Role},
    store::{self, Sought, Store},
    words::RunNo,
};

/// Returns the standard input of an iteration (counted from 0): `None` when it has not begun, `Some(None)` when it has
/// no input of its own.
pub fn input(store: &dyn Store, run: RunNo, iteration: i64) -> Result<Option<Option<Payload>>, store::Error> {
    let Some(entry) = store.newest(run, &Sought::done(Kind::Iteration, &key(iteration)))? else {
        return Ok(None);
    };
    Ok(Some(store.payload(run, entry.seq, Role::Stdin)?))
}
