//! A settlement in progress: its result, its time limit, and the retry when the store fails.

use std::{pin::Pin, time::Duration};

use outlast_core::{call::exchange::Ending, engine::call::settle::Settled, store::Error};
use tokio::time::{Instant, sleep_until};

use crate::proxy::or_never;

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
