//! The objects of all runs of a store: what is still needed, and whether it is whole.

use std::{collections::HashSet, fs};

use outlast_core::{
    reads::runs,
    store::{RunFilter, Store},
};
use outlast_files::{Collected, Id, Objects};

use super::{directory, history::History, of_run};
use crate::{program::error::FilesError, settings::store_address::StoreAddress};

/// Removes what no run of the store needs any more. `None`: nothing is kept in this store.
pub fn collect(store: &dyn Store, place: &StoreAddress) -> Result<Option<Collected>, FilesError> {
    let Some(mut objects) = open(place)? else { return Ok(None) };
    let alone = objects.alone()?;
    let live = live(store, &objects, true)?;
    Ok(Some(objects.collect(&alone, &live)?))
}

/// Returns what is damaged in the objects of a store.
pub fn damage(store: &dyn Store, place: &StoreAddress) -> Result<Vec<String>, FilesError> {
    let Some(mut objects) = open(place)? else { return Ok(Vec::new()) };
    let live = live(store, &objects, false)?;
    Ok(objects.verify(&live)?)
}

fn open(place: &StoreAddress) -> Result<Option<Objects>, FilesError> {
    let StoreAddress::File(_) = place else { return Ok(None) };
    let directory = directory(place)?;
    // Its size is looked at where files are added.
    Ok(if directory.exists() { Some(Objects::open(&directory, false, u64::MAX)?) } else { None })
}

/// Returns the snapshots that the runs of the store have, and those that restorations by hand kept. `forget`: files of
/// the latter whose run is gone are removed.
fn live(store: &dyn Store, objects: &Objects, forget: bool) -> Result<Vec<Id>, FilesError> {
    let (mut live, mut names) = (Vec::new(), HashSet::new());
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        if of_run(&view).is_some() {
            let history = History::read(store, view.run.no)?;
            live.extend(history.steps.iter().map(|step| step.kept.snapshot));
            names.insert(super::saved(&view.run.id));
        }
    }
    for entry in fs::read_dir(objects.directory())? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.ends_with(super::SAVED) {
            continue;
        }
        match names.contains(&name) {
            true => {
                for by_hand in super::read_by_hand(&path)? {
                    live.push(by_hand.saved);
                    live.extend(by_hand.now);
                }
            }
            false if forget => fs::remove_file(&path)?,
            false => {}
        }
    }
    Ok(live)
}
