//! Verbs of a loop's shell functions (`outlast shell-loop …`). Each commits before it prints the shell code to run. The last
//! one tells how the shell ended. When a signal ends a bash in the middle of a command, it runs its EXIT trap as at any end,
//! with the exit code of the *previous* command and no signal; but a command in the foreground is still running.

use std::{fs, path::PathBuf, sync::Arc};

use clap::{Args, Subcommand};
use outlast_core::{
    engine,
    run::Identity,
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
    lease::{self, End},
    task_context::{
        self, ASIDE, DONE, STAGE, TASK, TASK_ID, TaskContext, pair,
        task::{self, Recovery},
        write::{self, Bearer},
    },
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
    settings::values,
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
fn how_it_ends(said: &EndArgs, shell: u32) -> End {
    if let Some(signal) = said.signal {
        return End::Signal(signal);
    }
    match said.is_cut_short(&read_from(shell)) {
        true => End::Signal(Signal::TERM.as_raw()),
        false => End::Code(said.code),
    }
}

/// Ends the attempt when the loop's own shell ends. A subshell that inherited its traps changes nothing.
fn end(store: &dyn Store, args: &ShellLoopArgs, how: End, context: &Context) -> Result<u8, CliError> {
    let code = match how {
        End::Code(code) => u8::try_from(code & 0xff).unwrap_or(exit_code::REFUSED),
        End::Signal(_) => exit_code::OK,
    };
    let bearer = Bearer::of_environment(store, &context.around)?;
    if bearer.is_supervised() || !is_our_shell(args) {
        return Ok(code);
    }
    lease::end(store, &bearer, how)
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

impl EndArgs {
    /// Returns whether a signal cut the shell short. `read_from`: process ids of its living children whose standard output it
    /// reads.
    ///
    /// A script that ends by itself waits for nobody: children that then run are background jobs, or process
    /// substitutions, which are no jobs (a `>(tee log)` reads from the shell; a `<(…)` may be read to the end). A `wait`
    /// without arguments ends when no job runs. A shell that ends by itself has left its functions, unless it was told to `exit`
    /// there, or a command failed. Outside of a function, a shell between two commands, in a `read`, or in a `wait` for some
    /// of its jobs, is not detected: bash tells nothing of it.
    fn is_cut_short(&self, read_from: &[u32]) -> bool {
        let jobs = Jobs::read(&self.jobs);
        let waits = self.command == "wait" && !jobs.pids.is_empty();
        let substitutes = self.command.contains("$(") || self.command.contains('`');
        jobs.foreground
            || waits
            || substitutes && read_from.iter().any(|pid| !jobs.pids.contains(pid))
            || self.is_in_a_function()
    }

    /// Returns whether the shell was in a function that it did not end in by itself. A trap of the script's own, or a file that
    /// it reads, may have ended it there with an `exit` that bash does not tell.
    fn is_in_a_function(&self) -> bool {
        let innermost = self.within.split(' ').next().unwrap_or_default();
        let exits = self.command.split(|c: char| !c.is_alphanumeric()).any(|word| word == "exit");
        let mut traps = self.traps.lines().filter(|line| line.starts_with("trap -- "));
        self.code == 0
            && !matches!(innermost, "" | "source")
            && !exits
            && traps.all(|line| line.contains("__outlast_signal"))
    }
}

/// Returns the process ids of a shell's living children whose standard output it reads; none if `/proc` cannot be read.
pub fn read_from(shell: u32) -> Vec<u32> {
    let Ok(processes) = proc_table::walk() else { return Vec::new() };
    let children = processes.into_iter().filter(|stat| stat.ppid == shell && !stat.is_dead());
    let ends = read_ends(shell);
    let prints_to_it = |pid: &u32| pipe(*pid, "1").is_some_and(|pipe| ends.contains(&pipe));
    children.map(|stat| stat.pid).filter(prints_to_it).collect()
}

/// Lists the pipes that a process has open for reading, as `/proc` names them.
fn read_ends(pid: u32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = open.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|fd| is_to_read(pid, fd)).filter_map(|fd| pipe(pid, &fd)).collect()
}

fn pipe(pid: u32, fd: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok().filter(|to| to.to_string_lossy().starts_with("pipe:"))
}

/// Returns whether a descriptor is open read-only, by its octal `flags` in `/proc` (O_RDONLY is 0).
fn is_to_read(pid: u32, fd: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| i64::from_str_radix(flags.trim(), 8).ok()).is_some_and(|flags| flags & 3 == 0)
}

#[derive(Default)]
struct Jobs {
    pids: Vec<u32>,
    /// Whether a job runs in the foreground: its line does not end in `&`.
    foreground: bool,
}

impl Jobs {
    /// Parses lines like `[1]+  4711 Running    sleep 9 &`. Further processes of a pipeline have lines of their own,
    /// and commands may hold any text.
    fn read(text: &str) -> Jobs {
        let mut jobs = Jobs::default();
        let mut last: Option<String> = None;
        for line in text.lines() {
            let of_job = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let begins = of_job.filter(|(number, _)| number.parse::<u32>().is_ok());
            let rest = begins.map_or(line, |(_, rest)| rest.trim_start_matches(['+', '-']));
            jobs.pids.extend(rest.split_whitespace().next().and_then(|word| word.parse::<u32>().ok()));
            if begins.is_some() {
                jobs.foreground |= last.take().is_some_and(|job| !is_behind(&job));
            }
            last = Some(line.to_owned());
        }
        jobs.foreground |= last.is_some_and(|job| !is_behind(&job));
        jobs
    }
}

/// Returns whether a job is in the background, by its last line. The directory of a job begun elsewhere follows `&`.
fn is_behind(line: &str) -> bool {
    let command = line.rsplit_once("  (wd: ").map_or(line, |(command, _)| command);
    command.trim_end().ends_with(" &")
}

// --- `outlast shell-init`, and the words that its functions say.

/// Print shell functions that keep a loop's task over any death
///
/// A script takes them up by: eval "$(outlast shell-init --run NAME)". For bash, zsh and POSIX sh. NAME is the loop's identity: it keeps its task, and one loop of a name runs at a
/// time. Under `outlast run` the functions use that run.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShellInitArgs {
    /// The loop's identity, the same in each of its lives: A-Z a-z 0-9 . _ : -
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Set a task aside that was begun in so many lives and never got on; `none` never does
    #[arg(long, value_name = "N", default_value = "10", value_parser = lives)]
    pub max_lives: Lives,
}

const EXAMPLES: &str = "\
Examples:
  eval \"$(outlast shell-init --run nightly)\" || exit
  if outlast_recover; then echo \"going on with $TASK_ID at $PROGRESS_STAGE\"
  else outlast_begin \"$(next_task)\"; fi
  outlast_stage tests
  outlast_run claude -p \"fix issue $ISSUE_NUMBER\"     as a child that a signal ends at once
  outlast_done";

/// Number of lives that a task may take without getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives(pub Option<i64>);

/// A number from 1, or `none`.
pub fn lives(text: &str) -> Result<Lives, String> {
    if text == "none" {
        return Ok(Lives(None));
    }
    match values::count(text) {
        Ok(n) if n > 0 => Ok(Lives(Some(n))),
        _ => Err(format!("{text:?} is no number of lives (wanted for example 10, or none)")),
    }
}

impl std::fmt::Display for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(n) => n.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Take a word of the functions of `outlast shell-init`; not for people
#[derive(Args, Clone, Debug)]
pub struct ShellLoopArgs {
    /// The loop's shell
    #[arg(long, value_name = "PID")]
    pub pid: u32,
    /// The loop's name
    #[arg(long = "loop", value_name = "NAME")]
    pub name: String,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Takes the loop's run
    Open,
    /// Holds the loop's lease until its shell is gone
    Keep(KeepArgs),
    /// Finds the task that is unfinished
    Recover {
        /// Lives after which a task that never got on is set aside, as in shell-init
        #[arg(long, value_name = "N", default_value = "10", value_parser = lives)]
        max_lives: Lives,
    },
    /// Begins a task
    Begin {
        /// The task
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: String,
        /// Key of the task's context, with its value
        #[arg(value_name = "KEY=VALUE", value_parser = pair, allow_hyphen_values = true)]
        pairs: Vec<(String, String)>,
    },
    /// Says how far the task got
    Stage {
        /// Name of the stage, any text
        #[arg(value_name = "NAME", allow_hyphen_values = true)]
        stage: String,
        /// Key of the task's context, with its value
        #[arg(value_name = "KEY=VALUE", value_parser = pair, allow_hyphen_values = true)]
        pairs: Vec<(String, String)>,
    },
    /// Says that the task is done
    Done {
        /// The task that is done: refused if another one is open
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: Option<String>,
    },
    /// Tells whether a task was done or set aside before
    IsOver {
        /// The task
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: String,
    },
    /// Ends a child of the shell, and all processes that the child started
    StopChild {
        /// The child
        #[arg(value_name = "PID")]
        child: u32,
    },
    /// Records that the shell ends
    End(EndArgs),
    /// Ends this process by a signal, in the place of a shell whose trap for that signal runs
    Die {
        /// Number of the signal
        #[arg(value_name = "SIGNAL")]
        signal: i32,
    },
}

/// Lease that is held, and the shell for which it is held.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Start time of the shell's process, in clock ticks since boot
    #[arg(long, value_name = "TICKS")]
    pub started: u64,
    /// Number of the shell's instance in the store
    #[arg(long, value_name = "N")]
    pub instance: i64,
    /// Number of the run in the store
    #[arg(long, value_name = "N")]
    pub number: i64,
    /// Number of the attempt
    #[arg(long, value_name = "N")]
    pub attempt: i64,
}

/// Facts about the end of the shell, as its EXIT trap has them.
#[derive(Args, Clone, Debug, Default)]
pub struct EndArgs {
    /// Exit code of the shell
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub code: i32,
    /// Number of the signal that ended the shell
    #[arg(long, value_name = "NUMBER")]
    pub signal: Option<i32>,
    /// Running jobs of the shell, as bash's `jobs -lr` lists them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub jobs: String,
    /// Last command that the shell began, as in `$BASH_COMMAND`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub command: String,
    /// Functions that the shell was in, as in `${FUNCNAME[*]}`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub within: String,
    /// Traps of the shell, as bash's `trap -p` lists them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub traps: String,
}

#[cfg(test)]
mod tests_of_cut_short {
    use super::*;

    #[test]
    fn command_in_the_foreground_or_in_a_substitution_was_cut_short() {
        let check = |jobs: &str, command: &str, read_from: &[u32], wanted: bool| {
            let said = EndArgs { jobs: jobs.into(), command: command.into(), ..EndArgs::default() };
            assert_eq!(said.is_cut_short(read_from), wanted, "{jobs:?} {command:?} {read_from:?}");
        };
        check("", "exit 0", &[], false);
        check("[1]    845 Running                 sleep 3", "sleep 3", &[845], true);
        check("[1]+   864 Running                 sleep 2 &", "exit 0", &[864], false);
        check("[1]+   864 Running      sleep 2 &\n[2]    865 Running      sleep 3", "sleep 3", &[], true);
        check("[1]-   864 Running      sleep 2 &\n[2]+   865 Running      sleep 3 &", "true", &[], false);
        check("[1]   1035 Running       sleep 3\n      1036            | cat", "cat", &[], true);
        check("[1]+  1035 Running       sleep 3\n      1036            | cat &", "cat", &[1035, 1036], false);
        check("[1]+  1035 Running       sleep 3 &  (wd: /a (b) & c)", "true", &[], false);
        check("[1]+  1035 Running       cat <<E\na & b\nE &", "true", &[], false);
        check("[1]+   864 Running                 sleep 2 &", "wait", &[], true);
        check("[1]+   864 Running                 sleep 2 &", "wait 863", &[], false);
        check("", "wait", &[], false);
        check("", "x=$(sleep 3)", &[77], true);
        check("", "x=`sleep 3`", &[77], true);
        // A background job and a process substitution may still run at a normal end.
        check("[1]+    77 Running       sleep 9 &", "x=$(true)", &[77], false);
        check("", "echo done", &[78], false);
        check("", "x=$(true)", &[], false);
    }

    #[test]
    fn shell_that_is_in_a_function_without_an_exit_was_cut_short() {
        let ours = "trap -- '__outlast_signal INT 2' SIGINT\ntrap -- '__outlast_signal QUIT 3' SIGQUIT";
        let of = |within: &str, command: &str, code, traps: &str| EndArgs {
            code,
            within: within.into(),
            command: command.into(),
            traps: traps.into(),
            ..EndArgs::default()
        };
        assert!(of("main main", "sleep 1", 0, ours).is_cut_short(&[]));
        for by_itself in [
            of("", "sleep 1", 0, ours),
            of("source work main", "sleep 1", 0, ours),
            of("main main", "exit 0", 0, ours),
            of("main main", "eval 'exit 0'", 0, ours),
            of("main main", "false", 1, ours),
            of("main main", "sleep 1", 0, "trap -- 'exit 0' SIGUSR1"),
        ] {
            assert!(!by_itself.is_cut_short(&[]), "{by_itself:?}");
        }
    }
}
