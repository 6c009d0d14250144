//! Errors of this machine: an address, a signal, or `/proc` that cannot be had.

use std::{io, net::SocketAddr};

use outlast_core::run::Identity;
use outlast_process::identity;
use rustix::process::{Resource, getrlimit};

use crate::program::exit_code::UNAVAILABLE;

/// Least number of open files with which an agent is started: about twice what a supervisor has open at once.
const OPEN_FILES: u64 = 64;

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum MachineError {
        #[error("cannot start the runtime: {0}")]
        Runtime(io::Error as e) => ("runtime", UNAVAILABLE);
        #[error("cannot listen on {address}: {why}")]
        Listen {
            address: SocketAddr,
            why: io::Error,
            /// Flag with which another address can be chosen; `None` if there is none.
            flag: Option<&'static str>,
        } => ("cannot_listen", UNAVAILABLE),
            flag.map(|flag| format!("is another outlast serving there? choose another with {flag}"));
        #[error("cannot serve the state on {address}: {why}; run {run} was not started")]
        ListenForState { address: SocketAddr, why: io::Error, run: String } => ("cannot_listen", UNAVAILABLE),
            format!("is another run's state served there? choose another: `outlast resume {run} --grpc ADDRESS`");
        #[error("cannot handle signals: {0}")]
        Signals(io::Error as e) => ("signals", UNAVAILABLE);
        #[error("/proc does not tell {what}{}", .why.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
        Proc { what: &'static str, why: Option<io::Error> } => ("no_proc", UNAVAILABLE), "mount it: `mount -t proc proc /proc`";
        #[error("there is no process {pid}: wanted the loop's shell")]
        NoShell { pid: u32 } => ("no_proc", UNAVAILABLE);
        #[error("too few files may be open: wanted {OPEN_FILES}, had {had}")]
        OpenFiles { had: u64 } => ("open_files", UNAVAILABLE), format!("allow more: `ulimit -n {}`", OPEN_FILES * 16);
        #[error("the fake provider stopped: {0}")]
        Mock(io::Error as e) => ("mock", UNAVAILABLE);
        #[error("a task of this process ended: {0}")]
        Task(tokio::task::JoinError as e) => ("internal", UNAVAILABLE);
    }
}

impl MachineError {
    /// Checks that this machine has what starting and watching an agent takes: `/proc`, and files that may be open.
    pub fn check() -> Result<(), MachineError> {
        MachineError::me()?;
        match getrlimit(Resource::Nofile).current {
            Some(had) if had < OPEN_FILES => Err(MachineError::OpenFiles { had }),
            _ => Ok(()),
        }
    }

    /// Returns this process's identity. Errors: `Proc`.
    pub fn me() -> Result<Identity, MachineError> {
        identity::of_self().map_err(|e| MachineError::Proc { what: "who this process is", why: Some(e) })
    }
}
