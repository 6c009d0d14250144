//! Deaths of the processes below a crash test. Who dies is found in the process table when it dies: nothing is told by name.

use std::{collections::BTreeSet, io, sync::Arc, thread, time::Duration};

use outlast_process::proc_table::{self, ProcId, Stat};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use crate::cli::crashtest::Kind;

/// Name of a supervisor's guardian, which stands above it.
const GUARDIAN: &str = "outlast-guard";

/// Pause between two looks at processes that were stopped or killed, and most of these looks.
const LOOK: Duration = Duration::from_millis(1);
const MOST_LOOKS: usize = 5_000;

/// Processes that a crash test may kill: those below this one, but for the children that it had when it began.
#[derive(Clone, Debug)]
pub struct Below {
    spared: BTreeSet<ProcId>,
    /// Held while the crash test starts a process or writes a copy, and for good once a signal ends the test.
    gate: Arc<Mutex<()>>,
}

impl Below {
    /// Spares the children that this process has now. A shell that became this process may have had some.
    pub fn here() -> io::Result<Below> {
        let own = std::process::id();
        let children = proc_table::walk()?.into_iter().filter(|stat| stat.ppid == own);
        Ok(Below { spared: children.map(|stat| stat.id()).collect(), gate: Arc::default() })
    }

    /// Keeps the test from being ended by a signal, or waits for the end of this process if that has begun.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock()
    }

    /// Kills what `kind` says below the process `top`, which is `outlast run`, `outlast resume` or a bare command. Returns
    /// when it is dead.
    ///
    /// Several processes are stopped first, so that none sees another's death. Errors: `/proc` cannot be read, or a process
    /// does not die.
    pub fn strike(&self, kind: Kind, top: u32) -> io::Result<()> {
        let victims = || self.victims(kind, top);
        for _ in 0..MOST_LOOKS {
            let running: Vec<Stat> =
                victims()?.into_iter().filter(|v| !v.is_stopped() && v.state != 'D').collect();
            if running.is_empty() || matches!(kind, Kind::Agent | Kind::Supervisor) {
                break;
            }
            running.iter().for_each(|victim| send(victim.pid, Signal::STOP));
            thread::sleep(LOOK);
        }
        let dying = victims()?;
        dying.iter().for_each(|victim| send(victim.pid, Signal::KILL));
        for _ in 0..MOST_LOOKS {
            let mut living = false;
            for victim in &dying {
                living |= victim.id().is_running()?;
            }
            if !living {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
        Err(io::Error::other("a process that was killed does not die"))
    }

    /// Kills all processes below this one, and reaps those that it has adopted. No child may be waited for meanwhile.
    pub fn sweep(&self) -> io::Result<()> {
        self.strike(Kind::Machine, 0)?;
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        Ok(())
    }

    /// Lists the living processes of a kind of death, the oldest first.
    fn victims(&self, kind: Kind, top: u32) -> io::Result<Vec<Stat>> {
        let table = proc_table::walk()?;
        let children = |of: u32| {
            table
                .iter()
                .filter(move |stat| stat.ppid == of && !stat.is_dead() && !self.spared.contains(&stat.id()))
        };
        let is_guardian = table.iter().any(|stat| stat.pid == top && stat.comm == GUARDIAN);
        let supervisor = if is_guardian { children(top).next().map_or(top, |stat| stat.pid) } else { top };
        let below = |root: u32| {
            let mut found: Vec<&Stat> = children(root).collect();
            let mut next = 0;
            while let Some(parent) = found.get(next).map(|stat| stat.pid) {
                found.extend(children(parent));
                next += 1;
            }
            found
        };
        Ok(match kind {
            Kind::Agent => children(supervisor).cloned().collect(),
            Kind::Tree => below(supervisor).into_iter().cloned().collect(),
            Kind::Supervisor => table.iter().filter(|stat| stat.pid == supervisor).cloned().collect(),
            Kind::Machine => below(std::process::id()).into_iter().cloned().collect(),
        })
    }
}

fn send(pid: u32, signal: Signal) {
    // A process that has ended meanwhile is not missed; its pid is not given away before its parent has reaped it.
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}
