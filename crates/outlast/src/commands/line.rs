//! The typed command line: parsed by its definition, with settings for what it leaves open.

use std::{
    error::Error as _,
    ffi::OsString,
    num::{ParseIntError, TryFromIntError},
};

use clap::{
    Arg, ArgMatches, FromArgMatches as _,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use outlast_core::words::BadText;

use super::{Cli, Command, Verb, command, config};
use crate::{
    program::{
        error::CliError,
        say::say,
        server::{self, Over},
    },
    settings::surroundings::Surroundings,
};

/// Parses the command line. Variables and settings files give the flags that it does not name.
///
/// Errors: `Line`, also for `--help` and `--version`, which are printed and are no failure; `Settings`.
pub fn parse(args: &[OsString], around: &Surroundings) -> Result<Cli, CliError> {
    // First without settings: help must not fail for a broken file, and the subcommand decides which settings
    // count. Required arguments are never flags, so settings cannot make an invalid line valid.
    let mut definition = command();
    let mut matches = definition.try_get_matches_from_mut(args).map_err(|e| in_our_words(e, args))?;
    let word = matches.subcommand_name().unwrap_or_default().to_owned();
    if word == "completions" || word == "man" {
        return Ok(Cli::from_arg_matches(&matches)?);
    }
    let is_typed = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let both = [Some(&matches), matches.subcommand().map(|(_, of_command)| of_command)];
        let knows = |m: &&ArgMatches| m.try_contains_id(id).is_ok();
        both.into_iter().flatten().filter(knows).any(|m| m.value_source(id) == Some(ValueSource::CommandLine))
    };
    let settings = config::defaults(&definition, &word, is_typed, around)?;
    if let Some(why) = &settings.ignored {
        let hint = why.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
        say(&format!("{why}{hint}; this file is ignored"));
    }
    if !settings.is_empty() {
        // The definition that has parsed a line is built, and takes no defaults any more.
        matches = settings.apply(command()).try_get_matches_from(args)?;
    }
    let mut cli = Cli::from_arg_matches(&matches)?;
    prefer_typed(&mut cli.command, &matches);
    cli.word.clone_from(&word);
    let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let typed = is_typed("server");
    cli.globals.names_store = is_typed("store");
    let Verb { over, .. } = cli.command.verb();
    match cli.globals.server.as_deref().filter(|server| !server.is_empty()) {
        // A server that is set for every command does not concern one that is about this machine.
        Some(_) if !typed && over == Over::ThisMachine => cli.globals.server = None,
        Some(address) => server::check(&word, over, address)?,
        None => {}
    }
    Ok(cli)
}

/// Subcommands that other programs have, each with the one of Outlast that does the same.
const ELSEWHERE: [(&str, &str); 4] = [("start", "serve"), ("list", "ls"), ("ps", "ls"), ("status", "show")];

/// Flags that people type by mistake, each with the commands that do not have it and the flag that was meant.
const MEANT: [(&str, &str, &str); 9] = [
    ("run", "--budget", "--usd"),
    ("budget", "--usd", "--add-usd"),
    ("budget", "--tokens", "--add-tokens"),
    ("budget", "--calls", "--add-calls"),
    ("budgets raise", "--usd", "--add-usd"),
    ("budgets raise", "--tokens", "--add-tokens"),
    ("budgets raise", "--calls", "--add-calls"),
    ("budgets raise", "--set-usd", "--add-usd"),
    ("budgets set", "--add-usd", "--set-usd"),
];

/// Suggests the subcommand that does what another program's does, and the flag that was meant. Likeness of letters would
/// suggest `state` for `start`, and `--agent` for `--budget`.
fn in_our_words(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((_, ours)) = ELSEWHERE.iter().find(|(theirs, _)| theirs == typed)
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![(*ours).to_owned()]));
    }
    let words: Vec<_> = args.iter().skip(1).filter_map(|word| word.to_str()).collect();
    let is_of = |command: &str| command.split(' ').all(|word| words.contains(&word));
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg)
        && let Some((_, _, ours)) = MEANT.iter().find(|(of, flag, _)| flag == typed && is_of(of))
    {
        error.insert(ContextKind::SuggestedArg, ContextValue::String((*ours).to_owned()));
    }
    // A flag behind `--` is no flag: it does not lead on.
    error.remove(ContextKind::TrailingArg);
    if matches!(error.get(ContextKind::Suggested), Some(ContextValue::StyledStrs(tips)) if tips.iter().any(is_of_dashes))
    {
        error.remove(ContextKind::Suggested);
    }
    let is_number =
        error.source().is_some_and(|why| why.is::<ParseIntError>() || why.is::<TryFromIntError>());
    if is_number {
        // The standard library's words tell what failed in the parser, and not what is wanted.
        let told = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
        let (value, flag) = (told(ContextKind::InvalidValue), told(ContextKind::InvalidArg));
        let why = BadText::new("a whole number", &value, "for example 20");
        let message =
            format!("invalid value '{value}' for '{flag}': {why}\n\nFor more information, try '--help'.\n");
        return clap::Error::raw(ErrorKind::ValueValidation, message);
    }
    error
}

fn is_of_dashes(tip: &StyledStr) -> bool {
    tip.to_string().contains("as a value, use")
}

/// Resolves conflicts between options that exclude each other: a typed one wins over a setting.
fn prefer_typed(command: &mut Command, matches: &ArgMatches) {
    let Some((_, matches)) = matches.subcommand() else { return };
    let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    match command {
        Command::Run(args) if typed("new") => args.run = None,
        Command::Run(args) if args.run.is_some() => args.new = false,
        _ => {}
    }
}

/// Returns whether errors are wanted as JSON. For a command line that could not be parsed.
pub fn wants_json(args: &[OsString], around: &Surroundings) -> bool {
    let own = args.iter().skip(1).take_while(|a| *a != "--");
    own.into_iter().any(|a| a == "--json") || around.var("OUTLAST_JSON").is_some_and(config::is_yes)
}
