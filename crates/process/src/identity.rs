//! Identity of a process, by which another process can tell whether it still lives.

use std::{fs, io, os::unix::fs::MetadataExt};

use outlast_core::run::Identity;
use sha2::{Digest, Sha256};

use super::proc_table::{self, ProcId};

/// Answer to whether a process is alive, as far as it can be seen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The process is alive.
    Alive,
    /// The process is gone: on the same host, boot and namespace its pid is free, a zombie's, or another process's.
    Gone,
    /// The process ran on this machine, before its last boot.
    BootOver,
    /// The process cannot be observed from here. Only heartbeats that are missing for a whole lease show its
    /// death.
    Unknown,
}

/// State of the process that `/proc` shows under a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nobody,
    /// Ended, not yet reaped.
    Zombie,
    Running {
        start_time: u64,
    },
    /// A process may exist that this one may not look at (`hidepid`, a foreign `/proc`).
    Hidden,
}

/// Returns the identity of this process, with an empty program name. Call it again after a fork.
///
/// An empty boot id and a namespace of 0 mean "unknown" (some sandboxes show neither), and equal nothing.
///
/// Errors: `/proc/self` cannot be read.
pub fn of_self() -> io::Result<Identity> {
    let ProcId { pid, start_time } = ProcId::of_self()?;
    Ok(Identity {
        host: host(rustix::system::uname().nodename().to_string_lossy().trim(), machine_id().as_deref()),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default(),
        pid_ns: fs::metadata("/proc/self/ns/pid").map(|ns| ns.ino()).unwrap_or_default(),
        pid,
        start_time,
        program: String::new(),
    })
}

/// Returns whether `other` is alive, seen from this process, whose identity is `own`. Never wrongly reports a death on
/// one machine: if boot, host, namespace or permissions hide the other process, the answer is `Unknown`.
///
/// Clones of one virtual machine cannot be told apart here. On a store that they share, the heartbeat must have stopped
/// as well.
pub fn liveness(own: &Identity, other: &Identity) -> Liveness {
    judge(own, other, look)
}

fn judge(own: &Identity, other: &Identity, look: impl FnOnce(u32) -> Seen) -> Liveness {
    if own.boot_id.is_empty() || other.boot_id.is_empty() {
        return Liveness::Unknown;
    }
    if own.boot_id != other.boot_id {
        // A bare node name is shared by too many machines ("localhost", "ubuntu") to conclude a death from it.
        let same_machine = own.host == other.host && own.host.contains('/');
        return if same_machine { Liveness::BootOver } else { Liveness::Unknown };
    }
    // Some sandboxes show every guest one boot id, and the first pid namespace has one inode on all machines.
    if own.host != other.host || own.pid_ns != other.pid_ns || own.pid_ns == 0 {
        return Liveness::Unknown;
    }
    match look(other.pid) {
        Seen::Nobody | Seen::Zombie => Liveness::Gone,
        Seen::Running { start_time } if start_time != other.start_time => Liveness::Gone,
        Seen::Running { .. } => Liveness::Alive,
        Seen::Hidden => Liveness::Unknown,
    }
}

fn look(pid: u32) -> Seen {
    if !proc_table::shows_our_namespace() {
        return Seen::Hidden;
    }
    match proc_table::read_stat(pid) {
        Ok(Some(stat)) if stat.is_dead() => Seen::Zombie,
        Ok(Some(stat)) => Seen::Running { start_time: stat.start_time },
        // Under `hidepid` the live processes of other users are missing too; only the kernel's ESRCH proves
        // absence.
        Ok(None) => match proc_table::raw(pid).map(rustix::process::test_kill_process) {
            Some(Err(rustix::io::Errno::SRCH)) => Seen::Nobody,
            _ => Seen::Hidden,
        },
        Err(_) => Seen::Hidden,
    }
}

/// Returns a host name with a digest of the machine id. machine-id(5) asks that the id itself be kept secret,
/// and the host name goes into stores and onto dashboards.
fn host(nodename: &str, machine_id: Option<&str>) -> String {
    match machine_id {
        None => nodename.to_owned(),
        Some(id) => {
            let digest = Sha256::digest(format!("outlast host\0{id}"));
            let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
            format!("{nodename}/{hex}")
        }
    }
}

fn machine_id() -> Option<String> {
    let id = ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    let id = id.trim();
    // Images ship the file empty or as "uninitialized", to be filled at the first boot.
    (id.len() >= 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn someone(host: &str, boot_id: &str, pid_ns: u64) -> Identity {
        let (host, boot_id) = (host.into(), boot_id.into());
        Identity { host, boot_id, pid_ns, pid: 100, start_time: 5000, program: String::new() }
    }

    #[track_caller]
    fn check(own: (&str, &str, u64), other: (&str, &str, u64), seen: Seen, want: Liveness) {
        let (own, other) = (someone(own.0, own.1, own.2), someone(other.0, other.1, other.2));
        let got = judge(&own, &other, |pid| {
            assert_eq!(pid, other.pid);
            seen
        });
        assert_eq!(got, want, "{own:?} sees {other:?} as {seen:?}");
    }

    const ME: (&str, &str, u64) = ("box/ab12", "boot1", 9);

    #[test]
    fn same_boot_and_namespace_is_judged_by_pid_and_start_time() {
        check(ME, ME, Seen::Running { start_time: 5000 }, Liveness::Alive);
        check(ME, ME, Seen::Running { start_time: 5001 }, Liveness::Gone);
        check(ME, ME, Seen::Nobody, Liveness::Gone);
        check(ME, ME, Seen::Zombie, Liveness::Gone);
        check(ME, ME, Seen::Hidden, Liveness::Unknown);
    }

    #[test]
    fn other_boot_is_over_only_on_the_same_machine() {
        let there = Seen::Running { start_time: 5000 };
        check(ME, ("box/ab12", "boot0", 9), there, Liveness::BootOver);
        check(ME, ("box/ab12", "boot0", 8), there, Liveness::BootOver);
        check(ME, ("box/cd34", "boot0", 9), Seen::Nobody, Liveness::Unknown);
        check(ME, ("far/ab12", "boot0", 9), Seen::Nobody, Liveness::Unknown);
        check(("localhost", "boot1", 9), ("localhost", "boot0", 9), Seen::Nobody, Liveness::Unknown);
    }

    #[test]
    fn nobody_is_judged_across_namespaces_or_by_what_could_not_be_learnt() {
        check(ME, ("box/ab12", "boot1", 8), Seen::Nobody, Liveness::Unknown);
        check(("box/ab12", "boot1", 0), ("box/ab12", "boot1", 0), Seen::Nobody, Liveness::Unknown);
        check(ME, ("box/ab12", "", 9), Seen::Nobody, Liveness::Unknown);
        check(("box/ab12", "", 9), ME, Seen::Nobody, Liveness::Unknown);
        check(("box/ab12", "", 9), ("box/ab12", "", 9), Seen::Nobody, Liveness::Unknown);
    }

    /// Bug: sandboxes that show every guest one boot id took each other's processes for dead.
    /// Consequence: on a shared store each executed the others as soon as it looked.
    /// Cause: equal boot ids were believed, and the first pid namespace has the same inode everywhere.
    #[test]
    fn an_equal_boot_id_on_another_host_proves_nothing() {
        check(ME, ("other/cd34", "boot1", 9), Seen::Nobody, Liveness::Unknown);
        check(ME, ("box/cd34", "boot1", 9), Seen::Running { start_time: 1 }, Liveness::Unknown);
    }

    #[test]
    fn host_tells_machines_of_one_name_apart() {
        let one = host("ubuntu", Some("0123456789abcdef0123456789abcdef"));
        let two = host("ubuntu", Some("1123456789abcdef0123456789abcdef"));
        assert!(one.starts_with("ubuntu/") && one != two, "{one} {two}");
        assert!(!one.contains("0123"), "the machine id stays private: {one}");
        assert_eq!(host("ubuntu", None), "ubuntu");
    }

    #[test]
    fn this_process_is_alive_and_its_reaped_child_is_gone() {
        let own = of_self().unwrap();
        assert_eq!(liveness(&own, &own), Liveness::Alive);
        assert_eq!(
            liveness(&own, &Identity { start_time: own.start_time + 1, ..own.clone() }),
            Liveness::Gone
        );
        assert_eq!(liveness(&own, &Identity { pid: u32::MAX, ..own.clone() }), Liveness::Unknown);

        let mut command = std::process::Command::new("sh");
        let mut child =
            command.args(["-c", "read x; exit"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let id = ProcId::of(child.id()).unwrap().unwrap();
        let theirs = Identity { pid: id.pid, start_time: id.start_time, ..own.clone() };
        assert_eq!(liveness(&own, &theirs), Liveness::Alive);
        drop(child.stdin.take());
        testing::until("the child is a zombie", || (liveness(&own, &theirs) == Liveness::Gone).then_some(()));
        child.wait().unwrap();
        assert_eq!(liveness(&own, &theirs), Liveness::Gone);
    }
}
