//! This server's shares of its upstreams' limits: settles them with the other servers of the store, and lets the desk and
//! the gates keep to them.
//!
//! `call::shares` decides; this file reads and writes the store. A share is one value of the store for each upstream,
//! changed by compare-and-set, and read once a second: nothing is read or written for a call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use outlast_core::{
    call::{
        desk::Event,
        rates::Parts,
        shares::{Pace, Part, Server, Shares},
    },
    engine,
    reads::rows,
    state::Table,
    store::{Ask as _, Durability, Error},
    words::{InstanceNo, Micros},
};
use parking_lot::Mutex;

use super::{config::Config, host::Host};
use crate::dialect::Upstream;

/// Shares of this server, as far as it takes part in any.
#[derive(Default)]
pub struct Sharing(Mutex<State>);

#[derive(Default)]
struct State {
    parts: Parts,
    /// Instance as which the share of an upstream was last written, by the upstream's name.
    held_as: BTreeMap<String, InstanceNo>,
    /// Whether the server has left: it settles no share any more.
    has_left: bool,
}

impl Sharing {
    /// Lets no limited call leave before the first share is settled.
    pub fn begin(&self, host: &Host) {
        self.with(|state| apply(host, &state.parts));
    }

    /// Settles the shares of all upstreams that have limits. Blocks on the store.
    ///
    /// Errors: those of the store. A share that could not be settled stays as it was.
    pub fn settle(&self, host: &Host) -> Result<(), Error> {
        self.with(|state| {
            if state.has_left {
                return Ok(());
            }
            if !host.node.may_open() {
                // Others may declare this process dead, and take its shares over a minute later.
                state.parts.clear();
                apply(host, &state.parts);
                return Ok(());
            }
            let no = host.node.instance();
            let limits = limits(&host.config);
            let names: BTreeSet<String> = limits.keys().chain(state.held_as.keys()).cloned().collect();
            let mut settled = Ok(());
            for name in names {
                let limit = limits.get(&name).copied().unwrap_or_default();
                let former = state.held_as.get(&name).copied().filter(|former| *former != no);
                let done = state.settle(host, &name, Server { no, former, limit, now: Micros::default() });
                settled = settled.and(done);
            }
            settled
        })
    }

    /// Gives the shares up, but for what is used, before this server ends. Blocks on the store.
    pub fn leave(&self, host: &Host) -> Result<(), Error> {
        self.with(|state| {
            state.has_left = true;
            state.parts.clear();
            apply(host, &state.parts);
            for (name, no) in std::mem::take(&mut state.held_as) {
                change(host, &name, |shares| {
                    shares.leave(no, &used(host, &name), host.store.now()?);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock())
    }
}

impl State {
    fn settle(&mut self, host: &Host, name: &str, mut server: Server) -> Result<(), Error> {
        let part = change(host, name, |shares| {
            if !shares.is_alone(&server) {
                // Read after the shares, so that who has one and is not here is gone.
                let live = host.store.live_instances()?;
                server.now = host.store.now()?;
                shares.bury(|no| live.iter().any(|instance| instance.no == no), server.now);
            }
            Ok(shares.settle(&server, |part| {
                self.takes(host, name, part);
                used(host, name)
            }))
        })?;
        self.takes(host, name, part);
        match server.limit.is_unlimited() {
            true => drop(self.held_as.remove(name)),
            false => drop(self.held_as.insert(name.to_owned(), server.no)),
        }
        Ok(())
    }

    /// Lets the desk and the gates keep to this part of the upstream's limits.
    fn takes(&mut self, host: &Host, name: &str, part: Part) {
        let before = self.parts.insert(name.to_owned(), part);
        if before == Some(part) {
            return;
        }
        let has_none =
            |part: &Part| [part.full.calls, part.full.requests, part.full.tokens].contains(&Some(0));
        if has_none(&part) && !before.is_some_and(|before| has_none(&before)) {
            tracing::warn!(
                upstream = name,
                "there are more servers on the store than the limit can be divided among: they take turns, and calls wait here"
            );
        }
        apply(host, &self.parts);
    }
}

fn apply(host: &Host, parts: &Parts) {
    let parts = Arc::new(parts.clone());
    host.gates.share(parts.clone());
    host.registry.on(Event::Shares(parts));
}

/// Returns what this process uses of an upstream's limits now.
fn used(host: &Host, name: &str) -> Pace {
    let (requests, tokens) = host.registry.spent(name);
    Pace { calls: Some(host.gates.inside(name) as u64), requests: Some(requests), tokens: Some(tokens) }
}

/// Returns the limits of the upstreams that have any, by name.
fn limits(config: &Config) -> BTreeMap<String, Pace> {
    let own = Upstream::ALL.map(|upstream| (upstream.name().to_owned(), config.upstream_rate));
    let named = config.providers.named.iter().map(|named| (named.name.to_string(), named.rate));
    let named = named.map(|(name, rate)| (name, rate.unwrap_or(config.upstream_rate)));
    let calls = config.upstream_concurrency.map(|calls| calls as u64);
    let all = own.into_iter().chain(named).map(|(name, rate)| (name, Pace::new(rate, calls)));
    all.filter(|(_, limit)| !limit.is_unlimited()).collect()
}

/// Changes the shares of an upstream, however many servers do so at once. Writes nothing where nothing changes.
fn change<T>(
    host: &Host,
    name: &str,
    mut with: impl FnMut(&mut Shares) -> Result<T, Error>,
) -> Result<T, Error> {
    let store = host.store.as_ref();
    loop {
        let kept = rows::kept::<Shares>(store, Table::Shares, name)?;
        let mut shares = kept.row.clone();
        let answer = with(&mut shares)?;
        if shares == kept.row {
            return Ok(answer);
        }
        let put = rows::put(Table::Shares, name, &shares, kept.version)?;
        match store.ask(put, Durability::Synced).wait() {
            Ok(_) => {}
            Err(Error::Engine(engine::Error::Conflict { .. })) => continue,
            Err(e) => return Err(e),
        }
        return Ok(answer);
    }
}
