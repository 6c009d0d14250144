//! Instances: live processes on the store, and the leases by which they act for a run.

use serde::{Deserialize, Serialize};

use crate::words::{Fence, InstanceNo, Micros, RunNo, Slot};

/// Identity of a process, as another process can check it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub host: String,
    pub boot_id: String,
    /// Inode of the pid namespace. Pids compare only where the boot id and this inode are equal.
    pub pid_ns: u64,
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: the start time, in clock ticks since boot, which tells two processes with the same
    /// pid apart.
    pub start_time: u64,
    /// Program name for people: `outlast run`, `outlast serve`.
    #[serde(default)]
    pub program: String,
}

impl Identity {
    /// Returns whether both are one process, whose program and host may be named differently.
    pub fn is_same_process(&self, other: &Identity) -> bool {
        let of = |one: &Identity| Identity { host: String::new(), program: String::new(), ..one.clone() };
        of(self) == of(other)
    }
}

/// Life of an instance: only a live one may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Live,
    /// Declared dead by a committed verdict; the process registers anew if the verdict was wrong.
    Dead,
    /// The process left by itself.
    Left,
}

/// Row of one process. Each process has exactly one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub no: InstanceNo,
    pub identity: Identity,
    pub life: Life,
    /// Value that each renewal replaces by a random one. No process is declared dead by a timestamp: a verdict names
    /// the value that it saw, and a renewal the values that its process wrote.
    pub heartbeat: i64,
    pub registered_at: Micros,
    pub last_seen: Micros,
    /// Highest operation counter of this instance that is committed. After `CommitUnknown` it tells whether a group was
    /// committed.
    pub op_counter: i64,
}

/// Right of an instance to act for a run in a slot. Lives while its instance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub run: RunNo,
    pub slot: Slot,
    pub instance: InstanceNo,
    pub fence: Fence,
}
