//! The fence of a run that leaves its store: it goes on in one place only.

use outlast_core::{
    engine::Move,
    envelope::Moved,
    reads::whole,
    store::{Ask as _, Durability, RunView, Store},
};

use super::{error::Result, find};

/// Halts a run and all runs below it because they leave their store, or takes them back (`None`). Returns them as they are
/// after it, parents before their children.
pub fn fence(store: &dyn Store, view: &RunView, to: Option<&Moved>) -> Result<Vec<RunView>> {
    loop {
        let (family, seen) = whole::family(store, view.clone())?;
        let runs = family.iter().map(|member| member.run.no).collect();
        if store.ask(Move { runs, seen, to: to.cloned() }, Durability::Synced).wait()? {
            return family.iter().map(|member| find::view(store, member.run.no)).collect();
        }
    }
}
