//! The end of runs that nobody asks in any more: those of header callers, which no process drives to their end.

use std::time::Duration;

use outlast_core::{
    engine::run::tell::{Tell, Word},
    reads::runs::idle_since,
    run::status::Status,
    store::{self, Ask as _, Durability},
};

use super::Proxy;
use crate::proxy::seat::forget_run;

/// Longest time between two searches for idle runs.
const LOOK: Duration = Duration::from_secs(600);

impl Proxy {
    /// Completes idle runs again and again, without end: see [`Proxy::end_idle`].
    pub async fn keep_ending_idle(self, idle_ms: i64) {
        let quarter = Duration::from_millis(u64::try_from(idle_ms / 4).unwrap_or(0));
        loop {
            tokio::time::sleep(quarter.clamp(Duration::from_millis(100), LOOK)).await;
            if let Err(e) = self.end_idle(idle_ms).await {
                tracing::warn!(error = %e, "cannot end idle runs");
            }
        }
    }

    /// Completes running runs that were begun by a request's header and recorded nothing for `idle_ms` milliseconds.
    /// Returns how many.
    ///
    /// A run in which a request is recorded meanwhile goes on.
    pub async fn end_idle(&self, idle_ms: i64) -> Result<usize, store::Error> {
        let host = self.host();
        let store = host.store.clone();
        let looked = tokio::task::spawn_blocking(move || idle_since(&*store, store.now()?.plus_ms(-idle_ms)));
        let mut ended = 0;
        for run in looked.await.map_err(|_| store::Error::Closed)?? {
            let word = Word::Idle { upto: run.next_seq };
            if host.store.ask(Tell { run: run.no, word }, Durability::Synced).await? == Status::Completed {
                ended += 1;
                forget_run(&host, run.no);
                host.wake();
                tracing::info!(run = run.id.as_str(), "completed: it asked nothing for {} s", idle_ms / 1000);
            }
        }
        Ok(ended)
    }
}
