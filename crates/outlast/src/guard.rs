//! Guard around the agent: which commands a process of a run may type, and how such a process is known.
//!
//! A process of a run is known by its environment, by that of the processes above it, by its control group, and by a
//! supervisor above it: unsetting variables or leaving the session does not make it a person's. The guard holds against
//! an agent that is mistaken or tries. What an agent with the same user can do beside the command line, and what stops
//! that, is in docs/guides/guards.md.

use std::sync::Arc;

use outlast_core::{
    run::instance::Instance,
    store::{self, Store},
    words::id::RunId,
};
use outlast_process::{
    ancestry::{self, Ancestor},
    identity,
};

use crate::{
    agent::inside::{Inside, TOKEN},
    cli::{Command, McpArgs, ServiceVerb, notify::NotifyVerb, state::StateCommand},
    program::{
        context::Context,
        error::{CliError, CommandError},
        find::{self, Verb},
    },
    supervisor::environment::{GROUPS, MARK},
};

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

/// Returns the command's verb and its rule. The match is exhaustive: a new command does not compile without a rule.
pub fn rule(command: &Command) -> (&'static str, Rule<'_>) {
    use Rule::{Begins, Free, OwnRuns, Persons};
    let if_changes = |changes: bool| if changes { Persons } else { Free };
    match command {
        Command::Run(args) => ("run", Begins(args.run.as_ref())),
        Command::Agent(_) => ("agent", Free),
        Command::Hook(_) => ("hook", Free),
        Command::Mcp(McpArgs { run: Some(run), .. }) => ("mcp", Begins(Some(run))),
        Command::Mcp(_) => ("mcp", Free),
        // It only gives up rights.
        Command::Confined(_) => ("confined", Free),
        // Whoever serves a store answers for anybody, with a token of its own making.
        Command::Serve(_) => ("serve", Persons),
        // Whoever has its link decides.
        Command::Ui(args) => ("ui", if_changes(!args.read_only)),
        // Its keys that decide are checked when they are typed.
        Command::Watch(_) => ("watch", Free),
        Command::Ls(_) => ("ls", Free),
        Command::Show(_) => ("show", Free),
        Command::Journal(_) => ("journal", Free),
        Command::Logs(_) => ("logs", Free),
        // Who is attached types to the agent.
        Command::Attach(args) => ("attach", OwnRuns(Some(&args.run))),
        Command::Budget(args) => ("budget", if_changes(args.changes())),
        Command::Budgets(args) => ("budgets", if_changes(args.verb.is_some())),
        Command::Stop(args) => ("stop", OwnRuns(args.run.as_deref())),
        Command::Wake(_) => ("wake", Persons),
        // A resumption accepts what halted the run.
        Command::Resume(_) => ("resume", Persons),
        Command::Cancel(args) => ("cancel", OwnRuns(Some(&args.run))),
        Command::Approvals(_) => ("approvals", Free),
        Command::Approve(_) => ("approve", Persons),
        Command::Resolve(args) => ("resolve", if_changes(args.step.is_some())),
        Command::Spend(_) => ("spend", Free),
        // Lower prices are more room.
        Command::Prices(args) => ("prices", if_changes(args.verb.is_some())),
        Command::Jobs(_) => ("jobs", Free),
        Command::Inspect(_) => ("inspect", Free),
        Command::Retry(_) => ("retry", Persons),
        Command::Export(_) => ("export", Free),
        Command::Snapshot(args) => ("snapshot", OwnRuns(Some(&args.run))),
        Command::Fork(_) => ("fork", Persons),
        Command::Rm(_) => ("rm", Persons),
        Command::Gc(args) => ("gc", if_changes(!args.dry_run)),
        Command::Verify(args) => ("verify", if_changes(args.repair)),
        Command::Repair(args) => ("repair", if_changes(args.accept_shorter)),
        Command::Migrate(_) => ("migrate", Persons),
        Command::State(args) => (
            "state",
            match &args.command {
                StateCommand::Restore(_) => Persons,
                StateCommand::Keep(keep) => if_changes(keep.versions.is_some()),
                _ => Free,
            },
        ),
        Command::Ctx(_) => ("ctx", Free),
        Command::ShellInit(_) => ("shell-init", Free),
        Command::ShellLoop(_) => ("shell-loop", Free),
        // Whoever tells can send what it likes to a person's endpoints.
        Command::Notify(args) => ("notify", if_changes(!matches!(args.verb, None | Some(NotifyVerb::Ls)))),
        Command::Service(args) => ("service", if_changes(args.verb != ServiceVerb::Status && !args.print)),
        Command::Doctor(_) => ("doctor", Free),
        // A file that is trusted can lift a limit.
        Command::Trust(_) => ("trust", Persons),
        Command::Completions(_) => ("completions", Free),
        Command::Mock(_) => ("mock", Free),
    }
}

/// Checks that this process may run the command.
///
/// Errors: `not_a_persons` if a process of a run types a person's command; those of the run's token and of the store.
pub fn check(command: &Command, context: &Context) -> Result<(), CliError> {
    let (verb, rule) = rule(command);
    // A run of the same name on another machine is not this process's own.
    let rule = match rule {
        Rule::OwnRuns(_) if context.server.is_some() => Rule::Persons,
        rule => rule,
    };
    check_rule(verb, rule, context)
}

/// Checks that a person types, and no process of a run, before `verb` is done. Errors: as [`check`].
pub fn check_persons(verb: &'static str, context: &Context) -> Result<(), CliError> {
    check_rule(verb, Rule::Persons, context)
}

fn check_rule(verb: &'static str, rule: Rule, context: &Context) -> Result<(), CliError> {
    let with_token = context.around.var(TOKEN).is_some();
    // The token is what makes a run inside of a run its child.
    if rule == Rule::Free || (matches!(rule, Rule::Begins(None)) && with_token) {
        return Ok(());
    }
    let named = match rule {
        Rule::OwnRuns(named) => named,
        Rule::Begins(Some(id)) if with_token => Some(id.as_str()),
        _ => None,
    };
    let line = ancestry::line();
    let mark = mark(&line, context);
    // Where a mark decides, the store is not asked: it may be hidden from this process.
    let supervisor = match (named, &mark) {
        (None, Some(_)) => None,
        _ => supervisor(&line, context)?,
    };
    let Some(how) = mark.or_else(|| supervisor.as_ref().map(|(_, how)| how.clone())) else { return Ok(()) };
    let refused = || Err(CommandError::NotAPersons { verb, how: how.clone() }.into());
    let Some(named) = named else { return refused() };
    let Some(inside) = Inside::of(context)? else { return refused() };
    // A token can be read off another run's process; the supervisor above this one cannot be borrowed.
    if supervisor.is_some_and(|(above, _)| above.no != inside.actor.instance) {
        return refused();
    }
    let found = match rule {
        // A run that does not exist yet is begun.
        Rule::Begins(Some(id)) if inside.store.run_no(id)?.is_none() => return Ok(()),
        // The same run that the command will find.
        _ => find::run_to(inside.store.as_ref(), named, verb_of(verb))?,
    };
    if found.run.charges.contains(&inside.view.run.envelope()) { Ok(()) } else { refused() }
}

/// Returns the [`Verb`] with which a command looks up the run that is named to it.
fn verb_of(verb: &str) -> Verb {
    match verb {
        "stop" => Verb::Stop,
        "cancel" => Verb::End,
        "attach" => Verb::Attach,
        _ => Verb::Look,
    }
}

/// Returns the trace of a run in this process or one above it, in words: a variable, a control group.
fn mark(line: &[Ancestor], context: &Context) -> Option<String> {
    if let Some(variable) = [MARK, TOKEN].into_iter().find(|name| context.around.var(name).is_some()) {
        return Some(format!("{variable} is set"));
    }
    line.iter().find_map(|above| {
        let who = || format!("{}, pid {}", above.comm, above.id.pid);
        if above.began_with(MARK) {
            return Some(format!("{} above it began with {MARK}", who()));
        }
        above.group(GROUPS).map(|group| format!("{} is in the control group {group}", who()))
    })
}

/// Returns the nearest supervisor above this process, in the store, and the trace in words.
fn supervisor(line: &[Ancestor], context: &Context) -> Result<Option<(Instance, String)>, CliError> {
    // Opening the store costs milliseconds, which a person's commands are spared: these words stand in the command line
    // of every supervisor.
    let supervises = |above: &&Ancestor| above.has_argument("run") || above.has_argument("resume");
    let above: Vec<&Ancestor> = line.iter().skip(1).filter(supervises).collect();
    if above.is_empty() || context.has_no_file() {
        return Ok(None);
    }
    let store: Arc<dyn Store> = match context.open(false, Default::default()) {
        // Nobody drives a run of a store that is damaged, and a person mends it under any shell; nor one of a store
        // that is still to be made.
        Err(CliError::Store(
            store::Error::Corrupt { .. } | store::Error::Shorter { .. } | store::Error::Absent { .. },
        )) => return Ok(None),
        opened => opened?,
    };
    let Ok(me) = identity::of_self() else { return Ok(None) };
    let live = store.live_instances()?;
    Ok(above.iter().find_map(|above| {
        let found = live.iter().find(|instance| {
            let it = &instance.identity;
            (it.pid, it.start_time) == (above.id.pid, above.id.start_time)
                && (&it.boot_id, it.pid_ns) == (&me.boot_id, me.pid_ns)
        })?;
        let how = format!("{}, pid {} above it, drives a run", found.identity.program, above.id.pid);
        Some((found.clone(), how))
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn what_decides_is_a_persons_and_what_looks_is_anybodys() {
        let check = |line: &str, want: Rule| {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert_eq!(rule(&cli.command).1, want, "{line}");
        };
        for line in [
            "outlast budget r --add-usd 1",
            "outlast budget r --set-usd 1",
            "outlast budget r --lift usd",
            "outlast budgets set b --usd 9",
            "outlast budgets raise b --add-usd 9",
            "outlast budgets remove b",
            "outlast serve",
            "outlast ui",
            "outlast wake r",
            "outlast resume r",
            "outlast resume --all",
            "outlast approve apr_1_1",
            "outlast resolve r step --rerun",
            "outlast retry job --failed",
            "outlast fork r --from-snapshot 1",
            "outlast gc --older-than 1h",
            "outlast verify --repair",
            "outlast repair --accept-shorter",
            "outlast migrate",
            "outlast state keep 3",
            "outlast state restore dump",
            "outlast service install",
            "outlast service uninstall",
            "outlast prices update f --accept",
            "outlast trust",
            "outlast trust --withdraw",
        ] {
            check(line, Rule::Persons);
        }
        for line in [
            "outlast budget r",
            "outlast budgets",
            "outlast ls",
            "outlast ui --read-only",
            "outlast watch",
            "outlast show r",
            "outlast approvals",
            "outlast resolve r",
            "outlast gc --older-than 1h --dry-run",
            "outlast prices m",
            "outlast verify",
            "outlast repair",
            "outlast state keep",
            "outlast service status",
            "outlast service install --print",
        ] {
            check(line, Rule::Free);
        }
        for verb in ["stop r", "cancel r", "attach r", "snapshot r name"] {
            check(&format!("outlast {verb}"), Rule::OwnRuns(Some("r")));
        }
        check("outlast run -- true", Rule::Begins(None));
        check("outlast run --run r -- true", Rule::Begins(Some(&RunId::new("r").unwrap())));
    }
}
