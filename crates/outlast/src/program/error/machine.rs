//! Errors of this machine: an address, a signal, or `/proc` that cannot be had.

use std::{io, net::SocketAddr};

use outlast_process::identity;
use rustix::process::{Resource, getrlimit};

/// Least number of open files with which an agent is started: about twice what a supervisor has open at once.
const OPEN_FILES: u64 = 64;

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot start the runtime: {0}")]
    Runtime(io::Error),
    #[error("cannot listen on {address}: {why}")]
    Listen {
        address: SocketAddr,
        why: io::Error,
        /// Flag with which another address can be chosen; `None` if there is none.
        flag: Option<&'static str>,
    },
    #[error("cannot serve the state on {address}: {why}; run {run} was not started")]
    ListenForState { address: SocketAddr, why: io::Error, run: String },
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("/proc does not tell {what}{}", .why.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    Proc { what: &'static str, why: Option<io::Error> },
    #[error("too few files may be open: wanted {OPEN_FILES}, had {had}")]
    OpenFiles { had: u64 },
    #[error("there is no process {pid}: wanted the loop's shell")]
    NoShell { pid: u32 },
    #[error("the fake provider stopped: {0}")]
    Mock(io::Error),
    #[error("a task of this process ended: {0}")]
    Task(tokio::task::JoinError),
}

impl MachineError {
    /// Returns the error's stable code, by which programs tell errors apart.
    pub fn code(&self) -> &'static str {
        match self {
            MachineError::Runtime(_) => "runtime",
            MachineError::Listen { .. } | MachineError::ListenForState { .. } => "cannot_listen",
            MachineError::Signals(_) => "signals",
            MachineError::Proc { .. } | MachineError::NoShell { .. } => "no_proc",
            MachineError::OpenFiles { .. } => "open_files",
            MachineError::Mock(_) => "mock",
            MachineError::Task(_) => "internal",
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        match self {
            MachineError::Listen { flag: Some(flag), .. } => {
                Some(format!("is another outlast serving there? choose another with {flag}"))
            }
            MachineError::ListenForState { run, .. } => Some(format!(
                "is another run's state served there? choose another: `outlast resume {run} --grpc ADDRESS`"
            )),
            MachineError::Proc { .. } => Some("mount it: `mount -t proc proc /proc`".into()),
            MachineError::OpenFiles { .. } => Some(format!("allow more: `ulimit -n {}`", OPEN_FILES * 16)),
            _ => None,
        }
    }

    /// Checks that this machine has what starting and watching an agent takes: `/proc`, and files that may be open.
    pub fn check() -> Result<(), MachineError> {
        identity::of_self().map_err(|e| MachineError::Proc { what: "who this process is", why: Some(e) })?;
        match getrlimit(Resource::Nofile).current {
            Some(had) if had < OPEN_FILES => Err(MachineError::OpenFiles { had }),
            _ => Ok(()),
        }
    }
}
