//! `outlast state get | keys | agents | namespaces | history | replay`: shows what agents know now, or knew at a moment.

mod diff;
mod dump;
mod keep;
mod places;

use std::cell;

use outlast_core::{
    reads::rows,
    state::{At, Item},
    store::{
        Store, Which,
        state::{EventRange, Moment, Scan},
    },
    words::id::Micros,
};
use outlast_server::{
    api::state::show::{self, Runs},
    state::{Commits, PAGE},
};
use serde_json::Map;

use crate::{
    cli::state::{GetArgs, HistoryArgs, KeysArgs, Mark, ReplayArgs, StateArgs, StateCommand},
    program::error::{CliError, CommandError},
    render::{
        look::{Page, Paint, clean, clean_line},
        table::{Cell, Side, Table},
        time::rfc3339,
    },
};

/// Number of keys that are read at once.
const KEYS: usize = 1_000;

/// Most characters of a value that are shown in one line.
const WIDTH: usize = 100;

/// Runs the `state` subcommands. With `replay -f`, `wait` is called between two looks at the state.
pub fn state(
    store: &dyn Store,
    args: &StateArgs,
    page: &mut Page,
    wait: &mut dyn FnMut(),
) -> Result<(), CliError> {
    match &args.command {
        StateCommand::Get(args) => get(store, args, page),
        StateCommand::Keys(args) => keys(store, args, page),
        StateCommand::Agents(args) => places::agents(store, &args.place.namespace, page),
        StateCommand::Namespaces => places::namespaces(store, page),
        StateCommand::History(args) => history(store, args, page),
        StateCommand::Diff(args) => diff::diff(store, args, page),
        StateCommand::Replay(args) => replay(store, args, page, wait),
        StateCommand::Keep(args) => keep::keep(store, args, page),
        StateCommand::Dump(args) => dump::dump(store, args, page),
        StateCommand::Restore(args) => dump::restore(store, args, page),
    }
}

fn get(store: &dyn Store, args: &GetArgs, page: &mut Page) -> Result<(), CliError> {
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
fn not_there(store: &dyn Store, args: &GetArgs, deleted: Option<i64>) -> Result<CliError, CliError> {
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

fn keys(store: &dyn Store, args: &KeysArgs, page: &mut Page) -> Result<(), CliError> {
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
    let table = Table::new(&[
        ("KEY", Side::Left),
        ("VERSION", Side::Right),
        ("COMMIT", Side::Right),
        ("WRITTEN", Side::Left),
    ]);
    let cells = listed.map(|l| {
        let l = l?;
        let key = clean_line(&l.key, WIDTH);
        Ok::<_, CliError>(vec![
            Cell::new(key),
            Cell::new(l.version.to_string()),
            Cell::new(l.commit.to_string()),
            Cell::new(rfc3339(l.at)),
        ])
    });
    match page.table(table, 0, cells)? {
        0 => Ok(page.line("no keys")?),
        _ => Ok(()),
    }
}

fn history(store: &dyn Store, args: &HistoryArgs, page: &mut Page) -> Result<(), CliError> {
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

fn replay(
    store: &dyn Store,
    args: &ReplayArgs,
    page: &mut Page,
    wait: &mut dyn FnMut(),
) -> Result<(), CliError> {
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
            wait();
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
fn at(mark: Option<Mark>, namespace: &str, store: &dyn Store) -> Result<At, CliError> {
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
