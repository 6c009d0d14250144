//! Whole runs: a run and all runs below it, each with everything that its store has of it, to be made in another store.

use super::{all, entries, places, runs};
use crate::{
    engine::Whole,
    journal::Role,
    run::snapshot::{AGENT, namespace},
    state::{At, run_namespace},
    store::{
        Error, RunFilter, RunView, Store,
        state::{Event, EventRange},
    },
    words::{RunNo, Seq},
};

/// Number of versions that are read at a time.
const VERSIONS: usize = 500;

/// Returns a run and all runs below it, parents before their children, and the number of the newest run of the store.
pub fn family(store: &dyn Store, root: RunView) -> Result<(Vec<RunView>, RunNo), Error> {
    let (mut below, mut newest) = (Vec::new(), root.run.no);
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        if view.run.no <= root.run.no {
            break;
        }
        newest = newest.max(view.run.no);
        below.extend(view.run.parent.is_some().then_some(view));
    }
    let mut family = vec![root];
    for view in below.into_iter().rev() {
        if family.iter().any(|above| Some(above.run.no) == view.run.parent) {
            family.push(view);
        }
    }
    Ok((family, newest))
}

/// Reads everything that the store has of a run that nobody works on.
pub fn read(store: &dyn Store, view: RunView) -> Result<Whole, Error> {
    let RunView { run, spec, envelope } = view;
    let no = run.no;
    let entries = entries::each(store, no).collect::<Result<Vec<_>, _>>()?;
    let mut payloads = Vec::new();
    for seq in [Seq(0)].into_iter().chain(entries.iter().map(|e| e.seq)) {
        for role in Role::ALL {
            payloads.extend(store.payload(no, seq, role)?.map(|payload| (seq, role, payload)));
        }
    }
    let own = run_namespace(&run.id);
    let mut versions = Vec::new();
    for agent in places::agents(store, &own)? {
        let mut range = EventRange { namespace: own.clone(), agent, limit: VERSIONS, ..Default::default() };
        versions.extend(all(VERSIONS, |last: Option<&Event>| {
            range.after = last.map_or(range.after, |last| last.item.position);
            store.state_events(&range).map(|page| page.events)
        })?);
    }
    versions.sort_by_key(|version| version.item.position);
    let named = places::keys(store, &namespace(&run.id), AGENT, At::Newest)?;
    let snapshots = named.into_iter().filter_map(|item| Some((item.key, item.value?))).collect();
    let (attempts, namespace) = (store.attempts(no)?, store.namespace(&own)?);
    Ok(Whole { run, spec, envelope, attempts, entries, payloads, namespace, versions, snapshots })
}
