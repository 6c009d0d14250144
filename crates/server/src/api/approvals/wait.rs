//! Wait for a person's decision.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    journal::approval::{Answer, Status},
    store::{self, News, Store},
};
use tokio::time::Instant;

use crate::hints::Hints;

/// Interval between two looks at an approval that nobody has decided.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until a person has decided on an approval, or it has expired, or until `until`. Returns the newest answer.
pub async fn decided(
    store: &dyn Store,
    hints: &Arc<Hints>,
    mut answer: Answer,
    until: Instant,
) -> Result<Answer, store::Error> {
    // A decision is an event.
    let mut ear = hints.ear(News::EVENTS);
    while let (Status::Pending, Some(id)) = (answer.status, answer.id) {
        let (entry, now) = (store.entry(id.run, id.seq)?, store.now()?);
        answer = entry.and_then(|e| Answer::of(&e, now)).unwrap_or(answer);
        if answer.status != Status::Pending || Instant::now() >= until {
            break;
        }
        let _ = ear.pause(LOOK).await;
    }
    Ok(answer)
}
