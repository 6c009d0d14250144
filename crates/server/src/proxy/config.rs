//! Configuration of the proxy, and the events that an observer sees.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    call::rate::Rate,
    envelope::{Refusal, unit::Limits},
    price::PriceTable,
    run::{Policy, masks::Masks, status::Status},
    words::{
        id::{AttemptNo, Micros, RunNo, Seq},
        outage::{Cause, Outage},
    },
};

use super::named::Providers;
use crate::wire::who::Access;

/// Configuration of the proxy.
#[derive(Clone)]
pub struct Config {
    pub access: Access,
    pub providers: Providers,
    pub prices: PriceTable,
    pub price_hash: Arc<str>,
    /// Limits of runs that a header names first.
    pub default_limits: Limits,
    pub default_policy: Policy,
    pub admit_wait: Duration,
    pub settle_wait: Duration,
    /// Time for which calls are held while this process cannot renew its heartbeat.
    pub store_wait: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
    /// Largest request body in bytes, both as it came and decoded.
    pub max_body: usize,
    /// Largest answer in bytes that is not a stream.
    pub max_answer: usize,
    /// Largest number of bytes of answers kept in memory, in all, while they cannot be recorded.
    pub max_unrecorded: u64,
    /// Time after a suspend of the machine after which a silent upstream is given up.
    pub silence_after_suspend: Duration,
    /// Largest number of calls in flight to one upstream at once, over all runs of this server.
    pub upstream_concurrency: Option<usize>,
    /// Requests and tokens a minute for one upstream, over all runs of this server. A named upstream may have its own.
    pub upstream_rate: Rate,
    /// Largest number of retries of a call whose upstream refused it for the moment or was not reached, all within
    /// `admit_wait`. Not for clients that retry themselves.
    pub upstream_retries: u32,
    /// Longest pause between two probes of an upstream that answers no call. `None`: calls are not held meanwhile, and
    /// their errors pass.
    pub outage_pause: Option<Duration>,
    /// Masks of runs that a header names first: parts of a request that do not count when requests are compared.
    pub masks: Option<Masks>,
}

/// An event of the proxy that an observer sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Request,
    /// A new call is on its way.
    Opened {
        seq: Seq,
    },
    /// The first bytes of a stream went to a client.
    Streaming {
        seq: Seq,
    },
    Settled {
        seq: Seq,
        upstream: String,
        status: Status,
        /// Whether the upstream answered with a 2xx status.
        answered: bool,
        /// Cause of an outage that the call's last failure may belong to.
        failed: Option<Cause>,
    },
    /// The upstream refuses all calls until `until`. Comes after the call's `Settled`, before the client is answered.
    Limited {
        seq: Seq,
        until: Micros,
    },
    /// A call would pass a ceiling on the plan of its login, and was not sent. None goes out before `until`.
    Rests {
        until: Micros,
        why: Box<Refusal>,
    },
    /// The upstream answers no call, and the run waits for it since then.
    Outage {
        outage: Outage,
        since: Micros,
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
    /// A CLI agent named its session. `agent` is its header `X-Outlast-Agent`, which the supervisor sets.
    Session {
        run: RunNo,
        attempt: AttemptNo,
        id: String,
        agent: Option<String>,
    },
}

/// Callback that gets every event at once, on the proxy's own threads. Must not block.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// The observer of the proxy, if there is one.
#[derive(Clone)]
pub struct Watch(pub Option<Observer>);

impl Watch {
    pub fn saw(&self, seen: Seen) {
        if let Some(observer) = &self.0 {
            observer(&seen);
        }
    }
}
