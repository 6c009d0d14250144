//! `outlast mcp`.

use std::ffi::OsString;

use clap::Args;
use outlast_core::words::RunId;

/// Record an MCP server's tool calls: none is lost, and none is silently made twice
///
/// Stands between an MCP client on standard input and output, and the server that CMD starts, or that is at a URL
/// (streamable HTTP, with a session or without). Each tools/call is
/// on disk before it is sent, and its answer before the client sees it. When the run is started again, a call that was
/// answered is answered from the journal; one that was cut off is sent again if its tool only reads or is idempotent, and
/// else the model is told that its outcome is unknown, until a person records it by outlast resolve. Everything else
/// passes as it is.
///
/// Inside outlast run, calls are recorded in that run, and --run is not needed.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct McpArgs {
    /// The run for calls outside of outlast run: an id of your own for one task. A start with the same id continues it
    #[arg(long, value_name = "ID")]
    pub run: Option<RunId>,
    /// Name of the server in the journal and in policies; by default the file name of its program; wanted with --url
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Policy of the run that --run creates: which tools it may call, and which of them need an approval
    #[arg(long, value_name = "NAME", requires = "run")]
    pub policy: Option<String>,
    /// Trust what the server says of its tools: which only read, and which are idempotent
    #[arg(long)]
    pub trust: bool,
    /// A tool that only reads, whatever the server says; NAME* for several; can be repeated
    #[arg(long, value_name = "TOOL")]
    pub reads: Vec<String>,
    /// A tool whose second call has no further effect; NAME* for several; can be repeated
    #[arg(long, value_name = "TOOL")]
    pub idempotent: Vec<String>,
    /// A variable of the server's environment whose value is kept out of recorded calls and answers, besides those whose
    /// names say that they are secrets; can be repeated
    #[arg(long, value_name = "VARIABLE")]
    pub hide_env: Vec<String>,
    /// A server at this URL, in place of CMD: https://HOST/PATH
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    pub url: Option<String>,
    /// A header for the server at the URL; can be repeated
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    pub header: Vec<String>,
    /// A header whose value is read from an environment variable, such as a login token; can be repeated
    #[arg(long, value_name = "NAME=VARIABLE", requires = "url")]
    pub header_env: Vec<String>,
    /// The server's command and its arguments
    #[arg(help_heading = "Arguments", value_name = "CMD", required_unless_present = "url", num_args = 1.., trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  outlast mcp --run inbox-7 --name mail -- mail-server --stdio
  outlast mcp --reads 'get_*' --idempotent put_file -- npx -y my-server
  outlast mcp --name issues --url https://issues.example/mcp --header-env Authorization=ISSUES_LOGIN
  claude mcp add mail -- outlast mcp --name mail -- mail-server    for agents under outlast run";
