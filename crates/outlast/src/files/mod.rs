//! Files that are kept with a run: where they are, and which snapshot belongs to which entry of its journal.
//!
//! The objects are beside the store; those of a database are in it, and in a directory of each machine. Each snapshot is
//! a checkpoint of Outlast's own in the journal. See `docs/design/files.md`.

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
    run::KeptFiles,
    store::{self, RunFilter, RunView, Store},
    words::{Entropy, RunId, RunNo, clock::random},
};
use outlast_files::{Cache, Id, Known, Objects, Restored, Rules, SPARED_US, Size, Wish, diff};
use serde::{Deserialize, Serialize};

use self::history::History;
use crate::{
    disk::{present, write_new},
    program::{context::Context, error::FilesError, run_directory},
    settings::store_address::StoreAddress,
};

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
        /// At the end of a step of a program.
        Step "step",
        /// At the end of an item of a batch.
        Item "item",
    }
}

impl Moment {
    /// Returns whether the files are then as a step or an item left them.
    pub fn is_an_end(self) -> bool {
        match self {
            Moment::Step | Moment::Item | Moment::Restored => true,
            Moment::Begin | Moment::Call | Moment::End => false,
        }
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
    /// Key of the step or item at whose end it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Number of paths that differ from the snapshot before, and the first of them for people.
    pub changed: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Whether the call's answer came before the tree was taken: what the next tool wrote first may be in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// Directory of objects in which it was taken, by its own name; `None` beside a store in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_in: Option<String>,
}

/// Returns whether an entry holds a snapshot of files.
pub fn is_snapshot(entry: &Entry) -> bool {
    entry.kind == Kind::Checkpoint && entry.key.as_deref() == Some(&*Name::files())
}

/// Returns what files are kept with a run, and the directory that it works in; `None` if none are.
pub fn of_run(view: &RunView) -> Option<(&KeptFiles, &str)> {
    let command = view.spec.command.as_ref();
    let kept = command.and_then(|command| command.supervision.files.as_ref()).or(view.spec.files.as_ref())?;
    Some((kept, command.map_or("", |command| &command.directory)))
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
    /// File of the cache, beside the packs.
    cache_file: PathBuf,
    /// File with the snapshots that restorations by hand have kept.
    saved_file: PathBuf,
    /// Name of the directory of the objects; `None` beside a store in a file.
    pub own_name: Option<String>,
    /// Objects of snapshots that the journal has, in a store that machines share.
    published: HashSet<Id>,
}

/// Returns the directory of a store's objects on this machine. Errors: `NoPlace`.
pub fn directory(context: &Context) -> Result<PathBuf, FilesError> {
    Ok(run_directory::of_store(&context.place, "files", &context.around)?)
}

/// Returns the name of a directory of objects, which it is given once.
fn own_name(directory: &Path, entropy: &dyn Entropy) -> io::Result<String> {
    let file = directory.join("name");
    if let Some(name) = present(fs::read_to_string(&file))? {
        return Ok(name);
    }
    let name: [u8; 16] = random(entropy);
    let fresh = directory.join(format!("name.{}", std::process::id()));
    write_new(&fresh, Id::of(&name).to_string().as_bytes())?;
    // Of two processes, one is first.
    match fs::hard_link(&fresh, &file) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => fs::remove_file(&fresh)?,
    }
    fs::read_to_string(&file)
}

fn rules(context: &Context, kept: &KeptFiles) -> Rules {
    let store = match &context.place {
        StoreAddress::File(store) => Some(store.clone()),
        StoreAddress::Postgres(_) => None,
    };
    Rules { keep_ignored: kept.ignored, exclude: kept.exclude.clone(), store }
}

impl Files {
    /// Opens the files of a run. `create`: makes the directory of the objects. Restorations that a kill cut off are
    /// finished.
    pub fn open(
        context: &Context,
        run: &RunId,
        kept: &KeptFiles,
        directory: &str,
        create: bool,
    ) -> Result<Files, FilesError> {
        let root = PathBuf::from(kept.directory.as_deref().unwrap_or(directory));
        let directory = self::directory(context)?;
        let is_shared = matches!(context.place, StoreAddress::Postgres(_));
        // What machines share comes from others where this one has nothing yet.
        let mut objects = Objects::open(&directory, create || is_shared, kept.max_bytes.unwrap_or(MOST))?;
        let own_name = is_shared.then(|| own_name(&directory, context.entropy.as_ref())).transpose()?;
        let rules = rules(context, kept);
        let which = format!("{}\n{}\n{:?}", root.display(), kept.ignored, kept.exclude);
        let cache_file = directory.join(format!("{}.cache", Id::of(which.as_bytes())));
        let saved_file = directory.join(saved(run));
        outlast_files::recover(&mut objects, &root)?;
        let cache = Cache::load(&cache_file);
        let published = HashSet::new();
        Ok(Files { objects, root, rules, cache, cache_file, saved_file, own_name, published })
    }

    /// Returns the size of the working directory as it would be kept; `None`: it is more than `most`, or than the room that
    /// is left for it, or it is not on a disk of this machine. Errors: also for objects that cannot be used.
    pub fn measure(context: &Context, kept: &KeptFiles, most: Size) -> Result<Option<Size>, FilesError> {
        let root = context.around.directory();
        let objects = Objects::open(&directory(context)?, true, u64::MAX)?;
        let room = kept.max_bytes.unwrap_or(MOST).saturating_sub(objects.size());
        if room < most.bytes || !outlast_files::is_local(root) {
            return Ok(None);
        }
        Ok(outlast_files::measure(root, &rules(context, kept), most)?)
    }

    /// Records a snapshot of this machine by `record`, once it is where other machines find it.
    pub fn publish<T>(
        &mut self,
        store: &dyn Store,
        snapshot: &Id,
        record: impl FnOnce() -> Result<T, store::Error>,
    ) -> Result<T, FilesError> {
        let Some(place) = store.objects() else { return Ok(record()?) };
        let began = now_us();
        let published = self.objects.publish(place, snapshot, &mut self.published).map_err(FilesError::from);
        let recorded = published.and_then(|()| Ok(record()?));
        let is_late = now_us() - began > SPARED_US / 2;
        if recorded.is_err() || is_late {
            self.published.clear();
        }
        if is_late && recorded.is_ok() {
            // The machine was suspended: a sweep may have come in between.
            self.objects.publish(place, snapshot, &mut self.published)?;
        }
        recorded
    }

    /// Brings snapshots here that other machines have taken.
    pub fn bring(&mut self, store: &dyn Store, snapshots: &[Id]) -> Result<(), FilesError> {
        match store.objects() {
            Some(place) => Ok(self.objects.bring(place, snapshots)?),
            None => Ok(()),
        }
    }

    /// Checks that there is a directory to keep. Errors: `Io`.
    pub fn check_root(&self) -> Result<(), FilesError> {
        let what = self.root.display().to_string();
        let seen = fs::read_dir(&self.root);
        seen.map(drop).map_err(|source| outlast_files::Error::Io { what, source }.into())
    }

    /// Takes a snapshot. Durable when it returns.
    pub fn take(&mut self) -> Result<outlast_files::Taken, FilesError> {
        let taken = outlast_files::take(&mut self.objects, &self.root, &self.rules, &mut self.cache)?;
        // Without it, the next process reads all files again.
        let _ = self.cache.save(&self.cache_file);
        Ok(taken)
    }

    /// Restores files, of the whole tree or of the paths of `only`, and notes that a person did.
    pub fn restore(&mut self, asked: &Asked<'_>) -> Result<Restored, FilesError> {
        let _held = self.objects.share()?;
        let restored = self.apply(asked)?;
        if restored.changed.is_empty() {
            return Ok(restored);
        }
        let now = Some(self.take()?.id);
        // Beside paths that were restored, others may have changed some.
        let (now, part) = if asked.only.is_empty() { (now, None) } else { (None, now) };
        self.note(&ByHand { at: now_us(), saved: Some(restored.saved), now, part })?;
        Ok(restored)
    }

    fn apply(&mut self, asked: &Asked<'_>) -> Result<Restored, FilesError> {
        let Asked { to, known, only, force } = *asked;
        let paths = |words: &[String]| words.iter().map(|word| inside(word)).collect();
        let wish = Wish {
            root: &self.root,
            rules: &self.rules,
            to,
            known: known.cloned(),
            only: paths(only),
            force: paths(force),
        };
        Ok(outlast_files::restore(&mut self.objects, &mut self.cache, &wish)?)
    }

    fn note(&self, by_hand: &ByHand) -> io::Result<()> {
        let line = serde_json::to_string(by_hand)? + "\n";
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).append(true).mode(0o600).open(&self.saved_file)?;
        file.write_all(line.as_bytes())
    }

    /// Puts the files of a snapshot into the root, which is empty, or has them already: a kill cut off the same before.
    /// Errors: `HasOthers`.
    pub fn put_down(&mut self, snapshot: Id) -> Result<Restored, FilesError> {
        let is_empty = fs::read_dir(&self.root)?.next().is_none();
        if !is_empty {
            let there = self.take()?.id;
            if !diff(&mut self.objects, &there, &snapshot)?.is_empty() {
                return Err(FilesError::HasOthers { directory: self.root.display().to_string() });
            }
        }
        // A repository around the new directory is not the run's.
        self.apply(&Asked { to: snapshot, known: None, only: &[], force: &["HEAD".to_owned()] })
    }

    /// Notes that the files of a snapshot were put down for a run that has come from elsewhere.
    pub fn note_put_down(&self, snapshot: Id) -> io::Result<()> {
        self.note(&ByHand { at: now_us(), saved: None, now: Some(snapshot), part: None })
    }

    /// Takes a snapshot of the files as they are, if the newest of the run is of before a restoration by hand; `None`: the
    /// run's newest has them.
    pub fn take_if_brought_back(&mut self, history: &History) -> Result<Option<Id>, FilesError> {
        let newest = history.newest().map_or(0, |step| step.taken_at.0);
        let is_newer = read_by_hand(&self.saved_file)?.last().is_some_and(|by_hand| by_hand.at > newest);
        Ok(is_newer.then(|| self.take()).transpose()?.map(|taken| taken.id))
    }

    /// Returns the files as they were before the newest restoration by hand; `None` without one.
    pub fn saved(&self) -> Result<Option<Id>, FilesError> {
        Ok(read_by_hand(&self.saved_file)?.iter().rev().find_map(|by_hand| by_hand.saved))
    }

    /// Returns the files as the run, or restorations by hand, left them: what differs from them now was changed by
    /// others. `None` where a supervisor died with its agent, and nobody can tell.
    pub fn known(
        &self,
        store: &dyn Store,
        run: RunNo,
        history: &History,
    ) -> Result<Option<Known>, FilesError> {
        let newest = history.newest();
        let attempts = store.attempts(run)?;
        let is_told = attempts.last().is_none_or(|a| a.exit.as_ref().is_some_and(|exit| !exit.lost));
        let mut known = newest.filter(|_| is_told).map(|step| Known::from(step.kept.snapshot));
        let taken_at = newest.map_or(0, |step| step.taken_at.0);
        for by_hand in read_by_hand(&self.saved_file)?.into_iter().filter(|by_hand| by_hand.at > taken_at) {
            if let Some(now) = by_hand.now {
                known = Some(now.into());
            }
            if let Some(known) = &mut known {
                known.parts.extend(by_hand.saved.zip(by_hand.part));
            }
        }
        Ok(known)
    }
}

/// Restoration by hand, which no entry of a journal tells: the run has no attempt then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ByHand {
    /// Microseconds since the Unix epoch.
    at: i64,
    /// Files before it; `None` where the run came from elsewhere, and there were none.
    saved: Option<Id>,
    /// Files after it, if the whole tree was restored.
    now: Option<Id>,
    /// Files after it, if only some paths were restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<Id>,
}

/// Reads the restorations by hand, oldest first. A last line that a kill has cut is passed over.
fn read_by_hand(file: &Path) -> io::Result<Vec<ByHand>> {
    let text = present(fs::read_to_string(file))?.unwrap_or_default();
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Restoration that a person asks for, with the paths as they were typed.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub to: Id,
    /// Files as they are known: what differs from them is not overwritten.
    pub known: Option<&'a Known>,
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

/// Removes what no run of the store needs any more.
pub fn collect(store: &dyn Store, context: &Context) -> Result<(), FilesError> {
    let Some(mut objects) = open(store, context)? else { return Ok(()) };
    let alone = objects.alone()?;
    // What is recorded from here on is not read below.
    let now = store.now()?;
    let (of_runs, by_hand) = live(store, &objects, true)?;
    let mut live = [of_runs, by_hand].concat();
    if let Some(place) = store.objects() {
        objects.sweep(place, &live, now)?;
        live.retain(|snapshot| objects.contains(snapshot));
    }
    objects.collect(&alone, &live)?;
    Ok(())
}

/// Returns what is damaged in the objects of a store.
pub fn damage(store: &dyn Store, context: &Context) -> Result<Vec<String>, FilesError> {
    let Some(mut objects) = open(store, context)? else { return Ok(Vec::new()) };
    let (of_runs, by_hand) = live(store, &objects, false)?;
    let mut wrong = match store.objects() {
        Some(place) => objects.verify_shared(place, &of_runs)?,
        None => Vec::new(),
    };
    let mut live = [of_runs, by_hand].concat();
    live.retain(|snapshot| store.objects().is_none() || objects.contains(snapshot));
    wrong.extend(objects.verify(&live)?);
    Ok(wrong)
}

/// Opens the objects of a store; `None`: it has none.
fn open(store: &dyn Store, context: &Context) -> Result<Option<Objects>, FilesError> {
    let directory = directory(context)?;
    let is_shared = match store.objects() {
        Some(place) => place.size()? > 0,
        None => false,
    };
    // Their size is looked at where files are added.
    let open = || Objects::open(&directory, is_shared, u64::MAX);
    Ok((is_shared || directory.exists()).then(open).transpose()?)
}

/// Returns the snapshots that the runs of the store have, and those that restorations by hand kept on this machine.
/// `forget`: files of the latter whose run is gone are removed.
fn live(store: &dyn Store, objects: &Objects, forget: bool) -> Result<(Vec<Id>, Vec<Id>), FilesError> {
    let (mut live, mut kept, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        if of_run(&view).is_some() {
            let history = History::read(store, view.run.no)?;
            live.extend(history.snapshots());
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
                    kept.extend([by_hand.saved, by_hand.now, by_hand.part].into_iter().flatten());
                }
            }
            false if forget => fs::remove_file(&path)?,
            false => {}
        }
    }
    Ok((live, kept))
}

#[cfg(test)]
mod tests {
    use outlast_core::words::clock::SeededEntropy;

    use super::*;

    #[test]
    fn a_directory_of_objects_keeps_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let name = own_name(directory.path(), &SeededEntropy::new(1)).unwrap();
        assert_eq!(name.len(), 64);
        assert_eq!(own_name(directory.path(), &SeededEntropy::new(2)).unwrap(), name);
        let left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["name"]);
    }
}
