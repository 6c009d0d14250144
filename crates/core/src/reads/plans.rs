//! Plans of logins as their providers told them last, in a table of Outlast's own.

use crate::{
    call::plan::Plan,
    engine::PutRow,
    envelope::Ceilings,
    reads::rows,
    state::Table,
    store::{Error, RunView, Store, state::Scan},
};

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
    let Some(item) = rows::find(store, Table::Plans, login)? else { return Ok(Kept::default()) };
    Ok(Kept { plan: rows::decode(&item)?.unwrap_or_default(), version: item.version })
}

/// Builds the write of a plan over the version that it was read at.
pub fn put(login: &str, plan: &Plan, version: i64) -> Result<PutRow, Error> {
    rows::put(Table::Plans, login, plan, version)
}

/// Lists the logins and their plans, by name.
pub fn list(store: &dyn Store) -> Result<Vec<(String, Plan)>, Error> {
    let (namespace, agent) = (Table::Plans.namespace().into(), Table::Plans.agent().into());
    let scan = Scan { namespace, agent, limit: MOST, ..Scan::default() };
    let items = store.state_scan(&scan)?;
    let each = items.into_iter().map(|item| Ok(rows::decode(&item)?.map(|plan| (item.key, plan))));
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
