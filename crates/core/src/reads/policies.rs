//! Named policies, stored in a table of Outlast's own.

use serde::{Deserialize, Serialize};

use crate::{
    engine::PutRow,
    envelope::Limits,
    reads::rows,
    run::rules::Rules,
    state::{Item, Table},
    store::{Error, Store},
    words::{Micros, RunId},
};

/// Policy under one name: limits, allowed tools, and tool calls that need approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedPolicy {
    pub limits: Limits,
    /// Whether wall time stands still while an approval is pending.
    pub pause_wall: bool,
    /// Rules on tools; they carry the policy's name.
    pub rules: Rules,
    pub created_at: Micros,
    #[serde(skip)]
    pub updated_at: Micros,
}

impl NamedPolicy {
    pub fn name(&self) -> &str {
        &self.rules.policy
    }
}

/// Returns whether a policy may have this name: any valid run id may.
pub fn is_name(text: &str) -> bool {
    RunId::new(text).is_ok()
}

/// Builds the write that stores a policy under its name and replaces the one before. `at` is the current time. Runs
/// keep the policy they were created with.
///
/// Errors: those of the store.
pub fn put(store: &dyn Store, policy: &NamedPolicy, at: Micros) -> Result<PutRow, Error> {
    let before = find(store, policy.name())?;
    let kept = NamedPolicy { created_at: before.map_or(at, |p| p.created_at), ..policy.clone() };
    rows::put(Table::Policies, policy.name(), &kept, None)
}

/// Returns the policy of this name; `None` if there is none.
pub fn find(store: &dyn Store, name: &str) -> Result<Option<NamedPolicy>, Error> {
    rows::find(store, Table::Policies, name)?.and_then(|item| read(&item).transpose()).transpose()
}

/// Lists all policies, by name.
pub fn list(store: &dyn Store) -> Result<Vec<NamedPolicy>, Error> {
    rows::list(store, Table::Policies)?.iter().filter_map(|item| read(item).transpose()).collect()
}

/// Decodes a policy; `None` for a deleted one.
fn read(item: &Item) -> Result<Option<NamedPolicy>, Error> {
    let policy = rows::decode::<NamedPolicy>(item)?;
    Ok(policy.map(|policy| NamedPolicy { updated_at: item.at, ..policy }))
}
