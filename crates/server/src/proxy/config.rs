//! Configuration of the proxy, and the events that an observer sees.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use outlast_core::{
    call::Rate,
    envelope::{Limits, Refusal},
    journal::Entry,
    price::PriceTable,
    run::{Masks, Policy, Status},
    store::{RunView, Store},
    words::{AttemptNo, Cause, Micros, OutSince, Outage, RunId, RunNo, Seq},
};

use outlast_view::FileChange;

use super::named::Providers;
use crate::{
    dialect::Upstream,
    wire::{access::Access, network::Network},
};

/// Function that lists the process groups of a run's agents, by their numbers. It may block for some milliseconds.
pub type Groups = Arc<dyn Fn() -> io::Result<BTreeSet<u32>> + Send + Sync>;

/// Files of runs that lie beside the store, on the server's machine. They are read and removed by calls that may block.
pub trait RunFiles: Send + Sync {
    /// Returns the last lines that an attempt printed, as text for people; none where no log of it is there.
    fn last_lines(&self, run: &RunId, attempt: AttemptNo, most: usize) -> io::Result<Vec<String>>;
    /// Returns what changed in the files of a run at an entry, and how many changes more there are.
    fn changes(
        &self,
        store: &dyn Store,
        view: &RunView,
        entry: &Entry,
    ) -> io::Result<(Vec<FileChange>, usize)>;
    /// Removes what is kept for a run that the store has forgotten.
    fn forget(&self, store: &dyn Store, run: &RunId) -> io::Result<()>;
}

/// Configuration of the proxy.
#[derive(Clone)]
pub struct Config {
    pub access: Access,
    pub providers: Providers,
    /// Whether a request may name a stored answer that is not in its run's journal.
    pub foreign_responses: bool,
    /// Network through which upstreams are called.
    pub network: Network,
    pub prices: PriceTable,
    pub price_hash: Arc<str>,
    /// Limits of a run that a request's header begins.
    pub default_limits: Limits,
    pub default_policy: Policy,
    pub admit_wait: Duration,
    pub settle_wait: Duration,
    /// Longest time for which calls are held while this process cannot renew its heartbeat.
    pub store_wait: Duration,
    pub first_byte_timeout: Duration,
    /// Longest time without a part of an answer that has begun.
    pub idle_timeout: Duration,
    /// The same, while a later request for the answer or the end of this process is held up by it.
    pub urged_idle_timeout: Duration,
    /// Largest request body in bytes, both as received and after decoding.
    pub max_body: usize,
    /// Largest answer in bytes, for an answer that is not a stream.
    pub max_answer: usize,
    /// Most bytes of answers that are kept in memory, in all, while the store cannot record them.
    pub max_unrecorded: u64,
    /// Longest silence of an upstream after the machine has woken up, before its connection is given up.
    pub silence_after_suspend: Duration,
    /// Largest number of calls in flight to one upstream at once, over all runs of this server; `None`: any number.
    pub upstream_concurrency: Option<usize>,
    /// Requests and tokens per minute for one upstream, over all runs of this server. A named upstream may have a rate
    /// of its own.
    pub upstream_rate: Rate,
    /// Most retries of a call whose upstream refused it for the moment or was not reached, all within `admit_wait`.
    /// Calls of clients that retry themselves are not retried.
    pub upstream_retries: u32,
    /// Longest pause between two probes of an upstream that has an outage. `None`: calls are not held during an outage,
    /// and their errors go to the client.
    pub outage_pause: Option<Duration>,
    /// Masks of a run that a request's header begins: parts of a request that do not count when requests are compared.
    /// `None`: no masks.
    pub masks: Option<Masks>,
    /// Lists the process groups of the agents of the proxy's run; `None`: nobody here sees their processes.
    pub groups: Option<Groups>,
    /// `None`: this process shows and removes no files of runs.
    pub files: Option<Arc<dyn RunFiles>>,
    /// Pause between two looks at what a held call waits for.
    pub look_pause: Duration,
}

impl Config {
    /// Returns this configuration with another address of a provider.
    pub fn at(&self, upstream: Upstream, base: String) -> Config {
        let mut config = self.clone();
        config.providers.of_mut(upstream).base = base;
        config
    }
}

/// Event of the proxy that an observer gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Request,
    /// A request on an opened host is passed on unread and unrecorded.
    Passed,
    /// A new call was admitted, and is about to be sent.
    Opened {
        seq: Seq,
    },
    /// The first bytes of a streamed answer went to a client.
    Streaming {
        seq: Seq,
    },
    Settled {
        seq: Seq,
        upstream: String,
        status: Status,
        /// Whether the upstream answered with a 2xx status.
        answered: bool,
        /// Whether the upstream answered with any status that is no sign of an outage.
        heard: bool,
        /// Cause of the outage that the call's last failure may belong to; `None` if the call did not fail in
        /// this way.
        failed: Option<Cause>,
        /// Time since the newest try was sent.
        sent_ago: Duration,
    },
    /// The upstream has a usage limit that ends at `until`. Comes between `Settled` and the client's answer.
    Limited {
        seq: Seq,
        until: Micros,
    },
    /// A call would exceed a ceiling on the plan of its login, and was not sent. No call is sent before
    /// `until`.
    Rests {
        until: Micros,
        why: Box<Refusal>,
    },
    /// The upstream answers no call; from now on the run waits for it.
    Outage {
        outage: Outage,
        since: OutSince,
    },
    /// An agent waits busily: so many calls in a row brought it nothing new. Once for each time that it waits.
    Waits {
        calls: u32,
        /// Tool calls that the last of them brought the results of.
        name: String,
    },
    /// A call that would bring nothing new is held, for `ms` milliseconds at most.
    Held {
        calls: u32,
        ms: u64,
        name: String,
    },
    Replayed {
        seq: Seq,
    },
    Refused {
        code: String,
        message: String,
        hint: Option<String>,
    },
    Diverged {
        untaken: i64,
    },
    /// A CLI agent's request named the agent's session. `agent`: the header `X-Outlast-Agent`, set by the supervisor.
    Session {
        run: RunNo,
        attempt: AttemptNo,
        id: String,
        agent: Option<String>,
    },
}

/// Callback that gets every event at once, on the proxy's own threads. It must not block.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// Observer of the proxy; `None`: nobody observes.
#[derive(Clone)]
pub struct Watch(pub Option<Observer>);

impl Watch {
    pub fn saw(&self, seen: Seen) {
        if let Some(observer) = &self.0 {
            observer(&seen);
        }
    }
}
