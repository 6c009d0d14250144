//! Unrecorded answers: the number of answers that came and are not recorded, and the memory they hold.
//!
//! While there is one, new calls are refused. Beyond a bound for all of them, only an answer's usage is kept.

/// Unrecorded answers of one process.
#[derive(Debug)]
pub struct Unrecorded {
    max_bytes: u64,
    answers: usize,
    bytes: u64,
}

/// Share of one unrecorded answer in the count of answers and in the memory they hold. Must be given back to
/// [`Unrecorded::recorded`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Held {
    /// Bytes of the answer that may stay in memory; `None` if only its usage may.
    kept: Option<u64>,
}

impl Held {
    /// Returns whether the answer itself may stay in memory; if not, only its usage is kept.
    pub fn keeps_answer(&self) -> bool {
        self.kept.is_some()
    }
}

impl Unrecorded {
    /// Creates an empty count that keeps up to `max_bytes` of answers in all.
    pub fn new(max_bytes: u64) -> Unrecorded {
        Unrecorded { max_bytes, answers: 0, bytes: 0 }
    }

    /// Counts an answer of `bytes` that could not be recorded. It is kept in memory, if there is room, until `recorded`.
    pub fn add(&mut self, bytes: u64) -> Held {
        self.answers += 1;
        let all = self.bytes.saturating_add(bytes);
        if all > self.max_bytes {
            return Held { kept: None };
        }
        self.bytes = all;
        Held { kept: Some(bytes) }
    }

    /// Removes an answer that is recorded, or never will be.
    pub fn recorded(&mut self, held: Held) {
        self.answers = self.answers.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(held.kept.unwrap_or(0));
    }

    pub fn any(&self) -> bool {
        self.answers > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_over_all_answers_and_each_counts() {
        let mut all = Unrecorded::new(100);
        assert!(!all.any());
        let (first, second, third) = (all.add(60), all.add(60), all.add(40));
        assert!(first.keeps_answer() && !second.keeps_answer() && third.keeps_answer());
        all.recorded(second);
        let fourth = all.add(1);
        assert!(!fourth.keeps_answer(), "who kept nothing gives nothing back");
        all.recorded(fourth);
        all.recorded(first);
        let fifth = all.add(60);
        assert!(fifth.keeps_answer());
        all.recorded(fifth);
        assert!(all.any());
        all.recorded(third);
        assert!(!all.any());
    }
}
