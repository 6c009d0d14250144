//! Usual output: how long the answers of a run's model are, from which a call that names no output cap gets one.

/// Number of answers from which a run's usual output is known.
const ANSWERS: u32 = 8;

/// Room above the largest answer so far: later answers are longer than earlier ones.
const TIMES: u64 = 4;

/// Lowest usual cap, in tokens.
const LEAST: u64 = 1_024;

/// Lengths of one model's answers in one run, as far as this process has seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usual {
    answers: u32,
    /// Billed output of the longest answer, in tokens.
    longest: u64,
}

impl Usual {
    /// Notes an answer with `output` billed output tokens. An answer with 0 changes nothing.
    ///
    /// An answer that a usual cap cut off is as long as the cap: the next cap is four times as high.
    pub fn saw(&mut self, output: u64) {
        if output > 0 {
            self.answers = self.answers.saturating_add(1);
            self.longest = self.longest.max(output);
        }
    }

    /// Returns an output cap that is enough for most answers: four times the longest one, at least 1,024 tokens. `None` until
    /// eight answers have been seen.
    pub fn cap(&self) -> Option<u64> {
        (self.answers >= ANSWERS).then(|| self.longest.saturating_mul(TIMES).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(outputs: &[u64]) -> Option<u64> {
        let mut usual = Usual::default();
        outputs.iter().for_each(|output| usual.saw(*output));
        usual.cap()
    }

    #[test]
    fn a_usual_cap_is_known_after_eight_answers_and_has_room_above_the_longest() {
        assert_eq!(after(&[300; 7]), None);
        assert_eq!(after(&[300; 8]), Some(1_200));
        assert_eq!(after(&[10, 10, 10, 900, 10, 10, 10, 10]), Some(3_600));
        assert_eq!(after(&[10; 8]), Some(1_024));
        assert_eq!(after(&[0; 20]), None, "answers without a usage");
        assert_eq!(after(&[u64::MAX; 8]), Some(u64::MAX));
    }

    #[test]
    fn a_cap_that_cut_an_answer_off_makes_room_for_the_next() {
        let mut outputs = vec![300; 8];
        outputs.push(after(&outputs).unwrap());
        assert_eq!(after(&outputs), Some(4_800));
    }
}
