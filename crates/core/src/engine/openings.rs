//! Openings of a process whose callers name an entry by its number alone, as Python does: its closing presents the
//! opening.

use std::collections::HashMap;

use crate::{
    engine::{Admission, Error, Outcome, Step},
    journal::{ItemClaim, Opening},
    words::{RunNo, Seq},
};

/// Openings of the entries that a process has open, each kept until its entry is closed.
#[derive(Debug, Default)]
pub struct Openings(HashMap<(RunNo, Seq), Opening>);

impl Openings {
    /// Keeps the opening in an operation's outcome, and forgets the entry of `run` that the operation closed.
    pub fn note(&mut self, run: RunNo, outcome: &Outcome) {
        match outcome {
            Outcome::Begun(Step::Run { opening, begun_before: false, .. }) => self.opened(*opening),
            Outcome::Begun(Step::Run { opening, .. }) => self.keep(*opening),
            Outcome::ItemClaimed(ItemClaim::Run(item)) if !item.continued => self.opened(item.opening),
            Outcome::ItemClaimed(ItemClaim::Run(item)) => self.keep(item.opening),
            Outcome::Admitted(Admission::Go { opening, .. }) => self.keep(*opening),
            Outcome::Recorded(seq) => self.forget(run, *seq),
            Outcome::ItemEnded(item) => self.forget(run, item.seq),
            _ => {}
        }
    }

    /// Forgets an opening if `error`, with which its closing failed, shows that it no longer has its entry.
    pub fn note_failure(&mut self, run: RunNo, error: &Error) {
        use Error::{AlreadySettled, AlreadyTaken, UnknownEntry};
        if let UnknownEntry { seq, .. } | AlreadyTaken { seq } | AlreadySettled { seq, .. } = error {
            self.forget(run, Seq(*seq));
        }
    }

    /// Returns the opening of an entry. If none is kept, returns one with which a closing gets `AlreadyTaken`.
    pub fn of(&self, run: RunNo, seq: Seq) -> Opening {
        self.0.get(&(run, seq)).copied().unwrap_or(Opening { run, seq, ..Opening::default() })
    }

    /// Keeps the opening of a new entry. If this process has another entry open under the same number, its
    /// database has lost that entry and assigned the number again. The caller cannot tell the two apart, so
    /// neither is closed.
    fn opened(&mut self, opening: Opening) {
        let at = (opening.run, opening.seq);
        let kept = match self.0.contains_key(&at) {
            true => Opening { run: opening.run, seq: opening.seq, ..Opening::default() },
            false => opening,
        };
        self.0.insert(at, kept);
    }

    pub fn keep(&mut self, opening: Opening) {
        self.0.insert((opening.run, opening.seq), opening);
    }

    pub fn forget(&mut self, run: RunNo, seq: Seq) {
        self.0.remove(&(run, seq));
    }
}

#[cfg(test)]
mod tests {
    use crate::words::{InstanceNo, OpNo};

    use super::*;

    const RUN: RunNo = RunNo(1);
    const SEQ: Seq = Seq(6);

    fn begun(op: i64, begun_before: bool) -> Outcome {
        let opening = Opening { run: RUN, seq: SEQ, instance: InstanceNo(1), op: OpNo(op) };
        Outcome::Begun(Step::Run { opening, begun_before, try_no: 0, tries: 1 })
    }

    // Bug: of two steps that a process had open under one number, one's result was recorded as the other's. Consequence:
    // each later life was given the wrong value. Cause: Python names an entry by its number, PostgreSQL had lost the first
    // opening and given its number out again, and only the newer opening was kept.
    #[test]
    fn of_two_entries_open_under_one_number_neither_is_closed() {
        let mut all = Openings::default();
        all.note(RUN, &begun(1, false));
        assert_eq!(all.of(RUN, SEQ).op, OpNo(1));
        all.note(RUN, &begun(2, false));
        assert_eq!(all.of(RUN, SEQ), Opening { run: RUN, seq: SEQ, ..Opening::default() });
        // The closing is refused, and the number is free again.
        all.note_failure(RUN, &Error::AlreadyTaken { seq: SEQ.0 });
        all.note(RUN, &begun(3, false));
        assert_eq!(all.of(RUN, SEQ).op, OpNo(3));
    }

    #[test]
    fn a_step_that_is_begun_again_keeps_its_number() {
        let mut all = Openings::default();
        all.note(RUN, &begun(1, false));
        all.note(RUN, &begun(2, true));
        assert_eq!(all.of(RUN, SEQ).op, OpNo(2));
        all.note(RUN, &Outcome::Recorded(SEQ));
        all.note(RUN, &begun(3, false));
        assert_eq!(all.of(RUN, SEQ).op, OpNo(3));
    }
}
