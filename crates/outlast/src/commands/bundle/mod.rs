//! `outlast export RUN --bundle FILE`: puts a run into one file, to go on where that is imported.
//!
//! A bundle is a store: the run and all runs below it in an SQLite file, and the objects of their snapshots. The run is
//! fenced first. Killed at any instant, it is in one place, or in none until the same command is typed again.
//! `outlast move` does both over ssh (`send`).

pub mod archive;
pub mod import;
pub mod send;
mod sign;

use std::{
    fs::{DirBuilder, File},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
};

use outlast_core::{
    engine::{Import, Imported, Whole},
    envelope::Moved,
    reads::whole,
    words::Digest,
};
use outlast_files::{Id, Objects};
use serde::Deserialize;

use self::sign::{Signer, Verifier};
use super::{export::ExportArgs, prelude::*};
use crate::{
    disk::present,
    program::{error::BundleError, fence::fence, run_directory},
    settings::store_address::Durability as Kept,
};

/// Format of the bundles that this program writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// Manifest of a bundle: the run that it holds, and where that is from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Manifest {
    format: u32,
    /// Version of the program that wrote it.
    outlast: String,
    store_format: i64,
    run: String,
    name: Option<String>,
    /// Store that the run was in, and its machine.
    store: String,
    host: String,
    made_at: String,
    /// Directory that the run worked in; `None`: it had none.
    directory: Option<String>,
    /// Directory that it works in where it is imported; `None`: the one that is named there, or the one of the same name.
    into: Option<String>,
    /// Files of the run where they are not those of its newest snapshot: somebody brought others back by hand since.
    brought_back: Option<Id>,
    runs: usize,
    entries: usize,
    snapshots: usize,
    spent_nano_usd: i64,
}

impl Manifest {
    /// Reads a manifest's text. Errors: `NotOne`, `Newer`.
    fn of(text: Option<Vec<u8>>, file: &str) -> Result<Manifest, BundleError> {
        let file = || file.to_owned();
        let read = text.and_then(|text| serde_json::from_slice::<Manifest>(&text).ok());
        match read.ok_or_else(|| BundleError::NotOne { file: file() })? {
            Manifest { format, outlast, .. } if format > FORMAT => {
                Err(BundleError::Newer { file: file(), by: outlast, found: format, known: FORMAT })
            }
            manifest => Ok(manifest),
        }
    }

    /// Returns the run's size, for people.
    fn words(&self) -> String {
        let (entries, snapshots) =
            (some(self.entries as i64, "entry"), some(self.snapshots as i64, "snapshot"));
        format!("{entries}, {} usd spent, {snapshots}", usd(self.spent_nano_usd))
    }
}

/// Returns the directory beside the store of bundles that are under way.
fn bundles(context: &Context) -> Result<PathBuf> {
    Ok(run_directory::of_store(&context.place, "bundles", &context.around)?)
}

/// Directory beside the store in which one bundle at a time is packed or unpacked. It goes when this is dropped, and the one
/// above it if no other bundle is there; what a kill has left there goes first.
struct Workplace {
    path: PathBuf,
    parent: PathBuf,
    _alone: File,
}

impl Workplace {
    fn new(context: &Context) -> Result<Workplace> {
        let (parent, mut make) = (bundles(context)?, DirBuilder::new());
        context.make_own_directory()?;
        // The missing directory of a store that was named is a wrong name.
        make.recursive(matches!(context.place, StoreAddress::Postgres(_))).mode(0o700);
        let alone = loop {
            match make.create(&parent) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    let why = format!("{} cannot be made: {e}", parent.display());
                    return Err(store::Error::Open { place: context.place.to_string(), why }.into());
                }
                _ => {}
            }
            let alone = File::open(&parent)?;
            rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive)
                .map_err(std::io::Error::from)?;
            // Who had the lock before may have removed the directory.
            if fs::metadata(&parent).is_ok_and(|now| alone.metadata().is_ok_and(|had| had.ino() == now.ino()))
            {
                break alone;
            }
        };
        let place = Workplace { path: parent.join("work"), parent, _alone: alone };
        place.clear()?;
        make.recursive(true).create(place.path.join(archive::FILES))?;
        Ok(place)
    }

    fn clear(&self) -> std::io::Result<()> {
        present(fs::remove_dir_all(&self.path)).map(drop)
    }

    /// Opens the bundle's store; `create` makes it.
    fn store(&self, context: &Context, create: bool) -> Result<std::sync::Arc<dyn Store>> {
        let place = StoreAddress::File(self.path.join(archive::STORE));
        Context { place, ..context.clone() }.open(create, Kept::Full)
    }

    /// Keeps what is read, and returns its path.
    fn receive(&self, from: &mut dyn std::io::Read) -> std::io::Result<PathBuf> {
        let path = self.path.join("received");
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        std::io::copy(from, &mut file)?;
        Ok(path)
    }

    fn objects(&self) -> Result<Objects, FilesError> {
        Ok(Objects::open(&self.path.join(archive::FILES), true, u64::MAX)?)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // What stays goes with the next bundle. A directory that holds another bundle is not removed.
        let _ = self.clear();
        let _ = fs::remove_dir(&self.parent);
    }
}

/// Makes runs in a store, in one commit.
fn put(store: &dyn Store, runs: Vec<Whole>, bundle: Option<Digest>) -> Result<Imported> {
    let identity = identity::of_self()?;
    let import = Import {
        runs,
        identity: outlast_core::run::Identity { program: "outlast import".into(), ..identity },
        bundle,
    };
    Ok(store.ask(import, Durability::Synced).wait()?)
}

/// Returns the directory that a run works in, or of whose files it keeps snapshots.
fn directory_of(view: &RunView) -> Option<String> {
    let kept = of_run(view).and_then(|(kept, _)| kept.directory.clone());
    kept.or_else(|| view.spec.command.as_ref().map(|command| command.directory.clone()))
}

/// Puts a run into a bundle.
///
/// Errors: `files_in_use` for a run that has not stopped, `run_halted` for one that was moved; `bundle_exists`;
/// `bundle_key`; `run_has_parent`. The run stays as it was then.
pub fn export(args: &ExportArgs, file: &Path, Desk { store, context, page, .. }: Desk) -> Result {
    let view = find::run(store, &args.job)?;
    let file = context.around.directory().join(file);
    let signer = args.sign.as_ref().map(|key| Signer::read(&context.around.directory().join(key)));
    let signer = signer.transpose()?;
    let begun = Moved::begun(file.to_string_lossy().into_owned(), None);
    let (whole, manifest) = leave(store, context, &view, begun, (None, signer.as_ref()))?;
    let is_over = matches!(view.run.status, Status::Completed | Status::Cancelled) && view.run.job.is_none();
    if page.look.json {
        let told = json!({ "run": view.run.id, "bundle": whole.bundle, "sha256": whole.sha256, "signed": signer.is_some(), "moved": !is_over, "manifest": manifest });
        return Ok(page.json(&told)?);
    }
    let strong = page.look.paint(Paint::Strong, &called(&view));
    let file = look::clean(&whole.bundle);
    page.line(&format!("{strong}  {} in {file}", manifest.words()))?;
    let signed = if signer.is_some() { ", signed" } else { "" };
    page.line(&format!("  sha-256 {}{signed}", whole.sha256.as_deref().unwrap_or_default()))?;
    if !is_over {
        page.line("  it goes on where that file is imported, and no longer here")?;
    }
    // As bytes: it is for another store than the one that this command names.
    Ok(page.bytes(format!("  → outlast import {file} --into DIR\n").as_bytes())?)
}

/// Checks that a run is no part of another one. Errors: `run_has_parent`.
fn check_leaves_alone(store: &dyn Store, view: &RunView) -> Result {
    let Some(parent) = view.run.parent else { return Ok(()) };
    Err(BundleError::Child { run: called(view), parent: called(&find::view(store, parent)?) }.into())
}

/// Halts a run because it leaves in a bundle, and writes that. An export that was `begun` and cut off goes on.
fn leave(
    store: &dyn Store,
    context: &Context,
    view: &RunView,
    begun: Moved,
    (into, signer): (Option<&str>, Option<&Signer>),
) -> Result<(Moved, Manifest)> {
    let (run, file) = (called(view), PathBuf::from(&begun.bundle));
    check_leaves_alone(store, view)?;
    if let status @ (Status::Running | Status::Waiting | Status::Sleeping) = view.run.status {
        return Err(FilesError::InUse { run, status }.into());
    }
    let moved = view.run.halt.as_ref().and_then(|halt| halt.moved.as_deref());
    // What a person has carried away may be anywhere by now.
    let is_done = |moved: &Moved| moved.has_arrived || moved.to.is_none() && moved.sha256.is_some();
    let goes_on = moved
        .is_some_and(|moved| !is_done(moved) && (&moved.bundle, &moved.to) == (&begun.bundle, &begun.to));
    if moved.is_some() && !goes_on {
        return Err(RunError::Halted { run, halt: view.run.halt.clone().map(Box::new) }.into());
    }
    let (digest, manifest) = match file.exists() {
        true if goes_on => {
            let digest = archive::check(&file, &begun.bundle, signer.map(Signer::verifier).as_ref())?;
            let manifest = Manifest::of(archive::manifest(&file)?, &begun.bundle)?;
            if manifest.run != view.run.id.as_str() {
                return Err(BundleError::Exists { file: begun.bundle }.into());
            }
            (digest, manifest)
        }
        true => return Err(BundleError::Exists { file: begun.bundle }.into()),
        false => {
            let family = fence(store, view, Some(&begun))?;
            let made = make(store, context, family, &file, (into, signer));
            if made.is_err() {
                fence(store, view, None)?;
            }
            made?
        }
    };
    let whole = Moved { sha256: Some(digest.to_string()), ..begun };
    fence(store, view, Some(&whole))?;
    Ok((whole, manifest))
}

/// Writes the bundle of runs that are fenced.
fn make(
    store: &dyn Store,
    context: &Context,
    family: Vec<RunView>,
    file: &Path,
    (into, signer): (Option<&str>, Option<&Signer>),
) -> Result<(Digest, Manifest)> {
    let place = Workplace::new(context)?;
    let mut manifest = Manifest {
        format: FORMAT,
        outlast: env!("CARGO_PKG_VERSION").into(),
        store_format: outlast_store::FORMAT,
        store: store.place(),
        host: identity::of_self()?.host,
        made_at: time::rfc3339(store.now()?),
        into: into.map(str::to_owned),
        runs: family.len(),
        ..Manifest::default()
    };
    if let Some(root) = family.first() {
        manifest.run = root.run.id.to_string();
        manifest.name.clone_from(&root.spec.name);
        manifest.directory = directory_of(root);
        manifest.spent_nano_usd = root.envelope.spent.cost();
    }
    let mut objects = place.objects()?;
    for (index, view) in family.iter().enumerate() {
        let history = History::read(store, view.run.no)?;
        let mut snapshots = history.snapshots();
        manifest.snapshots += snapshots.len();
        if let (Some((kept, works_in)), false) = (of_run(view), snapshots.is_empty()) {
            let mut files = Files::open(context, &view.run.id, kept, works_in, false)?;
            files.bring(store, &snapshots)?;
            if index == 0 {
                manifest.brought_back = files.take_if_brought_back(&history)?;
                snapshots.extend(manifest.brought_back);
            }
            files.objects.copy_to(&mut objects, &snapshots)?;
        }
    }
    let runs = family.into_iter().map(|view| whole::read(store, view)).collect::<Result<Vec<_>, _>>()?;
    manifest.entries = runs.iter().map(|whole| whole.entries.len()).sum();
    // Closed, a store is one file.
    put(&*place.store(context, true)?, runs, None)?;
    fs::write(place.path.join(archive::MANIFEST), serde_json::to_vec_pretty(&manifest).unwrap_or_default())?;
    let mut names = vec![archive::MANIFEST.to_owned(), archive::STORE.to_owned()];
    let packs = objects.packs().map(|pack| format!("{}/{pack}", archive::FILES));
    names.extend(packs);
    Ok((archive::pack(&place.path, &names, file, signer)?, manifest))
}
