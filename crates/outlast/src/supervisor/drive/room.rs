//! A run that waits for room in a budget above its own, or for its provider: no attempt is started before.

use std::time::Duration;

use outlast_core::{
    envelope::Whose,
    reads::room::is_room,
    run::{Run, status::Status},
    words::{clock::random, outage::Outage},
};
use tokio::time::Instant;

use super::Driver;
use crate::{
    program::{error::CliError, say::say},
    supervisor::{
        ended_by::{self, EndedBy},
        story,
    },
};

/// Interval at which the supervisor checks for room and for a stop.
const LOOK: Duration = Duration::from_millis(500);

/// Interval at which the lease is renewed while waiting: another process may have declared this one dead.
const HOLD: Duration = Duration::from_secs(30);

impl Driver {
    /// Waits while the run has the status `waiting`, without starting an attempt. Returns the exit code if the run has
    /// ended or was stopped; `None` if the run may go on.
    ///
    /// A raised budget, the budget's next window or settled calls of other runs make room. Errors: `RunHeld`: another
    /// process drives the run.
    pub(super) async fn wait_for_room(&mut self) -> Result<Option<u8>, CliError> {
        // If the run has already ended, the claim refuses it.
        if story::view(self.store.as_ref(), &self.view)?.run.status != Status::Waiting {
            return Ok(None);
        }
        let (mut said, mut held) = (false, Instant::now());
        loop {
            let view = story::view(self.store.as_ref(), &self.view)?;
            match view.run.status {
                Status::Waiting if view.run.stop_requested => return self.interrupted(true).await.map(Some),
                Status::Waiting => {}
                Status::Running | Status::Interrupted | Status::Sleeping | Status::Failed => return Ok(None),
                status @ (Status::Halted | Status::Completed | Status::Cancelled) => {
                    return self.finish(status).map(Some);
                }
            }
            if self.has_room(&view.run)? {
                break;
            }
            if !said {
                story::waits(&view);
                said = true;
                self.hold().await?;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                signals = self.signals.next() => if let Some(by) = ended_by::asked(&signals?) {
                    return self.interrupted(by == EndedBy::Person).await.map(Some);
                },
            }
            if held.elapsed() >= HOLD || self.beat.word().borrow().dead {
                held = Instant::now();
                self.hold().await?;
            }
        }
        if said {
            say("there is room again");
        }
        // Jitter, so that runs that wait for one budget do not all return at once. The backoff grows while an
        // agent cannot use the room there is.
        let jitter =
            self.backoff.after(self.lived, u64::from_le_bytes(random(self.context.entropy.as_ref())));
        let run = story::view(self.store.as_ref(), &self.view)?.run;
        match run.awaited_outage() {
            Some((outage, _)) => self.wait_for_probe(outage, jitter).await,
            None => self.pause(jitter).await,
        }
    }

    /// Waits before the next attempt at a provider that answers no call. The attempt's first call is the probe.
    async fn wait_for_probe(&mut self, outage: &Outage, jitter: Duration) -> Result<Option<u8>, CliError> {
        self.hold().await?;
        let pause = jitter.min(self.outage_rules.pause);
        say(&format!("{outage}; the agent is started again in {:.1} s", pause.as_secs_f64()));
        self.pause(pause).await
    }

    /// Waits for a backoff after the agent ended because other runs' calls in flight left no room for its own. That
    /// room returns by itself. Does nothing for a run with the status `waiting`, which [`Driver::wait_for_room`]
    /// handles. Returns the exit code if the run was stopped meanwhile; `None` otherwise.
    pub(super) async fn stand_back(&mut self) -> Result<Option<u8>, CliError> {
        if story::view(self.store.as_ref(), &self.view)?.run.status == Status::Waiting {
            return Ok(None);
        }
        let jitter =
            self.backoff.after(self.lived, u64::from_le_bytes(random(self.context.entropy.as_ref())));
        say(&format!(
            "no room for its calls while others' are in flight; it begins again in {:.1} s",
            jitter.as_secs_f64()
        ));
        self.pause(jitter).await
    }

    /// Returns whether the call that was refused would fit into the budgets now.
    fn has_room(&self, run: &Run) -> Result<bool, CliError> {
        let Some(refusal) = &run.halt else { return Ok(true) };
        let parent = match refusal.whose {
            Some(Whose::Parent(no)) => self.store.run(no)?.map(|view| view.envelope),
            _ => None,
        };
        Ok(is_room(refusal, &self.store.budgets()?, parent.as_ref(), self.store.now()?))
    }
}
