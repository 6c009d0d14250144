//! A settlement on its way: what it waits for, and when the store cannot take it.

use std::{pin::Pin, time::Duration};

use outlast_core::{call::exchange::Ending, engine::call::settle::Settled, store::Error};
use tokio::time::Instant;

/// The pause before a settlement that failed is tried again.
const SETTLE_AGAIN: Duration = Duration::from_millis(500);

/// A settlement on its way to the store, behind the parts of a long answer.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Settled, Error>> + Send>>;

/// The settlement of an exchange, over all its tries.
#[derive(Default)]
pub(super) struct Settling {
    pub ending: Option<Ending>,
    pub began_at: Option<Instant>,
    pub pending: Option<Pending>,
    pub slow_at: Option<Instant>,
    again: Option<(Instant, Ending, Option<&'static str>)>,
    /// Active time that it posts.
    pub active_ms: i64,
    /// Too much waited to be recorded: the answer is gone.
    pub dropped: bool,
}

/// What a settlement comes to next.
pub(super) enum Came {
    Settled(Result<Settled, Error>),
    Slow,
    Again(Ending, Option<&'static str>),
}

impl Settling {
    /// Waits until there is something to say; without a settlement for ever.
    pub async fn next(&mut self) -> Came {
        let Settling { pending, slow_at, again, .. } = self;
        tokio::select! {
            settled = async {
                match pending {
                    Some(pending) => pending.await,
                    None => std::future::pending().await,
                }
            } => {
                *pending = None;
                Came::Settled(settled)
            }
            () = sleep_until(*slow_at) => {
                *slow_at = None;
                Came::Slow
            }
            (ending, error) = async {
                match *again {
                    Some((at, ending, error)) => {
                        tokio::time::sleep_until(at).await;
                        (ending, error)
                    }
                    None => std::future::pending().await,
                }
            } => {
                *again = None;
                Came::Again(ending, error)
            }
        }
    }

    /// The store failed: the same again after a pause.
    pub fn rests(&mut self, ending: Ending, error: Option<&'static str>) {
        self.again = Some((Instant::now() + SETTLE_AGAIN, ending, error));
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
