//! `outlast state get | keys | agents | namespaces | history | replay`: shows what agents know now, or knew at a moment.

mod diff;
mod dump;

use std::cell;

use outlast_core::{
    engine::Retain,
    reads::{places, rows},
    state::{At, Item, Retention},
    store::{
        Which,
        state::{EventRange, Moment, Scan},
    },
};
use outlast_server::{
    api::state::show::{self, Kept, Runs},
    state::{Commits, PAGE, retention},
};

use super::prelude::*;
use crate::{render::time::rfc3339, supervisor::strays};

/// Inspect and manage the agents' versioned state, current or at an earlier time
///
/// A value is addressed by namespace, agent and key. Each write or delete makes a new version of the key; a commit is a
/// numbered set of changes that were made together.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StateArgs {
    #[command(subcommand)]
    pub command: StateCommand,
}

const EXAMPLES: &str = "\
Examples:
  outlast state get agent-1 plan --at 2026-11-20T08:00:00Z
  outlast state diff agent-1 12 15          what changed from commit 12 to commit 15
  outlast state replay agent-1 --follow
  outlast state namespaces                  all namespaces with at least one key
  outlast state agents --namespace run:nightly
  outlast state keys agent-1 --namespace run:nightly
  outlast state keep 10                     the last 10 versions of each key
  outlast state dump > state.jsonl";

#[derive(Subcommand, Clone, Debug)]
pub enum StateCommand {
    Get(GetArgs),
    Keys(KeysArgs),
    Agents(AgentsArgs),
    /// List the namespaces, with their newest commits
    Namespaces,
    History(HistoryArgs),
    Diff(DiffArgs),
    Replay(ReplayArgs),
    Keep(KeepArgs),
    Dump(DumpArgs),
    Restore(RestoreArgs),
}

/// Where keys are.
#[derive(Args, Clone, Debug)]
pub struct PlaceArgs {
    /// The namespace; a run's own is run:ID
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    pub namespace: String,
}

/// A version or a commit, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Number(i64),
    Time(When),
}

fn mark(text: &str) -> Result<Mark, values::BadValue> {
    match text.parse::<i64>() {
        Ok(n) if n >= 0 => Ok(Mark::Number(n)),
        _ => values::when(text).map(Mark::Time),
    }
}

/// Print a key's value
#[derive(Args, Clone, Debug)]
pub struct GetArgs {
    /// The agent
    pub agent: String,
    /// The key
    pub key: String,
    /// Version of the key, or a time: 3, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "VERSION|TIME", value_parser = mark)]
    pub at: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// List an agent's keys
#[derive(Args, Clone, Debug)]
pub struct KeysArgs {
    /// The agent
    pub agent: String,
    /// Only keys that start with it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// A commit of the namespace, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub at: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// List the agents of a namespace
#[derive(Args, Clone, Debug)]
pub struct AgentsArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Print all versions of a key, oldest first
#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// The agent
    pub agent: String,
    /// The key
    pub key: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Show which keys an agent added, deleted and changed between two moments
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast state diff agent-1 12 15\n  outlast state diff agent-1 1h       the last hour\n  outlast state diff agent-1 0 12     what it knew at commit 12"
)]
pub struct DiffArgs {
    /// The agent
    pub agent: String,
    /// From this commit or time on: 12, 2026-11-20T08:00:00Z, 1h
    #[arg(value_name = "FROM", value_parser = mark)]
    pub from: Mark,
    /// Up to this commit or time; else up to now
    #[arg(value_name = "TO", value_parser = mark)]
    pub to: Option<Mark>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Print all changes of an agent's keys, commit by commit
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The agent
    pub agent: String,
    /// The first commit, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub from: Option<Mark>,
    /// The last commit, or a time
    #[arg(long, value_name = "COMMIT|TIME", value_parser = mark)]
    pub to: Option<Mark>,
    /// Go on with what is committed from now on, until Ctrl-C; with --json a line of JSON each
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Set how many versions of each key are kept, and remove older ones
///
/// A key's newest version is never removed. Reads of what is gone say so. What is written later removes what is too
/// much of its key. Without a number it tells what is kept.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Number of versions to keep, from 1; or all
    #[arg(value_name = "N|all", value_parser = versions)]
    pub versions: Option<Retention>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn versions(text: &str) -> Result<Retention, String> {
    match text.parse::<i64>() {
        _ if text == "all" => Ok(Retention::All),
        Ok(n) if n >= 1 => Ok(Retention::Last(n)),
        _ => Err(format!("not a number of versions: {text:?} (wanted a number from 1, or all)")),
    }
}

/// Write all of the state with its history as lines of JSON, one for each commit
#[derive(Args, Clone, Debug)]
pub struct DumpArgs {
    /// Only this namespace; can be repeated
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Vec<String>,
}

/// Write the commits of a dump into this store, in their order
///
/// Commits that an interrupted restore has made are not made again. Versions and commits are as they were where
/// the namespace is new; times are those of the restore. Namespaces of runs are left out: only their runs write there.
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The dump; without it standard input
    pub file: Option<PathBuf>,
}

/// Number of keys that are read at once.
const KEYS: usize = 1_000;

/// Most characters of a value that are shown in one line.
const WIDTH: usize = 100;

/// Runs the `state` subcommands. With `replay -f`, `wait` is called between two looks at the state.
pub fn state(args: &StateArgs, Desk { store, page, wait, .. }: Desk) -> Result {
    match &args.command {
        StateCommand::Get(args) => get(store, args, page),
        StateCommand::Keys(args) => keys(store, args, page),
        StateCommand::Agents(args) => agents(store, &args.place.namespace, page),
        StateCommand::Namespaces => namespaces(store, page),
        StateCommand::History(args) => history(store, args, page),
        StateCommand::Diff(args) => diff::diff(store, args, page),
        StateCommand::Replay(args) => replay(store, args, page, wait),
        StateCommand::Keep(args) => keep(store, args, page),
        StateCommand::Dump(args) => dump::dump(store, args, page),
        StateCommand::Restore(args) => dump::Commits::read(args)?.restore(store, page),
    }
}

/// Restores a dump, in a new store if there is none: it is made once the dump is judged.
pub fn restore(args: &RestoreArgs, context: &Context, page: &mut Page) -> Result {
    let commits = dump::Commits::read(args)?;
    let store = context.open(true, Default::default())?;
    strays::look_after(&*store, context);
    commits.restore(&*store, page)
}

fn get(store: &dyn Store, args: &GetArgs, page: &mut Page) -> Result {
    let (namespace, agent, key) = (&args.place.namespace, &args.agent, &args.key);
    let item = match args.at {
        None => store.state(namespace, agent, key)?,
        Some(Mark::Number(version)) => store.state_at(namespace, agent, key, Which::Version(version))?,
        Some(Mark::Time(when)) => {
            store.state_at(namespace, agent, key, At::Time(when.resolve(store.now()?)).into())?
        }
    };
    let item = match item {
        Some(item) if item.value.is_some() => item,
        other => return Err(not_there(store, args, other.map(|i| i.version))?),
    };
    if page.look.json {
        return Ok(page.json(&Runs::default().item(store, &item)?)?);
    }
    Ok(page.line(&text(&item, usize::MAX))?)
}

/// Returns the error for a missing value: never written, not yet written at that time, or deleted in that version.
fn not_there(store: &dyn Store, args: &GetArgs, deleted: Option<i64>) -> Result<CliError> {
    let (namespace, agent, key) = (&args.place.namespace, &args.agent, &args.key);
    let newest = store.state(namespace, agent, key)?.map(|i| i.version);
    let why = match (deleted, args.at, newest) {
        (Some(version), _, _) => format!(": version {version} deleted it"),
        (None, Some(Mark::Number(version)), Some(newest)) => {
            format!(" in version {version}: its newest is {newest}")
        }
        (None, Some(Mark::Time(_)), Some(_)) => " then: it was written later".to_owned(),
        _ => String::new(),
    };
    Ok(CommandError::NoSuchKey {
        namespace: namespace.to_owned(),
        agent: agent.to_owned(),
        key: key.to_owned(),
        why,
    }
    .into())
}

fn keys(store: &dyn Store, args: &KeysArgs, page: &mut Page) -> Result {
    let mut scan = Scan {
        namespace: args.place.namespace.clone(),
        agent: args.agent.clone(),
        prefix: args.prefix.clone(),
        after: None,
        at: at(args.at, &args.place.namespace, store)?,
        limit: KEYS,
    };
    let listed = rows(move || {
        let keys = store.state_keys(&scan)?;
        scan.after = keys.last().map(|listed| listed.key.clone()).or(scan.after.take());
        Ok::<_, CliError>(keys)
    });
    if page.look.json {
        return page.json_list(Map::new(), "keys", listed.map(|l| Ok(show::listed(&l?))), Map::new);
    }
    let table = Table::new(["KEY", ">VERSION", ">COMMIT", "WRITTEN"]);
    let cells = listed.map(|l| {
        let l = l?;
        let (key, version, commit) = (clean_line(&l.key, WIDTH), l.version.to_string(), l.commit.to_string());
        Ok::<_, CliError>([key, version, commit, rfc3339(l.at)].map(Cell::new).to_vec())
    });
    page.table(table, cells, "no keys")
}

fn history(store: &dyn Store, args: &HistoryArgs, page: &mut Page) -> Result {
    let (mut after, oldest) = (0, cell::Cell::new(0));
    let items = rows(|| {
        let page = store.state_history(&args.place.namespace, &args.agent, &args.key, after, PAGE)?;
        oldest.set(page.oldest);
        after = page.items.last().map_or(after, |item| item.version);
        Ok::<_, CliError>(page.items)
    });
    let mut runs = Runs::default();
    if page.look.json {
        let versions = items.map(|item| Ok(runs.version(store, &item?)?));
        let tail = || Map::from_iter([("oldest".to_owned(), oldest.get().into())]);
        return page.json_list(Map::new(), "versions", versions, tail);
    }
    let mut items = items.peekable();
    if items.peek().is_none() {
        return Ok(page.line("it was never written")?);
    }
    if oldest.get() > 1 {
        page.line(&format!("versions below {} were removed by compaction", oldest.get()))?;
    }
    for item in items {
        let item = &item?;
        let by = runs.by(store, item)?;
        let who = writer(&by);
        let value = text(item, WIDTH);
        let head = format!("version {}  commit {}  {}{who}", item.version, item.commit, rfc3339(item.at));
        let head = page.look.paint(Paint::Faint, &head);
        page.line(&format!("{head}\n  {value}"))?;
    }
    Ok(())
}

fn replay(store: &dyn Store, args: &ReplayArgs, page: &mut Page, wait: &mut dyn FnMut(Duration)) -> Result {
    let now = store.now()?;
    let mut commits = Commits::new(EventRange {
        namespace: args.place.namespace.clone(),
        agent: args.agent.clone(),
        from: args.from.map(|m| moment(m, now)),
        to: args.to.map(|m| moment(m, now)),
        limit: PAGE,
        ..EventRange::default()
    });
    let (mut runs, mut told) = (Runs::default(), false);
    loop {
        let some = commits.page(store)?;
        if commits.compacted() && !told {
            told = true;
            if !page.look.json {
                page.line("compaction has removed some of what was asked for")?;
            }
        }
        for events in &some {
            let Some(commit) = runs.commit(store, events)? else { continue };
            if page.look.json {
                page.json_line(&commit)?;
                continue;
            }
            let head =
                format!("commit {}  {}{}", commit.by.commit, rfc3339(commit.by.at.0), writer(&commit.by));
            let head = page.look.paint(Paint::Faint, &head);
            page.line(&head)?;
            for event in events {
                let key = clean_line(&event.item.key, WIDTH);
                page.line(&format!("  {key} v{}  {}", event.item.version, text(&event.item, WIDTH)))?;
            }
        }
        if some.is_empty() {
            page.flush()?;
            if !args.follow {
                return Ok(());
            }
            wait(FOLLOW);
        }
    }
}

fn writer(by: &show::By) -> String {
    match (&by.run, by.attempt) {
        (Some(run), Some(attempt)) => format!("  by {run}, attempt {attempt}"),
        _ => String::new(),
    }
}

/// Formats a value in at most `width` characters, without control characters that could steer a terminal.
fn text(item: &Item, width: usize) -> String {
    match &item.value {
        None => "(deleted)".into(),
        Some(bytes) if width == usize::MAX => clean(&String::from_utf8_lossy(bytes)),
        Some(bytes) => clean_line(&String::from_utf8_lossy(bytes), width),
    }
}

fn moment(mark: Mark, now: Micros) -> Moment {
    match mark {
        Mark::Number(n) => Moment::Commit(n),
        Mark::Time(when) => Moment::Time(when.resolve(now)),
    }
}

/// Returns the moment to read at. Without a mark, the store's current position, so that all pages show one moment.
///
/// Errors: a commit that does not exist yet, because its content is not known.
fn at(mark: Option<Mark>, namespace: &str, store: &dyn Store) -> Result<At> {
    Ok(match mark.map(|m| store.now().map(|now| moment(m, now))).transpose()? {
        None => At::Position(store.state_position()?),
        Some(Moment::Commit(n)) => {
            let newest = store.namespace(namespace)?.map_or(0, |head| head.commit);
            if n > newest {
                return Err(
                    CommandError::NoSuchCommit { namespace: namespace.to_owned(), asked: n, newest }.into()
                );
            }
            At::Commit(n)
        }
        Some(Moment::Time(t)) => At::Time(t),
    })
}

pub fn namespaces(store: &dyn Store, page: &mut Page) -> Result {
    let found = places::namespaces(store)?;
    if page.look.json {
        let shown: Vec<_> = found.iter().map(show::namespace).collect();
        return Ok(page.json(&json!({ "namespaces": shown }))?);
    }
    let cells = found.iter().map(|n| {
        let cells = [clean_line(&n.name, WIDTH), n.commit.to_string(), rfc3339(n.at)];
        Ok::<_, CliError>(cells.map(Cell::new).to_vec())
    });
    page.table(Table::new(["NAMESPACE", ">COMMIT", "WRITTEN"]), cells, "nothing was written yet")
}

pub fn agents(store: &dyn Store, namespace: &str, page: &mut Page) -> Result {
    let found = places::agents(store, namespace)?;
    if page.look.json {
        return Ok(page.json(&json!({ "agents": found }))?);
    }
    if found.is_empty() {
        page.line(&format!("no agents in namespace {}", clean_line(namespace, WIDTH)))?;
    }
    for agent in &found {
        page.line(&clean_line(agent, WIDTH))?;
    }
    Ok(())
}

/// Sets the number of versions and compacts the namespace. Without a number, only prints the setting.
pub fn keep(store: &dyn Store, args: &KeepArgs, page: &mut Page) -> Result {
    let name = &args.place.namespace;
    let mut removed = 0;
    if let Some(keep) = args.versions {
        removed = retention::retain(store, Retain { actor: None, namespace: name.clone(), keep })?;
    }
    let keep = store.namespace(name)?.map(|n| n.keep).unwrap_or_default();
    if page.look.json {
        return Ok(page.json(&Kept::new(name, keep, args.versions.map(|_| removed)))?);
    }
    let kept = match keep {
        Retention::All => "every version of a key".to_owned(),
        Retention::Last(1) => "the newest version of a key".to_owned(),
        Retention::Last(n) => format!("the last {n} versions of a key"),
    };
    let removed = if args.versions.is_some() { format!("; {removed} removed") } else { String::new() };
    Ok(page.line(&format!("namespace {name} keeps {kept}{removed}"))?)
}
