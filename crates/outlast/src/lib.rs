//! The product: the command line and the supervisor. The only place where the pieces meet.
//!
//! `main` parses the command line (`cli`, with `settings` for what it leaves open), makes a `Context`, and
//! calls one command. Commands that look at runs or change them are in `commands`, printed by `render`;
//! `supervisor`, `serve` and `serve::mock` run until they are done.
//!
//! Unsafe code: the fork that puts a supervisor behind the terminal of the process that was typed (`supervisor/front.rs`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod cli;
pub mod commands;
pub mod digest;
pub mod files;
pub mod guard;
pub mod logs;
pub mod loops;
pub mod mcp;
pub mod notify;
pub mod program;
pub mod render;
pub mod serve;
pub mod settings;
pub mod supervisor;
pub mod watch;

use std::{ffi::OsString, io, path::PathBuf, process::ExitCode, sync::OnceLock, thread, time::Duration};

use outlast_core::store::Store;

use crate::{
    cli::{Cli, Command, ExportArgs, ForkArgs, PricesArgs, PricesVerb, RetryArgs, SnapshotArgs, VerifyArgs},
    program::{
        actor::actor,
        context::Context,
        error::{CliError, MachineError},
        exit_code, find, jsonl, line,
        run_directory::RunDirectory,
        say,
    },
    render::{
        look::{Look, Page},
        time,
    },
    settings::surroundings::Surroundings,
};

/// Interval at which a followed journal is read again.
const FOLLOW: Duration = Duration::from_millis(200);

/// Runs the command line and returns its exit code. See `exit_code`.
///
/// Blocks until the command is done. Prints to this process's stdout and stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(exit_of(args))
}

/// Runs the command line as [`main`] does, and returns the exit code as a number, for callers outside Rust.
pub fn exit_of(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let around = Surroundings::of_process();
    time::set_zone(time::zone_of(&around));
    let (json, done) = match line::parse(&args, &around) {
        Ok(cli) => (cli.globals.json, dispatch(cli, around, args.clone())),
        Err(e) => (line::wants_json(&args, &around), Err(e)),
    };
    let code = done.unwrap_or_else(|e| {
        let code = e.report(json);
        // Otherwise a shell that evaluates empty output would go on as if the command had succeeded.
        if code != exit_code::OK && args.iter().take_while(|a| *a != "--").any(|a| a == "shell-init") {
            println!("{}", loops::end_with(code));
        }
        code
    });
    say::over(code);
    code
}

/// Program that starts another `outlast`, if this process's own file cannot: an interpreter.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that starts another `outlast`. Later calls have no effect.
pub fn set_program(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Returns the program that starts another `outlast`: this process's own file, unless [`set_program`] named
/// another.
pub fn program() -> io::Result<PathBuf> {
    PROGRAM.get().cloned().map_or_else(std::env::current_exe, Ok)
}

/// Runs the parsed command. `typed`: the whole command line as it was typed.
fn dispatch(cli: Cli, around: Surroundings, typed: Vec<OsString>) -> Result<u8, CliError> {
    // These commands need no store.
    let command = match cli.command {
        Command::Mock(args) => return serve::mock::mock(args),
        Command::Confined(args) => return commands::confined::confined(&args),
        Command::Completions(args) => {
            let look = Look::of_stdout(&cli.globals, &around);
            return printed(look, |page| commands::completions::completions(&args, page));
        }
        Command::Man(args) => {
            commands::completions::man(&args)?;
            return Ok(exit_code::OK);
        }
        Command::Prices(args) if args.verb.is_none() => {
            let look = Look::of_stdout(&cli.globals, &around);
            return printed(look, |page| commands::prices::prices(&args, &around, page));
        }
        other => other,
    };
    let context = Context { typed: typed.into(), ..Context::new(&cli.globals, around)? };
    let (look, by) = (context.look, actor(&context.around));
    guard::check(&command, &context)?;
    if let Command::Run(_)
    | Command::Resume(_)
    | Command::Serve(_)
    | Command::Mcp(_)
    | Command::ShellLoop(_) = command
    {
        MachineError::check()?;
    }
    match command {
        Command::Run(args) => supervisor::run(*args, context),
        Command::Resume(args) => supervisor::resume(args, context),
        Command::Agent(args) => agent::command::agent(args, context),
        Command::Hook(_) => agent::hook::hook(&context),
        Command::Mcp(args) => mcp::mcp(args, context),
        Command::Serve(args) => serve::serve(args, context),
        Command::Ui(args) => serve::ui::ui(&args, context),
        Command::Watch(args) => {
            let store = context.reach()?;
            look_after(&*store, &context);
            watch::watch(&*store, &args, &context)
        }
        Command::Ctx(ref args) => {
            let store = context.open(false, Default::default())?;
            printed(look, |page| commands::ctx::ctx(&*store, args, &context, page))
        }
        Command::ShellInit(ref args) => printed(look, |page| loops::print(args, &context, page)),
        Command::ShellLoop(ref args) => printed_code(look, |page| loops::verbs::act(args, &context, page)),
        Command::Doctor(_) => printed_code(look, |page| commands::doctor::doctor(&context, page)),
        Command::Inspect(ref args) if jsonl::is_file(&args.job) => {
            let path = context.around.directory().join(&args.job);
            if !jsonl::record(&path).exists() {
                return printed(look, |page| commands::inspect::inspect_lines(&path, args, page));
            }
            on_store(command, &*context.beside(&path).open(false, Default::default())?, &by, &context)
        }
        Command::Fork(ref args) if args.into.is_some() => {
            let store = context.open(false, Default::default())?;
            printed(look, |page| commands::fork::fork_into(&*store, &by, args, &context, page))
        }
        Command::Retry(RetryArgs { ref job, .. })
        | Command::Export(ExportArgs { ref job, .. })
        | Command::Snapshot(SnapshotArgs { run: ref job, .. })
        | Command::Fork(ForkArgs { run: ref job, .. })
            if jsonl::is_file(job) =>
        {
            let path = context.around.directory().join(job);
            on_store(command, &*context.beside(&path).open(false, Default::default())?, &by, &context)
        }
        Command::Verify(VerifyArgs { file: Some(ref file), repair }) => {
            let path = context.around.directory().join(file);
            printed_code(look, |page| commands::verify::verify_lines(&path, repair, page))
        }
        Command::Repair(ref args) => {
            printed_code(look, |page| commands::repair::repair(&context, args, page))
        }
        Command::Prices(PricesArgs { verb: Some(PricesVerb::Update(ref args)), .. }) => {
            printed(look, |page| commands::price_update::update(args, &context.around, page))
        }
        Command::Init(_) => printed(look, |page| commands::init::init(&context.around, page)),
        Command::Trust(args) => printed(look, |page| commands::trust::trust(&context.around, &args, page)),
        Command::Migrate(_) => printed(look, |page| commands::migrate::migrate(&context, page)),
        Command::Notify(ref args) => {
            printed_code(look, |page| commands::notify::notify(args, &context, page))
        }
        Command::Service(args) => printed(look, |page| commands::service::service(&context, &args, page)),
        Command::Show(args) => {
            let store = context.reach()?;
            look_after(&*store, &context);
            let logs = |id: &_| match context.server {
                None => Some(RunDirectory::of(&context.place, id, &context.around).ok()?.logs()),
                Some(_) => None,
            };
            printed(look, |page| {
                commands::show::show(&*store, &logs, context.around.directory(), &args, page)
            })
        }
        Command::Approve(args) => {
            let store = context.reach()?;
            printed(look, |page| commands::approvals::approve(&*store, &by, &context.around, &args, page))
        }
        Command::Attach(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            commands::attach::attach(&*store, &context, &args)
        }
        Command::Files(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            printed_code(look, |page| commands::files::files(&*store, &args, &context, page))
        }
        Command::Undo(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            printed_code(look, |page| commands::files::undo(&*store, &args, &context, page))
        }
        Command::Rm(args) => {
            let store = context.open(false, Default::default())?;
            serve::proxy_setup::bury(&*store, &*context.clock);
            let directory =
                |id: &_| Ok(RunDirectory::of(&context.place, id, &context.around)?.path().to_owned());
            let code = printed(look, |page| commands::rm::rm(&*store, &directory, &args, page))?;
            files::upkeep::collect(&*store, &context.place)?;
            Ok(code)
        }
        Command::Gc(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            let code = printed(look, |page| commands::gc::gc(&*store, &args, page))?;
            if !args.dry_run {
                files::upkeep::collect(&*store, &context.place)?;
            }
            Ok(code)
        }
        Command::Verify(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            let of_files = files::upkeep::damage(&*store, &context.place)?;
            printed_code(look, |page| commands::verify::verify(&*store, of_files, &args, page))
        }
        Command::Stop(args) => {
            let store = context.reach()?;
            look_after(&*store, &context);
            let here = context.around.directory();
            printed_code(look, |page| {
                commands::stop::stop(&*store, &by, here, &args, page, &mut thread::sleep)
            })
        }
        Command::Digest(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            printed(look, |page| commands::digest::digest(&*store, &context, &args, page))
        }
        Command::Logs(args) => {
            let store = context.open(false, Default::default())?;
            look_after(&*store, &context);
            printed(look, |page| {
                commands::logs::logs(&*store, &context, &args, page, &mut || thread::sleep(FOLLOW))
            })
        }
        other => {
            // A dump may be restored to a new store, and a budget may be set before the first run.
            let create = matches!(
                &other,
                Command::State(cli::StateArgs { command: cli::state::StateCommand::Restore(_) })
                    | Command::Budgets(cli::BudgetsArgs { verb: Some(cli::BudgetsVerb::Set(_)) })
            );
            let store = match context.server {
                Some(_) => context.reach()?,
                None => context.open(create, Default::default())?,
            };
            look_after(&*store, &context);
            on_store(other, &*store, &by, &context)
        }
    }
}

/// Declares the dead supervisors of this machine dead, and ends the processes that they left. Without this, a
/// person who looks after a kill -9 would read that the run is running. A sweep that fails is repeated by
/// whoever resumes the run.
pub(crate) fn look_after(store: &dyn Store, context: &Context) {
    if store.is_remote() {
        return;
    }
    for id in serve::proxy_setup::bury(store, &*context.clock) {
        let swept = find::run(store, id.as_str()).and_then(|view| supervisor::strays::sweep(store, &view));
        if let Err(e) = swept {
            say::say(&format!("{id}: what a killed supervisor left could not be ended: {e}"));
        }
    }
}

/// Runs the commands that look at runs and change them, in the name of `by`.
fn on_store(command: Command, store: &dyn Store, by: &str, context: &Context) -> Result<u8, CliError> {
    let (look, here) = (context.look, context.around.directory());
    match command {
        Command::Ls(args) => printed(look, |page| commands::ls::ls(store, here, &args, page)),
        Command::Journal(args) => printed(look, |page| {
            commands::journal::journal(store, here, &args, page, &mut || thread::sleep(FOLLOW))
        }),
        Command::Budgets(args) => printed(look, |page| commands::budgets::budgets(store, by, &args, page)),
        Command::Budget(args) => printed(look, |page| commands::budget::budget(store, by, here, &args, page)),
        Command::Spend(args) => printed(look, |page| commands::spend::spend(store, &args, page)),
        Command::State(args) => {
            printed(look, |page| commands::state::state(store, &args, page, &mut || thread::sleep(FOLLOW)))
        }
        Command::Approvals(args) => printed(look, |page| commands::approvals::approvals(store, &args, page)),
        Command::Resolve(args) => printed(look, |page| commands::resolve::resolve(store, &args, page)),
        Command::Wake(args) => printed_code(look, |page| commands::wake::wake(store, by, &args, page)),
        Command::Cancel(args) => printed_code(look, |page| commands::cancel::cancel(store, by, &args, page)),
        Command::Jobs(args) => printed(look, |page| commands::jobs::jobs(store, &args, page)),
        Command::Inspect(args) => printed(look, |page| commands::inspect::inspect(store, &args, page)),
        Command::Retry(args) => printed(look, |page| commands::retry::retry(store, by, &args, page)),
        Command::Export(args) => printed(look, |page| commands::export::export(store, &args, page)),
        Command::Snapshot(args) => printed(look, |page| commands::fork::name(store, &args, page)),
        Command::Fork(args) => printed(look, |page| commands::fork::fork(store, by, &args, page).map(drop)),
        // `dispatch` has taken every other command.
        _ => Err(CliError::usage("this command works on no store", None)),
    }
}

fn printed(look: Look, command: impl FnOnce(&mut Page) -> Result<(), CliError>) -> Result<u8, CliError> {
    printed_code(look, |page| command(page).map(|()| exit_code::OK))
}

fn printed_code(look: Look, command: impl FnOnce(&mut Page) -> Result<u8, CliError>) -> Result<u8, CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let code = command(&mut Page::new(&mut out, look))?;
    Page::new(&mut out, look).flush()?;
    Ok(code)
}
