//! Named policies, stored in a state namespace that no run may write.

use serde::{Deserialize, Serialize};

use crate::{
    engine::state::put::{Change, Put},
    envelope::unit::Limits,
    reads::keys,
    run::rules::Rules,
    state::{At, Item, Name},
    store::{Error, Store},
    words::id::{Micros, RunId},
};

/// Namespace of all named policies.
pub const NAMESPACE: &str = "outlast:policies";
const AGENT: &str = "policy";

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
pub fn put(store: &dyn Store, policy: &NamedPolicy, at: Micros) -> Result<Put, Error> {
    let before = find(store, policy.name())?;
    let kept = NamedPolicy { created_at: before.map_or(at, |p| p.created_at), ..policy.clone() };
    let value = serde_json::to_vec(&kept).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    let change = Change::set(Name::new(NAMESPACE, AGENT, policy.name()), &value);
    Ok(Put { actor: None, changes: vec![change], transaction: None })
}

/// Returns the policy of this name; `None` if there is none.
pub fn find(store: &dyn Store, name: &str) -> Result<Option<NamedPolicy>, Error> {
    store.state(NAMESPACE, AGENT, name)?.and_then(|item| read(&item).transpose()).transpose()
}

/// Lists all policies, by name.
pub fn list(store: &dyn Store) -> Result<Vec<NamedPolicy>, Error> {
    let items = keys::all(store, NAMESPACE, AGENT, At::default())?;
    items.iter().filter_map(|item| read(item).transpose()).collect()
}

/// Decodes a policy; `None` for a deleted one.
fn read(item: &Item) -> Result<Option<NamedPolicy>, Error> {
    let Some(value) = &item.value else { return Ok(None) };
    let corrupt = |e| Error::Corrupt { what: format!("the policy {:?}: {e}", item.key) };
    let policy: NamedPolicy = serde_json::from_slice(value).map_err(corrupt)?;
    Ok(Some(NamedPolicy { updated_at: item.at, ..policy }))
}
