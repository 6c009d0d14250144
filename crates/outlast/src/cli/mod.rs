//! The command line: its words, and how they are read together with variables and `outlast.toml`.

pub mod approvals;
pub mod budgets;
pub mod change;
pub mod ctx;
pub mod files;
pub mod headings;
pub mod jobs;
pub mod look;
pub mod mcp;
pub mod notify;
pub mod prices;
pub mod run;
pub mod serve;
pub mod shared;
pub mod shell;
pub mod state;
pub mod supervise;
pub mod trust;
pub mod ui;
pub mod values;
pub mod verbs;

use clap::{CommandFactory, Parser, Subcommand};
use outlast_server::version;

pub use self::{
    approvals::{ApprovalsArgs, ApproveArgs},
    budgets::{BudgetsArgs, BudgetsVerb},
    change::{BudgetArgs, CancelArgs, ResolveArgs, StopArgs, WakeArgs},
    ctx::CtxArgs,
    files::{FilesArgs, UndoArgs},
    jobs::{
        ExportArgs, ForkArgs, GcArgs, InspectArgs, JobsArgs, MigrateArgs, RepairArgs, RetryArgs, RmArgs,
        SnapshotArgs, VerifyArgs,
    },
    look::{
        CompletionsArgs, DigestArgs, DoctorArgs, JournalArgs, LogsArgs, LsArgs, ManArgs, ServiceArgs,
        ServiceVerb, ShowArgs, SpendArgs,
    },
    mcp::McpArgs,
    notify::NotifyArgs,
    prices::{PricesArgs, PricesVerb},
    run::{AgentArgs, AttachArgs, ConfinedArgs, HookArgs, LoopArgs, ResumeArgs, RunArgs},
    serve::{MockArgs, ServeArgs},
    shared::{Color, Globals},
    shell::{ShellInitArgs, ShellLoopArgs},
    state::StateArgs,
    trust::{InitArgs, TrustArgs},
    ui::{UiArgs, WatchArgs},
};
/// Crash recovery for AI agents: a run outlasts its processes
///
/// kill -9 the agent, the proxy or the machine: the run goes on where it was, without paying twice for a
/// call, and never past its budget.
#[derive(Parser, Clone, Debug)]
#[command(name = "outlast", version = version::line(), after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  outlast run --usd 5 -- python agent.py     run it to its end, over any number of crashes
  outlast ls                                 what runs there are
  outlast show RUN                           what happened, and what is next
  outlast budget RUN --add-usd 1             give a halted run room, then: outlast resume RUN

Settings:
  Long flags that do not act can be given as a variable, --admit-wait as OUTLAST_ADMIT_WAIT, or for one
  command alone as OUTLAST_SERVE_ADMIT_WAIT; and in ./outlast.toml (see outlast trust) or else
  ~/.config/outlast/outlast.toml, as admit_wait = \"45s\", or below [serve].
  A flag comes before a variable, a variable before a file.
  Keys are never flags: OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, or ~/.config/outlast/env (mode 0600).

Exit codes:
  0 done, 1 refused, 2 usage, 69 store or key unavailable, 75 halted, 76 failed,
  77 held by another process, 78 crash loop, 130 interrupted";

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    Run(Box<RunArgs>),
    Agent(AgentArgs),
    #[command(hide = true)]
    Hook(HookArgs),
    #[command(hide = true)]
    Confined(ConfinedArgs),
    Mcp(McpArgs),
    Serve(ServeArgs),
    Ui(UiArgs),
    Watch(WatchArgs),
    Ls(LsArgs),
    Show(ShowArgs),
    Journal(JournalArgs),
    Logs(LogsArgs),
    Attach(AttachArgs),
    Budget(BudgetArgs),
    Budgets(BudgetsArgs),
    Stop(StopArgs),
    Wake(WakeArgs),
    Resume(ResumeArgs),
    Cancel(CancelArgs),
    Approvals(ApprovalsArgs),
    Approve(ApproveArgs),
    Resolve(ResolveArgs),
    Spend(SpendArgs),
    Digest(DigestArgs),
    Prices(PricesArgs),
    Jobs(JobsArgs),
    Inspect(InspectArgs),
    Retry(RetryArgs),
    Export(ExportArgs),
    Snapshot(SnapshotArgs),
    Fork(ForkArgs),
    Files(FilesArgs),
    Undo(UndoArgs),
    Rm(RmArgs),
    Gc(GcArgs),
    Verify(VerifyArgs),
    Repair(RepairArgs),
    Migrate(MigrateArgs),
    State(StateArgs),
    Ctx(CtxArgs),
    ShellInit(ShellInitArgs),
    #[command(hide = true)]
    ShellLoop(ShellLoopArgs),
    Notify(NotifyArgs),
    Service(ServiceArgs),
    Doctor(DoctorArgs),
    Init(InitArgs),
    Trust(TrustArgs),
    Completions(CompletionsArgs),
    #[command(hide = true)]
    Man(ManArgs),
    Mock(MockArgs),
}

/// The words of the command line, without settings.
pub fn command() -> clap::Command {
    headings::with_short_help(headings::with_headings(Cli::command()))
}
