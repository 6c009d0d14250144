//! The guardian of a run: ends the agent's processes when their supervisor is gone. `outlast_process::guardian` has
//! the mechanism.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use outlast_core::words::id::RunId;
use serde::{Deserialize, Serialize};

use super::attempt::Hold;
use crate::{
    agent::truth::{self, Left},
    program::{file, say::say},
    render::amount::some,
};
use outlast_process::{
    end_tree::end_tree,
    guarded,
    guardian::{self, Bereaved},
    ladder::{Ask, Graces},
    nondumpable,
    tree::{Marker, Tree},
    wait::Bell,
};

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
    nondumpable::make_nondumpable()?;
    guardian::stand(alone, tree_of, bereaved)?;
    guarded::when_lost(|told| match end_all(told) {
        Ok(_) => {
            say("this supervisor's guardian was killed: the agent and all that it started was ended too")
        }
        Err(e) => {
            say(&format!("this supervisor's guardian was killed, and the agent could not be ended: {e}"))
        }
    })
}

/// Informs the guardian of the attempt that begins. `left`: file in which the next attempt finds the
/// processes of tools that were ended.
pub fn tell(run: &RunId, hold: &Hold, left: Option<PathBuf>) -> io::Result<()> {
    let groups = hold.group.iter().map(|group| group.path().to_owned()).collect();
    let told = AttemptFacts { run: run.to_string(), groups, keep: hold.keep.clone(), left };
    guarded::tell(&serde_json::to_string(&told)?)
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
        say(format!("hint: go on with it: outlast resume {run}").trim_end());
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
            // For the next attempt's note. Without it those tools' outcomes are unknown, which is true too.
            let _ = file::write_new(&file, &serde_json::to_vec(&truth::look(&tree)?)?);
        }
        end_tree(&tree, None, Ask::Force, Graces::default(), &Bell::new()?)?;
    }
    Ok(i64::try_from(found).unwrap_or(i64::MAX))
}

/// Reads and removes the guardian's list of the tools' processes that it ended in a dead supervisor's place; empty if
/// there is no such file.
pub fn take_left(file: &Path) -> Vec<Left> {
    let left = fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let _ = fs::remove_file(file);
    left.unwrap_or_default()
}
