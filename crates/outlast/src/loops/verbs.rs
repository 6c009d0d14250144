//! Verbs of a loop's shell functions (`outlast shell-loop …`). Each commits before it prints the shell code to run. The last
//! one tells how the shell ended.

use std::sync::Arc;

use outlast_core::{
    engine,
    run::{Exit, Identity},
    store::{self, Store},
};
use outlast_process::{
    end_tree::end_tree,
    identity::{self, Liveness},
    ladder::{Ask, Graces},
    proc_table, signals,
    tree::{Marker, Tree},
    wait::Bell,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    at_exit::read_from,
    lease,
    task_context::{
        self, ASIDE, DONE, STAGE, TASK, TASK_ID, TaskContext,
        task::{self, Recovery},
        write::{self, Bearer},
    },
    words::{EndArgs, Lives, ShellLoopArgs, Verb},
};
use crate::{
    program::{
        context::Context,
        error::{CliError, InsideError},
        exit_code,
        mark::Mark,
        say::say,
        told,
    },
    render::{look::Page, quote::export},
};

/// Key that binds a supervised run's context to one loop, for the run's whole life.
const LOOP: &str = "loop";

/// Time that a child has to end by itself. Its shell waits meanwhile.
const GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Loop to which a supervised run's context belongs, and the shell that bound it there.
#[derive(Serialize, Deserialize)]
struct Bound {
    name: String,
    attempt: i64,
    #[serde(flatten)]
    shell: Identity,
}

/// Executes one verb of a loop's shell functions and prints the code that the shell evaluates. Returns the exit code.
pub fn act(args: &ShellLoopArgs, context: &Context, page: &mut Page) -> Result<u8, CliError> {
    if let Verb::Die { signal } = args.verb {
        Signal::from_named_raw(signal).map_or(Ok(()), |signal| signals::die_by(signal.as_raw()))?;
        return Ok(exit_code::FAILED);
    }
    // Only a loop's first verb creates the store; the others need one that exists.
    let store = context.open(matches!(args.verb, Verb::Open), Default::default())?;
    match &args.verb {
        Verb::Open => open(&store, args, context, page),
        Verb::Keep(keep) => lease::keep(&store, keep, args.pid, context),
        Verb::StopChild { child } => stop_child(&store, args, *child, context),
        Verb::End(how) => end(store.as_ref(), args, how_it_ends(how, args.pid), context),
        verb => match Bearer::of_environment(store.as_ref(), &context.around)
            .and_then(|bearer| said_by(&bearer, store.as_ref(), verb, context, page))
        {
            Err(CliError::Store(store::Error::Engine(engine::Error::LeaseLost { .. })))
                if hold_again(&store, args, context, page)? =>
            {
                // The environment still has the lost attempt's token; the printed code replaces it.
                let bearer = Bearer::of_environment(store.as_ref(), &context.around)?;
                said_by(&renewed(store.as_ref(), bearer)?, store.as_ref(), verb, context, page)
            }
            done => done,
        },
    }
}

fn open(
    store: &Arc<dyn Store>,
    args: &ShellLoopArgs,
    context: &Context,
    page: &mut Page,
) -> Result<u8, CliError> {
    let shell = lease::shell(args.pid, &args.name)?;
    page.text(&forget_others(context, &args.name))?;
    if let Some(bearer) = supervised(store.as_ref(), context)?
        && bind(store.as_ref(), &bearer, &shell, &args.name)?
    {
        // The supervisor has set the variables already.
        return Ok(exit_code::OK);
    }
    let opened = lease::take(store, context, &shell, &args.name)?;
    page.text(&lease::settle_in(store.as_ref(), context, &shell, &opened, true)?)?;
    Ok(exit_code::OK)
}

/// Unsets the task variables that a loop around this one, or an earlier life, exported.
fn forget_others(context: &Context, name: &str) -> String {
    let mut out = format!("unset RECOVERED_TASK_ID {}\n", told::TASK_LIVES);
    // Variables that no loop of another name has exported stay: under `outlast run` they were given to the run.
    let other = context.around.var(told::LOOP).is_some_and(|had| had != name);
    for (_, variable) in task_context::NAMED.iter().filter(|_| other) {
        out.push_str(&format!("unset {variable}\n"));
    }
    out.push_str(&export(told::LOOP, name));
    out
}

/// Returns the bearer of the supervised run that this shell is in; `None` outside a run, and in a loop's own run.
///
/// Errors: the token is not of this store, because the run is in another one.
fn supervised(store: &dyn Store, context: &Context) -> Result<Option<Bearer>, CliError> {
    match Bearer::of_environment(store, &context.around) {
        Ok(bearer) => Ok(Some(bearer).filter(Bearer::is_supervised)),
        Err(e) if e.code() == "no_run_here" => Ok(None),
        Err(e) => Err(e),
    }
}

/// Binds the supervised run's context to the loop `name`; returns whether this loop has it. The first name has it for
/// the run's whole life, so that of two loops in one run neither takes up the other's task. Any other loop has a run
/// of its own.
///
/// Errors: another live shell of this name has it.
fn bind(store: &dyn Store, bearer: &Bearer, shell: &Identity, name: &str) -> Result<bool, CliError> {
    let run = &bearer.view.run.id;
    let place = task_context::name(run, TASK, LOOP);
    loop {
        let found = store.state(&place.namespace, &place.agent, &place.key)?;
        let version = found.as_ref().map_or(0, |i| i.version);
        if let Some(bound) = found.map(|i| task_context::typed::<Bound>(&i)).transpose()? {
            if bound.name != name {
                return Ok(false);
            }
            if bound.attempt == bearer.claims.attempt.0 && holds(&bound, shell) {
                return Err(InsideError::LoopHeld {
                    name: name.to_owned(),
                    run: run.to_string(),
                    pid: bound.shell.pid,
                    host: bound.shell.host,
                }
                .into());
            }
        }
        let (attempt, shell) = (bearer.claims.attempt.0, shell.clone());
        let bound = json!(Bound { name: name.to_owned(), attempt, shell });
        let change = task_context::put(run, TASK, LOOP, &bound).expecting(version);
        match bearer.put(store, vec![change], false) {
            Err(CliError::Store(store::Error::Engine(engine::Error::Conflict { .. }))) => {}
            done => return done.map(|()| true),
        }
    }
}

/// Returns whether another shell holds the binding. A shell that cannot be seen counts as alive: its attempt is open.
fn holds(bound: &Bound, shell: &Identity) -> bool {
    let lives = matches!(identity::liveness(shell, &bound.shell), Liveness::Alive | Liveness::Unknown);
    lives && !shell.is_same_process(&bound.shell)
}

/// Takes the loop's run again after its lease was lost (for example because the machine was asleep), unless
/// another process holds the run.
fn hold_again(
    store: &Arc<dyn Store>,
    args: &ShellLoopArgs,
    context: &Context,
    page: &mut Page,
) -> Result<bool, CliError> {
    let bearer = Bearer::of_environment(store.as_ref(), &context.around)?;
    if bearer.is_supervised() {
        return Ok(false);
    }
    if !lease::is_untouched(store.as_ref(), &bearer)? {
        return Err(InsideError::LoopTaken { name: args.name.clone() }.into());
    }
    say("this loop was taken for dead (was the machine asleep?); taking its run again");
    let shell = lease::shell(args.pid, &args.name)?;
    let opened = lease::take(store, context, &shell, &args.name)?;
    page.text(&lease::settle_in(store.as_ref(), context, &shell, &opened, false)?)?;
    Ok(true)
}

/// Returns the bearer with the attempt and fence that are newest in the store.
fn renewed(store: &dyn Store, bearer: Bearer) -> Result<Bearer, CliError> {
    let newest = store.attempts(bearer.view.run.no)?.pop();
    let mut claims = bearer.claims;
    if let Some(newest) = newest {
        (claims.attempt, claims.fence) = (newest.no, newest.fence);
    }
    Ok(Bearer { claims, ..bearer })
}

fn said_by(
    bearer: &Bearer,
    store: &dyn Store,
    verb: &Verb,
    context: &Context,
    page: &mut Page,
) -> Result<u8, CliError> {
    match verb {
        Verb::Recover { max_lives } => recover(store, bearer, *max_lives, context, page),
        Verb::Begin { task, pairs } => {
            write::once_each(pairs.iter().map(|(k, _)| k))?;
            let stands = TaskContext::read(store, &bearer.view.run.id)?;
            let (attempt, now) = (bearer.claims.attempt.0, store.now()?);
            let mut changes = task::begin(&bearer.view.run.id, &stands, task, pairs, attempt, now)
                .map_err(InsideError::from)?;
            if is_there(store, bearer, ASIDE, task)? {
                changes.push(task_context::delete(&bearer.view.run.id, ASIDE, task));
            }
            // Beginning the same task again and again is no progress.
            let progress = stands.task.is_none() && !was_begun(store, bearer, task)?;
            write::commit(store, context, bearer, changes, progress)?;
            // A variable that the script has set itself, with no value in the context, stays.
            page.text(&write::exports(&TaskContext::read(store, &bearer.view.run.id)?))?;
            Ok(exit_code::OK)
        }
        Verb::Stage { stage, pairs } => {
            let mut pairs = pairs.clone();
            pairs.insert(0, (STAGE.to_owned(), stage.clone()));
            write::once_each(pairs.iter().map(|(k, _)| k))?;
            write::write(store, context, bearer, &pairs, Vec::new())?;
            for (k, v) in &pairs {
                if let Some(variable) = task_context::variable(k) {
                    page.text(&export(&variable, v))?;
                }
            }
            Ok(exit_code::OK)
        }
        Verb::Done { task } => {
            let stands = TaskContext::read(store, &bearer.view.run.id)?;
            let (_, changes) = task::done(&bearer.view.run.id, &stands, task.as_deref(), store.now()?)
                .map_err(InsideError::from)?;
            write::commit(store, context, bearer, changes, true)?;
            for variable in
                task_context::NAMED.iter().map(|(_, v)| *v).chain(["RECOVERED_TASK_ID", told::TASK_LIVES])
            {
                page.text(&format!("unset {variable}\n"))?;
            }
            Ok(exit_code::OK)
        }
        Verb::IsOver { task } => {
            let is_over = is_there(store, bearer, DONE, task)? || is_there(store, bearer, ASIDE, task)?;
            Ok(if is_over { exit_code::OK } else { exit_code::REFUSED })
        }
        // `act` has handled every other verb.
        _ => Ok(exit_code::OK),
    }
}

/// Returns whether the task is recorded under `agent`, as done or as set aside.
fn is_there(store: &dyn Store, bearer: &Bearer, agent: &str, task: &str) -> Result<bool, CliError> {
    let place = task_context::name(&bearer.view.run.id, agent, task);
    Ok(store.state(&place.namespace, &place.agent, &place.key)?.is_some_and(|i| i.value.is_some()))
}

/// Returns whether the task was begun before, perhaps by an earlier life that was told to forget it.
fn was_begun(store: &dyn Store, bearer: &Bearer, task: &str) -> Result<bool, CliError> {
    let run = &bearer.view.run.id;
    Ok(!task_context::is_news(store, run, TASK_ID, task, outlast_core::words::id::Micros(0))?)
}

fn recover(
    store: &dyn Store,
    bearer: &Bearer,
    Lives(most): Lives,
    context: &Context,
    page: &mut Page,
) -> Result<u8, CliError> {
    let run = &bearer.view.run.id;
    let stands = TaskContext::read(store, run)?;
    match task::recover(run, &stands, bearer.claims.attempt.0, most, store.now()?) {
        Recovery::Nothing => Ok(exit_code::REFUSED),
        Recovery::SetAside { task, lives, changes } => {
            write::commit(store, context, bearer, changes, false)?;
            let lives = if lives == 1 { "1 life".into() } else { format!("{lives} lives") };
            say(&format!("task {task:?} is set aside: {lives} began with it and it never got on"));
            say(&format!(
                "hint: `outlast state get task.aside TASK --namespace run:{run}` tells where it stood; outlast_begin takes it up again"
            ));
            Ok(exit_code::REFUSED)
        }
        Recovery::Task { task, lives, changes } => {
            write::commit(store, context, bearer, changes, false)?;
            write::tell_changed(&stands);
            page.text(&write::unsets(&stands))?;
            page.text(&write::exports(&TaskContext::read(store, &bearer.view.run.id)?))?;
            page.text(&export("RECOVERED_TASK_ID", &task))?;
            page.text(&export(told::TASK_LIVES, &lives.to_string()))?;
            Ok(exit_code::OK)
        }
    }
}

/// Decides how the shell ended. Without a signal reported by the shell, a loop that was cut short counts as
/// ended by SIGTERM, which then stands for SIGHUP as well.
fn how_it_ends(said: &EndArgs, shell: u32) -> Exit {
    let cut_short = || said.is_cut_short(&read_from(shell)).then_some(Signal::TERM.as_raw());
    let signal = said.signal.or_else(cut_short);
    Exit { code: signal.is_none().then_some(said.code), signal, ..Exit::default() }
}

/// Ends the attempt when the loop's own shell ends. A subshell that inherited its traps changes nothing.
fn end(store: &dyn Store, args: &ShellLoopArgs, how: Exit, context: &Context) -> Result<u8, CliError> {
    let code = how.code.map_or(exit_code::OK, |code| u8::try_from(code & 0xff).unwrap_or(exit_code::REFUSED));
    let bearer = Bearer::of_environment(store, &context.around)?;
    if bearer.is_supervised() || !is_our_shell(args) {
        return Ok(code);
    }
    Ok(if lease::end(store, &bearer, &how)? { code } else { exit_code::INTERRUPTED })
}

fn is_our_shell(args: &ShellLoopArgs) -> bool {
    rustix::process::getppid().is_some_and(|p| u32::try_from(p.as_raw_nonzero().get()) == Ok(args.pid))
}

/// Ends a child of the calling shell, and all its descendants.
fn stop_child(
    store: &Arc<dyn Store>,
    args: &ShellLoopArgs,
    child: u32,
    context: &Context,
) -> Result<u8, CliError> {
    let asking = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    let roots: Vec<_> = proc_table::read_stat(child)?
        // A pid that belongs to another process by now is left alone.
        .filter(|stat| i64::from(stat.ppid) == i64::from(asking))
        .map(|stat| stat.id())
        .into_iter()
        .collect();
    // In a loop's own run, all processes with the attempt's mark end, also those that have lost their parent. A
    // supervised run has more processes than the loop's, and its supervisor ends them.
    let own = Bearer::of_environment(store.as_ref(), &context.around).ok().filter(|b| !b.is_supervised());
    let marker = match own.filter(|_| is_our_shell(args)) {
        Some(bearer) => Mark::new(&bearer.view, &store.token_keys()?).marker_of(bearer.claims.attempt),
        None => Marker::new([]),
    };
    let graces = Graces { all: GRACE, ..Graces::default() };
    end_tree(&Tree::new(marker, roots), None, Ask::EndRest, graces, &Bell::new()?)?;
    Ok(exit_code::OK)
}
