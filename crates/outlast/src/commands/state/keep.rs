//! `outlast state keep`: sets how many versions of each key a namespace keeps, and removes the others.

use outlast_core::{engine::state::retain::Retain, state::Retention};
use outlast_server::{api::state::show::Kept, state::retention};

use super::super::prelude::*;
use crate::commands::state::KeepArgs;

/// Sets the number of versions and compacts the namespace. Without a number, only prints the setting.
pub fn keep(store: &dyn Store, args: &KeepArgs, page: &mut Page) -> Result<(), CliError> {
    let name = &args.place.namespace;
    let mut removed = 0;
    if let Some(keep) = args.versions {
        removed = retention::retain(store, Retain { actor: None, namespace: name.clone(), keep })?;
    }
    let keep = store.namespace(name)?.map(|n| n.keep).unwrap_or_default();
    if page.look.json {
        return Ok(page.json(&Kept::new(name, keep, args.versions.map(|_| removed)))?);
    }
    let kept = match keep {
        Retention::All => "every version of a key".to_owned(),
        Retention::Last(1) => "the newest version of a key".to_owned(),
        Retention::Last(n) => format!("the last {n} versions of a key"),
    };
    let removed = if args.versions.is_some() { format!("; {removed} removed") } else { String::new() };
    Ok(page.line(&format!("namespace {name} keeps {kept}{removed}"))?)
}
