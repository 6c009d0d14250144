//! `outlast ctx …`: what a run's agent is at, set and read by its own processes.

use clap::{Args, Subcommand};

use crate::loops::task_context::{
    key::{self, BadPair},
    reference,
};

/// Say what the agent is at, from within its run: it is kept, whatever dies
///
/// For scripts under `outlast run`, and for loops with `outlast shell-init`. What is set is on disk when the command
/// returns, all keys or none, and mirrored in the file that OUTLAST_STATE_FILE names.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CtxArgs {
    #[command(subcommand)]
    pub command: CtxCommand,
}

const EXAMPLES: &str = "\
Examples:
  outlast ctx set task_id=T-7 issue_number=1411 progress_stage=tests
  outlast ctx get progress_stage
  eval \"$(outlast ctx env)\"                 TASK_ID, ISSUE_NUMBER, …; other keys as OUTLAST_CTX_NAME
  outlast ctx ref notes=notes.md graph=mcp://memory/n42
  outlast ctx refs                          and whether a file has changed since
  outlast ctx get --of nightly              for people: any run's";

#[derive(Subcommand, Clone, Debug)]
pub enum CtxCommand {
    Set(SetArgs),
    Get(GetArgs),
    /// Print exports for a shell's eval
    Env(OfArgs),
    Ref(RefArgs),
    /// List the references, and what became of their files
    Refs(OfArgs),
    Clear(ClearArgs),
}

/// Set keys, all in one commit
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    /// A key and its value, any text; keys are a to z, 0 to 9 and _
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = pair, allow_hyphen_values = true)]
    pub pairs: Vec<(String, String)>,
}

/// Print one value, or all of them
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// The key; without it, all
    #[arg(value_name = "KEY")]
    pub key: Option<String>,
    #[command(flatten)]
    pub of: OfArgs,
}

/// Run whose context is looked at.
#[derive(Args, Clone, Debug)]
pub struct OfArgs {
    /// Another run, to look at: its id, its name, or the start of its id
    #[arg(long, value_name = "RUN")]
    pub of: Option<String>,
}

/// Keep references to what the agent remembers; of a local file also its digest
#[derive(Args, Clone, Debug)]
pub struct RefArgs {
    /// A name and any reference: a file, a URL, mcp://…
    #[arg(value_name = "NAME=URI", required = true, value_parser = reference::pair)]
    pub references: Vec<(String, String)>,
}

/// Take keys away; without any, the whole context with its references and the task that is begun
#[derive(Args, Clone, Debug)]
pub struct ClearArgs {
    /// The keys
    #[arg(value_name = "KEY", value_parser = key::key)]
    pub keys: Vec<String>,
}

/// `KEY=VALUE`, for clap.
pub fn pair(text: &str) -> Result<(String, String), BadPair> {
    key::pair(text)
}
