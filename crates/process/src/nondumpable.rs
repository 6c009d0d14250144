//! Keeping other processes of the same user out of the supervisor's memory.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Makes this process non-dumpable: its environment and memory hold provider keys, and an agent runs as the same user.
///
/// From then on other processes of the user can neither trace it nor read its `/proc/PID/environ` and `mem`, and it
/// leaves no core dump. Root still can. Children are dumpable again once they exec. Call it first, since memory that
/// was read before stays known. This process can still read its own `/proc/self`.
pub fn make_nondumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        spawn::Stdin,
        testing::{self, sh},
    };

    /// Runs as a user other than root, because root may read everything and the test would show nothing about
    /// `/proc`.
    #[test]
    fn nondumpable_supervisor_hides_its_environment_and_still_starts_readable_children() {
        testing::in_own_process(
            concat!(
                module_path!(),
                "::nondumpable_supervisor_hides_its_environment_and_still_starts_readable_children"
            ),
            || {
                make_nondumpable().unwrap();
                assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
                let spawner = crate::spawn::Spawner::start().unwrap();
                let stdin = testing::file_with("from the first byte\n");
                // The child reads its own environment (it is dumpable again) and fails on its parent's, unless
                // it is root.
                let script = "read line; [ \"$line\" = 'from the first byte' ] || exit 3; \
                cat /proc/self/environ >/dev/null || exit 4; \
                [ $(id -u) = 0 ] && exit 0; ! cat /proc/$PPID/environ >/dev/null 2>&1 || exit 5";
                let mut command = sh(script);
                command.stdin = Stdin::File(stdin.into());
                assert_eq!(spawner.spawn(command).unwrap().wait().unwrap().to_string(), "finished");
            },
        );
    }
}
