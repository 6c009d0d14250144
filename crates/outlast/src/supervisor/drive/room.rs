//! A run that waits for a budget above its own: no attempt is started before there is room.

use std::time::Duration;

use outlast_core::{
    envelope::Whose,
    reads::room::is_room,
    run::{Run, status::Status},
    words::clock::random,
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

/// How often it is looked for room, and whether the run is stopped meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// How often the lease is asked for again: another process may have taken this one for dead.
const HOLD: Duration = Duration::from_secs(30);

impl Driver {
    /// Waits while the run does, and claims nothing. `Some`: it has ended, or was stopped: the exit code.
    ///
    /// A raise, the next window or other runs' calls make room. Errors: `RunHeld`: another process drives the run.
    pub(super) async fn wait_for_room(&mut self) -> Result<Option<u8>, CliError> {
        // What has ended before it began here, the claim refuses.
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
        // Those who wait for one budget do not return together; and one whose agent cannot use the room there is
        // is started less and less often.
        let jitter =
            self.backoff.after(self.lived, u64::from_le_bytes(random(self.context.entropy.as_ref())));
        self.pause(jitter).await
    }

    /// After an agent gave up on calls for which there was no room, while others' calls in flight hold it: that comes
    /// back by itself. A run that waits does so before its next attempt.
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

    /// Whether what the run waits for fits now.
    fn has_room(&self, run: &Run) -> Result<bool, CliError> {
        let Some(refusal) = &run.halt else { return Ok(true) };
        let parent = match refusal.whose {
            Some(Whose::Parent(no)) => self.store.run(no)?.map(|view| view.envelope),
            _ => None,
        };
        Ok(is_room(refusal, &self.store.budgets()?, parent.as_ref(), self.store.now()?))
    }
}
