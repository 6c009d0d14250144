//! `outlast import FILE`: makes the run of a bundle in this store, once.

use std::process;

use outlast_core::{
    reads::{called::called_now, runs::with_id},
    state,
};

use super::{super::budget, *};
use crate::{program::told, render::short::short_id, supervisor::strays};

/// Make the run of a bundle in this store, with its files, to go on here
///
/// A bundle is imported once: again, this says so and does nothing. The run is as it was where `outlast export --bundle`
/// took it: interrupted or halted, with what it has spent and what is left of its budget.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast import nightly.bundle --into ~/work/nightly\n  outlast resume nightly"
)]
pub struct ImportArgs {
    /// The file that outlast export --bundle wrote; `-` reads it from standard input
    pub file: PathBuf,
    /// Directory that the run works in from now on, with its files; it is made, or is empty [default: the one of the same name]
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// Refuse a bundle that was not signed with the private half of this key, a file as openssl writes it
    #[arg(long, value_name = "PUBLIC")]
    pub verify: Option<PathBuf>,
    /// Resume it then, in the background
    #[arg(long)]
    pub resume: bool,
}

/// Makes the run of a bundle here. Files come first, then one commit has all rows: without it, nothing of the run is in the
/// store. Typed again after a kill, it goes on.
///
/// Errors: `bundle_damaged`, `bundle_unsigned`, `bundle_unknown`, `bundle_newer`, `bundle_key`, `run_exists`, and a directory
/// that has other files; nothing is written then.
pub fn import(args: &ImportArgs, context: &Context, page: &mut Page) -> Result<u8> {
    let here = context.around.directory();
    let verifier = args.verify.as_ref().map(|key| Verifier::read(&here.join(key))).transpose()?;
    let (is_piped, named) = (args.file == Path::new("-"), here.join(&args.file));
    let name = if is_piped { "standard input".to_owned() } else { named.display().to_string() };
    // What is judged and unpacked is one copy: whoever can write the file could change it after the look. A file that is no
    // bundle, or a directory that cannot be made, leaves nothing behind.
    let place = Workplace::new(context)?;
    let file = match is_piped {
        true => place.receive(&mut std::io::stdin().lock())?,
        false => match File::open(&named) {
            Ok(mut named) => place.receive(&mut named)?,
            Err(why) => return Err(BundleError::Unread { file: name, why }.into()),
        },
    };
    let digest = archive::check(&file, &name, verifier.as_ref())?;
    let manifest = Manifest::of(archive::manifest(&file)?, &name)?;
    if let Some(old) = manifest.directory.as_deref().filter(|_| context.has_no_file()) {
        directory(old, place_of(args, &manifest), context)?;
    }
    let store = context.open(true, Kept::default())?;
    strays::look_after(&*store, context);
    let bundle = (file.as_path(), digest, &manifest);
    let run = carry(args, bundle, place, (&*store, context), page).map_err(|e| e.called(&*store))?;
    if !args.resume {
        return Ok(exit_code::OK);
    }
    // Whoever sent the bundle learns that the run is here, even if it cannot go on.
    page.flush()?;
    let view = find::run(&*store, &run)?;
    if view.run.status != Status::Interrupted || view.spec.command.is_none() {
        return Ok(exit_code::OK);
    }
    let mut resume = process::Command::new(crate::program()?);
    resume.args(["resume", "--detach", "--", &run]).env(told::STORE, context.place.address());
    let status = resume.stdin(process::Stdio::null()).stdout(process::Stdio::null()).status()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit_code::FAILED))
}

/// Makes the run, prints that, and returns its id. `place`: where the bundle is unpacked.
fn carry(
    args: &ImportArgs,
    (file, digest, manifest): (&Path, Digest, &Manifest),
    place: Workplace,
    (store, context): (&dyn Store, &Context),
    page: &mut Page,
) -> Result<String> {
    let row = state::Table::Bundles.name(&digest.to_string());
    if let Some(known) = store.state(&row.namespace, &row.agent, &row.key)? {
        let ids = known.value.unwrap_or_default();
        let run = String::from_utf8_lossy(&ids).split(' ').next().unwrap_or_default().to_owned();
        return before(store, run, page);
    }
    archive::unpack(file, &place.path)?;
    let bundle = place.store(context, false)?;
    let (mut family, _) = whole::family(&*bundle, find::run(&*bundle, &manifest.run)?)?;
    for view in &family {
        if let Some(no) = store.run_no(&view.run.id)? {
            let there = find::view(store, no)?;
            return Err(BundleError::Here { run: called(&there), moved: there.run.is_moved() }.into());
        }
    }
    let old = family.first().and_then(directory_of);
    let into = place_of(args, manifest);
    let new = old.as_deref().map(|old| directory(old, into, context)).transpose()?;
    if let (Some(old), Some(new)) = (&old, &new) {
        family.iter_mut().for_each(|view| settle(&mut view.spec, old, new, context));
    }
    let (mut held, mut objects, mut restored) = (Vec::new(), place.objects()?, None);
    for (index, view) in family.iter().enumerate() {
        let mut snapshots = History::read(&*bundle, view.run.no)?.snapshots();
        snapshots.extend(manifest.brought_back.filter(|_| index == 0));
        let (Some((kept, works_in)), Some(newest)) = (of_run(view), snapshots.last()) else { continue };
        let mut files = Files::open(context, &view.run.id, kept, works_in, true)?;
        held.push(files.objects.share()?);
        objects.copy_to(&mut files.objects, &snapshots)?;
        for snapshot in &snapshots {
            files.publish(store, snapshot, || Ok(()))?;
        }
        if index == 0 {
            restored = Some(files.put_down(*newest)?.changed.len());
            files.note_put_down(*newest)?;
        }
    }
    let mut runs = Vec::new();
    for view in family {
        let spec = view.spec.clone();
        runs.push(Whole { spec, ..whole::read(&*bundle, view)? });
    }
    let Imported::Now(no) = put(store, runs, Some(digest))? else {
        return before(store, manifest.run.clone(), page);
    };
    if page.look.json {
        let told = json!({ "run": manifest.run, "imported": true, "directory": new, "restored": restored });
        page.json(&told)?;
        return Ok(manifest.run.clone());
    }
    let view = find::view(store, no)?;
    let word = called_now(store, &view)?;
    let strong = page.look.paint(Paint::Strong, &word);
    let entries = some(manifest.entries as i64, "entry");
    page.line(&format!(
        "{strong}  {entries}, {} usd spent, from {}",
        usd(manifest.spent_nano_usd),
        look::clean(&manifest.host)
    ))?;
    if let (Some(restored), Some(new)) = (restored, &new) {
        page.line(&format!("  {} in {}", some(restored as i64, "path"), look::clean(new)))?;
    }
    if let Some(why) = view.run.why() {
        page.line(&format!("  {}: {}", view.run.status.name(), look::clean(&why)))?;
    }
    page.text(&budget::commands(&next(&view, &word)))?;
    Ok(manifest.run.clone())
}

/// Says that the bundle of this run was imported before.
fn before(store: &dyn Store, run: String, page: &mut Page) -> Result<String> {
    if page.look.json {
        page.json(&json!({ "run": run, "imported": false }))?;
        return Ok(run);
    }
    let word = match with_id(store, &run)? {
        Some(view) => called_now(store, &view)?,
        None => short_id(&run).to_owned(),
    };
    page.line(&format!("{word}  this bundle was imported before; nothing was done"))?;
    Ok(run)
}

/// Returns the directory that was named for the run, here or where the bundle was made.
fn place_of<'a>(args: &'a ImportArgs, manifest: &'a Manifest) -> Option<&'a Path> {
    args.into.as_deref().or(manifest.into.as_deref().map(Path::new))
}

/// Returns the directory that the run works in from now on. Errors: one that is not there and was not named.
fn directory(old: &str, into: Option<&Path>, context: &Context) -> Result<String> {
    let new = match into {
        Some(into) => context.around.directory().join(into),
        None if Path::new(old).is_dir() => return Ok(old.to_owned()),
        None => {
            let missing = format!("the directory that the run worked in, {old}, is not here");
            return Err(CliError::usage(missing, Some("name another with --into DIR")));
        }
    };
    let made = fs::create_dir_all(&new).and_then(|()| new.canonicalize());
    let what = new.display().to_string();
    let made = made.map_err(|source| FilesError::from(outlast_files::Error::Io { what, source }))?;
    Ok(made.to_string_lossy().into_owned())
}

/// Changes a spec for another directory and this machine: paths below the old one, and `PATH` and `HOME`.
fn settle(spec: &mut outlast_core::run::Spec, old: &str, new: &str, context: &Context) {
    spec.go_along(old, new);
    let Some(command) = &mut spec.command else { return };
    for name in ["PATH", "HOME"] {
        let own = context.around.var(name).and_then(|own| own.to_str());
        if let (Some(kept), Some(own)) = (command.env.get_mut(name), own) {
            own.clone_into(kept);
        }
    }
}
