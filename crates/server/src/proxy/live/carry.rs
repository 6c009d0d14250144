//! State of the task that carries an exchange, and of its settlement: result, time limit, retry when the store fails.

use std::{pin::Pin, sync::Arc, time::Duration};

use outlast_core::{
    call::exchange::Ending,
    engine::Settled,
    store::Error,
    words::{Cause, Micros},
};
use tokio::time::{Instant, sleep_until};

use crate::{
    dialect::Outcome,
    proxy::{call::Call, host::Host, log::Live, or_never},
};

/// State of the task that carries one exchange to its settlement.
pub(super) struct Carry {
    pub host: Arc<Host>,
    pub live: Arc<Live>,
    pub call: Arc<Call>,
    /// Tokens to which the request's output cap is lowered; `None`: the cap stays.
    pub cap: Option<u64>,
    pub answer: Answered,
    pub tries: Tries,
    pub settling: Settling,
}

/// Result of the current try.
#[derive(Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub head_at: Option<Instant>,
    pub request_id: Option<String>,
    pub outcome: Outcome,
    /// Reason why the answer's text cannot be read; `None` if it can be.
    pub unreadable: Option<String>,
    /// Time at which the upstream's usage limit ends; `None` if it reported none.
    pub limited: Option<Micros>,
    /// Cause of the outage that the failure may belong to; `None` if there is none.
    pub cause: Option<Cause>,
}

/// Times at which the call's first and last try were sent.
#[derive(Default)]
pub(super) struct Tries {
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
    /// Number of retries so far, without the first try.
    pub again: u32,
}

/// Pause before a settlement that failed is tried again.
const SETTLE_AGAIN: Duration = Duration::from_millis(500);

/// Future that stores a call's settlement (outcome, cost, answer). It stores the parts of a long answer first.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Settled, Error>> + Send>>;

/// State of an exchange's settlement, over all tries to commit it.
#[derive(Default)]
pub(super) struct Settling {
    pub ending: Option<Ending>,
    pub began_at: Option<Instant>,
    pub pending: Option<Pending>,
    pub slow_at: Option<Instant>,
    again: Option<(Instant, Ending, Option<&'static str>)>,
    /// Active time that the settlement posts, in milliseconds.
    pub active_ms: i64,
    /// Whether the answer was dropped, because too many bytes waited to be recorded.
    pub dropped: bool,
}

/// Next event of a settlement: its result, that it takes long, or that it is time to try again.
pub(super) enum Came {
    Settled(Result<Settled, Error>),
    Slow,
    Again(Ending, Option<&'static str>),
}

impl Settling {
    /// Waits for the next event. Never returns if no settlement is in progress.
    pub async fn next(&mut self) -> Came {
        let Settling { pending, slow_at, again, .. } = self;
        tokio::select! {
            settled = or_never(pending.as_mut()) => {
                *pending = None;
                Came::Settled(settled)
            }
            () = or_never(slow_at.map(sleep_until)) => {
                *slow_at = None;
                Came::Slow
            }
            (ending, error) = or_never(again.map(async |(at, ending, error)| {
                sleep_until(at).await;
                (ending, error)
            })) => {
                *again = None;
                Came::Again(ending, error)
            }
        }
    }

    /// Schedules another try of the settlement, after a pause: the store failed.
    pub fn rests(&mut self, ending: Ending, error: Option<&'static str>) {
        self.again = Some((Instant::now() + SETTLE_AGAIN, ending, error));
    }
}
