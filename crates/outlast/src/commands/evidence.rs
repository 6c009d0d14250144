//! Evidence of how an attempt ended: cost, entries open at the end, last log lines. Derived from the journal and the
//! logs.

use super::prelude::*;
use crate::logs;

/// Number of an attempt's last log lines that are read. JSON output prints all of them.
pub const LINES: usize = 100;

/// Most characters of a log line that are shown to people.
const WIDTH: usize = 200;

/// Evidence about the end of one attempt.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Amount charged and reserved for the attempt's calls, in nano-USD.
    pub cost_nano_usd: i64,
    /// Entries that were open when the attempt ended.
    pub open: Vec<Entry>,
    /// Last lines of the attempt's log, at most [`LINES`]. `None` if there is no log, or it was removed.
    pub lines: Option<Vec<String>>,
}

impl Evidence {
    /// Collects what the attempt printed; its entries are added. `logs` is the directory of the run's logs.
    ///
    /// Errors: the logs cannot be read.
    pub fn of(attempt: &Attempt, logs: Option<&Path>) -> Result<Evidence> {
        let lines = logs.map(|logs| lines(logs, attempt.no)).transpose()?.flatten();
        Ok(Evidence { lines, ..Evidence::default() })
    }

    /// Adds an entry of the attempt, whose end is that which [`lives::attempts`](outlast_core::reads::lives::attempts) tells.
    pub fn add(&mut self, attempt: &Attempt, e: &Entry) {
        // Items and steps repeat the charges of the calls made in them.
        if e.kind == Kind::Call {
            self.cost_nano_usd += e.spent.cost() + e.held.cost();
        }
        self.open.extend(attempt.ended_at.filter(|ended| was_open(e, *ended)).map(|_| e.clone()));
    }

    /// Formats a paragraph for people, with the last `count` log lines. `how`: words for the attempt's exit.
    pub fn text(&self, attempt: &Attempt, how: &str, calls: i64, count: usize) -> String {
        let began = time::moment(attempt.started_at);
        let mut out = format!("  @{} began {began}", attempt.no.0);
        if let Some(ended) = attempt.ended_at {
            let up = time::about(ended.ms_since(attempt.started_at));
            out.push_str(&format!(", {how} after {up}"));
        }
        if calls > 0 {
            out.push_str(&format!("; {} for {} usd", some(calls, "call"), usd(self.cost_nano_usd)));
        }
        out.push('\n');
        for e in &self.open {
            let what = clean_line(&entry::what(e), 60);
            let became = match e.state {
                State::Open => String::new(),
                State::Unknown => format!(", {}", e.state.word()),
                State::Done | State::Failed | State::Void => format!(", {} since", e.state.word()),
            };
            out.push_str(&format!(
                "     open at its end: entry {}, {} {what}{became}\n",
                e.seq,
                e.kind.name()
            ));
        }
        match &self.lines {
            Some(lines) if !lines.is_empty() && count > 0 => {
                out.push_str("     it printed last:\n");
                for line in &lines[lines.len().saturating_sub(count)..] {
                    out.push_str(format!("       {}", clean_line(line, WIDTH)).trim_end());
                    out.push('\n');
                }
            }
            _ => {}
        }
        out
    }
}

/// Returns whether an entry was open at `ended`.
fn was_open(e: &Entry, ended: Micros) -> bool {
    e.state == State::Unknown || e.closed_at.is_none_or(|closed| closed > ended)
}

fn lines(logs: &Path, attempt: AttemptNo) -> Result<Option<Vec<String>>> {
    if !logs::attempts(logs)?.contains(&attempt) {
        return Ok(None);
    }
    Ok(Some(logs::last_lines(logs, attempt, LINES)?))
}
