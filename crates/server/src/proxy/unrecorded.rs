//! Answers that came and are not recorded: how many, and what they hold in memory.
//!
//! While there is one, new calls are refused; beyond a bound in all, only an answer's usage is kept.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The count of one process.
pub struct Unrecorded {
    max_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    answers: usize,
    bytes: u64,
}

impl Unrecorded {
    /// Keeps up to `max_bytes` of answers in all.
    pub fn new(max_bytes: u64) -> Unrecorded {
        Unrecorded { max_bytes, held: Mutex::default() }
    }

    /// An answer of `bytes` could not be recorded. Returns what of it may stay in memory, to be given
    /// back by [`Unrecorded::recorded`]; `None`: its usage only.
    #[must_use]
    pub fn add(&self, bytes: u64) -> Option<u64> {
        let mut held = self.lock();
        held.answers += 1;
        let all = held.bytes.saturating_add(bytes);
        if all > self.max_bytes {
            return None;
        }
        held.bytes = all;
        Some(bytes)
    }

    /// One is recorded, or never will be. `kept`: what [`Unrecorded::add`] returned.
    pub fn recorded(&self, kept: Option<u64>) {
        let mut held = self.lock();
        held.answers = held.answers.saturating_sub(1);
        held.bytes = held.bytes.saturating_sub(kept.unwrap_or(0));
    }

    pub fn any(&self) -> bool {
        self.lock().answers > 0
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_over_all_answers_and_each_counts() {
        let all = Unrecorded::new(100);
        assert!(!all.any());
        let (first, second) = (all.add(60), all.add(60));
        assert_eq!((first, second, all.add(40)), (Some(60), None, Some(40)));
        all.recorded(second);
        assert_eq!(all.add(1), None, "who kept nothing gives nothing back");
        all.recorded(None);
        all.recorded(first);
        assert_eq!(all.add(60), Some(60));
        all.recorded(Some(60));
        assert!(all.any());
        all.recorded(Some(40));
        assert!(!all.any());
    }
}
