//! Pauses between two looks at what other processes of the store have done. A hint of the store's ends one early.
//!
//! Looking is the truth, and a hint only saves the rest of a pause: it may be lost, or come for nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use outlast_core::store::{News, Store};
use tokio::sync::watch;

/// Shortest pause after a hint. Hints may come faster than looks are of use.
const SHORTEST_MS: u64 = 5;

/// Hints that a store gives to this process. Hearing them takes a connection, which is made for the first waiter.
pub struct Hints {
    store: Arc<dyn Store>,
    heard: watch::Sender<Heard>,
    hears: AtomicBool,
    /// Least pause without a hint, in milliseconds; 0 except in tests.
    at_least_ms: AtomicU64,
    waits: AtomicU64,
}

/// Number of hints so far, by the kind of their news: room, events, state, joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard([u64; 4]);

/// Kinds in the order of [`Heard`].
const KINDS: [News; 4] = [News::ROOM, News::EVENTS, News::STATE, News::JOINED];

/// One waiter's ear for hints of some kinds.
pub struct Ear {
    hints: Arc<Hints>,
    heard: watch::Receiver<Heard>,
    wants: News,
    /// Hints that were heard before the waiter's last look.
    seen: Heard,
}

impl Hints {
    pub fn new(store: Arc<dyn Store>) -> Arc<Hints> {
        Arc::new(Hints {
            store,
            heard: watch::Sender::default(),
            hears: AtomicBool::new(false),
            at_least_ms: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        })
    }

    /// Begins to hear hints, and returns an ear for those that tell of any of `wants`. Make it before the first look, so
    /// that no hint falls between that and the pause.
    pub fn ear(self: &Arc<Self>, wants: News) -> Ear {
        if !self.hears.swap(true, Ordering::SeqCst) {
            let heard = self.heard.clone();
            self.store.on_hint(Arc::new(move |news| heard.send_modify(|heard| heard.add(news))));
        }
        let heard = self.heard.subscribe();
        let seen = *heard.borrow();
        Ear { hints: self.clone(), heard, wants, seen }
    }

    /// Makes every pause without a hint last at least so long: for tests, which show what a hint does.
    pub fn pause_at_least(&self, pause: Duration) {
        self.at_least_ms.store(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Heard {
    fn add(&mut self, news: News) {
        let each = self.0.iter_mut().zip(KINDS);
        each.filter(|(_, kind)| news.concerns(*kind)).for_each(|(count, _)| *count += 1);
    }
}

impl Ear {
    /// Waits for `pause`, or less if a hint has come since the last pause. Returns what that told.
    pub async fn pause(&mut self, pause: Duration) -> News {
        let pause = pause.max(Duration::from_millis(self.hints.at_least_ms.load(Ordering::SeqCst)));
        let hint = async {
            loop {
                let now = *self.heard.borrow_and_update();
                let seen = std::mem::replace(&mut self.seen, now);
                let each = seen.0.into_iter().zip(now.0).zip(KINDS);
                let new = each.filter(|((seen, now), kind)| seen != now && kind.concerns(self.wants));
                let news = new.fold(News::default(), |news, (_, kind)| news | kind);
                if news.is_any() {
                    // All processes hear a hint at once: each waiter looks at a time of its own.
                    let turn = self.hints.waits.fetch_add(1, Ordering::Relaxed);
                    let jitter = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
                    tokio::time::sleep(Duration::from_millis(SHORTEST_MS + jitter)).await;
                    return news;
                }
                // The sender lives in `hints`.
                let _ = self.heard.changed().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => News::default(),
            news = hint => news,
        }
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        memory::MemoryStore,
        words::{ManualClock, Micros},
    };

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_hint_of_a_wanted_kind_ends_a_pause_and_one_before_it_does_too() {
        let (hints, told) = heard();
        let mut ear = hints.ear(News::EVENTS | News::STATE);
        told(News::STATE);
        assert_eq!(ear.pause(HOUR).await, News::STATE, "a hint between the look and the pause");
        let (news, ()) = tokio::join!(ear.pause(HOUR), async { told(News::EVENTS | News::ROOM) });
        assert_eq!(news, News::EVENTS);
        // Of no concern: the pause ends by itself, as it does without any hint.
        told(News::ROOM | News::JOINED);
        assert_eq!(ear.pause(SHORT).await, News::default());
        assert_eq!(ear.pause(SHORT).await, News::default());
    }

    /// Hints, and what gives them in the store's place.
    fn heard() -> (Arc<Hints>, impl Fn(News)) {
        let clock = Arc::new(ManualClock::new(Micros(0)));
        let hints = Hints::new(Arc::new(MemoryStore::new(clock)));
        let heard = hints.heard.clone();
        (hints, move |news| heard.send_modify(|heard| heard.add(news)))
    }
}
