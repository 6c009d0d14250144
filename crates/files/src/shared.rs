//! Objects in a place that machines share, beside the packs of this one.
//!
//! A snapshot is whole in the shared place before a journal names it. Nothing locks the place for that: who publishes
//! marks what the snapshot needs, and a sweep spares for a while what was marked.

use std::collections::{HashMap, HashSet};

use outlast_core::{
    store::{SharedObjects, objects::Object},
    words::Micros,
};

use crate::{
    Id,
    error::Error,
    objects::{Adding, Objects},
    pack,
    tree::walk,
};

/// Time for which a sweep spares what was added or marked, in microseconds: much longer than it takes a journal to name
/// it.
pub const SPARED_US: i64 = 3_600_000_000;

/// Most objects, and most bytes, that are sent at once.
const AT_ONCE: usize = 1000;
const BYTES_AT_ONCE: usize = 8 << 20;

fn damaged(id: Id) -> Error {
    Error::Corrupt { what: format!("object {id} in the store") }
}

/// Reads objects of a shared place; the content of a damaged one is `None`. Returns those that are not there.
fn each(
    place: &dyn SharedObjects,
    ids: &[Id],
    mut deed: impl FnMut(Id, Option<Vec<u8>>) -> Result<(), Error>,
) -> Result<HashSet<Id>, Error> {
    let mut lacking: HashSet<Id> = ids.iter().copied().collect();
    while !lacking.is_empty() {
        let asked: Vec<Id> = lacking.iter().copied().collect();
        let objects = place.read(&asked)?;
        if objects.is_empty() {
            break;
        }
        for Object { name, length, bytes } in objects {
            lacking.remove(&name);
            deed(name, pack::content(name, length, bytes))?;
        }
    }
    Ok(lacking)
}

impl Objects {
    /// Puts a snapshot of this machine into the shared place. `published`: objects of snapshots that the journal has,
    /// which need not be looked for; those of this one are added. After an error it must be emptied.
    ///
    /// Errors: `OverLimit`.
    pub fn publish(
        &mut self,
        place: &dyn SharedObjects,
        snapshot: &Id,
        published: &mut HashSet<Id>,
    ) -> Result<(), Error> {
        let needed = self.mark(&[*snapshot], published)?;
        let mut lacking = Vec::new();
        for ids in needed.chunks(AT_ONCE) {
            let there: HashSet<Id> = place.mark(ids)?.into_iter().collect();
            lacking.extend(ids.iter().copied().filter(|id| !there.contains(id)));
        }
        if lacking.is_empty() {
            return Ok(());
        }
        let needed = place.size()? + self.stored_size(&lacking);
        if needed > self.max() {
            return Err(Error::OverLimit { needed, max: self.max() });
        }
        let (mut batch, mut size) = (Vec::new(), 0);
        for id in lacking {
            let (length, bytes) = self.stored(&id)?;
            // A damaged object must not become the one of all machines.
            pack::content(id, length, bytes.clone()).ok_or_else(|| damaged(id))?;
            size += bytes.len();
            batch.push(Object { name: id, length, bytes });
            if size >= BYTES_AT_ONCE || batch.len() == AT_ONCE {
                place.add(std::mem::take(&mut batch))?;
                size = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { Ok(place.add(batch)?) }
    }

    /// Brings from the shared place what snapshots need and this machine lacks. Errors: `Missing`, `Corrupt`,
    /// `OverLimit`; nothing was brought then.
    pub fn bring(&mut self, place: &dyn SharedObjects, snapshots: &[Id]) -> Result<(), Error> {
        let _held = self.share()?;
        let mut adding = self.add()?;
        match adding.bring(place, snapshots) {
            Ok(()) => adding.finish(),
            Err(e) => {
                adding.abandon();
                Err(e)
            }
        }
    }

    /// Removes from the shared place what no snapshot of `live` needs. `now` is the store's time before `live` was read.
    pub fn sweep(&mut self, place: &dyn SharedObjects, live: &[Id], now: Micros) -> Result<(), Error> {
        let mut needed = HashSet::new();
        self.reachable(place, live, &mut needed)?;
        pages(place, |page| {
            let unneeded: Vec<Id> = page.iter().copied().filter(|id| !needed.contains(id)).collect();
            if !unneeded.is_empty() {
                place.remove(&unneeded, Micros(now.0 - SPARED_US))?;
            }
            Ok(())
        })
    }

    /// Reads every object of the shared place, and checks that each snapshot of `live` is whole there. Returns what is
    /// wrong.
    pub fn verify_shared(&mut self, place: &dyn SharedObjects, live: &[Id]) -> Result<Vec<String>, Error> {
        let (mut wrong, mut there) = (Vec::new(), HashSet::<Id>::new());
        pages(place, |page| {
            there.extend(page);
            let deed = |id, content: Option<Vec<u8>>| {
                wrong.extend(content.is_none().then(|| damaged(id).to_string()));
                Ok(())
            };
            each(place, page, deed).map(drop)
        })?;
        let mut seen = HashSet::new();
        for snapshot in live {
            let whole = match self.reachable(place, &[*snapshot], &mut seen) {
                Ok(needed) => needed
                    .iter()
                    .find(|id| !there.contains(*id))
                    .map_or(Ok(()), |id| Err(Error::Missing(*id))),
                Err(e) => Err(e),
            };
            match whole {
                Err(e @ (Error::Missing(_) | Error::Corrupt { .. })) => {
                    wrong.push(format!("snapshot {snapshot}: {e}"))
                }
                whole => whole?,
            }
        }
        Ok(wrong)
    }

    /// Adds all objects that snapshots need to `seen`, and returns those that were not in it, wherever they are.
    fn reachable(
        &mut self,
        place: &dyn SharedObjects,
        snapshots: &[Id],
        seen: &mut HashSet<Id>,
    ) -> Result<Vec<Id>, Error> {
        let mut adding = self.add()?;
        let walked = walk(snapshots, seen, |ids| adding.contents(place, ids));
        // Trees without the contents of their files are of no use here.
        adding.abandon();
        walked
    }
}

/// Passes all objects of a shared place, in order.
fn pages(place: &dyn SharedObjects, mut deed: impl FnMut(&[Id]) -> Result<(), Error>) -> Result<(), Error> {
    let mut after = Id([0; 32]);
    loop {
        let page = place.list(&after, AT_ONCE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = *last;
        deed(&page)?;
    }
}

impl Adding<'_> {
    fn bring(&mut self, place: &dyn SharedObjects, snapshots: &[Id]) -> Result<(), Error> {
        let mut walked = walk(snapshots, &mut HashSet::new(), |ids| self.contents(place, ids))?;
        walked.retain(|id| !self.has(id));
        for ids in walked.chunks(AT_ONCE) {
            let lacking =
                each(place, ids, |id, content| self.put(content.ok_or_else(|| damaged(id))?).map(drop))?;
            if let Some(id) = lacking.into_iter().next() {
                return Err(Error::Missing(id));
            }
        }
        Ok(())
    }

    /// Reads objects, and adds those that only the shared place has.
    fn contents(&mut self, place: &dyn SharedObjects, ids: &[Id]) -> Result<Vec<Vec<u8>>, Error> {
        let lacking: Vec<Id> = ids.iter().copied().filter(|id| !self.objects.contains(id)).collect();
        let mut brought = HashMap::new();
        each(place, &lacking, |id, content| {
            let content = content.ok_or_else(|| damaged(id))?;
            self.put(content.clone())?;
            brought.insert(id, content);
            Ok(())
        })?;
        ids.iter().map(|id| brought.remove(id).map_or_else(|| self.objects.get(id), Ok)).collect()
    }
}
