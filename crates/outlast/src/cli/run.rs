//! `outlast run` and `outlast resume`.

use std::path::PathBuf;

use clap::Args;
use outlast_core::{
    envelope::Ceilings,
    run::{Pty, Unpriced},
    words::RunId,
};

use super::{
    change::AddArgs,
    files::{ForceArgs, KeepArgs, ResumeAt},
    shared::{GrpcArgs, LimitArgs, PolicyArgs, ProxyArgs},
    supervise::SuperviseArgs,
    values::{self, KillAt},
};

/// Run a command to its end, over any number of crashes, within a budget
///
/// The command is started under a proxy that counts and records its LLM calls. When it dies it is started
/// again, and LLM calls that were already answered are replayed from the record and cost nothing.
/// Typing the same line again in the same directory resumes an interrupted run; while it goes on, the line is refused.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "outlast run [OPTIONS] [--] <CMD>...", after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// The run to create, or to go on with
    #[arg(long, value_name = "ID", conflicts_with = "new")]
    pub run: Option<RunId>,
    /// Start afresh although an unfinished run of this command is there
    #[arg(long)]
    pub new: bool,
    /// A readable name, which commands take in place of the id
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A tag, to find and to sum up by; can be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = values::tag)]
    pub tags: Vec<(String, String)>,
    /// An environment variable to store with the run, so that a resumption has it; can be repeated
    #[arg(long = "env", value_name = "NAME", value_parser = values::variable)]
    pub env: Vec<String>,
    /// A file of NAME=VALUE lines for the command, read at this start and at each that follows; only its path is stored, none of its contents
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// Go on in the background: print the run's id when its command has been started
    #[arg(long, short)]
    pub detach: bool,
    /// Kill -9 the agent once: when its new call N begins (call:N), or in the middle of that call's answer (call:N:mid)
    #[arg(long, value_name = "POINT", value_parser = values::kill_at)]
    pub kill_at: Option<KillAt>,
    /// In a new run: the file to which the task's context (what `outlast ctx` records) is copied [default: active_state.json in the run's own directory]
    #[arg(long, value_name = "PATH")]
    pub state_file: Option<PathBuf>,
    /// The CLI agent that is started: auto (by the command), none, claude, codex, opencode, aider, gemini, qwen, copilot, or one that `[agents]` of outlast.toml declares
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub agent: String,
    /// When the provider's usage limit is reached, stop the agent even if it would wait by itself; it is started again when the limit has reset
    #[arg(long)]
    pub stop_at_limit: bool,
    /// Time that the agent has to end by itself after a halt, at a usage limit, or after a SIGTERM to outlast, before it is ended [default: 5s, 10s and 7s]
    #[arg(long = "grace", value_name = "TIME", value_parser = values::ms)]
    pub grace_ms: Option<i64>,
    #[command(flatten)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    pub looping: LoopArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Largest share of the subscription's usage windows that may be used up, other devices' use included: 5h=40%,week=15%. When a share is reached, the run sleeps until that window resets
    #[arg(long, value_name = "CEILINGS", help_heading = "Limits (of a new run; `none` removes one)")]
    pub plan: Option<Ceilings>,
    /// The policy of a new run: [policies.NAME] of outlast.toml, or one the store keeps. Of its limits and those given, the lower one counts
    #[arg(long = "policy", value_name = "NAME")]
    pub named_policy: Option<String>,
    #[command(flatten)]
    pub policy: PolicyArgs,
    #[command(flatten)]
    pub supervise: SuperviseArgs,
    #[command(flatten)]
    pub keep_files: KeepArgs,
    #[command(flatten)]
    pub proxy: ProxyArgs,
    /// The command and its arguments
    #[arg(help_heading = "Arguments", value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true)]
    pub command: Vec<String>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  outlast run -- python agent.py
  outlast run --usd 2 --wall 1h --name nightly --tag team=search -- python agent.py --deep
  outlast run --run invoice-42 --env AWS_PROFILE -- node agent.js < invoice.json
  outlast run --grpc -- python steps.py                   state over gRPC on 127.0.0.1:50051
  outlast run -- claude -p 'fix the tests'                goes on in its own session after a crash
  outlast run --loop --until 'make test' --max-iterations 50 --stdin PROMPT.md -- claude -p
  outlast run --kill-at call:3:mid -- python agent.py     test your own recovery

Keys are taken from OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY, or from ~/.config/outlast/env (mode 0600).";

/// Start a CLI agent from a script of a run, with a session of its own
///
/// When the run is restarted, its script starts the agent again by the same words in the same directory: it then
/// goes on in the session that it had begun and not finished.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "outlast agent [OPTIONS] [--] <CMD>...", after_help = AGENT_EXAMPLES)]
pub struct AgentArgs {
    /// The agent that CMD starts: auto (by the command), none, claude, codex, opencode, aider, gemini, qwen, copilot, or one that `[agents]` of outlast.toml declares
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub agent: String,
    /// The command and its arguments
    #[arg(help_heading = "Arguments", value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true)]
    pub command: Vec<String>,
}

const AGENT_EXAMPLES: &str = "\
Examples:
  outlast run -- ./nightly.sh       and in nightly.sh:
  outlast agent -- claude -p \"fix the next failing test\"";

/// Take an event of an agent's hook from standard input; for hooks, not for people
#[derive(Args, Clone, Debug)]
pub struct HookArgs {
    /// Agent whose event it is
    #[arg(value_name = "AGENT", value_parser = ["claude"])]
    pub of: String,
}

/// The command again and again.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Loop (of a new run)")]
pub struct LoopArgs {
    /// Run the command again each time it exits with 0; each pass is an iteration. A crash restarts the iteration that it was in
    #[arg(long = "loop")]
    pub on: bool,
    /// Completed after so many iterations
    #[arg(long, value_name = "N", requires = "on", value_parser = clap::value_parser!(i64).range(1..))]
    pub max_iterations: Option<i64>,
    /// Completed when this shell command succeeds after an iteration
    #[arg(long, value_name = "CMD", requires = "on")]
    pub until: Option<String>,
    /// File that each iteration reads as its standard input; it is read anew for each
    #[arg(long = "stdin", value_name = "FILE", requires = "on")]
    pub input: Option<PathBuf>,
}

/// Go on with runs that were interrupted
///
/// A run that halted at a limit needs a higher limit first: give --add-usd or another --add option here, or raise it
/// beforehand by outlast budget RUN. A run that waits for a provider's usage limit keeps waiting, and starts when the
/// limit has reset.
#[derive(Args, Clone, Debug)]
#[command(after_help = RESUME_EXAMPLES)]
pub struct ResumeArgs {
    /// The run: its id, its name, or the start of its id; the newest run of this directory that can go on
    #[arg(value_name = "RUN", conflicts_with = "all")]
    pub run: Option<String>,
    /// Every run that a crash, a kill or a reboot interrupted; not those that a person stopped, by Ctrl-C or `outlast stop`
    #[arg(long)]
    pub all: bool,
    /// With --all: stay, and resume each run that a death interrupts later, too
    #[arg(long, requires = "all")]
    pub stay: bool,
    /// Go on in the background: print the run's id when its command has been started
    #[arg(long, short, conflicts_with = "all")]
    pub detach: bool,
    /// The directory that the run works in from now on, where its own has moved
    #[arg(long, value_name = "DIR", requires = "run")]
    pub cd: Option<PathBuf>,
    /// Take back a run that left in a bundle which was never imported, and never will be
    #[arg(long, requires = "run")]
    pub take_back: bool,
    /// Time that the agent has to end by itself, as of `outlast run`
    #[arg(long = "grace", value_name = "TIME", value_parser = values::ms)]
    pub grace_ms: Option<i64>,
    /// Whether the agent gets a terminal of its own: if outlast was started from one (auto), always, never
    #[arg(long, value_name = "WHEN", value_parser = values::words(Pty::ALL, Pty::name))]
    pub pty: Option<Pty>,
    /// Under a limit in usd, refuse a model without a known price (deny), count it as free (free), or charge it at twice the dearest known model whose name begins with the same letters (dearest) [default: as the run was started]
    #[arg(long, value_name = "RULE", value_parser = values::words(Unpriced::ALL, Unpriced::name))]
    pub unpriced: Option<Unpriced>,
    /// Files with which the agent goes on: as-died touches nothing; last-tool brings back what the last finished tool left; an entry's number, as they were when it began. What is there now is kept
    #[arg(long, value_name = "WHICH", default_value = "as-died", conflicts_with = "all")]
    pub files: ResumeAt,
    #[command(flatten)]
    pub force: ForceArgs,
    #[command(flatten)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    pub add: AddArgs,
    #[command(flatten)]
    pub proxy: ProxyArgs,
}

const RESUME_EXAMPLES: &str = "\
Examples:
  outlast resume                       the newest run of this directory that can go on
  outlast resume nightly
  outlast resume nightly --add-usd 1   a run that is halted at its limit
  outlast resume --all      for example at boot";
