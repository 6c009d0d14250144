//! The loop's lease: the loop's shell is the driver of its run, from `open` to `end`.
//!
//! The lease belongs to an instance of the *shell's* process (pid, start time, boot, namespace), registered on its
//! behalf: a process that can see the machine's processes finds it alive exactly as long as the shell is. For all
//! others, a keeper renews its heartbeat: a small process beside the shell, outside `outlast run`. It passes on a person's
//! stop, and when the shell is gone, ends the processes it left and records its death.
//!
//! Nothing depends on the keeper: without it, any process that sees the machine's processes judges the shell itself, and
//! the next life of the loop ends what the last one left.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    os::fd::{AsFd as _, OwnedFd},
    process::{Command, Stdio},
    sync::Arc,
};

use outlast_core::{
    call::Membership,
    engine::{
        self, Active, ActiveTime, Actor, Claim, Claimed, EndAttempt, Pulse, Reopen, Start,
        run::end_attempt::Then,
    },
    envelope::Limits,
    run::{
        Attempt, Exit, Identity, Instance, Run, Spec, Status,
        token::{self, Claims},
    },
    store::{self, Ask as _, Durability, RunView, Store},
    words::{AttemptNo, InstanceNo, RunId, RunNo, Slot, clock::random},
};
use outlast_process::{end_tree::end_rest, proc_table::ProcId, tree::Tree, wait::poll};
use outlast_server::node::{HEARTBEAT, Node, declare_dead};
use rustix::{
    event::{PollFd, PollFlags},
    process::Signal,
};

use super::{
    task_context::{TaskContext, mirror::Mirror, write::Bearer},
    words::KeepArgs,
};
use crate::{
    program::{
        context::Context,
        error::{CliError, InsideError, MachineError, RunError},
        exit_code,
        mark::Mark,
        patient::Patient,
        say::say,
        told,
    },
    proxy_setup,
    render::{amount::some, quote::export},
    settings::no_proxy,
};

/// Returns the identity of the process `pid`, the shell that runs the script of the loop `name`. Errors: no such process.
pub fn shell(pid: u32, name: &str) -> Result<Identity, CliError> {
    let ProcId { pid, start_time } = ProcId::of(pid)?.ok_or(MachineError::NoShell { pid })?;
    Ok(Identity { pid, start_time, program: format!("loop {name}"), ..MachineError::me()? })
}

/// Attempt that a loop's shell has begun and drives.
pub struct Opened {
    pub claims: Claims,
    pub instance: InstanceNo,
    pub view: RunView,
    /// Attempt before this one; `None` if there is none, and if that one completed the loop, so that this begins it anew.
    pub before: Option<Attempt>,
}

/// Claims the loop's own run for its shell, as a new attempt. Creates the run if needed, and reopens a completed one.
///
/// Errors: `run_held` while another live loop of this name drives the run; `not_a_loop` if the run is no loop's; a
/// halted run.
pub fn take(
    store: &Arc<dyn Store>,
    context: &Context,
    shell: &Identity,
    name: &str,
) -> Result<Opened, CliError> {
    let id = RunId::new(name).map_err(|e| CliError::usage(e.to_string(), None))?;
    let view = found_or_made(store.as_ref(), id)?;
    let (run, is_over) = (view.run.no, view.run.status == Status::Completed);
    store.run_verb(Reopen { run }, Durability::Synced)?;
    let node = proxy_setup::join_as(store.clone(), context, shell.clone())?;
    let claimed = claim(&node, shell, &view.run);
    if claimed.is_err() {
        // Without a claim the instance drives nothing: it leaves, so that nobody waits for its heartbeat.
        node.leave()?;
    }
    let (claims, before) = claimed?;
    Ok(Opened { claims, instance: node.instance(), view, before: before.filter(|_| !is_over) })
}

fn found_or_made(store: &dyn Store, id: RunId) -> Result<RunView, CliError> {
    let start = Start {
        // No limits, because nothing is metered here: paid calls run under `outlast run`.
        limits: Limits::default(),
        spec: Spec {
            tags: [Spec::SHELL_LOOP].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Spec::default()
        },
        ..Start::new(id.clone())
    };
    let started = store.run_verb(start, Durability::Synced)?;
    let gone = || CliError::NoSuchRun { asked: id.to_string(), like: None, is_job: false };
    let view = store.run(started.run)?.ok_or_else(gone)?;
    if !view.spec.is_shell_loop() || view.run.job.is_some() {
        return Err(InsideError::NotALoop { run: id.to_string() }.into());
    }
    Ok(view)
}

fn claim(
    node: &Node,
    shell: &Identity,
    Run { no: run, id, .. }: &Run,
) -> Result<(Claims, Option<Attempt>), CliError> {
    let (run, store) = (*run, node.store());
    let mut waited = false;
    loop {
        let before = store.attempts(run)?.pop();
        let restart = before.as_ref().is_some_and(Attempt::died);
        let claim =
            Claim { run, slot: Slot::DRIVER, instance: node.instance(), label: None, fresh: false, restart };
        match store.run_verb(claim, Durability::Synced) {
            Ok(Claimed::Attempt { attempt, fence, .. }) => {
                let claims = Claims { run, attempt, slot: Slot::DRIVER, fence: Some(fence) };
                return Ok((claims, before));
            }
            Ok(Claimed::Refused(refusal)) => {
                return Err(RunError::Halted { run: id.to_string(), halt: Some(Box::new(refusal)) }.into());
            }
            Err(store::Error::Engine(held @ engine::Error::RunHeld { .. })) => {
                let holders: Vec<Instance> = store.live_instances()?;
                let ours =
                    holders.iter().find(|i| i.no != node.instance() && shell.is_same_process(&i.identity));
                if let Some(ours) = ours {
                    // The same process began anew (`exec "$0"`): its earlier instance is over.
                    declare_dead(store.as_ref(), ours.no, false)?;
                } else if !waited {
                    waited = true;
                    // A holder that cannot be seen from here may be dead: only its missing heartbeat tells.
                    node.await_verdicts()?;
                } else {
                    return Err(store::Error::Engine(held).into());
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Starts the keeper (the process that renews the shell's heartbeat), writes the mirror file (the task context as a
/// file) anew, and returns the shell code that exports a new attempt's variables.
///
/// `fresh`: the shell has just begun, so processes of the loop's earlier shells are ended first. Otherwise the same
/// shell is claiming its run again, and its child processes are left running.
pub fn settle_in(
    store: &dyn Store,
    context: &Context,
    shell: &Identity,
    opened: &Opened,
    fresh: bool,
) -> Result<String, CliError> {
    let keys = store.token_keys()?;
    let mark = Mark::new(&opened.view, &keys);
    if fresh {
        end_strays(&mark)?;
    }
    let attempt = opened.claims.attempt;
    start(context, shell, opened)?;
    let mirror = Mirror::of(&context.place, &opened.view, &context.around)?;
    mirror.renew(store, &opened.view, attempt)?;
    let token = keys.first().map(|key| token::mint(key, &opened.claims)).unwrap_or_default();
    let mut out = String::new();
    for (variable, value) in [
        (told::RUN_ID, opened.view.run.id.to_string()),
        (told::MARK, mark.mark.clone()),
        (told::ATTEMPT, attempt.to_string()),
        (told::TOKEN, token),
        (told::STATE_FILE, mirror.file.to_string_lossy().into_owned()),
    ] {
        out.push_str(&export(variable, &value));
    }
    let straight = no_proxy::list(|name| context.around.var(name).map(OsStr::to_owned), |_| true);
    for name in no_proxy::NAMES {
        out.push_str(&export(name, &straight));
    }
    if fresh {
        // Values inherited from another run around this one say nothing about this run.
        out.push_str(&format!("unset {} {}\n", told::RECOVERED, told::LAST_EXIT));
        if let Some(before) = &opened.before {
            out.push_str(&export(told::RECOVERED, "1"));
            out.push_str(&export(
                told::LAST_EXIT,
                &before.exit.as_ref().map(outlast_view::exit_words).unwrap_or_default(),
            ));
        }
    }
    Ok(out)
}

/// Ends processes that earlier lives of the loop left: an old agent must not go on beside the new one.
fn end_strays(mark: &Mark) -> Result<(), CliError> {
    let tree = Tree::new(mark.marker(), Vec::new());
    let strays = tree.survivors()?.len();
    if strays == 0 {
        return Ok(());
    }
    say(&format!("ending {} of an earlier life of this loop", some(strays as i64, "process")));
    let ended = end_rest(&tree)?;
    if ended.left.is_empty() {
        return Ok(());
    }
    Err(RunError::Strays { count: ended.left.len(), whose: "an earlier life of this loop", before: false }
        .into())
}

/// Ends the shell's attempt in the store and gives the lease back. Returns whether it ended as it
/// says: not with 0 while a task is begun and not done.
pub fn end(store: &dyn Store, bearer: &Bearer, how: &Exit) -> Result<bool, CliError> {
    let run = bearer.view.run.no;
    let open = TaskContext::read(store, &bearer.view.run.id)?.task;
    let attempt = store.attempts(run)?.into_iter().find(|a| a.no == bearer.claims.attempt);
    let instance = attempt.as_ref().filter(|a| a.is_open()).and_then(|a| a.instance);
    // Ctrl-C (SIGINT) and Ctrl-\ (SIGQUIT) come from a person.
    let by_person = matches!(how.signal, Some(2 | 3));
    let id = &bearer.view.run.id;
    let then = match (&open, how.code) {
        (None, Some(0)) => Then::Complete,
        (None, Some(code)) => Then::Fail(format!("the loop ended with exit {code}")),
        _ => Then::Interrupt { by_person },
    };
    if let Some(instance) = instance {
        let exit = Exit { stopped: by_person, ..how.clone() };
        let ended = EndAttempt { run, attempt: bearer.claims.attempt, instance, exit, active_ms: 0, then };
        store.run_verb(ended, Durability::Synced)?;
        declare_dead(store, instance, true)?;
    }
    let left = open.filter(|_| how.code == Some(0));
    if let Some(open) = &left {
        say(&format!(
            "{id} is interrupted: it ended with exit 0, but task {:?} was begun and not done",
            open.task
        ));
        say("hint: start the loop again: it goes on with it; or call outlast_done when a task is");
    }
    Ok(left.is_none())
}

/// Returns whether the bearer's attempt is still the run's newest, and the run is neither cancelled nor halted.
pub fn is_untouched(store: &dyn Store, bearer: &Bearer) -> Result<bool, store::Error> {
    let newest = store.attempts(bearer.view.run.no)?.last().map(|a| a.no);
    let status = store.run(bearer.view.run.no)?.map(|v| v.run.status);
    Ok(newest == Some(bearer.claims.attempt) && !matches!(status, Some(Status::Cancelled | Status::Halted)))
}

/// Starts the keeper process, which renews the lease of a loop's shell. Returns once the keeper is up.
pub fn start(context: &Context, shell: &Identity, opened: &Opened) -> Result<(), CliError> {
    let mut command = Command::new(crate::program()?);
    // The keeper must not hold API keys, nor the marks by which a loop's children are found.
    for (name, _) in context.around.variables() {
        let text = name.to_string_lossy();
        if text.starts_with("OUTLAST_") || text.ends_with("_API_KEY") || text.ends_with("_TOKEN") {
            command.env_remove(&name);
        }
    }
    command.env(told::STORE, context.place.address()).current_dir("/");
    command.args([
        "shell-loop",
        "--pid",
        &shell.pid.to_string(),
        "--loop",
        opened.view.run.id.as_str(),
        "keep",
    ]);
    command.args(["--started", &shell.start_time.to_string()]);
    command.args(["--instance", &opened.instance.to_string(), "--number", &opened.claims.run.to_string()]);
    command.args(["--attempt", &opened.claims.attempt.to_string()]);
    // Not our standard output: a shell that captures it would wait for the keeper to end.
    let mut keeper = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    if let Some(out) = keeper.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() == UP {
        return Ok(());
    }
    let ended = keeper.wait()?;
    Err(InsideError::Keeper(ended).into())
}

const UP: &str = "up";

/// Renews the lease until the shell is gone, then ends the processes that the shell left and records its death. Runs as
/// the keeper process; returns its exit code.
pub fn keep(store: &Arc<dyn Store>, args: &KeepArgs, pid: u32, context: &Context) -> Result<u8, CliError> {
    // The terminal's Ctrl-C and hangup are for the shell alone.
    let _ = rustix::process::setsid();
    let shell = ProcId { pid, start_time: args.started }.open()?;
    println!("{UP}");
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null.as_fd()).map_err(std::io::Error::from)?;
    let (run, attempt) = (RunNo(args.number), AttemptNo(args.attempt));
    let driver = Actor { run, attempt, instance: InstanceNo(args.instance) };
    // The shell has nobody to end the wait: nothing but the store's return does.
    let patient: Arc<dyn Store> = Arc::new(Patient::new(store.clone(), || false));
    let mut active = ActiveTime::begin(context.clock.monotonic_ms());
    let mut membership = Membership::new(store.is_shared());
    if let Some(row) = patient.instance(driver.instance)? {
        membership.goes_on_as(row.no, row.heartbeat, context.clock.boottime_ms());
    }
    let mut asked = false;
    let Some(shell) = shell else { return gone(&patient, driver) };
    while !ended_within_a_heartbeat(&shell)? {
        let now_ms = context.clock.boottime_ms();
        let ms = active.take(context.clock.monotonic_ms());
        let fresh = u64::from_le_bytes(random(context.entropy.as_ref()));
        let posts = vec![Active { run, attempt, ms }];
        let Some(renew) = membership.renewal(posts, fresh, now_ms) else { return gone(&patient, driver) };
        let next = renew.next;
        match store.run_verb(renew, Durability::Committed) {
            Ok(pulses) => {
                membership.renewed(next, context.clock.boottime_ms());
                if !asked && pulses.iter().any(stops) {
                    asked = true;
                    ask(&shell)?;
                }
            }
            // The shell was taken for dead while the machine slept, or said goodbye. The newest attempt tells which
            // driver has the run now.
            Err(store::Error::Engine(engine::Error::InstanceDead)) => {
                match successor(patient.as_ref(), driver)? {
                    Some(next) if (next.pid, next.start_time) == (pid, args.started) => {
                        return Ok(exit_code::OK);
                    }
                    Some(_) if !asked => {
                        asked = true;
                        ask(&shell)?;
                    }
                    _ => {}
                }
            }
            Err(store::Error::CommitUnknown { .. }) => {}
            // The next renewal may succeed: one missing heartbeat is no verdict.
            Err(_) => active.give_back(ms),
        }
    }
    gone(&patient, driver)
}

/// Returns the process that drives the run now that the lease of `driver` is over; `None` if there is no newer attempt.
fn successor(store: &dyn Store, driver: Actor) -> Result<Option<Identity>, store::Error> {
    let Some(newest) = store.attempts(driver.run)?.pop().filter(|a| a.no > driver.attempt) else {
        return Ok(None);
    };
    let next = newest.instance.map(|no| store.instance(no)).transpose()?.flatten();
    Ok(Some(next.map(|instance| instance.identity).unwrap_or_default()))
}

/// Asks the shell to end with SIGTERM. A shell that is already gone is no error.
fn ask(shell: &OwnedFd) -> Result<(), CliError> {
    match rustix::process::pidfd_send_signal(shell, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(std::io::Error::from(e).into()),
    }
}

fn stops(pulse: &Pulse) -> bool {
    pulse.stop_requested || matches!(pulse.status, Status::Cancelled | Status::Halted)
}

/// Ends the processes that the shell left, and declares its instance dead, which interrupts a run still open.
fn gone(store: &Arc<dyn Store>, driver: Actor) -> Result<u8, CliError> {
    // The old agent ends first, so that the next driver does not find it at work.
    if let Some(view) = store.run(driver.run)? {
        let mark = Mark::new(&view, &store.token_keys()?);
        let tree = Tree::new(mark.marker_of(driver.attempt), Vec::new());
        end_rest(&tree)?;
    }
    declare_dead(store.as_ref(), driver.instance, false)?;
    Ok(exit_code::OK)
}

fn ended_within_a_heartbeat(shell: &OwnedFd) -> Result<bool, CliError> {
    let mut fds = [PollFd::new(shell, PollFlags::IN)];
    Ok(poll(&mut fds, Some(HEARTBEAT))? > 0)
}
