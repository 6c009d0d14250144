//! Guard around the agent: which commands a process of a run may type, and how such a process is known.
//!
//! A process of a run is known by its environment, by that of the processes above it, by its control group, and by a
//! supervisor above it: unsetting variables or leaving the session does not make it a person's. The guard holds against
//! an agent that is mistaken or tries. What an agent with the same user can do beside the command line, and what stops
//! that, is in docs/guides/guards.md.

use std::sync::Arc;

use outlast_core::{
    run::{Identity, Instance},
    store::{self, Store},
    words::RunId,
};
use outlast_process::{
    ancestry::{self, Program},
    identity,
};

use crate::{
    agent::inside::Inside,
    program::{
        context::Context,
        error::{CliError, CommandError},
        find::{self, Verb},
        mark::GROUPS,
        told,
    },
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
    /// refused: the last run of the directory may be anybody's. The verb is what the run is looked up for.
    OwnRuns(Option<&'a str>, Verb),
    /// Refused: the command changes limits, other runs, policies or the store, and only a person may do that.
    Persons,
}

/// Checks that this process may run the command `verb`.
///
/// Errors: `not_a_persons` if a process of a run types a person's command; those of the run's token and of the store.
pub fn check(verb: &str, rule: Rule, context: &Context) -> Result<(), CliError> {
    // A run of the same name on another machine is not this process's own.
    let rule = match rule {
        Rule::OwnRuns(..) if context.server.is_some() => Rule::Persons,
        rule => rule,
    };
    check_here(verb, rule, context)
}

/// Checks that a person types, and no process of a run, before `verb` is done. Errors: as [`check`].
pub fn check_persons(verb: &str, context: &Context) -> Result<(), CliError> {
    check_here(verb, Rule::Persons, context)
}

fn check_here(verb: &str, rule: Rule, context: &Context) -> Result<(), CliError> {
    let with_token = context.around.var(told::TOKEN).is_some();
    // The token is what makes a run inside of a run its child.
    if rule == Rule::Free || (matches!(rule, Rule::Begins(None)) && with_token) {
        return Ok(());
    }
    let (named, looked_up_to) = match rule {
        Rule::OwnRuns(named, verb) => (named, verb),
        Rule::Begins(Some(id)) if with_token => (Some(id.as_str()), Verb::Look),
        _ => (None, Verb::Look),
    };
    let line = ancestry::line();
    let mark = mark(&line, context);
    // Where a mark decides, the store is not asked: it may be hidden from this process.
    let supervisor = match (named, &mark) {
        (None, Some(_)) => None,
        _ => supervisor(&line, context)?,
    };
    let Some(how) = mark.or_else(|| supervisor.as_ref().map(|(_, how)| how.clone())) else { return Ok(()) };
    let refused = || Err(CommandError::NotAPersons { verb: verb.to_owned(), how: how.clone() }.into());
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
        _ => find::run_to(inside.store.as_ref(), named, looked_up_to)?,
    };
    if found.run.charges.contains(&inside.view.run.envelope()) { Ok(()) } else { refused() }
}

/// Returns the trace of a run in this process or one above it, in words: a variable, a control group.
fn mark(line: &[Program], context: &Context) -> Option<String> {
    if let Some(variable) =
        [told::MARK, told::TOKEN].into_iter().find(|name| context.around.var(name).is_some())
    {
        return Some(format!("{variable} is set"));
    }
    line.iter().find_map(|above| {
        let who = || format!("{}, pid {}", above.comm, above.id.pid);
        if above.began_with(told::MARK) {
            return Some(format!("{} above it began with {}", who(), told::MARK));
        }
        above.group(GROUPS).map(|group| format!("{} is in the control group {group}", who()))
    })
}

/// Returns the nearest supervisor above this process, in the store, and the trace in words.
fn supervisor(line: &[Program], context: &Context) -> Result<Option<(Instance, String)>, CliError> {
    // Opening the store costs milliseconds, which a person's commands are spared: these words stand in the command line
    // of every supervisor.
    let supervises = |above: &&Program| above.has_argument("run") || above.has_argument("resume");
    let above: Vec<&Program> = line.iter().skip(1).filter(supervises).collect();
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
        let it = Identity { pid: above.id.pid, start_time: above.id.start_time, ..me.clone() };
        let found = live.iter().find(|instance| it.is_same_process(&instance.identity))?;
        let how = format!("{}, pid {} above it, drives a run", found.identity.program, above.id.pid);
        Some((found.clone(), how))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::Parser as _;

    #[test]
    fn what_decides_is_a_persons_and_what_looks_is_anybodys() {
        let check = |line: &str, want: Rule| {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert_eq!(cli.command.verb().rule, want, "{line}");
        };
        for line in [
            "outlast budget r --add-usd 1",
            "outlast budget r --set-usd 1",
            "outlast budget r --no-limit usd",
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
            "outlast service remove",
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
        for (line, verb) in [
            ("outlast stop r", Verb::Stop),
            ("outlast cancel r", Verb::End),
            ("outlast attach r", Verb::Attach),
            ("outlast snapshot r name", Verb::Branch),
        ] {
            check(line, Rule::OwnRuns(Some("r"), verb));
        }
        check("outlast run -- true", Rule::Begins(None));
        check("outlast run --run r -- true", Rule::Begins(Some(&RunId::new("r").unwrap())));
    }
}
