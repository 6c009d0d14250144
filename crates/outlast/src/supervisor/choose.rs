//! Finds the run that a command line means: a new one, a named one, or the interrupted one of this command.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, Read as _},
    path::Path,
};

use outlast_core::{
    engine::{self, Hold, Start},
    envelope::{Limits, Unit},
    journal::Payload,
    price::has_family,
    run::{Command, KeptFiles, Looping, Masks, Policy, Prices, Pty, Spec, Status, Supervision, Unpriced},
    store::{self, Ask as _, Durability, RunFilter, RunView},
    words::{RunId, RunNo, clock::random},
};

use outlast_files::Size;
use outlast_server::node::Node;

use super::drive::iterate;
use crate::{
    agent::{self, Choice},
    cli::RunArgs,
    files::Files,
    program::{
        checkout,
        context::Context,
        error::{CliError, CommandError, InputError, RunError},
        find, host,
        say::say,
    },
    render::{
        amount::some,
        short::{called, short},
        talk,
    },
    settings::{budgets, env_file, keys, prices, store_address::StoreAddress, upstreams},
};

/// Largest standard input that is kept with a run, in bytes.
const MAX_STDIN: u64 = 256 << 20;

/// Most unfinished runs of a command, in each status, among which one is looked for.
const MOST: usize = 200;

/// Largest tree whose files are kept by themselves: its first snapshot, before the agent starts, takes less than half a
/// second, each later one some 20 ms beside a call.
const AT_ONCE: Size = Size { files: 5_000, bytes: 64 << 20 };

/// Most room that the files of all runs may have for files to be kept by themselves.
const ROOM: u64 = 1 << 30;

/// Finds the run that `outlast run` continues, or creates a new one.
///
/// `begun_with` is stored with a new run for its resumption.
pub fn run(
    args: &RunArgs,
    context: &Context,
    node: &Node,
    begun_with: BegunWith,
) -> Result<RunView, CliError> {
    let store = node.store().as_ref();
    let key = command_key(args, context, begun_with.parent);
    let line = Line { node, key, name: args.name.as_deref() };
    let mut seen = None;
    if let Some(id) = &args.run {
        if let Some(no) = store.run_no(id)? {
            let view = find::view(store, no)?;
            same_command(args, &view)?;
            check_free(node, &view)?;
            say_what_stays(args, context, &view);
            return Ok(view);
        }
    } else if !args.new {
        let (newest, unfinished) = line.search()?;
        if let Some(view) = unfinished {
            check_free(node, &view)?;
            if view.run.status != Status::Halted {
                let id = called(&view);
                let how = if view.run.status == Status::Sleeping { "sleeping" } else { "interrupted" };
                say(&format!("resuming {id}, the {how} run of this command (--new starts afresh)"));
                say_what_stays(args, context, &view);
            }
            return Ok(view);
        }
        seen = Some(newest);
    }
    create(args, context, &line, begun_with, seen)
}

/// Settings stored with a new run, so that its resumption uses the same.
pub struct BegunWith {
    pub upstreams: BTreeMap<String, String>,
    /// Names of the environment variables whose provider keys are present.
    pub keys: Vec<String>,
    pub prices: Prices,
    pub masks: Option<Masks>,
    /// Subscription whose login pays for the calls, such as `claude.ai`; `None` if a key pays.
    pub login: Option<&'static str>,
    /// Run inside which this process runs, and whose budget pays for the new run too; `None` outside of a run.
    pub parent: Option<RunNo>,
}

/// Checks that the typed command is the one that the run began with. A different command would otherwise be
/// ignored silently.
fn same_command(args: &RunArgs, view: &RunView) -> Result<(), CliError> {
    let id = called(view);
    match &view.spec.command {
        Some(command) if command.argv != args.command => Err(CliError::usage(
            format!("run {id} was begun with another command: {}", command.argv.join(" ")),
            Some(&format!("go on with `outlast resume {id}`, or give another id with --run")),
        )),
        Some(command) if command.looping.is_some() != args.looping.on => {
            let (was, with) = match args.looping.on {
                true => ("as no loop", "without --loop"),
                false => ("as a loop", "with --loop"),
            };
            Err(CliError::usage(
                format!("run {id} was begun {was}"),
                Some(&format!("go on with it {with}, or give another id with --run")),
            ))
        }
        _ => Ok(()),
    }
}

fn say_what_stays(args: &RunArgs, context: &Context, view: &RunView) {
    let id = called(view);
    if looping(args, context).is_some_and(|typed| view.spec.looping() != Some(&typed)) {
        say(&format!("{id} exists: its loop ends as it was begun to (--new begins another)"));
    }
    if args.limits.any() {
        say(&format!("{id} exists: its limits stay as they are (`outlast budget {id}` changes them)"));
    }
    if args.plan.as_ref().is_some_and(|typed| view.spec.plan.as_ref() != Some(typed)) {
        let kept = view.spec.plan.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        say(&format!(
            "{id} exists: its ceilings on the plan stay as they are ({kept}; --new begins another)"
        ));
    }
    let kept = view.spec.rules.as_ref().map(|rules| rules.policy.as_str());
    if args.named_policy.as_deref().is_some_and(|typed| kept != Some(typed)) {
        say(&format!("{id} exists: it stays under the policy it was begun with (a new run is with --new)"));
    }
    let kept = view.spec.command.as_ref().map(|command| &command.supervision);
    let decided = kept.and_then(|kept| kept.files.clone());
    let typed = Supervision { pty: Pty::Auto, ..supervision(args, context, decided) };
    if !typed.is_usual() && kept.is_none_or(|kept| typed != Supervision { pty: Pty::Auto, ..kept.clone() }) {
        say(&format!("{id} exists: its processes are held as it was begun (a new run is with --new)"));
    }
}

/// A command line, by which its run is found again.
struct Line<'a> {
    node: &'a Node,
    /// The command in its directory: see [`command_key`].
    key: String,
    /// Only runs of this name count; `None`: all of the command.
    name: Option<&'a str>,
}

impl Line<'_> {
    /// Finds the one unfinished run of this command in this directory: the one that nobody drives, else the newest that
    /// goes on. Returns it with the newest run of the command that the search has seen.
    ///
    /// Errors: several such runs exist that nobody drives.
    fn search(&self) -> Result<(RunNo, Option<RunView>), CliError> {
        let of_command = RunFilter { command_key: Some(self.key.clone()), limit: 1, ..RunFilter::default() };
        let newest = self.node.store().runs(&of_command)?.first().map_or(RunNo(0), |view| view.run.no);
        let driven = [Status::Running, Status::Waiting];
        if !self.runs(&driven)?.is_empty() {
            // The process that drove it may have died where we cannot see it, for example in a container killed a
            // moment ago.
            self.node.await_verdicts()?;
        }
        let resumable = self.runs(&[Status::Interrupted, Status::Halted, Status::Sleeping])?;
        if resumable.len() > 1 {
            let first = resumable.iter().take(5).map(|v| format!("{} ({})", short(v), v.run.status.name()));
            return Err(RunError::SeveralRuns { count: resumable.len(), first: first.collect() }.into());
        }
        let found = if resumable.is_empty() { self.runs(&driven)? } else { resumable };
        Ok((newest, found.into_iter().next()))
    }

    /// Returns the runs of this line that have one of the statuses, newest first. Finished runs are not read: a command has
    /// as many as it has been run.
    fn runs(&self, statuses: &[Status]) -> Result<Vec<RunView>, CliError> {
        let mut found = Vec::new();
        for status in statuses {
            found.extend(self.node.store().runs(&RunFilter {
                status: Some(*status),
                command_key: Some(self.key.clone()),
                limit: MOST,
                ..RunFilter::default()
            })?);
        }
        found.retain(|v| self.name.is_none_or(|name| v.spec.name.as_deref() == Some(name)));
        found.sort_by_key(|v| std::cmp::Reverse(v.run.no));
        Ok(found)
    }
}

/// Takes the lease of a run that goes on for this process until it leaves, before anything is said or started.
///
/// Errors: `RunHeld` if another live process drives the run. A holder that cannot be seen from here may be dead, so this
/// waits once until that is decided.
pub(super) fn check_free(node: &Node, view: &RunView) -> Result<(), CliError> {
    let goes_on = matches!(view.run.status, Status::Running | Status::Waiting | Status::Sleeping);
    if goes_on && is_held(node, view.run.no)? {
        node.await_verdicts()?;
        hold(node, view.run.no)?;
    }
    Ok(())
}

/// Returns whether another live process holds the run and will wake it. If not, takes the lease for this
/// process until it leaves.
pub(super) fn is_held(node: &Node, run: RunNo) -> Result<bool, CliError> {
    match hold(node, run) {
        Ok(()) => Ok(false),
        Err(store::Error::Engine(engine::Error::RunHeld { .. })) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

fn hold(node: &Node, run: RunNo) -> Result<(), store::Error> {
    node.store().ask(Hold { run, instance: node.instance() }, Durability::Synced).wait().map(drop)
}

/// Checks that the model that the agent is told to ask has a price, where a limit in usd wants one.
///
/// A name that is like no known model's may be an agent's own word for one. Errors: `price_unknown`.
fn price_is_known(
    args: &RunArgs,
    context: &Context,
    limits: &Limits,
    policy: &Policy,
    prices: &Prices,
) -> Result<(), CliError> {
    if limits[Unit::CostNanoUsd].is_none() || policy.unpriced == Unpriced::Free {
        return Ok(());
    }
    let model = agent::own_settings::model(&Choice::read(&args.agent), &args.command, &context.around)?;
    let Some(model) = model.filter(|model| has_family(model)) else { return Ok(()) };
    let upstreams = upstreams::load(&context.around)?;
    let is_elsewhere =
        upstreams.iter().flat_map(|up| &up.named.models_match).any(|pattern| pattern.matches(&model));
    let table = prices::of_kept(prices)?;
    let dearest = || policy.unpriced == Unpriced::Dearest && table.dearest_of_family(&model).is_some();
    match is_elsewhere || table.lookup(&model).is_some() || dearest() {
        true => Ok(()),
        false => Err(CommandError::PriceUnknown { model }.into()),
    }
}

/// Creates the run. `seen`: newest run of its command that a search has seen; if another has begun since, it searches again,
/// and the run of another process that typed the same line is the one.
fn create(
    args: &RunArgs,
    context: &Context,
    line: &Line,
    begun_with: BegunWith,
    seen: Option<RunNo>,
) -> Result<RunView, CliError> {
    let store = line.node.store().as_ref();
    if let Some(name) = args.env.iter().find(|name| keys::is_keys(name)) {
        return Err(CliError::usage(
            format!("--env {name}: a provider's key is never kept with a run"),
            Some("for a resumption after a reboot put it into ~/.config/outlast/env (mode 0600)"),
        ));
    }
    let id = match &args.run {
        Some(id) => id.clone(),
        None => RunId::generate(store.now()?, random(context.entropy.as_ref())),
    };
    let mut chosen = args.limits.choose();
    // A list price that nobody bills is not to stop the run; below a parent, the parent's limit applies.
    let is_limited_elsewhere = begun_with.login.is_some() || begun_with.parent.is_some();
    if is_limited_elsewhere && chosen.by_default.take().is_some() {
        chosen.limits[Unit::CostNanoUsd] = None;
    }
    let named = args.named_policy.as_deref();
    let named = named.map(|name| find::policy(&context.around, store, name)).transpose()?;
    let mut policy = args.policy.policy();
    if let Some(named) = &named {
        chosen = chosen.under(&named.limits);
        policy.pause_wall |= named.pause_wall;
    }
    price_is_known(args, context, &chosen.limits, &policy, &begun_with.prices)?;
    let looping = looping(args, context);
    let stdin = match looping.as_ref().and_then(|l| l.input.as_deref()) {
        // The file is read for each iteration. Reading it here lets a wrong name create no run.
        Some(file) => iterate::read_input(file).map(|_| None)?,
        None => kept_stdin()?,
    };
    let directory = context.around.directory();
    let command = Command {
        argv: args.command.clone(),
        directory: directory.to_string_lossy().into_owned(),
        head: checkout::head(directory),
        umask: host::current_umask()?,
        env: kept_variables(args, context)?,
        variables: env_file::names(&context.around),
        env_file: args.env_file.as_ref().map(|file| directory.join(file).to_string_lossy().into_owned()),
        stdin_kept: stdin.is_some(),
        state_file: state_file(args, context)?,
        agent: Choice::read(&args.agent).kept(),
        looping,
        stop_at_limit: args.stop_at_limit,
        supervision: supervision(args, context, kept_by_itself(args, context)?),
    };
    let both = [args.plan.clone(), budgets::plan(&context.around)?];
    let plan = both.into_iter().flatten().reduce(|typed, kept| typed.under(&kept));
    let spec = Spec {
        name: args.name.clone(),
        tags: args.tags.iter().cloned().collect(),
        command: Some(command),
        upstreams: begun_with.upstreams,
        keys: begun_with.keys,
        login: begun_with.login.map(str::to_owned),
        plan: plan.clone(),
        limits: None,
        prices: Some(begun_with.prices),
        masks: begun_with.masks,
        job: None,
        grpc: args.grpc.to_keep(),
        rules: named.as_ref().map(|p| p.rules.clone()),
        directory: None,
        files: None,
    };
    let mut start = Start {
        id,
        limits: chosen.limits,
        policy,
        spec,
        parent: begun_with.parent,
        command_key: Some(line.key.clone()),
        stdin,
        seen,
    };
    let started = loop {
        match store.ask(start.clone(), Durability::Synced).wait() {
            Err(store::Error::Engine(engine::Error::NewerRun { .. })) => {
                let (newest, unfinished) = line.search()?;
                if let Some(view) = unfinished {
                    check_free(line.node, &view)?;
                    return Ok(view);
                }
                start.seen = Some(newest);
            }
            started => break started?,
        }
    };
    let view = find::view(store, started.run)?;
    let budget = match chosen.by_default {
        None if begun_with.login.is_some() => login_words(&view),
        Some(_) => format!("{} (5 usd by default; --usd changes it)", budget_words(&view)),
        None if view.run.parent.is_some() => format!("{}, and its parent's", budget_words(&view)),
        None => budget_words(&view),
    };
    let ceilings = plan.map_or_else(String::new, |plan| format!("; ceilings on the login's plan: {plan}"));
    say(&format!("{} · {budget}{ceilings}", called(&view)));
    if view.spec.login.is_none()
        && view.spec.keys.is_empty()
        && view.spec.upstreams.is_empty()
        && view.run.parent.is_none()
    {
        // An agent that calls no model needs no key, nor does one with its own login.
        say(&format!(
            "no provider's key is here ({}): calls pass with the agent's own credential only",
            keys::listed(" or ")
        ));
    }
    Ok(view)
}

/// Returns the variables that are kept with a run: those that any command needs, and those that `--env` names.
fn kept_variables(args: &RunArgs, context: &Context) -> Result<BTreeMap<String, String>, CliError> {
    let mut kept = BTreeMap::new();
    for name in ["PATH", "HOME"].into_iter().chain(args.env.iter().map(String::as_str)) {
        let refused = match context.around.var(name).map(|value| value.to_str()) {
            Some(Some(value)) => {
                kept.insert(name.to_owned(), value.to_owned());
                continue;
            }
            Some(None) => format!("{name} is not plain text, and cannot be kept"),
            None if args.env.iter().any(|asked| asked == name) => {
                format!("--env {name}: there is no such variable")
            }
            None => continue,
        };
        return Err(CliError::usage(refused, None));
    }
    Ok(kept)
}

/// Describes the limits of a run whose calls are paid for by a subscription.
fn login_words(view: &RunView) -> String {
    let login = view.spec.login.as_deref().unwrap_or_default();
    let none = view.envelope.limits == Default::default();
    let limits =
        if none { "no limits (--calls and --wall set limits)".to_owned() } else { budget_words(view) };
    format!("under a login of {login}: {limits}; calls have a list price, and are not billed")
}

/// Returns how the run's processes are held, and which files are kept with it; those of `auto` where the tree decides.
fn supervision(args: &RunArgs, context: &Context, auto: Option<KeptFiles>) -> Supervision {
    let files = args.keep_files.kept().map(|kept| {
        let whole = |directory: &String| context.around.directory().join(directory);
        let directory = kept.directory.as_ref().map(|name| whole(name).to_string_lossy().into_owned());
        KeptFiles { directory, ..kept }
    });
    let files = files.or(auto.filter(|_| args.keep_files.is_auto()));
    Supervision { files, ..args.supervise.supervision() }
}

/// Decides, and says, whether the files of a new run are kept by themselves: those of a known CLI agent, in a directory that
/// is not above the home directory, and whose first snapshot takes no time that a person notices. Where nobody asked, only
/// in a working tree of git, beside a store in a file, and what stands in the way is no matter.
fn kept_by_itself(args: &RunArgs, context: &Context) -> Result<Option<KeptFiles>, CliError> {
    let (around, keep) = (&context.around, &args.keep_files);
    let (directory, is_asked) = (around.directory(), keep.files.is_some());
    let is_meant = is_asked
        || outlast_files::is_working_tree(directory) && matches!(context.place, StoreAddress::File(_));
    if !keep.is_auto() || !is_meant {
        return Ok(None);
    }
    match agent::find(&Choice::read(&args.agent), &args.command, around) {
        Ok(Some(_)) => {}
        Err(e) if is_asked => return Err(e),
        Ok(None) | Err(_) => return Ok(None),
    }
    let is_above_home = around.var("HOME").is_none_or(|home| Path::new(home).starts_with(directory));
    let kept = KeptFiles { max_bytes: keep.files_max.or(Some(ROOM)), ..keep.of(".") };
    let size = if is_above_home { Ok(None) } else { Files::measure(context, &kept, AT_ONCE) };
    match size {
        Ok(Some(Size { files, bytes })) => {
            let (files, bytes) = (some(files as i64, "file"), talk::size(bytes as usize));
            say(&format!("files: kept at each tool, {files}, {bytes}; --files=off"));
            Ok(Some(kept))
        }
        Ok(None) if is_asked => {
            let (most, bytes) = (some(AT_ONCE.files as i64, "file"), talk::size(AT_ONCE.bytes as usize));
            say(&format!(
                "files: not kept, as this is no tree of at most {most} and {bytes} on a disk of this machine, or the room for \
                 kept files is used up; --files keeps them"
            ));
            Ok(None)
        }
        Err(e) if is_asked => Err(e.into()),
        Ok(None) | Err(_) => Ok(None),
    }
}

/// Returns the absolute path of `--state-file`, so that every attempt and process means the same file.
fn state_file(args: &RunArgs, context: &Context) -> Result<Option<String>, CliError> {
    let Some(path) = &args.state_file else { return Ok(None) };
    let usage = |message: String| {
        CliError::usage(message, Some("wanted for example --state-file ./active_state.json"))
    };
    if path.as_os_str().is_empty() || path.to_string_lossy().ends_with('/') {
        return Err(usage(format!("--state-file: {path:?} is no file's name")));
    }
    let path = context.around.directory().join(path);
    match path.to_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(usage(format!("--state-file: {} is not plain text, and cannot be kept", path.display()))),
    }
}

fn budget_words(view: &RunView) -> String {
    let word = |unit: Unit| {
        let shown = unit.show(view.envelope.limits[unit]?);
        Some(match unit {
            Unit::WallMs => format!("{shown} of wall time"),
            Unit::ActiveMs => format!("{shown} of active time"),
            _ => shown,
        })
    };
    let words: Vec<String> = Unit::ALL.into_iter().filter_map(word).collect();
    if words.is_empty() { "no limits".into() } else { format!("budget {}", words.join(", ")) }
}

/// Returns the loop settings of `--loop`; `None` without it.
fn looping(args: &RunArgs, context: &Context) -> Option<Looping> {
    let typed = &args.looping;
    typed.on.then(|| Looping {
        max_iterations: typed.max_iterations,
        until: typed.until.clone(),
        input: typed
            .input
            .as_ref()
            .map(|file| context.around.directory().join(file).to_string_lossy().into_owned()),
    })
}

/// Returns the key by which typing the same command in the same directory finds the run again.
fn command_key(args: &RunArgs, context: &Context, parent: Option<RunNo>) -> String {
    let directory = context.around.directory().to_string_lossy().into_owned();
    let (argv, looping) = (args.command.clone(), looping(args, context));
    Command { argv, directory, looping, ..Command::default() }.key(parent)
}

/// Reads standard input, if it is no terminal and not empty. Each attempt reads it from its start.
fn kept_stdin() -> Result<Option<Payload>, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MAX_STDIN + 1).read_to_end(&mut bytes).map_err(InputError::Stdin)?;
    if bytes.len() as u64 > MAX_STDIN {
        return Err(CliError::usage(
            "standard input is larger than 256 MiB, and cannot be kept with the run",
            Some("give the agent a file's name instead"),
        ));
    }
    Ok((!bytes.is_empty()).then(|| Payload::encode(&bytes)))
}
