//! The keeper: a small process beside a loop's shell, outside `outlast run`. It renews the shell's heartbeat, passes on
//! a person's stop, and when the shell is gone, ends the processes it left and records its death.
//!
//! Nothing depends on it: without a keeper, any process that sees the machine's processes judges the shell itself, and
//! the next life of the loop ends what the last one left.

use std::{
    io::{BufRead as _, BufReader},
    os::fd::{AsFd as _, OwnedFd},
    process::{Command, Stdio},
    sync::Arc,
};

use outlast_core::{
    call::Membership,
    engine::{
        self,
        run::process::{Active, ActiveTime, Pulse},
    },
    run::status::Status,
    store::{self, Ask as _, Durability, Store},
    words::{
        clock::random,
        id::{AttemptNo, InstanceNo, RunNo},
    },
};
use outlast_server::node::{HEARTBEAT, declare_dead};
use rustix::{
    event::{PollFd, PollFlags},
    process::Signal,
};

use super::lease::{Opened, Shell};
use crate::{
    cli::shell::KeepArgs,
    program::{
        context::Context,
        error::{CliError, InsideError},
        exit_code, told,
    },
    supervisor::{environment::Mark, patient::Patient},
};
use outlast_process::{
    end_tree::end_tree,
    ladder::{Ask, Graces},
    proc_table::ProcId,
    tree::Tree,
    wait::{Bell, poll},
};

/// Starts the keeper process, which renews the lease of a loop's shell. Returns once the keeper is up.
pub fn start(context: &Context, shell: &Shell, opened: &Opened) -> Result<(), CliError> {
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
        &shell.id.pid.to_string(),
        "--loop",
        opened.view.run.id.as_str(),
        "keep",
    ]);
    command.args(["--started", &shell.id.start_time.to_string()]);
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
    let lease = Lease { run, attempt, instance: InstanceNo(args.instance) };
    // The shell has nobody to end the wait: nothing but the store's return does.
    let patient: Arc<dyn Store> = Arc::new(Patient::new(store.clone(), || false));
    let mut active = ActiveTime::begin(context.clock.monotonic_ms());
    let mut membership = Membership::new(store.is_shared());
    if let Some(row) = patient.instance(lease.instance)? {
        membership.goes_on_as(row.no, row.heartbeat, context.clock.boottime_ms());
    }
    let mut asked = false;
    let Some(shell) = shell else { return gone(&patient, lease) };
    while !ended_within_a_heartbeat(&shell)? {
        let now_ms = context.clock.boottime_ms();
        let ms = active.take(context.clock.monotonic_ms());
        let fresh = u64::from_le_bytes(random(context.entropy.as_ref()));
        let posts = vec![Active { run, attempt, ms }];
        let Some(renew) = membership.renewal(posts, fresh, now_ms) else { return gone(&patient, lease) };
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
                match lease.successor(patient.as_ref(), pid, args.started)? {
                    Successor::None => {}
                    Successor::SameShell => return Ok(exit_code::OK),
                    Successor::Other if asked => {}
                    Successor::Other => {
                        asked = true;
                        ask(&shell)?;
                    }
                }
            }
            Err(store::Error::CommitUnknown { .. }) => {}
            // The next renewal may succeed: one missing heartbeat is no verdict.
            Err(_) => active.give_back(ms),
        }
    }
    gone(&patient, lease)
}

#[derive(Clone, Copy)]
struct Lease {
    run: RunNo,
    attempt: AttemptNo,
    instance: InstanceNo,
}

/// Driver of the run after this lease ended.
enum Successor {
    None,
    SameShell,
    Other,
}

impl Lease {
    fn successor(self, store: &dyn Store, pid: u32, started: u64) -> Result<Successor, store::Error> {
        let Some(newest) = store.attempts(self.run)?.pop().filter(|a| a.no > self.attempt) else {
            return Ok(Successor::None);
        };
        let driver = newest.instance.map(|no| store.instance(no)).transpose()?.flatten();
        let same = driver.is_some_and(|i| i.identity.pid == pid && i.identity.start_time == started);
        Ok(if same { Successor::SameShell } else { Successor::Other })
    }
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
fn gone(store: &Arc<dyn Store>, lease: Lease) -> Result<u8, CliError> {
    // The old agent ends first, so that the next driver does not find it at work.
    if let Some(view) = store.run(lease.run)? {
        let mark = Mark::new(&view, &store.token_keys()?);
        let tree = Tree::new(mark.marker_of(lease.attempt), Vec::new());
        end_tree(&tree, None, Ask::EndRest, Graces::default(), &Bell::new()?)?;
    }
    declare_dead(store.as_ref(), lease.instance, false)?;
    Ok(exit_code::OK)
}

fn ended_within_a_heartbeat(shell: &OwnedFd) -> Result<bool, CliError> {
    let mut fds = [PollFd::new(shell, PollFlags::IN)];
    Ok(poll(&mut fds, Some(HEARTBEAT))? > 0)
}
