//! Linux processes for the supervisor: finding live ones, starting children, ending whole process trees.
//!
//! This crate knows nothing of stores and runs. Rules that hold throughout:
//!
//! - A pid alone does not identify a process: it is recycled. Processes are identified by
//!   [`proc_table::ProcId`] (pid and start time) and signalled through a pidfd.
//! - Only listed children are reaped, never "any child": each exit status belongs to the code that started that
//!   child.
//! - Signal handlers set a flag and wake a descriptor; nothing else happens in them.
//! - Decisions ([`ladder`], [`exit`]) are pure; time and entropy are handed in.
//!
//! Unsafe code: what a child does between fork and exec, the fork of a guardian, and calls of the kernel that no crate
//! wraps.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod ancestry;
pub mod attach;
pub mod cgroup;
pub mod confine;
pub mod end_tree;
mod exec;
pub mod exit;
pub mod freeze;
pub mod guardian;
pub mod identity;
pub mod ladder;
pub mod proc_table;
pub mod reap;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod start_error;
pub mod terminal;
pub mod tree;
pub mod wait;

#[cfg(test)]
mod testing;

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Lets the runtime wait until `fd` is readable, through a duplicate that it owns.
fn readiness(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: the `AsyncFd` owns the descriptor, and an `OwnedFd` stays open and the same until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
