//! Processes of attempts whose supervisor is gone, found by their mark and their control group: where its guardian was
//! killed too, nobody is left who knows them by descent.

use std::{io, sync::Arc};

use outlast_core::store::{RunView, Store};
use outlast_process::{
    cgroup::{self, ParentGroup},
    end_tree::end_tree,
    ladder::{Ask, Graces},
    proc_table::{self, ProcId},
    tree::Tree,
    wait::Bell,
};

use super::{attempt::ladder, environment::Mark};
use crate::{
    agent::truth::{self, Left},
    program::{error::CliError, say::say},
    render::amount::some,
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

/// Ends the processes that a dead supervisor left of a run that nobody drives now. Returns how many there were.
///
/// Processes begun after the look at the attempts are left alone: another supervisor may have claimed the run
/// meanwhile. Errors: the store's; `/proc` cannot be read.
pub fn sweep(store: &dyn Store, view: &RunView) -> Result<usize, CliError> {
    // Its processes are on another machine, whose own commands end them.
    if store.is_remote() {
        return Ok(0);
    }
    // A loop's shell ends its own strays when it begins again.
    let Some(command) = view.spec.command.as_ref().filter(|_| !crate::loops::is_loop(view)) else {
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
        end_tree(&tree, None, Ask::EndRest, Graces::default(), &Bell::new()?)?;
    }
    Ok(strays)
}
