//! `outlast shell-init`, and the words that its functions say: `outlast shell-loop`.

use clap::{Args, Subcommand};

use super::task_context::pair;
use crate::settings::values;

/// Print shell functions that keep a loop's task over any death
///
/// A script takes them up by: eval "$(outlast shell-init --run NAME)". For bash, zsh and POSIX sh. NAME is the loop's identity: it keeps its task, and one loop of a name runs at a
/// time. Under `outlast run` the functions use that run.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShellInitArgs {
    /// The loop's identity, the same in each of its lives: A-Z a-z 0-9 . _ : -
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,
    /// Set a task aside that was begun in so many lives and never got on; `none` never does
    #[arg(long, value_name = "N", default_value = "10", value_parser = lives)]
    pub max_lives: Lives,
}

const EXAMPLES: &str = "\
Examples:
  eval \"$(outlast shell-init --run nightly)\" || exit
  if outlast_recover; then echo \"going on with $TASK_ID at $PROGRESS_STAGE\"
  else outlast_begin \"$(next_task)\"; fi
  outlast_stage tests
  outlast_run claude -p \"fix issue $ISSUE_NUMBER\"     as a child that a signal ends at once
  outlast_done";

/// Number of lives that a task may take without getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives(pub Option<i64>);

/// A number from 1, or `none`.
pub fn lives(text: &str) -> Result<Lives, String> {
    if text == "none" {
        return Ok(Lives(None));
    }
    match values::count(text) {
        Ok(n) if n > 0 => Ok(Lives(Some(n))),
        _ => Err(format!("{text:?} is no number of lives (wanted for example 10, or none)")),
    }
}

impl std::fmt::Display for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(n) => n.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Take a word of the functions of `outlast shell-init`; not for people
#[derive(Args, Clone, Debug)]
pub struct ShellLoopArgs {
    /// The loop's shell
    #[arg(long, value_name = "PID")]
    pub pid: u32,
    /// The loop's name
    #[arg(long = "loop", value_name = "NAME")]
    pub name: String,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Takes the loop's run
    Open,
    /// Holds the loop's lease until its shell is gone
    Keep(KeepArgs),
    /// Finds the task that is unfinished
    Recover {
        /// Lives after which a task that never got on is set aside, as in shell-init
        #[arg(long, value_name = "N", default_value = "10", value_parser = lives)]
        max_lives: Lives,
    },
    /// Begins a task
    Begin {
        /// The task
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: String,
        /// Key of the task's context, with its value
        #[arg(value_name = "KEY=VALUE", value_parser = pair, allow_hyphen_values = true)]
        pairs: Vec<(String, String)>,
    },
    /// Says how far the task got
    Stage {
        /// Name of the stage, any text
        #[arg(value_name = "NAME", allow_hyphen_values = true)]
        stage: String,
        /// Key of the task's context, with its value
        #[arg(value_name = "KEY=VALUE", value_parser = pair, allow_hyphen_values = true)]
        pairs: Vec<(String, String)>,
    },
    /// Says that the task is done
    Done {
        /// The task that is done: refused if another one is open
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: Option<String>,
    },
    /// Tells whether a task was done or set aside before
    IsOver {
        /// The task
        #[arg(value_name = "TASK", allow_hyphen_values = true)]
        task: String,
    },
    /// Ends a child of the shell, and all processes that the child started
    StopChild {
        /// The child
        #[arg(value_name = "PID")]
        child: u32,
    },
    /// Records that the shell ends
    End(EndArgs),
    /// Ends this process by a signal, in the place of a shell whose trap for that signal runs
    Die {
        /// Number of the signal
        #[arg(value_name = "SIGNAL")]
        signal: i32,
    },
}

/// Lease that is held, and the shell for which it is held.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Start time of the shell's process, in clock ticks since boot
    #[arg(long, value_name = "TICKS")]
    pub started: u64,
    /// Number of the shell's instance in the store
    #[arg(long, value_name = "N")]
    pub instance: i64,
    /// Number of the run in the store
    #[arg(long, value_name = "N")]
    pub number: i64,
    /// Number of the attempt
    #[arg(long, value_name = "N")]
    pub attempt: i64,
}

/// Facts about the end of the shell, as its EXIT trap has them.
#[derive(Args, Clone, Debug, Default)]
pub struct EndArgs {
    /// Exit code of the shell
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub code: i32,
    /// Number of the signal that ended the shell
    #[arg(long, value_name = "NUMBER")]
    pub signal: Option<i32>,
    /// Running jobs of the shell, as bash's `jobs -lr` lists them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub jobs: String,
    /// Last command that the shell began, as in `$BASH_COMMAND`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub command: String,
    /// Functions that the shell was in, as in `${FUNCNAME[*]}`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub within: String,
    /// Traps of the shell, as bash's `trap -p` lists them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub traps: String,
}
