//! Exit status of a process.

use std::fmt;

use rustix::process::WaitIdStatus;

/// End of a process: an exit code or a signal. Neither is set if the kernel did not report it.
///
/// Displayed in the words of all faces: `exited with 3`, `killed by SIGKILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    pub const fn code(code: i32) -> Exit {
        Exit { code: Some(code), signal: None }
    }

    pub const fn signal(signal: i32) -> Exit {
        Exit { code: None, signal: Some(signal) }
    }

    pub(super) fn of(status: &WaitIdStatus) -> Exit {
        Exit { code: status.exit_status(), signal: status.terminating_signal() }
    }

    /// Returns the exit code that a shell would report: the code, or 128 + the signal; 1 if neither is known.
    pub fn shell_code(&self) -> i32 {
        self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(1)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(0), _) => f.write_str("finished"),
            (Some(code), _) => write!(f, "exited with {code}"),
            (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {signal}"),
            },
            (None, None) => f.write_str("ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_reads_as_its_code_or_its_signal() {
        for (exit, shown, shell) in [
            (Exit::code(0), "finished", 0),
            (Exit::code(3), "exited with 3", 3),
            (Exit::signal(9), "killed by SIGKILL", 137),
            (Exit::signal(15), "killed by SIGTERM", 143),
            (Exit::signal(40), "killed by signal 40", 168),
            (Exit { code: None, signal: None }, "ended", 1),
        ] {
            assert_eq!((exit.to_string().as_str(), exit.shell_code()), (shown, shell));
        }
    }
}
