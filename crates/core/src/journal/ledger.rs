//! Ledger: what calls cost, by run, upstream, model and day. Each commit adds what it changes.

use std::collections::{BTreeMap, btree_map::Entry as Entered};

use serde::{Deserialize, Serialize};

use super::{Entry, State};
use crate::{
    envelope::Unit,
    words::{Row, RunNo, Seq, Touch},
};

/// Microseconds of a day.
pub const DAY: i64 = 86_400_000_000;

/// Sums of the calls of one run, upstream, model and UTC day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerLine {
    pub run: RunNo,
    pub upstream: String,
    pub model: String,
    /// Day on which the calls were opened, in days since the Unix epoch, UTC.
    pub day: i64,
    pub calls: i64,
    pub tokens: i64,
    pub spent_nano_usd: i64,
    /// Amount that stays reserved for calls whose outcome is unknown.
    pub doubt_nano_usd: i64,
    /// Amount that may be billed for lost calls, and that no envelope has reserved or spent ([`Entry::unbacked`]).
    pub unbacked_nano_usd: i64,
    /// Number of calls of which a part has no known price, which is in no sum.
    #[serde(default)]
    pub unpriced_calls: i64,
    /// Number of calls that failed and cost nothing. They are among `calls`.
    #[serde(default)]
    pub unpaid_calls: i64,
}

impl LedgerLine {
    /// Returns the line of a call; `None` for an entry that is none.
    pub fn of(e: &Entry) -> Option<LedgerLine> {
        let call = e.call.as_ref()?;
        Some(LedgerLine {
            run: e.run,
            upstream: call.upstream.clone(),
            model: call.model.clone(),
            day: e.opened_at.0.div_euclid(DAY),
            calls: e.spent[Unit::Calls],
            tokens: e.spent.tokens(),
            spent_nano_usd: e.spent.cost(),
            doubt_nano_usd: if e.state == State::Unknown { e.held.cost() } else { 0 },
            unbacked_nano_usd: e.unbacked().cost(),
            unpriced_calls: i64::from(call.unpriced.is_some()),
            unpaid_calls: if e.is_unpaid() { e.spent[Unit::Calls] } else { 0 },
        })
    }

    /// Sums lines of the same run, upstream, model and day, and returns the sums in this order. What adds up to nothing is
    /// left out: a call in flight has cost nothing yet.
    pub fn sum(lines: impl IntoIterator<Item = LedgerLine>) -> Vec<LedgerLine> {
        let mut sums: BTreeMap<_, LedgerLine> = BTreeMap::new();
        for line in lines {
            let of = (line.run, line.upstream.clone(), line.model.clone(), line.day);
            match sums.entry(of) {
                Entered::Vacant(new) => {
                    new.insert(line);
                }
                Entered::Occupied(mut known) => known.get_mut().add(&line, 1),
            }
        }
        sums.into_values().filter(|line| !line.is_zero()).collect()
    }

    /// Adds the line to that of its run, upstream, model and day among `lines`, or to their end.
    pub fn post(self, lines: &mut Vec<LedgerLine>) {
        let of = |line: &LedgerLine| {
            (line.run, line.day) == (self.run, self.day)
                && (&line.model, &line.upstream) == (&self.model, &self.upstream)
        };
        match lines.iter_mut().find(|line| of(line)) {
            Some(line) => line.add(&self, 1),
            None => lines.push(self),
        }
    }

    /// Adds `times` the counts of another line of the same run, upstream, model and day.
    fn add(&mut self, more: &LedgerLine, times: i64) {
        self.calls += times * more.calls;
        self.tokens += times * more.tokens;
        self.spent_nano_usd += times * more.spent_nano_usd;
        self.doubt_nano_usd += times * more.doubt_nano_usd;
        self.unbacked_nano_usd += times * more.unbacked_nano_usd;
        self.unpriced_calls += times * more.unpriced_calls;
        self.unpaid_calls += times * more.unpaid_calls;
    }

    fn is_zero(&self) -> bool {
        *self
            == LedgerLine {
                run: self.run,
                day: self.day,
                upstream: self.upstream.clone(),
                model: self.model.clone(),
                ..LedgerLine::default()
            }
    }
}

/// Lines of the calls that an operation has loaded, as they were before its decision.
pub struct LinesBefore(Vec<((RunNo, Seq), LedgerLine)>);

impl LinesBefore {
    pub fn of(entries: &[Row<Entry>]) -> LinesBefore {
        let calls = entries.iter().map(|row| &row.value);
        LinesBefore(calls.filter_map(|e| Some(((e.run, e.seq), LedgerLine::of(e)?))).collect())
    }

    /// Returns what the decision, which left the entries so, adds to the ledger.
    pub fn changes(self, entries: &[Row<Entry>]) -> Vec<LedgerLine> {
        let mut changes = Vec::new();
        for row in entries.iter().filter(|row| row.touch != Touch::Read) {
            let Some(mut line) = LedgerLine::of(&row.value) else { continue };
            let id = (row.value.run, row.value.seq);
            // A fork's copy of a call that it shares is new in its run.
            let before = self.0.iter().find(|(of, _)| *of == id && row.touch == Touch::Update);
            before.into_iter().for_each(|(_, before)| line.add(before, -1));
            line.post(&mut changes);
        }
        changes.retain(|line| !line.is_zero());
        changes
    }
}
