//! Builds a proxy's configuration from flags, keys and files. Shared by `run` and `serve`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outlast_core::{
    call::{Membership, Rate},
    envelope::Limits,
    price::PriceTable,
    run::{Identity, Policy},
    store::{Ask as _, Durability, Store},
    words::{Clock, RunId},
};
use outlast_server::{
    dialect::Upstream,
    door::{Access, Config, Key, Network, Provider, Providers},
    node::{Census, Inquest, LOOK, Node},
};

use crate::{
    cli::{shared::ProxyArgs, values},
    program::{
        context::Context,
        error::{CliError, MachineError},
    },
    settings::{keys::Keys, upstreams},
};
use outlast_process::identity::{self, Liveness};

/// Largest answer, in bytes. An answer stays in memory until it is recorded.
const MAX_ANSWER: usize = 256 << 20;

/// Most bytes of answers that are held in memory while the store cannot record them. Of further answers only
/// the usage is kept.
const MAX_UNRECORDED: u64 = 64 << 20;

/// Longest silence of an upstream after the machine has woken up: its connection may be dead without notice.
const SILENCE_AFTER_SUSPEND: Duration = Duration::from_secs(30);

/// Longest time without a part of an answer that has begun, while somebody is held up by it: a later life of its agent
/// that asks for the same, or the end of this process.
const URGED_IDLE: Duration = Duration::from_secs(30);

/// Returns the providers with their base URLs and keys. A base URL comes from the flag or setting, else from `kept`,
/// the URLs stored with the run, else from `*_BASE_URL` of the environment, else it is the provider's own.
pub fn providers(
    args: &ProxyArgs,
    keys: &Keys,
    kept: &BTreeMap<String, String>,
    context: &Context,
) -> Result<Providers, CliError> {
    let base = |upstream: Upstream| {
        let row = upstream.row();
        if let Some(said) = args.base_url(upstream).or_else(|| kept.get(row.name)) {
            return Ok(said.clone());
        }
        let Some(around) = context.around.var(row.url_variable) else { return Ok(row.base()) };
        // The URL is kept with the run: a variable must not hold what a flag must not hold, such as a
        // password.
        values::base_url(&around.to_string_lossy())
            .map_err(|e| CliError::usage(format!("{}: {e}", row.url_variable), None))
    };
    let provider = |upstream| {
        Provider::new(&base(upstream)?, keys.of(upstream).map(|k| Key::new(k.value.clone())))
            .map_err(|e| CliError::usage(e.to_string(), None))
    };
    Providers::new(provider, upstreams::load(&context.around)?.into_iter().map(|u| u.named).collect())
}

/// Returns the base URLs to store with a run, so that its resumption calls the same hosts, without the providers' own
/// URLs.
pub fn to_keep(providers: &Providers) -> BTreeMap<String, String> {
    let all = Upstream::ALL.into_iter().map(|upstream| (upstream.row(), &providers.of(upstream).base));
    all.filter(|(row, base)| **base != row.base())
        .map(|(row, base)| (row.name.to_owned(), base.clone()))
        .collect()
}

/// Builds a proxy's configuration. `limits` and `policy` are the defaults of runs that the proxy begins.
pub fn config(
    args: &ProxyArgs,
    access: Access,
    providers: Providers,
    network: Network,
    prices: PriceTable,
    limits: Limits,
    policy: Policy,
) -> Config {
    let ms = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    Config {
        access,
        providers,
        foreign_responses: args.foreign_responses,
        network,
        price_hash: Arc::from(prices.hash()),
        prices,
        default_limits: limits,
        default_policy: policy,
        admit_wait: ms(args.admit_wait_ms),
        settle_wait: ms(args.settle_wait_ms),
        store_wait: ms(args.store_wait_ms),
        first_byte_timeout: ms(args.first_byte_timeout_ms),
        idle_timeout: ms(args.idle_timeout_ms),
        urged_idle_timeout: URGED_IDLE,
        max_body: usize::try_from(args.max_body_bytes).unwrap_or(usize::MAX),
        max_answer: MAX_ANSWER,
        max_unrecorded: MAX_UNRECORDED,
        silence_after_suspend: SILENCE_AFTER_SUSPEND,
        upstream_concurrency: None,
        upstream_rate: Rate::default(),
        upstream_retries: args.upstream_retries,
        groups: None,
        files: None,
        look_pause: Duration::from_secs(1),
        outage_pause: (args.outage_wait_ms > 0).then(|| ms(args.outage_pause_ms)),
        masks: None,
    }
}

/// Registers this process in the store as an instance named `program`.
pub fn join(store: Arc<dyn Store>, context: &Context, program: &str) -> Result<Arc<Node>, CliError> {
    let identity = Identity { program: program.to_owned(), ..MachineError::me()? };
    join_as(store, context, identity)
}

/// Registers another process of this machine in the store as an instance: the shell of a loop.
pub fn join_as(store: Arc<dyn Store>, context: &Context, identity: Identity) -> Result<Arc<Node>, CliError> {
    let me = MachineError::me()?;
    Ok(Node::join(store, context.clock.clone(), context.entropy.clone(), Arc::new(ProcCensus(me)), identity)?)
}

/// Declares processes of this machine dead that are gone, so that their runs become interrupted, and returns these
/// runs. If the store cannot be read or written, nothing is changed.
///
/// On a shared store this takes a moment if a process seems to be gone: its heartbeat must have stopped as well.
pub fn bury(store: &dyn Store, clock: &dyn Clock) -> Vec<RunId> {
    let mut interrupted = Vec::new();
    let Ok(me) = identity::of_self() else { return interrupted };
    let census = ProcCensus(me);
    let mut observer = Membership::new(store.is_shared());
    let mut inquest = Inquest::new(clock.boottime_ms());
    while let Ok(mut gone) = store.live_instances() {
        gone.retain(|other| census.is_gone(&other.identity) == Some(true));
        let now_ms = clock.boottime_ms();
        observer.looked(now_ms);
        for verdict in observer.verdicts(&gone, |_| Some(true), now_ms) {
            gone.retain(|other| other.no != verdict.instance);
            // The process that drives the run next gives the verdict too.
            let swept = store.ask(verdict, Durability::Synced).wait();
            interrupted.extend(swept.into_iter().flat_map(|swept| swept.interrupted));
        }
        if inquest.is_over(&observer, &gone, |_| Some(true)) {
            return interrupted;
        }
        std::thread::sleep(LOOK);
    }
    interrupted
}

/// Check on other instances' processes by `/proc`. The value is this process's own identity.
struct ProcCensus(Identity);

impl Census for ProcCensus {
    fn is_gone(&self, other: &Identity) -> Option<bool> {
        match identity::liveness(&self.0, other) {
            Liveness::Alive => Some(false),
            Liveness::Gone | Liveness::BootOver => Some(true),
            Liveness::Unknown => None,
        }
    }
}
