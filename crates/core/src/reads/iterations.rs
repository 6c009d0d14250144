//! What an iteration of a loop began with.

use crate::{
    engine::run::begin_iteration::key,
    journal::{Kind, Role, payload::Payload},
    store::{self, Sought, Store},
    words::id::RunNo,
};

/// What the iteration began with: `None` when it has not begun, `Some(None)` when it has no input of its own.
pub fn input(store: &dyn Store, run: RunNo, iteration: i64) -> Result<Option<Option<Payload>>, store::Error> {
    let Some(entry) = store.newest(run, &Sought::done(Kind::Iteration, &key(iteration)))? else {
        return Ok(None);
    };
    Ok(Some(store.payload(run, entry.seq, Role::Stdin)?))
}
