//! Files that are kept with a run: where they are, and which snapshot belongs to which entry of its journal.
//!
//! The objects are beside the store; each snapshot is a checkpoint of Outlast's own in the journal. See
//! `docs/design/files.md`.

pub mod history;
pub mod keeper;

use std::{
    collections::HashSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use outlast_core::{
    engine::checkpoint::Name,
    journal::{Entry, Kind},
    named,
    reads::runs,
    run::{Command, KeptFiles},
    store::{RunFilter, RunView, Store},
    words::{RunId, RunNo},
};
use outlast_files::{Cache, Collected, Id, Objects, Restored, Rules, Wish};
use serde::{Deserialize, Serialize};

use self::history::History;
use crate::{disk::beside, program::error::FilesError, settings::store_address::StoreAddress};

/// Most bytes that the files of all runs of a store take, unless a run says otherwise.
const MOST: u64 = 10 << 30;

named! {
    /// Moment at which a snapshot was taken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Moment {
        /// Before the attempt's agent started: as the attempt before it left the files, and what others did since.
        Begin "begin",
        /// Beside a new call, when the tools before it were done.
        Call "call",
        /// When the attempt had ended.
        End "end",
        /// After files were restored for the attempt.
        Restored "restored",
    }
}

/// One snapshot of a run's files, as the journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub snapshot: Id,
    pub moment: Moment,
    /// Entry of the call beside which it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<i64>,
    /// Number of paths that differ from the snapshot before.
    pub changed: u64,
    /// Whether the call's answer came before the tree was taken: what the next tool wrote first may be in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
}

/// Returns whether an entry holds a snapshot of files.
pub fn is_snapshot(entry: &Entry) -> bool {
    entry.kind == Kind::Checkpoint && entry.key.as_deref() == Some(&*Name::files())
}

/// Returns what files are kept with a run, and its command; `None` if none are.
pub fn of_run(view: &RunView) -> Option<(&KeptFiles, &Command)> {
    let command = view.spec.command.as_ref()?;
    Some((command.supervision.files.as_ref()?, command))
}

/// Ending of the names of the files with snapshots that restorations by hand have kept.
const SAVED: &str = ".saved";

/// Returns the name of that file of a run.
fn saved(run: &RunId) -> String {
    format!("{}{SAVED}", Id::of(run.as_str().as_bytes()))
}

/// A run's directory whose files are kept, and the objects of its store.
pub struct Files {
    pub objects: Objects,
    pub root: PathBuf,
    rules: Rules,
    cache: Cache,
    /// Snapshot whose cache is in the file.
    saved_cache: Option<Id>,
    /// File of the cache, beside the packs.
    cache_file: PathBuf,
    /// File with the snapshots that restorations by hand have kept.
    saved_file: PathBuf,
}

/// Returns the directory of a store's objects.
///
/// Errors: `NoPlace` for a database: its runs have no files yet.
pub fn directory(place: &StoreAddress) -> Result<PathBuf, FilesError> {
    match place {
        StoreAddress::File(store) => Ok(beside(store, ".files")),
        StoreAddress::Postgres(_) => Err(FilesError::NoPlace { place: place.to_string() }),
    }
}

impl Files {
    /// Opens the files of a run. `create`: makes the directory of the objects. Restorations that a kill cut off are
    /// finished.
    pub fn open(
        place: &StoreAddress,
        run: &RunId,
        kept: &KeptFiles,
        command: &Command,
        create: bool,
    ) -> Result<Files, FilesError> {
        let directory = directory(place)?;
        let root = PathBuf::from(kept.directory.as_ref().unwrap_or(&command.directory));
        let mut objects = Objects::open(&directory, create, kept.max_bytes.unwrap_or(MOST))?;
        let store = match place {
            StoreAddress::File(store) => Some(store.clone()),
            StoreAddress::Postgres(_) => None,
        };
        let rules = Rules { keep_ignored: kept.ignored, exclude: kept.exclude.clone(), store };
        let which = format!("{}\n{}\n{:?}", root.display(), kept.ignored, kept.exclude);
        let cache_file = directory.join(format!("{}.cache", Id::of(which.as_bytes())));
        let saved_file = directory.join(saved(run));
        outlast_files::recover(&mut objects, &root)?;
        let cache = Cache::load(&cache_file);
        Ok(Files { objects, root, rules, cache, saved_cache: None, cache_file, saved_file })
    }

    /// Takes a snapshot. Durable when it returns.
    pub fn take(&mut self) -> Result<outlast_files::Taken, FilesError> {
        let taken = outlast_files::take(&mut self.objects, &self.root, &self.rules, &mut self.cache)?;
        if self.saved_cache.replace(taken.id) != Some(taken.id) {
            // Without it, the next process reads all files again.
            let _ = self.cache.save(&self.cache_file);
        }
        Ok(taken)
    }

    /// Restores files, of the whole tree or of the paths of `only`.
    pub fn restore(&mut self, asked: &Asked<'_>) -> Result<Restored, FilesError> {
        let Asked { to, last, only, force } = *asked;
        let paths = |words: &[String]| words.iter().map(|word| inside(word)).collect();
        let wish = Wish {
            root: &self.root,
            rules: &self.rules,
            to,
            last,
            only: paths(only),
            force: paths(force),
            head_may_differ: force.iter().any(|word| word == "HEAD"),
        };
        let _held = self.objects.share()?;
        let restored = outlast_files::restore(&mut self.objects, &mut self.cache, &wish)?;
        // Beside paths that were restored, others may have changed some.
        let now = if only.is_empty() { Some(self.take()?.id) } else { None };
        let by_hand = ByHand { at: now_us(), saved: restored.saved, now };
        let line = serde_json::to_string(&by_hand).map_err(io::Error::from)? + "\n";
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).append(true).mode(0o600).open(&self.saved_file)?;
        file.write_all(line.as_bytes())?;
        Ok(restored)
    }

    /// Returns the newest restoration by hand; `None` without one.
    pub fn by_hand(&self) -> Result<Option<ByHand>, FilesError> {
        Ok(read_by_hand(&self.saved_file)?.pop())
    }

    /// Returns the files as the run, or a restoration by hand, left them: what differs from them now was changed by
    /// others. `None` where a supervisor died with its agent, and nobody can tell.
    pub fn known(&self, store: &dyn Store, run: RunNo, history: &History) -> Result<Option<Id>, FilesError> {
        let newest = history.newest();
        let by_hand = read_by_hand(&self.saved_file)?;
        let last = by_hand.iter().rev().find_map(|by_hand| Some((by_hand.at, by_hand.now?)));
        if let Some((at, now)) = last
            && newest.is_none_or(|step| step.taken_at.0 < at)
        {
            return Ok(Some(now));
        }
        let attempts = store.attempts(run)?;
        let is_told = attempts.last().is_none_or(|a| a.exit.as_ref().is_some_and(|exit| !exit.lost));
        Ok(newest.filter(|_| is_told).map(|step| step.kept.snapshot))
    }
}

/// Restoration by hand, which no entry of a journal tells: the run has no attempt then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHand {
    /// Microseconds since the Unix epoch.
    at: i64,
    /// Files before it.
    pub saved: Id,
    /// Files after it; `None` where only some paths were restored.
    now: Option<Id>,
}

/// Reads the restorations by hand, oldest first. A last line that a kill has cut is passed over.
fn read_by_hand(file: &Path) -> io::Result<Vec<ByHand>> {
    match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => Ok(text?.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
    }
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// What is to be restored, in a person's words.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub to: Id,
    /// Newest snapshot of the run.
    pub last: Option<Id>,
    /// Paths below the root; empty: everything.
    pub only: &'a [String],
    /// Paths that are restored although others changed them; `HEAD` for a HEAD that has moved.
    pub force: &'a [String],
}

/// Returns a path as typed in the form in which snapshots have it.
fn inside(path: &str) -> Vec<u8> {
    let path = Path::new(path);
    path.components().collect::<PathBuf>().as_os_str().as_encoded_bytes().to_vec()
}

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
            names.insert(saved(&view.run.id));
        }
    }
    for entry in fs::read_dir(objects.directory())? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.ends_with(SAVED) {
            continue;
        }
        match names.contains(&name) {
            true => {
                for by_hand in read_by_hand(&path)? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_keeps_no_files() {
        let place = StoreAddress::Postgres("postgres://nobody@127.0.0.1:1/none".into());
        let refused = directory(&place).unwrap_err();
        assert!(refused.to_string().contains("is a database"), "{refused}");
        let beside = directory(&StoreAddress::File("/s/runs.db".into())).unwrap();
        assert_eq!(beside, Path::new("/s/runs.db.files"));
    }
}
