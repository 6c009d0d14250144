//! Hints between the processes of a store, by LISTEN and NOTIFY: what one of them did, where another may wait for it.
//!
//! A hint saves a waiter the rest of its pause. Nothing depends on one: it may be lost with its connection, and behind a
//! pooler in transaction mode none comes. A commit carries one only where somebody may wait for what it did.

use std::{
    rc::Rc,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    engine::Loaded,
    envelope::Unit,
    journal::State,
    store::{Hint, News},
};
use tokio::sync::mpsc::unbounded_channel;

use super::readers::Pool;
use crate::postgres::prelude::*;

/// Pause before a lost connection is made anew.
const PAUSE: Duration = Duration::from_secs(1);

/// An envelope counts as nearly full while its room is less than this many times what an operation gives
/// back: a call of that size may then be waiting. Larger calls that wait find the room by themselves.
const NEAR: i64 = 4;

/// Listeners of this process, and its name as a sender.
pub struct Hints {
    channel: String,
    /// Random name of this process, by which it ignores its own hints.
    sender: String,
    listeners: Mutex<Vec<Hint>>,
    is_listening: AtomicBool,
}

impl Hints {
    pub fn new(schema: &SchemaName, sender: [u8; 16]) -> Hints {
        Hints {
            channel: schema.channel(),
            sender: format!("{:032x}", u128::from_le_bytes(sender)),
            listeners: Mutex::default(),
            is_listening: AtomicBool::new(false),
        }
    }

    /// Adds a listener. Returns whether it is the first, so that the caller has to start [`Hints::listen`].
    pub fn add(&self, listener: Hint) -> bool {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        !self.is_listening.swap(true, Ordering::SeqCst)
    }

    /// Receives the hints of other processes and calls the listeners at each, until the store is closed.
    pub async fn listen(&self, pool: Rc<Pool>) {
        loop {
            let (heard, mut hears) = unbounded_channel();
            if let Ok(link) = pool.address.listen(heard).await
                && link.batch_execute(&format!("LISTEN {}", self.channel)).await.is_ok()
            {
                // Something may have been done while nobody heard it.
                self.tell(News::ANY);
                while let Some(heard) = hears.recv().await {
                    let (sender, word) = heard.split_once(' ').unwrap_or((&heard, ""));
                    if sender != self.sender {
                        self.tell(News::read(word));
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn tell(&self, news: News) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().for_each(|listener| listener(news));
    }

    /// Returns the statement that sends a hint to the other processes once its transaction has committed.
    pub fn notifying(&self, news: News) -> Statement<'_> {
        let text = |text: String| Cell::Text(Some(text.into()));
        let word = format!("{} {}", self.sender, news.word());
        let values = Values::One(vec![text(self.channel.clone()), text(word)]);
        // A query of a WITH runs only if it is asked for its rows.
        Statement { joins: false, ..Statement::new("SELECT pg_catalog.pg_notify($1, $2)".into(), values) }
    }
}

/// Returns what another process may wait for of an operation's changes, asked before `known` takes over its rows:
/// events, commits of the state, the end of a call that another process's request joined, and room in an envelope that
/// was nearly full, or raised.
pub fn news(known: &Known, loaded: &Loaded) -> News {
    let frees =
        |after: &Envelope| known.envelopes.get(&after.no).is_some_and(|row| gives_room(&row.value, after));
    let is_over = |entry: &Entry| entry.state != State::Open && entry.call.as_ref().is_some_and(|c| c.joined);
    News::ROOM.when(loaded.envelopes.iter().any(|row| frees(&row.value)))
        | News::EVENTS.when(!loaded.events.is_empty())
        | News::STATE.when(!loaded.state.versions.is_empty())
        | News::JOINED.when(loaded.entries.iter().any(|row| row.touch != Touch::Read && is_over(&row.value)))
}

fn gives_room(before: &Envelope, after: &Envelope) -> bool {
    Unit::ALL.into_iter().filter(|unit| unit.propagates()).any(|unit| {
        let Some(was) = before.free(unit) else { return false };
        if before.limits[unit] != after.limits[unit] {
            // A person's doing, which is rare.
            return after.free(unit).is_none_or(|is| is > was);
        }
        let released = before.reserved[unit] - after.reserved[unit];
        after.free(unit).is_some_and(|is| is > was) && was < released.saturating_mul(NEAR)
    })
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        envelope::{Amounts, Limits, Owner},
        words::{EnvelopeNo, RunNo},
    };

    use super::*;

    fn envelope(limit: Option<i64>, reserved: i64, spent: i64) -> Envelope {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = limit;
        let amounts = |cost: i64| {
            let mut amounts = Amounts::default();
            amounts[Unit::CostNanoUsd] = cost;
            amounts
        };
        let new = Envelope::new(EnvelopeNo(1), Owner::Run(RunNo(1)), limits);
        Envelope { reserved: amounts(reserved), spent: amounts(spent), ..new }
    }

    #[test]
    fn room_is_told_where_another_call_might_not_have_fitted() {
        let check = |limit, before: (i64, i64), after: (i64, i64), wanted: bool| {
            let told = gives_room(&envelope(limit, before.0, before.1), &envelope(limit, after.0, after.1));
            assert_eq!(told, wanted, "{limit:?} {before:?} {after:?}");
        };
        // A call of 10 settles at 3.
        check(Some(100), (10, 85), (0, 88), true);
        check(Some(100), (10, 51), (0, 54), true);
        check(Some(100), (10, 50), (0, 53), false);
        check(Some(100_000), (10, 50), (0, 53), false);
        check(None, (10, 85), (0, 88), false);
        // One that costs what it held gives nothing back, and a new call takes.
        check(Some(100), (10, 85), (0, 95), false);
        check(Some(100), (0, 85), (10, 85), false);
        let raised = |limit| gives_room(&envelope(Some(100), 0, 85), &envelope(limit, 0, 85));
        assert_eq!([Some(101), Some(99), None].map(raised), [true, false, true]);
    }
}
