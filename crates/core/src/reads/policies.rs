//! Named policies, as a store keeps them: in a namespace of its state that no run writes.

use serde::{Deserialize, Serialize};

use crate::{
    engine::state::put::{Change, Put},
    envelope::unit::Limits,
    run::rules::Rules,
    state::{Item, Name},
    store::{Error, Store, state::Scan},
    words::id::{Micros, RunId},
};

/// Where they are.
pub const NAMESPACE: &str = "outlast:policies";
const AGENT: &str = "policy";

/// A budget, the tools there are, and what is asked for first, under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedPolicy {
    pub limits: Limits,
    /// `wall_ms` stands still while an approval is pending.
    pub pause_wall: bool,
    /// They carry its name.
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

/// Whether a policy may be called so: as a run may.
pub fn is_name(text: &str) -> bool {
    RunId::new(text).is_ok()
}

/// Keeps a policy under its name, in the place of the one before. `at`: now. Runs keep what they were created with.
///
/// Errors: the store's.
pub fn put(store: &dyn Store, policy: &NamedPolicy, at: Micros) -> Result<Put, Error> {
    let before = find(store, policy.name())?;
    let kept = NamedPolicy { created_at: before.map_or(at, |p| p.created_at), ..policy.clone() };
    let value = serde_json::to_vec(&kept).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    let change = Change::set(Name::new(NAMESPACE, AGENT, policy.name()), &value);
    Ok(Put { actor: None, changes: vec![change], transaction: None })
}

/// The policy of this name.
pub fn find(store: &dyn Store, name: &str) -> Result<Option<NamedPolicy>, Error> {
    store.state(NAMESPACE, AGENT, name)?.and_then(|item| read(&item).transpose()).transpose()
}

/// All policies, by name.
pub fn list(store: &dyn Store) -> Result<Vec<NamedPolicy>, Error> {
    const PAGE: usize = 500;
    let (mut found, mut after): (Vec<NamedPolicy>, Option<String>) = (Vec::new(), None);
    loop {
        let scan = Scan {
            namespace: NAMESPACE.into(),
            agent: AGENT.into(),
            after: after.clone(),
            limit: PAGE,
            ..Scan::default()
        };
        let page = store.state_scan(&scan)?;
        let whole = page.len() == PAGE;
        for item in &page {
            after = Some(item.key.clone());
            found.extend(read(item)?);
        }
        if !whole {
            return Ok(found);
        }
    }
}

/// `None` of one that was deleted.
fn read(item: &Item) -> Result<Option<NamedPolicy>, Error> {
    let Some(value) = &item.value else { return Ok(None) };
    let corrupt = |e| Error::Corrupt { what: format!("the policy {:?}: {e}", item.key) };
    let policy: NamedPolicy = serde_json::from_slice(value).map_err(corrupt)?;
    Ok(Some(NamedPolicy { updated_at: item.at, ..policy }))
}
