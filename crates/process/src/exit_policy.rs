//! Policy for an agent's exit: whether its run is done, interrupted, stopped or restarted.

use super::exit::Exit;

/// Consequence of an attempt's end for its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The agent exited with success: the task is done.
    Done,
    /// The agent ended because the supervisor asked it to, so the run is interrupted, whatever the exit code (many a
    /// handler exits 0 on SIGTERM).
    Interrupted,
    /// Another attempt would end the same way, so none is made.
    Stop(Futile),
    /// The agent died, so the next attempt is started.
    Restart(Death),
}

/// Reason why another attempt would be futile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Futile {
    /// The agent exited with 2 or 64 to 78 (sysexits.h) but for what passes ([`PASSING`]): wrong usage or configuration.
    Usage,
    /// Exit code 126: the command was found and is not executable.
    NotExecutable,
    /// Exit code 127: there is no such command.
    NotFound,
}

/// Way in which an agent died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The agent exited with a code that tells no more than that it failed.
    Failed,
    /// A signal other than SIGKILL ended the agent.
    Crashed,
    /// SIGKILL ended the agent, or a shell between reported 137: possibly the kernel's out-of-memory killer (see
    /// `memory.events`).
    Killed,
}

/// Codes of sysexits.h for what passes: a service that is away, a system short of something, an error of a disk, and
/// "try again".
const PASSING: [i32; 4] = [69, 71, 74, 75];

/// Decides the consequence of an agent's exit. `stop_asked`: the supervisor had sent it a signal to stop before.
pub fn judge(exit: Exit, stop_asked: bool) -> Verdict {
    if stop_asked {
        return Verdict::Interrupted;
    }
    match (exit.code, exit.signal) {
        (Some(0), _) => Verdict::Done,
        (Some(code), _) if PASSING.contains(&code) => Verdict::Restart(Death::Failed),
        (Some(2 | 64..=78), _) => Verdict::Stop(Futile::Usage),
        (Some(126), _) => Verdict::Stop(Futile::NotExecutable),
        (Some(127), _) => Verdict::Stop(Futile::NotFound),
        (Some(137), _) | (None, Some(9)) => Verdict::Restart(Death::Killed),
        // A shell reports a child's signal as 128 + its number.
        (Some(129..=192), _) | (None, Some(_)) => Verdict::Restart(Death::Crashed),
        (Some(_), _) | (None, None) => Verdict::Restart(Death::Failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_judged_by_their_code_or_signal() {
        use {Death::*, Futile::*, Verdict::*};
        let cases = [
            (Exit::code(0), Done),
            (Exit::code(1), Restart(Failed)),
            (Exit::code(2), Stop(Usage)),
            (Exit::code(3), Restart(Failed)),
            (Exit::code(63), Restart(Failed)),
            (Exit::code(64), Stop(Usage)),
            (Exit::code(69), Restart(Failed)),
            (Exit::code(70), Stop(Usage)),
            (Exit::code(71), Restart(Failed)),
            (Exit::code(73), Stop(Usage)),
            (Exit::code(74), Restart(Failed)),
            (Exit::code(75), Restart(Failed)),
            (Exit::code(78), Stop(Usage)),
            (Exit::code(79), Restart(Failed)),
            (Exit::code(126), Stop(NotExecutable)),
            (Exit::code(127), Stop(NotFound)),
            (Exit::code(128), Restart(Failed)),
            (Exit::code(137), Restart(Killed)),
            (Exit::code(139), Restart(Crashed)),
            (Exit::code(255), Restart(Failed)),
            (Exit::signal(9), Restart(Killed)),
            (Exit::signal(11), Restart(Crashed)),
            (Exit::signal(15), Restart(Crashed)),
            (Exit { code: None, signal: None }, Restart(Failed)),
        ];
        for (exit, verdict) in cases {
            assert_eq!(judge(exit, false), verdict, "{exit}");
            assert_eq!(judge(exit, true), Interrupted, "{exit} after our own signal");
        }
    }
}
