//! Table of the commands: the name of each, who may type it, and whether it works over a server.

use outlast_core::words::id::RunId;

use super::{Command, McpArgs, ServiceVerb, files::FilesVerb, notify::NotifyVerb, state::StateCommand};

/// Command as a row: its name, who may type it, and whether it works over a server.
#[derive(Clone, Copy, Debug)]
pub struct Verb<'a> {
    pub name: &'static str,
    pub rule: Rule<'a>,
    pub over: Over,
}

/// Rule for a command that a process of a run types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule<'a> {
    /// Allowed: the command only reads, or acts for the run to which its own process belongs.
    Free,
    /// Allowed with the run's token: the command begins a new run, or continues the named one, as a child of
    /// this process's run.
    Begins(Option<&'a RunId>),
    /// Allowed for the process's own run, or one that was started inside it. `None`, a command without a run's name, is
    /// refused: the last run of the directory may be anybody's.
    OwnRuns(Option<&'a str>),
    /// Refused: the command changes limits, other runs, policies or the store, and only a person may do that.
    Persons,
}

/// Whether and how a command works with a server in place of a local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The command does the same, on the server's store.
    Server,
    /// The command is about this machine. `--server` is refused, and a variable or setting does not concern it.
    ThisMachine,
    /// The server has no route that does this, and the command is typed on the server's machine.
    NoRoute(&'static str),
    /// The server has no route for what the command reads or changes; the text names what is missing.
    Missing(&'static str),
}

/// Returns the command's row. The match is exhaustive: a new command does not compile without one.
pub fn verb(command: &Command) -> Verb<'_> {
    use Over::{Missing, NoRoute, Server, ThisMachine};
    use Rule::{Begins, Free, OwnRuns, Persons};
    let if_changes = |changes: bool| if changes { Persons } else { Free };
    let (name, rule, over) = match command {
        Command::Run(args) => ("run", Begins(args.run.as_ref()), ThisMachine),
        Command::Agent(_) => ("agent", Free, ThisMachine),
        Command::Hook(_) => ("hook", Free, ThisMachine),
        Command::Mcp(McpArgs { run: Some(run), .. }) => ("mcp", Begins(Some(run)), ThisMachine),
        Command::Mcp(_) => ("mcp", Free, ThisMachine),
        // It only gives up rights.
        Command::Confined(_) => ("confined", Free, ThisMachine),
        // Whoever serves a store answers for anybody, with a token of its own making.
        Command::Serve(_) => ("serve", Persons, ThisMachine),
        // Whoever has its link decides.
        Command::Ui(args) => ("ui", if_changes(!args.read_only), ThisMachine),
        // Its keys that decide are checked when they are typed.
        Command::Watch(_) => ("watch", Free, Server),
        Command::Ls(_) => ("ls", Free, Server),
        Command::Show(_) => ("show", Free, Server),
        Command::Journal(_) => ("journal", Free, Server),
        Command::Logs(_) => ("logs", Free, Missing("logs are files of its machine, and no route reads them")),
        // Who is attached types to the agent.
        Command::Attach(args) => {
            ("attach", OwnRuns(Some(&args.run)), Missing("no route has a run's terminal"))
        }
        Command::Budget(args) => ("budget", if_changes(args.changes()), Server),
        Command::Budgets(args) => ("budgets", if_changes(args.verb.is_some()), Server),
        Command::Stop(args) => ("stop", OwnRuns(args.run.as_deref()), Server),
        Command::Wake(_) => ("wake", Persons, Server),
        // A resumption accepts what halted the run.
        Command::Resume(_) => ("resume", Persons, NoRoute("starts a run's supervisor")),
        Command::Cancel(args) => ("cancel", OwnRuns(Some(&args.run)), Server),
        Command::Approvals(_) => ("approvals", Free, Server),
        Command::Approve(_) => ("approve", Persons, Server),
        Command::Resolve(args) => {
            ("resolve", if_changes(args.step.is_some()), NoRoute("resolves a step or a tool call in doubt"))
        }
        Command::Spend(_) => ("spend", Free, Server),
        Command::Digest(_) => {
            ("digest", Free, Missing("what runs printed and committed is on the machine of its store"))
        }
        // Lower prices are more room.
        Command::Prices(args) => ("prices", if_changes(args.verb.is_some()), ThisMachine),
        Command::Jobs(_) => ("jobs", Free, Server),
        Command::Inspect(_) => ("inspect", Free, Server),
        Command::Retry(_) => ("retry", Persons, Server),
        Command::Export(_) => ("export", Free, NoRoute("writes a run's results")),
        Command::Snapshot(args) => ("snapshot", OwnRuns(Some(&args.run)), NoRoute("names a snapshot")),
        Command::Fork(args) => {
            let missing = Missing("files are on its machine, and no route reads them");
            ("fork", Persons, if args.into.is_some() { missing } else { Server })
        }
        Command::Files(args) => {
            let restores = matches!(args.verb, Some(FilesVerb::Restore(_)));
            ("files", if_changes(restores), Missing("files are on its machine, and no route reads them"))
        }
        Command::Undo(_) => ("undo", Persons, Missing("files are on its machine, and no route reads them")),
        Command::Rm(_) => ("rm", Persons, NoRoute("removes runs")),
        Command::Gc(args) => ("gc", if_changes(!args.dry_run), NoRoute("removes runs")),
        Command::Verify(args) => ("verify", if_changes(args.repair), Missing("no route checks a store")),
        Command::Repair(args) => {
            ("repair", if_changes(args.accept_shorter), Missing("no route checks a store"))
        }
        Command::Migrate(_) => ("migrate", Persons, Missing("a server opened its store as it began")),
        Command::State(args) => (
            "state",
            match &args.command {
                StateCommand::Restore(_) => Persons,
                StateCommand::Keep(keep) => if_changes(keep.versions.is_some()),
                _ => Free,
            },
            Missing("use the routes below /v1/state, or outlast.Statehouse"),
        ),
        Command::Ctx(_) => ("ctx", Free, ThisMachine),
        Command::ShellInit(_) => ("shell-init", Free, ThisMachine),
        Command::ShellLoop(_) => ("shell-loop", Free, ThisMachine),
        // Whoever tells can send what it likes to a person's endpoints.
        Command::Notify(args) => (
            "notify",
            if_changes(!matches!(args.verb, None | Some(NotifyVerb::Ls))),
            Missing("endpoints are in the settings of its machine"),
        ),
        Command::Service(args) => {
            ("service", if_changes(args.verb != ServiceVerb::Status && !args.print), ThisMachine)
        }
        Command::Doctor(_) => ("doctor", Free, ThisMachine),
        // Where a person begins. An agent has no use for it.
        Command::Init(_) => ("init", Persons, ThisMachine),
        // A file that is trusted can lift a limit.
        Command::Trust(_) => ("trust", Persons, ThisMachine),
        Command::Completions(_) => ("completions", Free, ThisMachine),
        Command::Man(_) => ("man", Free, ThisMachine),
        Command::Mock(_) => ("mock", Free, ThisMachine),
    };
    Verb { name, rule, over }
}
