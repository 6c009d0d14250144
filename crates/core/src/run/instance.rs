//! One live process on the store, and the lease by which it acts for a run.

use serde::{Deserialize, Serialize};

use crate::words::id::{Fence, InstanceNo, Micros, RunNo, Slot};

/// Who a process is, as another process can check it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub host: String,
    pub boot_id: String,
    /// Inode of the pid namespace: pids compare only where boot id and this are equal.
    pub pid_ns: u64,
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: tells a recycled pid from its predecessor.
    pub start_time: u64,
    /// What it is, for people: `outlast run`, `outlast serve`.
    pub program: String,
}

/// Whether an instance may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Live,
    /// A committed verdict; the process registers anew if it was wrong.
    Dead,
    /// It said goodbye.
    Left,
}

/// One process's row. It has exactly one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub no: InstanceNo,
    pub identity: Identity,
    pub life: Life,
    /// Grows with each renewal. Nobody is judged by a timestamp: a verdict names the number it saw.
    pub heartbeat: i64,
    pub registered_at: Micros,
    pub last_seen: Micros,
    /// The highest operation counter of this instance that is committed: resolves `CommitUnknown`.
    pub op_counter: i64,
}

/// Who may act for a run in a slot. Lives while its instance does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub run: RunNo,
    pub slot: Slot,
    pub instance: InstanceNo,
    pub fence: Fence,
}
