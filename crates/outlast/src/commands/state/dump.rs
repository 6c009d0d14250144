//! `outlast state dump` and `restore`: the whole state with its history, as JSON lines, one a commit.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fs::File,
    io::{BufRead, BufReader},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outlast_core::{
    engine::{Change, Put},
    reads::places,
    state::{Name, Owner, Position},
    store::state::{Event, EventRange},
};
use outlast_server::api::state::show::{By, Runs, Version, value_text};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::prelude::*;
use crate::commands::state::{DumpArgs, RestoreArgs};

/// Number of events of one agent that are read at once. Small, because there may be many agents.
const AHEAD: usize = 64;

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    by: By,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction: Option<String>,
    operations: Vec<Version>,
}

#[derive(Deserialize)]
struct Dumped {
    commit: i64,
    #[serde(default)]
    transaction: Option<String>,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    namespace: String,
    agent: String,
    key: String,
    #[serde(default, deserialize_with = "there")]
    value: Option<Box<RawValue>>,
    #[serde(default)]
    value_base64: Option<String>,
    #[serde(default)]
    deleted: bool,
}

fn there<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Reader of one agent's events, page by page.
struct Agent {
    range: EventRange,
    ready: VecDeque<Event>,
    done: bool,
}

impl Agent {
    /// Returns the position of the agent's next event.
    fn next(&mut self, store: &dyn Store) -> Result<Option<Position>> {
        if self.ready.is_empty() && !self.done {
            let page = store.state_events(&self.range)?;
            self.done = page.events.len() < self.range.limit;
            self.ready = page.events.into();
            if let Some(last) = self.ready.back() {
                self.range.after = last.item.position;
            }
        }
        Ok(self.ready.front().map(|e| e.item.position))
    }
}

/// Prints all commits in the order of the store's writes: the agents' events are merged by position.
pub fn dump(store: &dyn Store, args: &DumpArgs, page: &mut Page) -> Result {
    // Commits made during the dump are left to the next one.
    let until = store.state_position()?;
    let mut agents = agents(store, &args.namespace)?;
    let mut heap = BinaryHeap::new();
    for (n, agent) in agents.iter_mut().enumerate() {
        heap.extend(agent.next(store)?.map(|p| Reverse((p, n))));
    }
    let mut runs = Runs::default();
    let mut commit: Vec<Event> = Vec::new();
    while let Some(Reverse((position, n))) = heap.pop() {
        if position > until {
            break;
        }
        if let Some(event) = agents[n].ready.pop_front() {
            if commit.last().is_some_and(|before| !of_one_commit(before, &event)) {
                print(store, &mut runs, &mut commit, page)?;
            }
            commit.push(event);
        }
        heap.extend(agents[n].next(store)?.map(|p| Reverse((p, n))));
    }
    print(store, &mut runs, &mut commit, page)
}

/// Returns whether two events belong to one commit. A transaction has the same number and id in all its namespaces.
fn of_one_commit(a: &Event, b: &Event) -> bool {
    a.item.commit == b.item.commit
        && a.transaction == b.transaction
        && (a.item.namespace == b.item.namespace || a.transaction.is_some() || a.item.at == b.item.at)
}

fn print(store: &dyn Store, runs: &mut Runs, commit: &mut Vec<Event>, page: &mut Page) -> Result {
    let Some(first) = commit.first() else { return Ok(()) };
    let (by, transaction) = (runs.by(store, &first.item)?, first.transaction.clone());
    let placed = |e: &Event| Version {
        namespace: Some(e.item.namespace.clone()),
        agent: Some(e.item.agent.clone()),
        ..Version::new(&e.item)
    };
    let operations = commit.drain(..).map(|e| placed(&e)).collect();
    Ok(page.json_line(&Line { by, transaction, operations })?)
}

fn agents(store: &dyn Store, only: &[String]) -> Result<Vec<Agent>> {
    let namespaces = match only {
        [] => places::namespaces(store)?.into_iter().map(|n| n.name).collect(),
        only => only.to_vec(),
    };
    let mut agents = Vec::new();
    for namespace in namespaces {
        agents.extend(places::agents(store, &namespace)?.into_iter().map(|agent| Agent {
            range: EventRange { namespace: namespace.clone(), agent, limit: AHEAD, ..EventRange::default() },
            ready: VecDeque::new(),
            done: false,
        }));
    }
    Ok(agents)
}

/// Commits of a dump that was read and judged as a whole, ready to be written.
pub struct Commits {
    commits: Vec<(Arc<str>, Vec<Change>)>,
    /// Number of operations left out, of namespaces that only their runs, or only Outlast itself, write.
    left_out: i64,
}

impl Commits {
    /// Reads a whole dump, so that nothing of a bad one is written, and no store is made for it. Errors: `bad_dump`.
    pub fn read(args: &RestoreArgs) -> Result<Commits> {
        let input: Box<dyn BufRead> = match &args.file {
            Some(path) => Box::new(BufReader::new(
                File::open(path).map_err(|why| InputError::NoDump { path: path.clone(), why })?,
            )),
            None => Box::new(io::stdin().lock()),
        };
        let (mut commits, mut left_out) = (Vec::new(), 0);
        for (n, line) in (1..).zip(input.lines()) {
            let line = line.map_err(|e| bad(n, e))?;
            if line.trim().is_empty() {
                continue;
            }
            let dumped: Dumped = serde_json::from_str(&line).map_err(|e| bad(n, e))?;
            let id = dumped.id();
            let mut changes = Vec::with_capacity(dumped.operations.len());
            for operation in dumped.operations {
                match operation.change(n)? {
                    Some(change) => changes.push(change),
                    None => left_out += 1,
                }
            }
            if !changes.is_empty() {
                commits.push((id, changes));
            }
        }
        Ok(Commits { commits, left_out })
    }

    /// Writes the commits that the store does not have, in their order.
    pub fn restore(self, store: &dyn Store, page: &mut Page) -> Result {
        let (mut commits, mut there) = (0, 0);
        for (id, changes) in self.commits {
            let put = Put { actor: None, changes, transaction: Some(id) };
            // A transaction that was committed under this id before returns no versions.
            let is_new = !store.ask(put, Durability::Synced).wait()?.versions.is_empty();
            *(if is_new { &mut commits } else { &mut there }) += 1;
        }
        let left_out = self.left_out;
        if left_out > 0 {
            say(&format!(
                "{} left out, of namespaces that only their runs, or only Outlast itself, write",
                some(left_out, "operation")
            ));
        }
        if page.look.json {
            return Ok(page.json(&serde_json::json!({ "commits": commits, "commits_there": there, "operations_left_out": left_out }))?);
        }
        let there = if there > 0 { format!("; {there} were there already") } else { String::new() };
        Ok(page.line(&format!("{} restored{there}", some(commits, "commit")))?)
    }
}

impl Dumped {
    /// Returns the transaction id that makes a restore idempotent: the dumped one, or one made of commit and namespace.
    fn id(&self) -> Arc<str> {
        match (&self.transaction, self.operations.first()) {
            (Some(id), _) => id.as_str().into(),
            (None, Some(first)) => format!("restored:{}:{}", self.commit, first.namespace).into(),
            (None, None) => format!("restored:{}", self.commit).into(),
        }
    }
}

impl Operation {
    /// Converts to a change. `None` for a namespace that only a run, or only Outlast itself, may write.
    fn change(self, line: usize) -> Result<Option<Change>> {
        if Owner::of(&self.namespace) != Owner::Anyone {
            return Ok(None);
        }
        let name = Name::new(self.namespace, self.agent, self.key);
        Ok(Some(match (self.value, self.value_base64, self.deleted) {
            (Some(raw), None, false) => Change::set(name, &value_text(&raw)),
            (None, Some(text), false) => Change::set(name, &STANDARD.decode(text).map_err(|e| bad(line, e))?),
            (None, None, true) => Change::delete(name),
            _ => return Err(bad(line, format!("key {:?} has to have a value, or be deleted", name.key))),
        }))
    }
}

fn bad(line: usize, why: impl ToString) -> CliError {
    InputError::Dump { line, why: why.to_string() }.into()
}
