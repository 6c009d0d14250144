//! Remains of a dead supervisor. Its guardian ends the agent's processes in its place (`outlast_process::guardian` has the
//! mechanism). Where the guardian was killed too, nobody is left who knows them by descent: whoever comes next finds them
//! by their mark and their control group.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::store::{RunView, Store};
use outlast_process::{
    cgroup::{self, ParentGroup},
    confine,
    end_tree::{end_rest, end_tree},
    guardian::{self, Bereaved},
    ladder::{Ask, Graces},
    proc_table::{self, ProcId},
    tree::{Marker, Tree},
    wait::Bell,
};
use serde::{Deserialize, Serialize};

use super::drive::attempt::{Hold, ladder};
use crate::{
    agent::truth::{self, Left},
    disk,
    program::{context::Context, error::CliError, find, mark::Mark, run_directory::RunDirectory, say::say},
    proxy_setup,
    render::{amount::some, short::called},
};

/// Ends every process that earlier attempts of the run left running, including those of a supervisor that has died.
///
/// Returns the number of processes that could not be ended, and the list of those found, ended or not, that the agent's
/// tools had started.
pub async fn end(
    mark: &Mark,
    ground: Option<&ParentGroup>,
    keep: &[String],
) -> io::Result<(usize, Vec<Left>)> {
    let groups = ground.map_or_else(Vec::new, |ground| ground.left(&mark.group()));
    let tree = Tree::new(mark.marker(), vec![ProcId::of_self()?]);
    let tree = Tree { groups: groups.clone(), keep: keep.to_vec(), ..tree };
    let strays = tree.survivors()?.len();
    if strays == 0 {
        groups.iter().for_each(|group| cgroup::remove(group));
        return Ok((0, Vec::new()));
    }
    let tools = truth::look(&tree)?;
    say(&format!("ending {} of an earlier attempt", some(strays as i64, "process")));
    let ended = ladder(tree, None, Ask::EndRest, Graces::default(), Arc::new(Bell::new()?)).await?;
    groups.iter().for_each(|group| cgroup::remove(group));
    Ok((ended.left.len(), tools))
}

/// Ends the processes that a dead supervisor left of a run that nobody drives now, and lists those of tools for the next
/// attempt's note. Returns how many there were.
///
/// Processes begun after the look at the attempts are left alone: another supervisor may have claimed the run
/// meanwhile. Errors: the store's; `/proc` cannot be read.
pub fn sweep(store: &dyn Store, view: &RunView, context: &Context) -> Result<usize, CliError> {
    // Its processes are on another machine, whose own commands end them.
    if store.is_remote() {
        return Ok(0);
    }
    // A loop's shell ends its own strays when it begins again.
    let Some(command) = view.spec.command.as_ref().filter(|_| !view.spec.is_shell_loop()) else {
        return Ok(0);
    };
    let now = proc_table::now();
    if store.attempts(view.run.no)?.iter().any(|a| a.is_open() && a.instance.is_some()) {
        return Ok(0);
    }
    let mark = Mark::new(view, &store.token_keys()?);
    let groups = ParentGroup::find().map(|ground| ground.left(&mark.group())).unwrap_or_default();
    let keep = command.supervision.keep.clone();
    let tree = Tree { begun_before: Some(now), groups, keep, ..Tree::new(mark.marker(), Vec::new()) };
    let strays = tree.survivors()?.len();
    if strays > 0 {
        let (id, count) = (crate::render::short::called(view), some(strays as i64, "process"));
        say(&format!("{id}: ending {count} that a killed supervisor left"));
        if let Ok(own) = RunDirectory::of(&context.place, &view.run.id, &context.around) {
            keep_left(&own.left(), &tree)?;
        }
        end_rest(&tree)?;
    }
    Ok(strays)
}

/// Facts about an attempt that the guardian needs to end the attempt in the supervisor's place.
#[derive(Debug, Default, Serialize, Deserialize)]
struct AttemptFacts {
    /// Id of the run.
    run: String,
    groups: Vec<PathBuf>,
    keep: Vec<String>,
    /// File in which the processes of tools that are still alive are listed; `None` if there is none.
    left: Option<PathBuf>,
}

/// Forks a guardian above this process, which goes on as the supervisor. `alone`: there is no front that would report
/// the supervisor's death, so the guardian reports it.
///
/// Call it before anything is started or opened. Both processes hold keys in their memory and are made non-dumpable.
pub fn stand(alone: bool) -> io::Result<()> {
    confine::make_nondumpable()?;
    guardian::stand(alone, tree_of, bereaved)?;
    guardian::when_lost(|told| match end_all(told) {
        Ok(_) => say(
            "one of the two processes of `outlast run` was killed: the agent and all that it started was ended too",
        ),
        Err(e) => say(&format!(
            "one of the two processes of `outlast run` was killed, and the agent could not be ended: {e}"
        )),
    })
}

/// Informs the guardian of the attempt that begins. `left`: file in which the next attempt finds the
/// processes of tools that were ended.
pub fn tell(view: &RunView, hold: &Hold, left: Option<PathBuf>) -> io::Result<()> {
    let told = AttemptFacts { run: called(view), groups: hold.groups(), keep: hold.keep.clone(), left };
    guardian::tell(&serde_json::to_string(&told)?)
}

/// Ends the processes that the supervisor left. After a normal end there are none, and this costs one system
/// call.
///
/// A supervisor that was killed could not print how its run continues.
fn bereaved(end: &Bereaved) {
    let was_killed = end.exit.signal.is_some();
    match end_all(&end.told) {
        Ok(0) if !was_killed => {}
        Ok(0) => say(&format!("the supervisor was killed ({}), and its agent with it", end.exit)),
        Ok(left) => {
            say(&format!("the supervisor ended ({}): ended {} that it left", end.exit, some(left, "process")))
        }
        Err(e) => {
            say(&format!("the supervisor ended ({}), and what it left could not be ended: {e}", end.exit))
        }
    }
    if was_killed {
        let run = read(&end.told).run;
        say(format!("hint: go on with it: `outlast resume {run}`").trim_end());
    }
}

/// Completes a tree by what is told of the attempt.
pub fn tree_of(told: &str, tree: Tree) -> Tree {
    let AttemptFacts { groups, keep, .. } = read(told);
    Tree { groups, keep, ..tree }
}

fn read(told: &str) -> AttemptFacts {
    serde_json::from_str(told).unwrap_or_default()
}

/// Kills every process below this one at once: the kernel has killed the agent itself, and the run is free for
/// another supervisor. Returns how many there were.
fn end_all(told: &str) -> io::Result<i64> {
    let left = read(told).left;
    let tree = tree_of(told, Tree::of_ours(Marker::new([]))?);
    let found = tree.survivors()?.len();
    if found > 0 {
        if let Some(file) = left {
            keep_left(&file, &tree)?;
        }
        end_tree(&tree, None, Ask::Force, Graces::default(), &Bell::new()?)?;
    }
    Ok(i64::try_from(found).unwrap_or(i64::MAX))
}

/// Lists a tree's processes of tools, which are ended next, for the next attempt's note. Where the file cannot be written those
/// tools' outcomes are unknown, which is true too.
fn keep_left(file: &Path, tree: &Tree) -> io::Result<()> {
    let found = truth::look(tree)?;
    if !found.is_empty() {
        let left: Vec<Left> = take_left(file).into_iter().chain(found).collect();
        let _ = disk::write_new(file, &serde_json::to_vec(&left)?);
    }
    Ok(())
}

/// Reads and removes the list of the tools' processes that were ended in a dead supervisor's place; empty if there is no
/// such file.
pub fn take_left(file: &Path) -> Vec<Left> {
    let left = fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let _ = fs::remove_file(file);
    left.unwrap_or_default()
}

/// Declares the dead supervisors of this machine dead, and ends the processes that they left. Without this, a
/// person who looks after a kill -9 would read that the run is running. A sweep that fails is repeated by
/// whoever resumes the run.
pub fn look_after(store: &dyn Store, context: &Context) {
    if store.is_remote() {
        return;
    }
    for id in proxy_setup::bury(store, &*context.clock) {
        let swept = find::run(store, id.as_str()).and_then(|view| sweep(store, &view, context));
        if let Err(e) = swept {
            say(&format!("{id}: what a killed supervisor left could not be ended: {e}"));
        }
    }
}
