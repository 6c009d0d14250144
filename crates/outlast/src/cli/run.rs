//! `outlast run` and `outlast resume`.

use std::path::PathBuf;

use clap::Args;
use outlast_core::id::RunId;

use super::{
    shared::{GrpcArgs, LimitArgs, PolicyArgs, ProxyArgs},
    values::{self, KillAt},
};

/// Run a command to its end, over any number of crashes, within a budget
///
/// The command is started under a proxy that counts and records its LLM calls. When it dies it is started
/// again, and calls it had already been answered are replayed without being paid again.
/// Typing the same line again in the same directory resumes an interrupted run.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "outlast run [OPTIONS] [--] <CMD>...", after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// The run to create, or to go on with
    #[arg(long, value_name = "ID", conflicts_with = "new")]
    pub run: Option<RunId>,
    /// Start afresh although an interrupted run of this command is there
    #[arg(long)]
    pub new: bool,
    /// A name for people
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A tag, to find and to sum up by; can be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = values::tag)]
    pub tags: Vec<(String, String)>,
    /// A variable that is kept with the run for its resumption; can be repeated
    #[arg(long = "env", value_name = "NAME", value_parser = values::variable)]
    pub env: Vec<String>,
    /// Kill -9 the agent once, at call N or in the middle of its answer: call:N, call:N:mid
    #[arg(long, value_name = "POINT", value_parser = values::kill_at)]
    pub kill_at: Option<KillAt>,
    /// Where the task's context is mirrored, of a new run [active_state.json in the run's own directory]
    #[arg(long, value_name = "PATH")]
    pub state_file: Option<PathBuf>,
    #[command(flatten)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub policy: PolicyArgs,
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
  outlast run --kill-at call:3:mid -- python agent.py     test your own recovery

Keys are taken from OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY, or from ~/.config/outlast/env (mode 0600).";

/// Go on with runs that were interrupted
///
/// A halted run has to be given room first: outlast budget RUN.
#[derive(Args, Clone, Debug)]
#[command(after_help = RESUME_EXAMPLES)]
pub struct ResumeArgs {
    /// The run: its id, the start of its id, or its name
    #[arg(value_name = "RUN", conflicts_with = "all")]
    pub run: Option<String>,
    /// Every run that a death, a signal or a reboot interrupted, but not those a person stopped
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    pub proxy: ProxyArgs,
}

const RESUME_EXAMPLES: &str = "\
Examples:
  outlast resume nightly
  outlast resume --all      for example at boot";
