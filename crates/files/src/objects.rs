//! The objects of one store: a directory of packs.
//!
//! Every process may add packs. Packs are removed by `gc` alone, which holds the lock alone; whoever takes a snapshot or
//! restores one shares it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, DirBuilder, File, OpenOptions},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::FlockOperation;

use crate::{
    Id,
    error::{About as _, Error},
    pack::{self, Row, Writer},
    tree::{self, Snapshot, Tree, walk},
};

/// Objects of a store.
pub struct Objects {
    directory: PathBuf,
    /// Largest sum of all packs' sizes, in bytes.
    max: u64,
    /// Names of the packs that are known, with their sizes.
    packs: BTreeMap<String, u64>,
    rows: HashMap<Id, (String, Row)>,
    /// Pack that was read last.
    open: Option<(String, File)>,
    /// Number of its own of the time since objects went last.
    epoch: u64,
}

/// Returns a number that no other epoch of the process has.
fn new_epoch() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Hold on the packs that are there: while it lives, none is removed; or, of [`Objects::alone`], no other hold is there.
pub struct Held(File);

impl Drop for Held {
    fn drop(&mut self) {
        // A lock that is not given back here is given back when its file closes.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Result of `gc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub packs: usize,
    /// Bytes that are free now.
    pub bytes: u64,
}

impl Objects {
    /// Opens the objects in a directory, and makes it if `create` is set (mode 0700). `max`: largest number of bytes that
    /// they may have.
    pub fn open(directory: &Path, create: bool, max: u64) -> Result<Objects, Error> {
        let what = || directory.display().to_string();
        if create {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).about(what)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(directory.join("lock")).about(what)?;
        let (packs, rows) = (BTreeMap::new(), HashMap::new());
        let mut objects =
            Objects { directory: directory.to_owned(), max, packs, rows, open: None, epoch: new_epoch() };
        objects.refresh()?;
        Ok(objects)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Names of all packs.
    pub fn packs(&self) -> impl Iterator<Item = &str> {
        self.packs.keys().map(String::as_str)
    }

    /// Sum of the sizes of all packs, in bytes.
    pub fn size(&self) -> u64 {
        self.packs.values().sum()
    }

    /// Keeps all packs as long as the hold lives: from before a snapshot is taken until it is recorded. Learns of packs
    /// that others have added and removed.
    pub fn share(&mut self) -> Result<Held, Error> {
        let held = self.hold(FlockOperation::LockShared)?;
        self.refresh()?;
        Ok(held)
    }

    /// Waits until nobody takes a snapshot or restores one, and keeps it so.
    pub fn alone(&self) -> Result<Held, Error> {
        self.hold(FlockOperation::LockExclusive)
    }

    fn hold(&self, how: FlockOperation) -> Result<Held, Error> {
        let what = || self.directory.display().to_string();
        // A description of its own: the lock belongs to it, not to the process.
        let file = OpenOptions::new().read(true).open(self.directory.join("lock")).about(what)?;
        rustix::fs::flock(&file, how).about(what)?;
        Ok(Held(file))
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let what = || self.directory.display().to_string();
        let mut packs = BTreeMap::new();
        for entry in fs::read_dir(&self.directory).about(what)? {
            let entry = entry.about(what)?;
            if let Some(name) = entry.file_name().to_str().filter(|name| name.ends_with(pack::SUFFIX)) {
                packs.insert(name.to_owned(), entry.metadata().about(what)?.len());
            }
        }
        if self.packs.keys().any(|name| !packs.contains_key(name)) {
            self.rows.retain(|_, (pack, _)| packs.contains_key(pack));
            self.epoch = new_epoch();
        }
        for name in packs.keys().filter(|name| !self.packs.contains_key(*name)) {
            let rows = pack::table(&self.directory.join(name))?;
            self.rows.extend(rows.into_iter().map(|row| (row.id, (name.clone(), row))));
        }
        self.packs = packs;
        Ok(())
    }

    /// Returns a number that changes when objects may have gone.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether an object is in the packs.
    pub fn contains(&self, id: &Id) -> bool {
        self.rows.contains_key(id)
    }

    /// Largest number of bytes that all packs may have.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Sum of the bytes that objects take in the packs.
    pub(crate) fn stored_size(&self, ids: &[Id]) -> u64 {
        ids.iter().filter_map(|id| self.rows.get(id)).map(|(_, row)| u64::from(row.stored)).sum()
    }

    /// Reads an object. Errors: `Missing`, `Corrupt`.
    pub(crate) fn get(&mut self, id: &Id) -> Result<Vec<u8>, Error> {
        let (length, stored) = self.stored(id)?;
        let place = || self.directory.display();
        let corrupt = || Error::Corrupt { what: format!("object {id} in {}", place()) };
        pack::content(*id, length, stored).ok_or_else(corrupt)
    }

    /// Reads an object as it is stored, with the length of its content. Errors: `Missing`.
    pub(crate) fn stored(&mut self, id: &Id) -> Result<(u32, Vec<u8>), Error> {
        let (name, row) = self.rows.get(id).ok_or(Error::Missing(*id))?;
        let path = self.directory.join(name);
        if self.open.as_ref().is_none_or(|(open, _)| open != name) {
            let file = File::open(&path).about(|| path.display().to_string())?;
            self.open = Some((name.clone(), file));
        }
        match &self.open {
            Some((_, file)) => Ok((row.length, pack::stored(file, row, &path)?)),
            None => Err(Error::Missing(*id)),
        }
    }

    pub(crate) fn tree(&mut self, id: &Id) -> Result<Tree, Error> {
        tree::decode(*id, &self.get(id)?)
    }

    /// Reads a snapshot by its name. Errors: `Missing`, `Corrupt`.
    pub fn snapshot(&mut self, id: &Id) -> Result<Snapshot, Error> {
        tree::snapshot(id, &self.get(id)?)
    }

    /// Reads the whole content of a file. Errors: `Missing`, `Corrupt`.
    pub fn content(&mut self, parts: &[Id]) -> Result<Vec<u8>, Error> {
        let mut content = Vec::new();
        for part in parts {
            content.extend(self.get(part)?);
        }
        Ok(content)
    }

    pub(crate) fn add(&mut self) -> Result<Adding<'_>, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{count}-{}", std::process::id(), crate::take::now_us());
        let writer = Writer::new(&self.directory, &name)?;
        Ok(Adding { objects: self, writer, fresh: HashSet::new() })
    }

    /// Adds all objects that snapshots need to other objects. Errors: `Missing`, `Corrupt`, `OverLimit`; nothing was added
    /// then.
    pub fn copy_to(&mut self, other: &mut Objects, snapshots: &[Id]) -> Result<(), Error> {
        let needed = self.mark(snapshots, &mut HashSet::new())?;
        let mut adding = other.add()?;
        for id in needed {
            if let Err(e) = self.get(&id).and_then(|content| adding.put(content)) {
                adding.abandon();
                return Err(e);
            }
        }
        adding.finish()
    }

    /// Removes what no snapshot of `live` needs, which was read under the hold. A pack of which more than half is needed
    /// stays as it is.
    ///
    /// Killed at any instant, it has lost nothing: what is needed is in a new pack before the old one goes.
    pub fn collect(&mut self, _alone: &Held, live: &[Id]) -> Result<Collected, Error> {
        let place = self.directory.display().to_string();
        let what = || place.clone();
        self.refresh()?;
        for entry in fs::read_dir(&self.directory).about(what)? {
            let name = entry.about(what)?.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(pack::UNFINISHED)) {
                fs::remove_file(self.directory.join(name)).about(what)?;
            }
        }
        let before = self.size();
        let mut needed = HashSet::new();
        let live = [live, &crate::restore::needed(&self.directory)?].concat();
        self.mark(&live, &mut needed)?;
        let mut kept: HashMap<&str, u64> = HashMap::new();
        for (id, (pack, row)) in &self.rows {
            if needed.contains(id) {
                *kept.entry(pack).or_default() += u64::from(row.stored);
            }
        }
        let is_sparse =
            |(name, size): &(&String, &u64)| 2 * kept.get(name.as_str()).copied().unwrap_or(0) <= **size;
        let sparse: HashSet<String> =
            self.packs.iter().filter(is_sparse).map(|(name, _)| name.clone()).collect();
        let moving = self.rows.iter().filter(|(id, (pack, _))| sparse.contains(pack) && needed.contains(id));
        let moving: Vec<Id> = moving.map(|(id, _)| *id).collect();
        let mut writer = Writer::new(&self.directory, "gc")?;
        for id in &moving {
            let content = self.get(id)?;
            writer.append(*id, content)?;
        }
        let written = writer.finish()?;
        for name in &sparse {
            if written.as_ref().is_none_or(|(new, _)| new != name) {
                crate::fault::point("gc remove").about(what)?;
                fs::remove_file(self.directory.join(name)).about(what)?;
            }
        }
        // Rows of a pack that is gone would hide those of the new one.
        (self.packs, self.rows, self.open) = (BTreeMap::new(), HashMap::new(), None);
        self.epoch = new_epoch();
        self.refresh()?;
        Ok(Collected { packs: sparse.len(), bytes: before.saturating_sub(self.size()) })
    }

    /// Adds all objects that snapshots need to `needed`, and returns those that were not in it. Errors: `Missing`,
    /// `Corrupt`.
    pub(crate) fn mark(&mut self, snapshots: &[Id], needed: &mut HashSet<Id>) -> Result<Vec<Id>, Error> {
        let walked = walk(snapshots, needed, |ids| ids.iter().map(|id| self.get(id)).collect())?;
        match walked.iter().find(|id| !self.contains(id)) {
            Some(missing) => Err(Error::Missing(*missing)),
            None => Ok(walked),
        }
    }

    /// Reads every object and checks that each snapshot of `live` is whole. Returns what is wrong.
    pub fn verify(&mut self, live: &[Id]) -> Result<Vec<String>, Error> {
        let _shared = self.share()?;
        let ids: Vec<Id> = self.rows.keys().copied().collect();
        let mut wrong: Vec<String> =
            ids.iter().filter_map(|id| self.get(id).err()).map(|e| e.to_string()).collect();
        for snapshot in live {
            if let Err(e) = self.mark(&[*snapshot], &mut HashSet::new()) {
                wrong.push(format!("snapshot {snapshot}: {e}"));
            }
        }
        Ok(wrong)
    }
}

/// Objects that are being added, all in one pack.
pub(crate) struct Adding<'a> {
    pub objects: &'a mut Objects,
    writer: Writer,
    fresh: HashSet<Id>,
}

impl Adding<'_> {
    /// Returns whether an object is in the packs, or was added.
    pub fn has(&self, id: &Id) -> bool {
        self.objects.contains(id) || self.fresh.contains(id)
    }

    /// Adds an object if the store does not have it. Errors: `OverLimit`.
    pub fn put(&mut self, content: Vec<u8>) -> Result<Id, Error> {
        let id = Id::of(&content);
        if !self.objects.contains(&id) && self.fresh.insert(id) {
            self.writer.append(id, content)?;
            self.check_limit()?;
        }
        Ok(id)
    }

    fn check_limit(&self) -> Result<(), Error> {
        let (needed, max) = (self.objects.size() + self.writer.size(), self.objects.max);
        if needed > max { Err(Error::OverLimit { needed, max }) } else { Ok(()) }
    }

    /// Makes what was added durable. Errors: `OverLimit`; nothing is kept then.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Err(e) = self.writer.settle().and_then(|()| self.check_limit()) {
            self.abandon();
            return Err(e);
        }
        let size = self.writer.size();
        if let Some((name, rows)) = self.writer.finish()? {
            self.objects.packs.insert(name.clone(), size);
            self.objects.rows.extend(rows.into_iter().map(|row| (row.id, (name.clone(), row))));
        }
        Ok(())
    }

    /// Removes what was added.
    pub fn abandon(self) {
        self.writer.abandon();
    }
}
