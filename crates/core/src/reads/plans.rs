//! Plans of logins as their providers told them last, in a state namespace that no run may write.

use crate::{
    call::plan::Plan,
    engine::state::put::{Change, Put},
    envelope::ceiling::Ceilings,
    state::{Item, Name},
    store::{Error, RunView, Store, state::Scan},
};

/// Namespace of the plans of all logins.
pub const NAMESPACE: &str = "outlast:plans";
const AGENT: &str = "login";

/// Most logins that are listed.
const MOST: usize = 500;

/// A plan, and the version of its key: 0 if no plan was ever stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub plan: Plan,
    pub version: i64,
}

/// Returns the plan of a login.
pub fn find(store: &dyn Store, login: &str) -> Result<Kept, Error> {
    let Some(item) = store.state(NAMESPACE, AGENT, login)? else { return Ok(Kept::default()) };
    Ok(Kept { plan: read(&item)?.unwrap_or_default(), version: item.version })
}

/// Builds the write of a plan over the version that it was read at.
pub fn put(login: &str, plan: &Plan, version: i64) -> Result<Put, Error> {
    let value = serde_json::to_vec(plan).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    let change = Change::set(Name::new(NAMESPACE, AGENT, login), &value).expecting(version);
    Ok(Put { actor: None, changes: vec![change], transaction: None })
}

/// Lists the logins and their plans, by name.
pub fn list(store: &dyn Store) -> Result<Vec<(String, Plan)>, Error> {
    let scan = Scan { namespace: NAMESPACE.into(), agent: AGENT.into(), limit: MOST, ..Scan::default() };
    let items = store.state_scan(&scan)?;
    let each = items.into_iter().map(|item| Ok(read(&item)?.map(|plan| (item.key, plan))));
    each.filter_map(Result::transpose).collect()
}

/// Returns the ceilings that a run is under: its own and those of the runs above it. Of two the lower one counts.
pub fn ceilings(store: &dyn Store, view: &RunView) -> Result<Ceilings, Error> {
    let mut ceilings = view.spec.plan.clone().unwrap_or_default();
    let mut parent = view.run.parent;
    while let Some(no) = parent {
        let Some(above) = store.run(no)? else { break };
        ceilings = ceilings.under(above.spec.plan.as_ref().unwrap_or(&Ceilings::default()));
        parent = above.run.parent;
    }
    Ok(ceilings)
}

/// Decodes a plan; `None` for a deleted one.
fn read(item: &Item) -> Result<Option<Plan>, Error> {
    let Some(value) = &item.value else { return Ok(None) };
    let corrupt = |e| Error::Corrupt { what: format!("the plan of {:?}: {e}", item.key) };
    serde_json::from_slice(value).map(Some).map_err(corrupt)
}
