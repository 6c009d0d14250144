//! Busy waiting: calls in which an agent asks for the same thing again and is told the same again.
//!
//! A request is stored as what it adds to an earlier one: the model's tool call and its result. Where that is the same
//! as shortly before, but for numbers and ids, nothing has happened that was worth a call. Nothing is done about it:
//! an agent that is stopped without need loses more than one that waits.

use std::collections::VecDeque;

use outlast_core::{
    body::BodyRecord,
    journal::{Entry, Kind, Role, State},
    store::Store,
    words::digest::Digest,
};

use crate::{
    program::error::CliError,
    render::amount::{some, usd},
};

/// Number of newest calls that are examined.
const CALLS: usize = 500;

/// Number of calls directly before a call with which the call is compared.
const BEFORE: usize = 20;

/// Longest addition to a request, in bytes, that counts as waiting: a longer one brought something new.
const LONGEST: usize = 8192;

/// Fewest repetitions that are reported.
const FEWEST: i64 = 10;

/// Texts that mark a tool's result in a request body, in each dialect.
const RESULTS: [&[u8]; 4] =
    [b"\"tool_result\"", b"\"function_call_output\"", b"\"role\":\"tool\"", b"\"functionResponse\""];

/// Calls that only repeat an earlier call shortly before them (busy waiting), and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyWaiting {
    pub calls: i64,
    pub cost_nano_usd: i64,
    /// Number of calls that were examined.
    pub of: i64,
}

impl BusyWaiting {
    /// Examines the newest calls among `entries`. Errors: those of the store.
    pub fn find(store: &dyn Store, entries: &[Entry]) -> Result<BusyWaiting, CliError> {
        let mut found = BusyWaiting::default();
        let mut newest: Vec<&Entry> = entries
            .iter()
            .rev()
            .filter(|e| e.kind == Kind::Call && e.state == State::Done)
            .take(CALLS)
            .collect();
        newest.reverse();
        let mut shapes: VecDeque<Digest> = VecDeque::with_capacity(BEFORE);
        for call in newest {
            found.of += 1;
            let Some(payload) = store.payload(call.run, call.seq, Role::Request)? else { continue };
            // A damaged request is told where it is read as such.
            let record = payload.decode().ok().and_then(|bytes| BodyRecord::from_bytes(bytes).ok());
            let Some(record) = record.filter(|record| record.base.is_some()) else { continue };
            let Some(shape) = record.middle.decode().ok().and_then(|middle| shape(&middle)) else { continue };
            if shapes.contains(&shape) {
                found.calls += 1;
                found.cost_nano_usd = found.cost_nano_usd.saturating_add(call.spent.cost());
            }
            if shapes.len() == BEFORE {
                shapes.pop_front();
            }
            shapes.push_back(shape);
        }
        Ok(found)
    }

    /// Returns the line about busy waiting for `outlast show`; `None` if fewer than `FEWEST` calls repeat another.
    pub fn line(&self) -> Option<String> {
        let (calls, cost) = (some(self.calls, "call"), usd(self.cost_nano_usd));
        (self.calls >= FEWEST)
            .then(|| format!("waited    {cost} usd for {calls} told nothing new, of the last {}", self.of))
    }
}

/// Returns what an addition says, numbers and ids left out; `None` if it brings no tool's result, or is long.
fn shape(added: &[u8]) -> Option<Digest> {
    let has_result = RESULTS.iter().any(|mark| added.windows(mark.len()).any(|part| part == *mark));
    if added.len() > LONGEST || !has_result {
        return None;
    }
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || b"_-+/=".contains(b);
    let mut out = Vec::with_capacity(added.len());
    for part in added.chunk_by(|a, b| is_word(a) == is_word(b)) {
        match part.iter().any(u8::is_ascii_digit) {
            true => out.push(b'#'),
            false => out.extend_from_slice(part),
        }
    }
    Some(Digest::of(&out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(id: &str, command: &str, result: &str) -> Option<Digest> {
        let text = format!(
            r#"{{"type":"tool_use","id":"{id}","input":"{command}"}},{{"type":"tool_result","tool_use_id":"{id}","content":"{result}"}}"#
        );
        shape(text.as_bytes())
    }

    #[test]
    fn a_poll_is_known_whatever_its_ids_and_numbers_are() {
        let poll = added("toolu_01A", "gh run watch 7", "in progress, 30 s");
        assert!(poll.is_some());
        assert_eq!(poll, added("toolu_02B", "gh run watch 7", "in progress, 60 s"));
        assert_ne!(poll, added("toolu_03C", "gh run watch 7", "failed"));
        assert_ne!(poll, added("toolu_04D", "gh run list", "in progress, 90 s"));
    }

    #[test]
    fn what_brings_no_result_or_is_long_is_no_poll() {
        assert_eq!(shape(br#"{"role":"user","content":"item 12"}"#), None);
        assert_eq!(added("t1", "cat log", &"x".repeat(LONGEST)), None);
    }
}
