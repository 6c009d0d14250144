//! Restores a tree: applies the difference of two snapshots, path by path.
//!
//! Before the first write a note of the restoration is on the disk: from which snapshot, to which, in which root. It goes
//! after the last write. Whoever finds a note whose process is dead does the same again, and passes over what is done:
//! see [`recover`]. New files are prepared in a directory of the root with a name of the restoration's own, and get their
//! places by rename; what was in a place comes back there if it is not what was expected.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    Id, beneath,
    cache::Cache,
    error::{About as _, Error, Refused, shown},
    fault::point,
    objects::Objects,
    pack::sync_directory,
    rules::{Rules, STAGE},
    take::{as_errno, is_now, now_us, take},
    tree::{Change, Node, diff},
};

/// Restoration that is wanted.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    pub root: &'a Path,
    pub rules: &'a Rules,
    /// Snapshot that is to be there afterwards.
    pub to: Id,
    /// Files as they are known: what differs from them now was changed by others; `None`: nothing is looked at.
    pub known: Option<Known>,
    /// Paths, with all that is below them, to which the restoration is confined; empty: the whole tree.
    pub only: Vec<Vec<u8>>,
    /// Paths that are restored although others changed them; `HEAD`: although HEAD has moved since.
    pub force: Vec<Vec<u8>>,
}

/// Files as a run, or restorations by hand after it, left them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub snapshot: Id,
    /// Snapshots before and after each restoration of some paths that followed, oldest first.
    pub parts: Vec<(Id, Id)>,
}

impl From<Id> for Known {
    fn from(snapshot: Id) -> Known {
        Known { snapshot, parts: Vec::new() }
    }
}

/// Result of a restoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Snapshot of what was there before: restoring it takes the restoration back.
    pub saved: Id,
    pub to: Id,
    /// Paths that have been changed.
    pub changed: Vec<Change>,
    /// Paths that were left as they are: somebody changed them meanwhile, or a directory has files in it that are not
    /// kept.
    pub left: Vec<String>,
}

/// Note of a restoration that has begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Note {
    root: PathBuf,
    from: Id,
    to: Id,
    only: Vec<Vec<u8>>,
}

/// Suffix of a note's name in the directory of the objects.
const NOTE: &str = ".restore";

/// Restores files. The present is kept first.
///
/// Errors: `Refused` with the list, `Busy`, `OverLimit`, `Io`: until files are prepared, nothing has been changed. After
/// an error from then on, [`recover`] finishes.
pub fn restore(objects: &mut Objects, cache: &mut Cache, wish: &Wish<'_>) -> Result<Restored, Error> {
    recover(objects, wish.root)?;
    let present = take(objects, wish.root, wish.rules, cache)?;
    let shared = objects.share()?;
    let changes = wanted(objects, &present.id, &wish.to, &wish.only)?;
    if changes.is_empty() {
        return Ok(Restored { saved: present.id, to: wish.to, changed: changes, left: Vec::new() });
    }
    let mut refused = Refused::default();
    let target = objects.snapshot(&wish.to)?;
    let head = |repository: &Option<crate::Repository>| repository.as_ref().and_then(|r| r.head.clone());
    if let (Some(then), Some(now)) = (head(&target.repository), head(&present.snapshot.repository))
        && then != now
        && !wish.force.iter().any(|path| path == b"HEAD")
    {
        refused.head = Some((then, now));
    }
    if let Some(Known { snapshot, parts }) = &wish.known {
        let mut restored = BTreeMap::new();
        for (before, after) in parts {
            restored.extend(diff(objects, before, after)?.into_iter().map(|c| (c.path, c.after)));
        }
        let mut by_others = diff(objects, snapshot, &present.id)?;
        by_others.retain(|c| restored.get(&c.path) != Some(&c.after));
        let by_others: BTreeSet<Vec<u8>> = by_others.into_iter().map(|c| c.path).collect();
        let is_forced = |path: &[u8]| wish.force.iter().any(|force| is_at_or_below(path, force));
        let is_refused = |change: &&Change| by_others.contains(&change.path) && !is_forced(&change.path);
        refused.changed = changes.iter().filter(is_refused).map(Change::shown).collect();
    }
    if refused != Refused::default() {
        return Err(Error::Refused(refused));
    }
    let note = Note { root: wish.root.to_owned(), from: present.id, to: wish.to, only: wish.only.clone() };
    let noted = Noted::write(objects.directory(), &note)?;
    let applying = match Applying::prepare(objects, &note, &noted.name, &changes, false) {
        Ok(applying) => applying,
        Err(e) => {
            // Nothing has been changed, and nothing is to be finished.
            noted.remove()?;
            return Err(e);
        }
    };
    let restored = applying.apply(objects, &note, changes)?;
    drop(shared);
    noted.remove()?;
    Ok(restored)
}

/// Finishes restorations of a root whose process has died. Returns what each did.
///
/// Errors: `Busy` if a live process is restoring that root.
pub fn recover(objects: &mut Objects, root: &Path) -> Result<Vec<Restored>, Error> {
    let mut done = Vec::new();
    for note in notes(objects.directory())? {
        let (noted, note) = note?;
        if note.root != root {
            continue;
        }
        if !noted.lock()? {
            return Err(Error::Busy(note.root));
        }
        let shared = objects.share()?;
        let changes = wanted(objects, &note.from, &note.to, &note.only)?;
        let applying = Applying::prepare(objects, &note, &noted.name, &changes, true)?;
        done.push(applying.apply(objects, &note, changes)?);
        drop(shared);
        noted.remove()?;
    }
    Ok(done)
}

fn wanted(objects: &mut Objects, from: &Id, to: &Id, only: &[Vec<u8>]) -> Result<Vec<Change>, Error> {
    let mut changes = diff(objects, from, to)?;
    let is_above = |path: &[u8]| only.iter().any(|only| is_at_or_below(only, path));
    let is_wanted = |c: &Change| {
        let makes_way =
            c.before.is_none() && c.after.as_ref().is_some_and(Node::is_directory) && is_above(&c.path);
        only.is_empty() || makes_way || only.iter().any(|only| is_at_or_below(&c.path, only))
    };
    changes.retain(is_wanted);
    Ok(changes)
}

fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// A note on the disk, held by the process that restores.
struct Noted {
    path: PathBuf,
    file: File,
    /// Name of the restoration, a part of its stage's.
    name: String,
}

impl Noted {
    fn write(directory: &Path, note: &Note) -> Result<Noted, Error> {
        let what = || directory.display().to_string();
        let name = format!("{}-{}", std::process::id(), now_us());
        let path = directory.join(format!("{name}{NOTE}"));
        let unfinished = directory.join(format!("{}{name}-note", crate::pack::UNFINISHED));
        point("note create").kept(what)?;
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).kept(what)?;
        let noted = Noted { path, file, name };
        noted.lock()?;
        let text = serde_json::to_vec(note).map_err(io::Error::from).kept(what)?;
        (&noted.file).write_all(&text).and_then(|()| noted.file.sync_all()).kept(what)?;
        point("note rename").kept(what)?;
        fs::rename(&unfinished, &noted.path).kept(what)?;
        sync_directory(directory)?;
        Ok(noted)
    }

    /// Reads a note; `None`: the file is none, or has just been removed.
    fn read(path: &Path) -> Result<Option<(Noted, Note)>, Error> {
        let what = || path.display().to_string();
        if !path.as_os_str().as_bytes().ends_with(NOTE.as_bytes()) {
            return Ok(None);
        }
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.about(what)?,
        };
        let mut text = Vec::new();
        io::Read::read_to_end(&mut file, &mut text).about(what)?;
        // It is written under another name first, so that it is whole.
        let note = serde_json::from_slice(&text).map_err(|_| Error::Corrupt { what: what() })?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Some((Noted { path: path.to_owned(), file, name }, note)))
    }

    /// Takes the note's lock; false: another process has it.
    fn lock(&self) -> Result<bool, Error> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            locked => locked.map(|()| true).about(|| self.path.display().to_string()),
        }
    }

    fn remove(self) -> Result<(), Error> {
        let what = || self.path.display().to_string();
        point("note remove").kept(what)?;
        fs::remove_file(&self.path).kept(what)
    }
}

/// Returns the snapshots that unfinished restorations need.
pub(crate) fn needed(directory: &Path) -> Result<Vec<Id>, Error> {
    let ids = |note: Result<(Noted, Note), Error>| note.map(|(_, note)| [note.from, note.to]);
    let ids: Vec<[Id; 2]> = notes(directory)?.map(ids).collect::<Result<_, _>>()?;
    Ok(ids.concat())
}

/// Returns the notes in a directory of objects. Each is read when its turn comes: those before it may be over by then.
fn notes(directory: &Path) -> Result<impl Iterator<Item = Result<(Noted, Note), Error>> + use<>, Error> {
    let what = directory.display().to_string();
    let entries = fs::read_dir(directory).about(|| what.clone())?;
    Ok(entries.filter_map(move |entry| {
        entry.about(|| what.clone()).and_then(|e| Noted::read(&e.path())).transpose()
    }))
}

/// A restoration whose files are prepared.
struct Applying {
    root: OwnedFd,
    stage_name: String,
    /// Directory with the new files, `n0`, `n1`, …; what they replace gets there, `o0`, `o1`, ….
    stage: OwnedFd,
    /// Whether some changes may have been applied by a process that died.
    again: bool,
    /// Directories that were made writable for their owner.
    opened: BTreeSet<Vec<u8>>,
    /// Paths that somebody else changed meanwhile.
    left: BTreeSet<Vec<u8>>,
}

impl Applying {
    /// Writes all new files and links into a stage, and syncs them. After an error nothing has been changed.
    fn prepare(
        objects: &mut Objects,
        note: &Note,
        name: &str,
        changes: &[Change],
        again: bool,
    ) -> Result<Applying, Error> {
        let what = || note.root.display().to_string();
        let root = beneath::root(&note.root).about(what)?;
        let stage_name = format!("{STAGE}{name}");
        clear(&root, &stage_name).about(what)?;
        point("stage create").about(what)?;
        rustix::fs::mkdirat(&root, stage_name.as_str(), Mode::RWXU).about(what)?;
        let stage = beneath::child(&root, stage_name.as_bytes()).about(what)?;
        let (opened, left) = (BTreeSet::new(), BTreeSet::new());
        let applying = Applying { root, stage_name, stage, again, opened, left };
        let written = applying.write(objects, changes);
        if let Err(e) = written.and_then(|()| rustix::fs::syncfs(&applying.stage).about(what)) {
            // What a kill leaves of the stage, `recover` clears.
            let _ = clear(&applying.root, &applying.stage_name);
            return Err(e);
        }
        Ok(applying)
    }

    fn write(&self, objects: &mut Objects, changes: &[Change]) -> Result<(), Error> {
        for (at, change) in changes.iter().enumerate() {
            let what = || change.shown();
            let name = format!("n{at}");
            match &change.after {
                Some(Node::File { mode, parts, .. }) => {
                    point("stage file").about(what)?;
                    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&self.stage, name.as_str(), flags, Mode::RUSR | Mode::WUSR);
                    let mut file = File::from(file.about(what)?);
                    for part in parts {
                        let content = objects.get(part)?;
                        point("stage write").about(what)?;
                        file.write_all(&content).about(what)?;
                    }
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(*mode)).about(what)?;
                }
                Some(Node::Link { target }) => {
                    point("stage link").about(what)?;
                    rustix::fs::symlinkat(OsStr::from_bytes(target), &self.stage, name.as_str())
                        .about(what)?;
                }
                Some(Node::Directory { .. } | Node::Passed(_)) | None => {}
            }
        }
        Ok(())
    }

    /// Changes the tree.
    fn apply(mut self, objects: &mut Objects, note: &Note, changes: Vec<Change>) -> Result<Restored, Error> {
        for (at, change) in changes.iter().enumerate().rev() {
            let is_directory = |node: &Option<Node>| node.as_ref().is_some_and(Node::is_directory);
            let gives_way =
                change.after.is_none() || is_directory(&change.before) != is_directory(&change.after);
            if gives_way && change.before.is_some() {
                self.each(change, |it, parent, name| it.remove(parent, name, at, change))?;
            }
        }
        for (at, change) in changes.iter().enumerate() {
            if change.after.is_some() && !change.is_mode_of_directory() {
                self.each(change, |it, parent, name| it.put(parent, name, at, change))?;
            }
        }
        self.finish_directories(objects, note, &changes)?;
        let what = || note.root.display().to_string();
        rustix::fs::syncfs(&self.stage).about(what)?;
        clear(&self.root, &self.stage_name).about(what)?;
        let is_left = |change: &Change| self.left.contains(&change.path);
        let changed = changes.into_iter().filter(|change| !is_left(change)).collect();
        let left = self.left.iter().map(|path| shown(path)).collect();
        Ok(Restored { saved: note.from, to: note.to, changed, left })
    }

    /// Does something at a change's place. A place is left whose directory is not there or is a
    /// link now, and one that may not be changed.
    fn each(
        &mut self,
        change: &Change,
        deed: impl FnOnce(&mut Applying, &OwnedFd, &OsStr) -> rustix::io::Result<bool>,
    ) -> Result<(), Error> {
        let (above, name) = beneath::split(&change.path);
        let parent = beneath::directory(&self.root, above);
        point("between look and write").about(|| change.shown())?;
        let done = parent.and_then(|parent| {
            self.open_up(&parent, above)?;
            deed(self, &parent, OsStr::from_bytes(name))
        });
        match done {
            Ok(true) => Ok(()),
            // What was to be removed is gone; by a process that died, its directory may be something else already.
            Err(Errno::NOENT) if change.after.is_none() => Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) if change.after.is_none() && self.again => Ok(()),
            Ok(false)
            | Err(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::ISDIR
                | Errno::EXIST
                | Errno::NOTEMPTY
                | Errno::ACCESS
                | Errno::PERM
                | Errno::BUSY,
            ) => {
                self.left.insert(change.path.clone());
                Ok(())
            }
            Err(e) => Err(e).about(|| change.shown()),
        }
    }

    /// Makes a directory writable in which names change. Its mode is set at the end.
    fn open_up(&mut self, directory: &OwnedFd, path: &[u8]) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode & 0o7777);
        if !mode.contains(Mode::WUSR | Mode::XUSR) {
            rustix::fs::fchmod(directory, mode | Mode::RWXU)?;
            self.opened.insert(path.to_vec());
        }
        Ok(())
    }

    /// Removes what is at a place; returns false if it is not what was to be removed.
    fn remove(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        at: usize,
        change: &Change,
    ) -> rustix::io::Result<bool> {
        let is = |node: &Option<Node>| is_now(parent, name, node);
        if self.again && (is(&None)? || change.after.is_some() && is(&change.after)?) {
            return Ok(true);
        }
        if change.before.as_ref().is_some_and(Node::is_directory) {
            return rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map(|()| true);
        }
        let old = format!("o{at}");
        rustix::fs::renameat(parent, name, &self.stage, old.as_str())?;
        if is_now(&self.stage, OsStr::new(&old), &change.before)? {
            return Ok(true);
        }
        // Nobody's new file is replaced by it.
        rustix::fs::renameat_with(&self.stage, old.as_str(), parent, name, RenameFlags::NOREPLACE)
            .map(|()| false)
    }

    /// Puts what was prepared into its place; returns false if something else is there than was expected.
    fn put(
        &mut self,
        parent: &OwnedFd,
        name: &OsStr,
        at: usize,
        change: &Change,
    ) -> rustix::io::Result<bool> {
        let is = |node: &Option<Node>| is_now(parent, name, node);
        if self.again && is(&change.after)? {
            return Ok(true);
        }
        if change.after.as_ref().is_some_and(Node::is_directory) {
            return rustix::fs::mkdirat(parent, name, Mode::RWXU).map(|()| true);
        }
        let new = format!("n{at}");
        let replaces = change.before.as_ref().is_some_and(|before| !before.is_directory());
        if !replaces || self.again && is(&None)? {
            rustix::fs::renameat_with(&self.stage, new.as_str(), parent, name, RenameFlags::NOREPLACE)?;
            return Ok(true);
        }
        if !is(&change.before)? {
            return Ok(false);
        }
        match rustix::fs::renameat_with(&self.stage, new.as_str(), parent, name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // The file system cannot exchange two names.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::renameat(&self.stage, new.as_str(), parent, name)?;
                return Ok(true);
            }
            Err(e) => return Err(e),
        }
        if is_now(&self.stage, OsStr::new(&new), &change.before)? {
            return Ok(true);
        }
        // It was changed in the moment between. It comes back.
        rustix::fs::renameat_with(&self.stage, new.as_str(), parent, name, RenameFlags::EXCHANGE)
            .map(|()| false)
    }

    /// Sets the modes of directories, the innermost first.
    fn finish_directories(
        &mut self,
        objects: &mut Objects,
        note: &Note,
        changes: &[Change],
    ) -> Result<(), Error> {
        let mut modes = BTreeSet::new();
        let target = |mode: &u32| Mode::from_raw_mode(*mode);
        for change in changes {
            if let Some(Node::Directory { mode, .. }) = &change.after {
                modes.insert((change.path.clone(), *mode));
            }
        }
        // After a kill it is not known which directories were made writable: those around changes may have been.
        let around = changes.iter().map(|change| beneath::split(&change.path).0.to_vec());
        let opened = if self.again { around.collect() } else { std::mem::take(&mut self.opened) };
        for path in opened {
            if let Some(Node::Directory { mode, .. }) = crate::at(objects, &note.to, &path)? {
                modes.insert((path, mode));
            }
        }
        for (path, mode) in modes.iter().rev() {
            point("directory mode").about(|| shown(path))?;
            let set = beneath::directory(&self.root, path).and_then(|d| rustix::fs::fchmod(d, target(mode)));
            match set {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    self.left.insert(path.clone());
                }
                set => set.about(|| shown(path))?,
            }
        }
        Ok(())
    }
}

/// Removes a stage with what is in it. It has no directories.
fn clear(root: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    let stage = match beneath::child(root, name.as_bytes()) {
        Err(Errno::NOENT) => return Ok(()),
        stage => stage?,
    };
    for entry in rustix::fs::Dir::read_from(&stage)? {
        let entry = entry?;
        let file = entry.file_name();
        if file.to_bytes() != b"." && file.to_bytes() != b".." {
            point("stage clear").map_err(as_errno)?;
            rustix::fs::unlinkat(stage.as_fd(), file, AtFlags::empty())?;
        }
    }
    rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)
}
