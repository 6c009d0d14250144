//! The commands that only look: `ls`, `show`, `journal`, `spend`, `doctor`, `completions`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use outlast_core::run::status::Status;

use outlast_core::reads::spend::Grouping;

use super::values;
use crate::render::time::When;

/// List runs, newest first
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast ls\n  outlast ls --status halted\n  outlast ls --wide --dir . --since 22:00\n  outlast ls --json | jq '.runs[].run'"
)]
pub struct LsArgs {
    /// Only runs of this status
    #[arg(long, value_parser = status, value_name = "STATUS")]
    pub status: Option<Status>,
    /// Only runs with this tag, or with this value of it
    #[arg(long, value_name = "KEY[=VALUE]")]
    pub tag: Option<String>,
    /// Only runs that were started in this directory or below it
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,
    /// Only runs whose name or id contains this text
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only runs that were created from this moment on: 22:00, 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub since: Option<When>,
    /// Also their directories, the branches that are checked out there now, and their tags
    #[arg(long)]
    pub wide: bool,
    /// Largest number of runs to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
}

fn status(text: &str) -> Result<Status, String> {
    let all = Status::ALL.map(Status::name).join(", ");
    Status::parse(text).ok_or_else(|| format!("no such status (wanted one of {all})"))
}

/// Tell a run's story on one screen: what happened, what it cost, what is next
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast show\n  outlast show nightly -v\n  outlast show run_0190 --json"
)]
pub struct ShowArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// All of it: every limit, how each attempt died, money, tools, the last entries
    #[arg(long, short)]
    pub verbose: bool,
    /// Number of last lines of output to show of each attempt that died; without -v of the last one only, and fewer where the screen ends
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub lines: usize,
}

/// Print a run's journal, one line for each entry, or the content of one entry
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Examples:\n  outlast journal nightly\n  outlast journal nightly -f\n  outlast journal nightly -f --json\n  outlast journal nightly 47\n  outlast journal nightly 47 --diff\n  outlast journal nightly --grep invoice\n  outlast journal --grep invoice\n  outlast journal nightly --divergence"
)]
pub struct JournalArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory, with --grep: all runs
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Go on until the run has ended; with --json a line of JSON for each change
    #[arg(long, short)]
    pub follow: bool,
    /// Also Outlast's own bookkeeping, such as copies of the agent's session, and a CLI agent's entries in all columns
    #[arg(long)]
    pub all: bool,
    /// One entry, by its number: what was asked and answered, as a person reads it
    #[arg(value_name = "ENTRY", conflicts_with_all = ["follow", "divergence"])]
    pub entry: Option<i64>,
    /// With ENTRY: the recorded bytes of its request and its answer
    #[arg(long, requires = "entry", conflicts_with = "json")]
    pub raw: bool,
    /// With ENTRY: of the request, only what is new since the call before it
    #[arg(long, requires = "entry", conflicts_with = "raw")]
    pub diff: bool,
    /// The lines of requests and answers that hold this text, of ENTRY or of all
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["follow", "divergence", "raw", "diff"])]
    pub grep: Option<String>,
    /// Where a restarted attempt asked for something else than what was recorded: both requests, and the first place in which they differ
    #[arg(long, conflicts_with = "follow")]
    pub divergence: bool,
    /// For each restart: the prompt tokens that were paid again although the provider had cached them, and the first byte in which its request differs from the last one before the restart
    #[arg(long, conflicts_with_all = ["follow", "divergence", "entry", "grep"])]
    pub cache: bool,
}

/// Print what a run's agent printed
///
/// Each attempt has a log of its own; the newest attempt's is printed. On a terminal, control sequences other than
/// colours are left out; elsewhere the bytes are printed unchanged. At least the last 10 MiB of each attempt are kept,
/// and the last 20 attempts of a run.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast logs nightly\n  outlast logs nightly -f\n  outlast logs nightly --attempt 2 --lines 50"
)]
pub struct LogsArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Go on printing what comes, of later attempts too, until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    /// The attempt, by its number
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub attempt: Option<i64>,
    /// Only the last N lines
    #[arg(long, short = 'n', visible_alias = "tail", value_name = "N")]
    pub lines: Option<usize>,
}

/// Sum up what calls cost
///
/// Days are UTC. A call of unknown outcome stays charged at its reservation: see IN DOUBT.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast spend --by day,model --since 7d\n  outlast spend --by tag.team --since 2026-11-01 --until 2026-12-01"
)]
pub struct SpendArgs {
    /// By what: run, model, upstream, day, tag.KEY, or several with commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',', default_value = "day", value_parser = values::grouping)]
    pub by: Vec<Grouping>,
    /// Calls from this day or moment on, or of the last TIME: 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub since: Option<When>,
    /// Calls before this day or moment
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub until: Option<When>,
    /// Also what restarted agents bought again although their provider's cache had it, by run; reads their requests, which takes a while
    #[arg(long)]
    pub resume_tax: bool,
}

/// Tell what happened while nobody looked: what is done, what stands still and why, what it cost
///
/// `[notify] digest = "08:00"` in ~/.config/outlast/outlast.toml sends the same every day.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast digest --since 22:00\n  outlast digest --since 22:00 --json")]
pub struct DigestArgs {
    /// From this moment on: 22:00, 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when, default_value = "24h")]
    pub since: When,
}

/// Check the store, the disk, the keys and the settings
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {}

/// Print a completion script for a shell
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast completions bash > ~/.local/share/bash-completion/completions/outlast\n  outlast completions fish > ~/.config/fish/completions/outlast.fish"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Write the man pages, for whoever makes a package
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The directory, made if it is not there
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
}

/// Have interrupted runs go on by themselves, by a unit of your systemd
///
/// The unit runs `outlast resume --all --stay` from now on, and whenever you log in: a run whose supervisor died goes on
/// within seconds, and after a reboot. `loginctl enable-linger` starts your systemd at boot,
/// and keeps it when you log out: without it a run in the background may end with your session.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast service install\n  outlast service install --print\n  outlast service status"
)]
pub struct ServiceArgs {
    /// install, remove or status
    #[arg(value_name = "VERB", value_enum)]
    pub verb: ServiceVerb,
    /// With install: print the unit, and change nothing
    #[arg(long)]
    pub print: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceVerb {
    Install,
    #[value(alias = "uninstall")]
    Remove,
    Status,
}
