//! How the proxy is set up, and what may be watched of it.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    call::rate::Rate,
    envelope::unit::Limits,
    price::PriceTable,
    run::{Policy, masks::Masks, status::Status},
    words::id::{AttemptNo, Micros, RunNo, Seq},
};

use super::named::Providers;
use crate::wire::who::Access;

/// How the proxy is set up.
#[derive(Clone)]
pub struct Config {
    pub access: Access,
    pub providers: Providers,
    pub prices: PriceTable,
    pub price_hash: Arc<str>,
    /// Of runs that a header names first.
    pub default_limits: Limits,
    pub default_policy: Policy,
    pub admit_wait: Duration,
    pub settle_wait: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
    /// Bytes of a request, as it came and decoded.
    pub max_body: usize,
    /// Bytes of an answer that is no stream.
    pub max_answer: usize,
    /// Bytes of answers kept in memory, in all, while they cannot be recorded.
    pub max_unrecorded: u64,
    /// After a suspend an upstream that stays silent for this long is given up.
    pub silence_after_suspend: Duration,
    /// How many calls may be on their way to one upstream at once, over all runs of this server.
    pub upstream_concurrency: Option<usize>,
    /// How many requests and tokens a minute one upstream is asked, over all runs of this server, unless it has a rate
    /// of its own.
    pub upstream_rate: Rate,
    /// How often a call is sent again at most, after its upstream refused it for the moment or was not reached, and
    /// within `admit_wait`. Not for clients that do so themselves.
    pub upstream_retries: u32,
    /// What does not count in the requests of runs that a header names first.
    pub masks: Option<Masks>,
}

/// What a supervisor may watch.
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
        status: Status,
        /// With a 2xx.
        answered: bool,
    },
    /// The upstream refuses whatever is asked until then: said after its `Settled`, before the client hears.
    Limited {
        seq: Seq,
        until: Micros,
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
    /// A CLI agent named its session. `agent` is what it was told to send in `X-Outlast-Agent`.
    Session {
        run: RunNo,
        attempt: AttemptNo,
        id: String,
        agent: Option<String>,
    },
}

/// Told of everything, at once and on the proxy's own threads: it must not block.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// Whoever watches the proxy, if anybody does.
#[derive(Clone)]
pub struct Watch(pub Option<Observer>);

impl Watch {
    pub fn saw(&self, seen: Seen) {
        if let Some(observer) = &self.0 {
            observer(&seen);
        }
    }
}
