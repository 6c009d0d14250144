//! Flags of how a run's processes are held.

use clap::Args;
use outlast_core::{
    named,
    run::{Confine, Pty, Supervision},
};

use super::values::{self, Argv, Orphans};

/// Treatment of the command's processes, at this start and at each that follows.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Processes (of a new run, for its whole life)")]
pub struct SuperviseArgs {
    /// Keep nothing of what the command prints: it writes straight to this command's output
    #[arg(long)]
    pub no_logs: bool,
    /// Whether the command gets a terminal of its own: if outlast was started from one (auto), always, never
    #[arg(long, value_name = "WHEN", value_parser = values::words(Pty::ALL, Pty::name))]
    pub pty: Option<Pty>,
    /// Fate of processes that outlive the command: kill, or wait:60s for their end first
    #[arg(long, value_name = "RULE", default_value = "kill", value_parser = values::orphans)]
    pub orphans: Orphans,
    /// A program that is never ended with the run, nor what it started; tmux, ssh-agent and dbus-daemon never are; can be repeated
    #[arg(long, value_name = "NAME", value_parser = values::program)]
    pub keep: Vec<String>,
    /// Most memory that all processes of the command may use together
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub memory: Option<u64>,
    /// Way in which memory is limited: by a control group, or by the address space of each process (rlimit)
    #[arg(long, value_name = "HOW", default_value = "cgroup", value_parser = values::words(MemoryBy::ALL, MemoryBy::name))]
    pub memory_by: MemoryBy,
    /// Processor time, of one processor: 150% is one and a half
    #[arg(long, value_name = "SHARE", value_parser = values::percent)]
    pub cpu: Option<u32>,
    /// Hide the store and the providers' keys from it; as root, by running it as another user
    #[arg(long, value_name = "USER", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub confine: Option<String>,
    /// Keep Claude Code's prompt the same when it is resumed, so that its provider's cache still has it
    #[arg(long)]
    pub warm_resume: bool,
    /// Whether tool calls to the MCP servers in Claude Code's and Codex's own settings are recorded: auto, off
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = values::words(Mcp::ALL, Mcp::name))]
    pub mcp: Mcp,
    /// Program to start when the run halts or fails, with its arguments as one quoted string (no shell reads it). It gets JSON on its standard input
    #[arg(long, value_name = "CMD", value_parser = values::argv)]
    pub on_halt: Option<Argv>,
    /// Meter calls of programs that ignore OPENAI_BASE_URL and the like, too: by HTTPS_PROXY, and a certificate authority made for this run
    #[arg(long)]
    pub intercept: bool,
    /// Give it no network but the run's proxy, as with --intercept: providers' hosts, and those of --allow-net; and no Unix socket of others
    #[arg(long)]
    pub confine_net: bool,
    /// A host that it may reach under --confine-net: HOST, .DOMAIN or HOST:PORT; or a Unix socket: its path from / on; can be repeated
    #[arg(long, value_name = "HOST", value_parser = values::allowed_net)]
    pub allow_net: Vec<String>,
}

named! {
    /// Treatment of an agent's own MCP servers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Mcp {
        /// Tool calls to servers that are started by a command are recorded.
        #[default]
        Auto "auto",
        Off "off",
    }

    /// Means that holds a limit of memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum MemoryBy {
        #[default]
        Cgroup "cgroup",
        Rlimit "rlimit",
    }
}

impl SuperviseArgs {
    pub fn supervision(&self) -> Supervision {
        Supervision {
            no_logs: self.no_logs,
            pty: self.pty.unwrap_or_default(),
            orphans_wait_ms: self.orphans.0,
            keep: self.keep.clone(),
            memory_bytes: self.memory,
            memory_by_rlimit: self.memory_by == MemoryBy::Rlimit,
            cpu_percent: self.cpu,
            confine: self.confine.as_deref().map(|user| match user {
                "" => Confine::Namespace,
                user => Confine::User(user.to_owned()),
            }),
            warm_resume: self.warm_resume,
            mcp_off: self.mcp == Mcp::Off,
            on_halt: self.on_halt.clone().unwrap_or_default().0,
            intercept: self.intercept || self.confine_net,
            net: self.confine_net.then(|| self.allow_net.clone()),
            files: None,
        }
    }
}
