//! `outlast crashtest`.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use outlast_core::{named, words::BadText};
use serde::Serialize;

use super::values::{self, Limit};
use crate::program::stops::Moment;

/// Kill a command at every boundary of its journal, and tell what its recovery gets wrong
///
/// The command is run once in a copy of this directory, and what the model answers is recorded. Then it is run again and
/// again in fresh copies, with the recorded answers and no network: each time it dies at another boundary, is resumed,
/// and what it leaves is compared with a run that nobody killed. Programs and files outside of the directory are not copied.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "outlast crashtest [OPTIONS] [--] <CMD>...", after_help = EXAMPLES)]
pub struct CrashtestArgs {
    /// Record against a fake provider instead of the real one
    #[arg(long, conflicts_with = "recording")]
    pub mock: bool,
    /// Dollars that the recording may cost [default: 5]
    #[arg(long, value_name = "AMOUNT", value_parser = values::limit(values::usd))]
    pub usd: Option<Limit>,
    /// A file that keeps the recording: taken if it is there, else made. With it nothing is asked of a provider again
    #[arg(long, value_name = "FILE")]
    pub recording: Option<PathBuf>,
    /// Answer requests that differ from the recording by the real provider, for at most so many dollars in all
    #[arg(long, value_name = "AMOUNT", conflicts_with = "mock", value_parser = values::limit(values::usd))]
    pub live: Option<Limit>,
    /// What is killed: agent, tree (it and all that it started), supervisor, machine (everything at once); can be repeated [default: all]
    #[arg(long = "kind", value_name = "KIND", value_parser = values::words(Kind::ALL, Kind::name))]
    pub kinds: Vec<Kind>,
    /// One death alone, as a report names it: call-stored.2:machine; can be repeated
    #[arg(long, value_name = "DEATH")]
    pub only: Vec<Death>,
    /// Most deaths, spread evenly over the boundaries if there are more
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub max: u32,
    /// Begin no death later than so many minutes after the first [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub minutes: Option<u64>,
    /// Paths that are not compared, such as logs with times in them: a name, or a pattern of a path with * and **; can be repeated
    #[arg(long, value_name = "GLOB")]
    pub ignore: Vec<String>,
    /// A file of the directory to which the agent's tools append a line for each effect: each line has to be there as often as in the clean run
    #[arg(long, value_name = "FILE")]
    pub effects: Option<PathBuf>,
    /// Compare standard output, too: that of the last life
    #[arg(long)]
    pub stdout: bool,
    /// Kill it without Outlast, too, and begin it again from the start, to see what Outlast is worth
    #[arg(long)]
    pub bare: bool,
    /// Write the report as JUnit's XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write the result as a badge for a README, an image in SVG
    #[arg(long, value_name = "FILE")]
    pub badge: Option<PathBuf>,
    /// The command and its arguments
    #[arg(help_heading = "Arguments", value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true)]
    pub command: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  outlast crashtest --mock -- python agent.py
  outlast crashtest --usd 1 --recording agent.rec --ignore '*.log' -- python agent.py
  outlast crashtest --recording agent.rec --only call-stored.2:machine -- python agent.py
  outlast crashtest --mock --max 60 --junit crashtest.xml -- ./loop.sh

Exit codes: 0 no findings, 1 findings, 2 it could not be tested.";

named! {
    /// Processes that die at once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// The command's own process.
        Agent "agent",
        /// The command's process and all that it started.
        Tree "tree",
        /// The process of `outlast run`.
        Supervisor "supervisor",
        /// Everything at once, as a loss of the machine is.
        Machine "machine",
    }
}

/// Boundary of a journal: the moment, and how often there was one before, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Boundary {
    pub moment: Moment,
    pub number: u32,
}

/// Death of one kind at one boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Death {
    pub at: Boundary,
    pub kind: Kind,
}

impl std::fmt::Display for Boundary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.moment.name(), self.number)
    }
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.at, self.kind.name())
    }
}

impl Serialize for Boundary {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Death {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Death, BadText> {
        let read = || {
            let (at, kind) = text.rsplit_once(':')?;
            let (moment, number) = at.rsplit_once('.')?;
            let at =
                Boundary { moment: Moment::parse(moment)?, number: number.parse().ok().filter(|n| *n > 0)? };
            Some(Death { at, kind: Kind::parse(kind)? })
        };
        read().ok_or_else(|| BadText::new("a death", text, "for example call-stored.2:machine"))
    }
}
