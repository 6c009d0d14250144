//! Plans of logins as their providers told them last, in a table of Outlast's own; and the ceilings on them.

use crate::{
    call::plan::Plan,
    envelope::Ceilings,
    reads::{rows, runs},
    state::Table,
    store::{Error, RunView, Store},
};

/// Lists the logins and their plans, by name.
pub fn list(store: &dyn Store) -> Result<Vec<(String, Plan)>, Error> {
    let items = rows::list(store, Table::Plans)?.into_iter();
    let each = items.map(|item| Ok(rows::decode(&item)?.map(|plan| (item.key, plan))));
    each.filter_map(Result::transpose).collect()
}

/// Lists the plans of the logins under which a run made calls, with the ceilings that the run is under.
pub fn of_run(store: &dyn Store, view: &RunView) -> Result<(Ceilings, Vec<(String, Plan)>), Error> {
    let mut plans = list(store)?;
    plans.retain(|(_, plan)| plan.has(view.run.no));
    Ok((ceilings(store, view)?, plans))
}

/// Returns the ceilings that a run is under: its own and those of the runs above it. Of two the lower one counts.
pub fn ceilings(store: &dyn Store, view: &RunView) -> Result<Ceilings, Error> {
    let mut ceilings = view.spec.plan.clone().unwrap_or_default();
    for above in runs::above(store, view) {
        ceilings = ceilings.under(above?.spec.plan.as_ref().unwrap_or(&Ceilings::default()));
    }
    Ok(ceilings)
}
