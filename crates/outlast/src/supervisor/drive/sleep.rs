//! A run that sleeps until its provider's usage limit is over: one supervisor waits and wakes it.

use std::time::Duration;

use outlast_core::{
    engine::run::hold::Hold,
    run::status::Status,
    words::{
        clock::random,
        id::{InstanceNo, Micros},
    },
};
use tokio::time::Instant;

use super::Driver;
use crate::{
    program::{error::CliError, say::say},
    render::time,
    supervisor::{
        ended_by::{self, EndedBy},
        story,
    },
};

/// Longest time between two checks of the wall clock, which counts while the machine is suspended. A stop or
/// a wake is noticed within this time too.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which the lease is renewed while sleeping: another process may have declared this one dead.
const HOLD: Duration = Duration::from_secs(30);

impl Driver {
    /// Waits while the run has the status `sleeping`, without starting an attempt. Returns the exit code if the run has
    /// ended or was stopped; `None` if the run may go on.
    ///
    /// Errors: `RunHeld`: another process waits, and will wake the run.
    pub(super) async fn sleep_on(&mut self) -> Result<Option<u8>, CliError> {
        if story::view(self.store.as_ref(), &self.view)?.run.status != Status::Sleeping {
            return Ok(None);
        }
        let (Some(until), _) = self.hold().await? else { return Ok(None) };
        if nap(until, self.store.now()?).is_some() {
            let id = &self.view.run.id;
            let wait = time::span(until.ms_since(self.store.now()?));
            let view = story::view(self.store.as_ref(), &self.view)?;
            let why = view.run.halt.map_or_else(|| "usage limit".to_owned(), |halt| halt.message());
            say(&format!(
                "{why}: {id} sleeps until {} (for {wait}); `outlast wake {id}` starts it now",
                time::moment(until)
            ));
        }
        let mut held = Instant::now();
        loop {
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Sleeping if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                Status::Sleeping => {}
                Status::Running => {
                    say("woken");
                    return Ok(None);
                }
                Status::Interrupted if view.run.stop_requested => {
                    return self.finish(Status::Interrupted).map(Some);
                }
                Status::Interrupted | Status::Waiting | Status::Failed => return Ok(None),
                status @ (Status::Halted | Status::Completed | Status::Cancelled) => {
                    return self.finish(status).map(Some);
                }
            }
            let Some(nap) = nap(view.run.wake_at.unwrap_or(until), self.store.now()?) else { break };
            tokio::select! {
                () = tokio::time::sleep(nap) => {}
                signals = self.signals.next() => match ended_by::asked(&signals?) {
                    Some(EndedBy::Person) => return self.interrupted(true).await.map(Some),
                    // The run stays asleep, for `resume --all` after the reboot.
                    Some(_) => return self.finish(Status::Sleeping).map(Some),
                    None => {}
                },
            }
            if held.elapsed() >= HOLD || self.beat.word().borrow().dead {
                held = Instant::now();
                self.hold().await?;
            }
        }
        // Jitter, so that runs that wait for one account's limit do not all return at once. The backoff grows
        // while a limit that should be over is not.
        let jitter =
            self.backoff.after(self.lived, u64::from_le_bytes(random(self.context.entropy.as_ref())));
        self.pause(jitter).await
    }

    /// Takes or renews the run's lease. Returns the time until which the run sleeps (`None` if it does not sleep) and
    /// the instance that has the lease.
    pub(super) async fn hold(&self) -> Result<(Option<Micros>, InstanceNo), CliError> {
        let run = self.view.run.no;
        self.ask_alive(|instance| Hold { run, instance }).await
    }
}

/// Returns how long to sleep before the next look at the clock; `None` when it is time.
fn nap(until: Micros, now: Micros) -> Option<Duration> {
    let left = u64::try_from(until.0.saturating_sub(now.0)).ok().filter(|left| *left > 0)?;
    Some(Duration::from_micros(left).min(LOOK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_looked_at_every_second_and_never_too_early() {
        let check = |until: i64, now: i64, wanted: Option<Duration>| {
            assert_eq!(nap(Micros(until), Micros(now)), wanted, "{until} {now}");
        };
        check(10, 10, None);
        check(10, 11, None);
        check(11, 10, Some(Duration::from_micros(1)));
        check(5_000_000, 0, Some(LOOK));
        check(i64::MAX, -1, Some(LOOK));
        // Clock set back: it sleeps on. Clock moved forward, as by a suspend: it wakes.
        check(5_000_000, 4_999_000, Some(Duration::from_millis(1)));
    }
}
