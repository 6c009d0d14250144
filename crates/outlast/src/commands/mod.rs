//! The commands, one file each: its arguments, who may type it, what it needs and what it does. A command that has a room of
//! its own (`supervisor`, `serve`, `watch`, `mcp`, `loops`) has its arguments there or in `cli`.
//!
//! [`Command::verb`] is the one table: a new command does not compile without its row.

pub mod approvals;
pub mod attach;
pub mod budget;
pub mod budgets;
pub mod bundle;
pub mod completions;
pub mod config;
pub mod confined;
pub mod crashtest;
pub mod ctx;
pub mod digest;
pub mod divergence;
pub mod doctor;
pub mod embedded;
pub mod evidence;
pub mod exchange;
pub mod export;
pub mod files;
pub mod forget;
pub mod fork;
pub mod headings;
pub mod init;
pub mod inspect;
pub mod jobs;
pub mod journal;
pub mod line;
pub mod logs;
pub mod ls;
pub mod notify;
pub mod plan;
mod prelude;
pub mod prices;
pub mod repair;
pub mod resolve;
pub mod resume_tax;
pub mod service;
pub mod show;
pub mod spend;
pub mod state;
pub mod tell;
pub mod transcript;
pub mod trust;
pub mod verify;
#[cfg(feature = "watch")]
pub mod watch;

use std::{ffi::OsString, io::IsTerminal as _, thread};

use clap::{CommandFactory as _, Parser};
use outlast_server::version;

use self::prelude::*;
use crate::{
    agent,
    cli::{Globals, change, crashtest::CrashtestArgs, mcp::McpArgs, run},
    guard::{self, Rule},
    loops::{self, words as shell},
    mcp,
    program::{actor::actor, server::Over},
    render::text::print_whole,
    serve::{self, mock, ui},
    supervisor,
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
    /// Name of the command, as it is typed.
    #[arg(skip)]
    pub word: String,
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

/// The commands, in the order of the help. `headings` names the first one below each heading.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    Run(Box<run::RunArgs>),
    Resume(run::ResumeArgs),
    Attach(attach::AttachArgs),
    Stop(tell::StopArgs),
    Move(bundle::send::MoveArgs),
    Wake(tell::WakeArgs),
    Cancel(tell::CancelArgs),
    Agent(run::AgentArgs),
    Mcp(McpArgs),
    Serve(serve::ServeArgs),
    Ui(ui::UiArgs),
    #[cfg(feature = "watch")]
    Watch(watch::WatchArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Logs(logs::LogsArgs),
    Journal(journal::JournalArgs),
    Digest(digest::DigestArgs),
    Budget(change::BudgetArgs),
    Budgets(budgets::BudgetsArgs),
    Spend(spend::SpendArgs),
    Prices(prices::PricesArgs),
    Approvals(approvals::ApprovalsArgs),
    Approve(approvals::ApproveArgs),
    Resolve(resolve::ResolveArgs),
    Jobs(jobs::JobsArgs),
    Inspect(inspect::InspectArgs),
    Retry(jobs::RetryArgs),
    Export(export::ExportArgs),
    Import(bundle::import::ImportArgs),
    State(state::StateArgs),
    Snapshot(fork::SnapshotArgs),
    Fork(fork::ForkArgs),
    Files(files::FilesArgs),
    Undo(files::UndoArgs),
    Ctx(ctx::CtxArgs),
    ShellInit(shell::ShellInitArgs),
    Init(init::InitArgs),
    Doctor(doctor::DoctorArgs),
    Trust(trust::TrustArgs),
    Notify(notify::NotifyArgs),
    Service(service::ServiceArgs),
    Rm(forget::RmArgs),
    Gc(forget::GcArgs),
    Verify(verify::VerifyArgs),
    Repair(repair::RepairArgs),
    Migrate(repair::MigrateArgs),
    Completions(completions::CompletionsArgs),
    Mock(mock::MockArgs),
    Crashtest(Box<CrashtestArgs>),
    #[command(hide = true)]
    Hook(run::HookArgs),
    #[command(hide = true)]
    Confined(confined::ConfinedArgs),
    #[command(hide = true)]
    ShellLoop(shell::ShellLoopArgs),
    #[command(hide = true)]
    Man(completions::ManArgs),
}

/// The words of the command line, without settings.
pub fn command() -> clap::Command {
    with_negative_numbers(headings::with_short_help(headings::with_headings(Cli::command())))
}

/// Returns the definition in which `-1` behind a flag is the flag's value, so that the flag's own words refuse it.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: &clap::Arg| arg.get_long().is_some() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

/// Interval at which what is followed is read again.
pub const FOLLOW: Duration = Duration::from_millis(200);

/// Command as a row: who may type it, whether it works over a server, and its work.
pub struct Verb<'a> {
    pub rule: Rule<'a>,
    pub over: Over,
    pub work: Work<'a>,
}

type Bare<'a> = Box<dyn FnOnce(Look, &Surroundings) -> Result<u8> + 'a>;
type Printed<'a> = Box<dyn FnOnce(&Context, &mut Page) -> Result<u8> + 'a>;

/// Work of a command, by what it is given.
pub enum Work<'a> {
    /// Neither store nor settings of one: nothing can keep it from its work.
    Bare(Bare<'a>),
    /// The context. It opens what it needs, and prints by itself.
    Alone(Box<dyn FnOnce(Context) -> Result<u8> + 'a>),
    /// The context, and a page to print on.
    Printed(Printed<'a>),
    /// A store, and a page to print on.
    OnStore(Needs<'a>, Box<dyn FnOnce(Desk) -> Result<u8> + 'a>),
}

/// Store that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs<'a> {
    /// The store, after [`strays::look_after`].
    Store,
    /// As `Store`, and made if there is none yet: a budget may be set before its first run.
    StoreOrNew,
    /// The store as it is.
    AsItIs,
    /// The record beside a file of results, after [`strays::look_after`].
    Record(&'a str),
}

/// Store that a command works on and page that it prints on, in the name of `by`.
pub struct Desk<'a, 'p> {
    pub store: &'a dyn Store,
    pub by: &'a str,
    pub context: &'a Context,
    pub page: &'a mut Page<'p>,
    /// Waits until the store is read again.
    pub wait: &'a mut dyn FnMut(Duration),
}

/// Exit code of a command that was done.
pub trait Done: 'static {
    fn code(self) -> u8;
}

impl Done for () {
    fn code(self) -> u8 {
        exit_code::OK
    }
}

impl Done for u8 {
    fn code(self) -> u8 {
        self
    }
}

impl Command {
    /// Returns the command's row. The match is exhaustive: a new command does not compile without one.
    pub fn verb(&self) -> Verb<'_> {
        use Needs::{AsItIs, Store, StoreOrNew};
        use Over::{Missing, NoRoute, Server, ThisMachine};
        use Rule::{Begins, Free, OwnRuns, Persons};
        const NO_FILES: Over = Missing("files are on its machine, and no route reads them");
        let if_changes = |changes: bool| if changes { Persons } else { Free };
        let (rule, over, work) = match self {
            Command::Run(args) => (Begins(args.run.as_ref()), ThisMachine, driving(&**args, supervisor::run)),
            Command::Agent(args) => (Free, ThisMachine, alone(args, agent::command::agent)),
            Command::Hook(args) => (Free, ThisMachine, alone(args, |_, c| agent::hook::hook(&c))),
            Command::Mcp(args) => {
                let rule = args.run.as_ref().map_or(Free, |run| Begins(Some(run)));
                (rule, ThisMachine, driving(args, mcp::mcp))
            }
            // It only gives up rights.
            Command::Confined(args) => (Free, ThisMachine, bare(args, |a, _, _| confined::confined(a))),
            // Whoever serves a store answers for anybody, with a token of its own making.
            Command::Serve(args) => (
                Persons,
                ThisMachine,
                driving(args, |args, context| serve::serve(args, embedded::typed_again, context)),
            ),
            // Whoever has its link decides.
            Command::Ui(args) => (
                if_changes(!args.read_only),
                ThisMachine,
                alone(args, |args, context| ui::ui(args, embedded::settings_of_serve, context)),
            ),
            // Its keys that decide are checked when they are typed.
            #[cfg(feature = "watch")]
            Command::Watch(args) => (Free, Server, alone(args, watch::watch)),
            Command::Ls(args) => (Free, Server, on(Store, args, ls::ls)),
            Command::Show(args) => (Free, Server, on(Store, args, show::show)),
            Command::Journal(args) => (Free, Server, on(Store, args, journal::journal)),
            Command::Logs(args) => {
                let missing = Missing("logs are files of its machine, and no route reads them");
                (Free, missing, on(Store, args, logs::logs))
            }
            // Who is attached types to the agent.
            Command::Attach(args) => {
                let missing = Missing("no route has a run's terminal");
                (OwnRuns(Some(&args.run), find::Verb::Attach), missing, alone(args, attach::attach))
            }
            Command::Budget(args) => (if_changes(args.changes()), Server, on(Store, args, budget::budget)),
            Command::Budgets(args) => {
                let needs = if args.is_set() { StoreOrNew } else { Store };
                (if_changes(args.verb.is_some()), Server, on(needs, args, budgets::budgets))
            }
            Command::Stop(args) => {
                (OwnRuns(args.run.as_deref(), find::Verb::Stop), Server, on(Store, args, tell::stop))
            }
            Command::Wake(args) => (Persons, Server, on(Store, args, tell::wake)),
            // A resumption accepts what halted the run.
            Command::Resume(args) => {
                (Persons, NoRoute("starts a run's supervisor"), driving(args, supervisor::resume))
            }
            Command::Cancel(args) => {
                (OwnRuns(Some(&args.run), find::Verb::End), Server, on(Store, args, tell::cancel))
            }
            Command::Approvals(args) => (Free, Server, on(Store, args, approvals::approvals)),
            Command::Approve(args) => (Persons, Server, on(AsItIs, args, approvals::approve)),
            Command::Resolve(args) => {
                let route = NoRoute("resolves a step or a tool call in doubt");
                (if_changes(args.step.is_some()), route, on(Store, args, resolve::resolve))
            }
            Command::Spend(args) => (Free, Server, on(Store, args, spend::spend)),
            Command::Digest(args) => {
                let missing = Missing("what runs printed and committed is on the machine of its store");
                (Free, missing, on(Store, args, digest::digest))
            }
            // Lower prices are more room.
            Command::Prices(args) => match &args.verb {
                None => (Free, ThisMachine, bare(args, prices::prices)),
                Some(prices::PricesVerb::Update(args)) => {
                    (Persons, ThisMachine, printed(args, prices::update))
                }
            },
            Command::Jobs(args) => (Free, Server, on(Store, args, jobs::jobs)),
            Command::Inspect(args) if jsonl::is_file(&args.job) => {
                (Free, Server, printed(args, inspect::inspect_file))
            }
            Command::Inspect(args) => (Free, Server, on(Store, args, inspect::inspect)),
            Command::Retry(args) => (Persons, Server, on(of_job(&args.job), args, jobs::retry)),
            Command::Export(args) => (
                if_changes(args.bundle.is_some()),
                NoRoute("writes a run's results"),
                on(of_job(&args.job), args, export::export),
            ),
            Command::Import(args) => (Persons, NO_FILES, printed(args, bundle::import::import)),
            Command::Move(args) => (Persons, NO_FILES, on(Store, args, bundle::send::send)),
            Command::Snapshot(args) => {
                let rule = OwnRuns(Some(&args.run), find::Verb::Branch);
                (rule, NoRoute("names a snapshot"), on(of_job(&args.run), args, fork::name))
            }
            Command::Fork(args) if args.into.is_some() => {
                (Persons, NO_FILES, on(AsItIs, args, fork::fork_into))
            }
            Command::Fork(args) => (Persons, Server, on(of_job(&args.run), args, fork::fork)),
            Command::Files(args) => {
                let restores = matches!(args.verb, Some(files::FilesVerb::Restore(_)));
                (if_changes(restores), NO_FILES, on(Store, args, files::files))
            }
            Command::Undo(args) => (Persons, NO_FILES, on(Store, args, files::undo)),
            Command::Rm(args) => (Persons, Server, on(Store, args, forget::rm)),
            Command::Gc(args) => (if_changes(!args.dry_run), Server, on(Store, args, forget::gc)),
            Command::Verify(args) => {
                let work = match &args.file {
                    Some(_) => printed(args, verify::verify_lines),
                    None => on(Store, args, verify::verify),
                };
                (if_changes(args.repair), Missing("no route checks a store"), work)
            }
            Command::Repair(args) => {
                let missing = Missing("no route checks a store");
                (if_changes(args.accept_shorter), missing, printed(args, repair::repair))
            }
            Command::Migrate(args) => {
                let missing = Missing("a server opened its store as it began");
                (Persons, missing, printed(args, repair::migrate))
            }
            Command::State(args) => {
                let missing = Missing("use the routes below /v1/state, or outlast.Statehouse");
                let (rule, work) = match &args.command {
                    state::StateCommand::Restore(args) => (Persons, printed(args, state::restore)),
                    state::StateCommand::Keep(keep) => {
                        (if_changes(keep.versions.is_some()), on(Store, args, state::state))
                    }
                    _ => (Free, on(Store, args, state::state)),
                };
                (rule, missing, work)
            }
            Command::Ctx(args) => (Free, ThisMachine, on(AsItIs, args, ctx::ctx)),
            Command::ShellInit(args) => (Free, ThisMachine, printed(args, loops::print)),
            Command::ShellLoop(args) => {
                let work = printed(args, |args, context, page| {
                    MachineError::check()?;
                    loops::verbs::act(args, context, page)
                });
                (Free, ThisMachine, work)
            }
            // Whoever tells can send what it likes to a person's endpoints.
            Command::Notify(args) => {
                let missing = Missing("endpoints are in the settings of its machine");
                (if_changes(args.changes()), missing, printed(args, notify::notify))
            }
            Command::Service(args) => {
                (if_changes(args.changes()), ThisMachine, printed(args, service::service))
            }
            Command::Doctor(args) => (Free, ThisMachine, printed(args, doctor::doctor)),
            // Where a person begins. An agent has no use for it.
            Command::Init(args) => (Persons, ThisMachine, printed(args, init::init)),
            // A file that is trusted can lift a limit.
            Command::Trust(args) => (Persons, ThisMachine, printed(args, trust::trust)),
            Command::Completions(args) => (Free, ThisMachine, bare(args, completions::completions)),
            Command::Man(args) => (Free, ThisMachine, bare(args, |a, _, _| completions::man(a))),
            Command::Mock(args) => (Free, ThisMachine, bare(args, |a, _, _| mock::mock(a.clone()))),
            // It kills and resumes runs, and its recording is paid.
            Command::Crashtest(args) => (Persons, ThisMachine, printed(&**args, crashtest::crashtest)),
        };
        Verb { rule, over, work }
    }
}

/// Returns the store of a job or run: the record beside it if a file of results is named.
fn of_job(named: &str) -> Needs<'_> {
    if jsonl::is_file(named) { Needs::Record(named) } else { Needs::Store }
}

fn bare<'a, A, D: Done>(args: &'a A, run: fn(&A, Look, &Surroundings) -> Result<D>) -> Work<'a> {
    Work::Bare(Box::new(move |look, around| run(args, look, around).map(Done::code)))
}

fn alone<A: Clone>(args: &A, run: fn(A, Context) -> Result<u8>) -> Work<'_> {
    Work::Alone(Box::new(move |context| run(args.clone(), context)))
}

/// As [`alone`], on a machine that has what it takes to drive runs.
fn driving<A: Clone>(args: &A, run: fn(A, Context) -> Result<u8>) -> Work<'_> {
    Work::Alone(Box::new(move |context| {
        MachineError::check()?;
        run(args.clone(), context)
    }))
}

fn printed<'a, A, D: Done>(args: &'a A, run: fn(&A, &Context, &mut Page) -> Result<D>) -> Work<'a> {
    Work::Printed(Box::new(move |context, page| run(args, context, page).map(Done::code)))
}

fn on<'a, A, D: Done>(needs: Needs<'a>, args: &'a A, run: fn(&A, Desk) -> Result<D>) -> Work<'a> {
    Work::OnStore(needs, Box::new(move |desk| run(args, desk).map(Done::code)))
}

/// Does what was typed, and returns the exit code. `typed`: the whole command line as it was typed.
pub fn act(cli: &Cli, around: Surroundings, typed: Vec<OsString>) -> Result<u8> {
    let Verb { rule, work, .. } = cli.command.verb();
    let ready = |around: Surroundings| -> Result<Context> {
        let context = Context { typed: typed.into(), ..cli.globals.context(around)? };
        guard::check(&cli.word, rule, &context)?;
        Ok(context)
    };
    match work {
        Work::Bare(run) => run(cli.globals.look(&around, io::stdout().is_terminal()), &around),
        Work::Alone(run) => run(ready(around)?),
        Work::Printed(run) => {
            let context = ready(around)?;
            on_stdout(context.look, |page| {
                page.place = cli.globals.place(&context);
                run(&context, page)
            })
        }
        Work::OnStore(needs, run) => {
            let context = ready(around)?;
            if !context.is_on_terminal {
                print_whole();
            }
            let (store, by) = (needs.open(&context)?, actor(&context.around));
            let wait = &mut thread::sleep;
            on_stdout(context.look, |page| {
                page.place = cli.globals.place(&context);
                run(Desk { store: &*store, by: &by, context: &context, page, wait })
                    .map_err(|e| e.called(&*store))
            })
        }
    }
}

impl Needs<'_> {
    fn open(self, context: &Context) -> Result<Arc<dyn Store>> {
        let store = match (self, &context.server) {
            (Needs::Record(file), _) => {
                context.beside(&context.around.directory().join(file)).open(false, Default::default())?
            }
            (_, Some(_)) => context.reach()?,
            (needs, None) => context.open(needs == Needs::StoreOrNew, Default::default())?,
        };
        match self {
            Needs::Store | Needs::StoreOrNew | Needs::Record(_) => strays::look_after(&*store, context),
            Needs::AsItIs => {}
        }
        Ok(store)
    }
}

/// Prints on standard output.
pub(crate) fn on_stdout<D: Done>(look: Look, print: impl FnOnce(&mut Page) -> Result<D>) -> Result<u8> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = print(&mut Page::new(&mut out, look))?;
    Page::new(&mut out, look).flush()?;
    Ok(done.code())
}
