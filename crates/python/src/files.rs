//! Files that a program keeps with its run.

use outlast::{
    files::{
        Files, Moment,
        history::History,
        keeper::{Occasion, Taker, Target},
        of_run,
    },
    program::error::{CliError, FilesError},
};
use outlast_core::{
    engine::{Actor, Amend},
    run::{KeptFiles, Spec},
    store::{Ask as _, Durability},
    words::Slot,
};

use crate::shared::Core;

/// Rules for the files of a directory that are kept: whether those that `.gitignore` names, patterns of those that are
/// not, and the most bytes of all.
pub type FileRules = (bool, Vec<String>, Option<u64>);

/// Begins to keep files with an attempt: those of `directory`, else those that the run has kept before, or that its
/// supervisor keeps. Without `rules`, those of an earlier life hold.
///
/// An attempt that this process drives (`drives`) begins with the tree of the last finished step (`from_last_step`), with
/// the newest one where that was taken on another machine, or else with what is there. Errors: `NotKept`; those of a
/// restoration. A snapshot that fails is only said.
pub fn keep(
    core: &Core,
    (actor, slot): (Actor, Slot),
    drives: bool,
    directory: Option<String>,
    rules: Option<FileRules>,
    from_last_step: bool,
) -> Result<Taker, CliError> {
    let not_kept = || FilesError::NotKept { run: format!("#{}", actor.run) };
    let mut view = core.store.run(actor.run)?.ok_or_else(not_kept)?;
    let is_supervisors = view.spec.command.as_ref().is_some_and(|c| c.supervision.files.is_some());
    if let Some(directory) = directory.filter(|_| !is_supervisors) {
        let mut files = view.spec.files.clone().unwrap_or_default();
        if let Some((ignored, exclude, max_bytes)) = rules {
            files = KeptFiles { directory: None, ignored, exclude, max_bytes };
        }
        files.directory = Some(directory);
        if view.spec.files.as_ref() != Some(&files) {
            view.spec = Spec { files: Some(files), ..view.spec };
            let amend = Amend { run: actor.run, spec: view.spec.clone(), unpriced: None };
            core.store.ask(amend, Durability::Synced).wait()?;
        }
    }
    let (kept, works_in) = of_run(&view).ok_or_else(not_kept)?;
    let history = History::read(core.store.as_ref(), actor.run)?;
    let files = Files::open(&core.context, &view.run.id, kept, works_in, true)?;
    let is_elsewhere = history.is_elsewhere(&files);
    let snapshot = match (from_last_step, is_elsewhere) {
        (true, _) => history.at_last_step(),
        (false, true) => history.newest().map(|step| step.kept.snapshot),
        (false, false) => None,
    };
    if !is_elsewhere {
        // A wrong name is told at once.
        files.check_root()?;
    }
    let mut taker = Taker::new(files, core.store.clone(), &history);
    if drives && slot == Slot::DRIVER {
        let target = |snapshot| Target { snapshot, last: None, force: Vec::new(), is_elsewhere };
        taker.begin(actor, snapshot.map(target))?;
    } else {
        taker.join(actor, slot);
        taker.take(Moment::Begin);
    }
    Ok(taker)
}

/// Returns the end of a step, or of an item, as what a snapshot is taken at.
pub fn end_of(key: String, is_item: bool) -> Occasion {
    let moment = if is_item { Moment::Item } else { Moment::Step };
    Occasion { moment, call: None, key: Some(key) }
}
