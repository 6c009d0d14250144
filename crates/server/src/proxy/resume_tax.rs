//! Resume tax: input that a restarted agent bought again although its last call had left it in the provider's cache.
//!
//! The tax is derived from the recorded requests and their usage when somebody asks: no call is slower for it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use outlast_core::{
    body,
    journal::{Entry, Kind, State},
    price::{
        PriceTable,
        rebought::{self, Caching},
    },
    run::{Attempt, Record},
    store::{Error, Store},
    words::{AttemptNo, RunNo, Seq, Usage},
};
use outlast_view::money::Rebought;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{call::Call, host::Host};
use crate::dialect::prompt::{Difference, Prompt};

/// Most restarts that are looked at, the newest ones: each costs the reading of some requests.
const MOST_RESTARTS: usize = 50;

/// Number of first calls of an attempt, and of last calls before it, among which conversations are found again.
const CALLS: usize = 12;

/// Conversation that an agent went on with after a restart, and the input that it paid for again.
#[derive(Serialize)]
pub struct Resumption {
    pub attempt: AttemptNo,
    /// Last call of the conversation before the restart.
    pub before: Seq,
    /// First call of the conversation after the restart.
    pub after: Seq,
    /// Tokens of the conversation that the provider's cache held after `before`.
    #[serde(rename = "covered_tokens")]
    pub covered: u64,
    #[serde(rename = "read_tokens")]
    pub read: u64,
    #[serde(rename = "rebought_tokens")]
    pub rebought: u64,
    /// Cost of the tokens paid for again, less the price of reading them from the cache; `None` without a known price.
    #[serde(flatten, serialize_with = "money")]
    pub cost_nano_usd: Option<i64>,
    /// Whether the cached prefix had expired before `after`: paying again is then no fault of the restart.
    pub expired: bool,
    pub difference: Option<Difference>,
}

/// Totals over a run's restarts; restarts at which the cache had expired are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tax {
    pub restarts: i64,
    #[serde(rename = "rebought_tokens")]
    pub tokens: i64,
    #[serde(flatten, serialize_with = "money")]
    pub cost_nano_usd: i64,
    /// Tokens paid for again because the tools or the system text had changed.
    pub head_tokens: i64,
}

impl Tax {
    pub fn of(resumptions: &[Resumption]) -> Tax {
        let mut tax = Tax::default();
        for one in resumptions.iter().filter(|one| !one.expired && one.rebought > 0) {
            let tokens = i64::try_from(one.rebought).unwrap_or(i64::MAX);
            tax.restarts += 1;
            tax.tokens = tax.tokens.saturating_add(tokens);
            tax.cost_nano_usd = tax.cost_nano_usd.saturating_add(one.cost_nano_usd.unwrap_or(0));
            if one.difference.as_ref().is_some_and(|d| d.part != "messages") {
                tax.head_tokens = tax.head_tokens.saturating_add(tokens);
            }
        }
        tax
    }
}

/// Writes the price of what was bought again as every amount of dollars is written.
fn money<S: Serializer>(nano: &(impl Into<Option<i64>> + Copy), to: S) -> Result<S::Ok, S::Error> {
    Rebought::new(*nano).serialize(to)
}

/// Calls around a run's restarts: what is kept of its entries to find the conversations that went on.
#[derive(Default)]
pub struct Restarts {
    /// Attempts whose first call has not been seen.
    attempts: BTreeSet<AttemptNo>,
    /// Newest calls, the oldest first.
    newest: VecDeque<Entry>,
    /// Whether a call has written to a cache for an hour.
    hour: bool,
    /// Attempt whose first calls these are; `None` behind another attempt's call.
    current: Option<AttemptNo>,
    found: BTreeMap<AttemptNo, Restart>,
}

struct Restart {
    /// Last calls before the attempt's first one, the newest first.
    before: Vec<Entry>,
    hour: bool,
    after: Vec<Entry>,
}

impl Restarts {
    pub fn of(attempts: impl IntoIterator<Item = AttemptNo>) -> Restarts {
        Restarts { attempts: attempts.into_iter().collect(), ..Restarts::default() }
    }

    /// Returns whether no attempt has made a call behind another one's.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Takes the run's next entry, in their order.
    pub fn add(&mut self, entry: &Entry) {
        // No call behind this one tells of a restart.
        if self.attempts.is_empty() && self.current.is_none() {
            return;
        }
        let Some(usage) = usage(entry) else { return };
        let attempt = entry.attempt;
        if self.attempts.remove(&attempt) && !self.newest.is_empty() {
            let before = self.newest.iter().rev().cloned().collect();
            self.found.insert(attempt, Restart { before, hour: self.hour, after: Vec::new() });
            if self.found.len() > MOST_RESTARTS {
                self.found.pop_first();
            }
            self.current = Some(attempt);
        }
        self.current = self.current.filter(|current| *current == attempt);
        let restart = self.current.and_then(|current| self.found.get_mut(&current));
        match restart.filter(|restart| restart.after.len() < CALLS) {
            Some(restart) => restart.after.push(entry.clone()),
            None => self.current = None,
        }
        self.hour |= usage.cache_write_1h > 0;
        self.newest.push_back(entry.clone());
        if self.newest.len() > CALLS {
            self.newest.pop_front();
        }
    }

    /// Returns the conversations that later attempts went on with.
    ///
    /// Errors: those of the store. Returns none for a run that does not record requests.
    pub fn resumptions(
        &self,
        store: &dyn Store,
        run: RunNo,
        prices: &PriceTable,
    ) -> Result<Vec<Resumption>, Error> {
        let mut out = Vec::new();
        for restart in self.found.values() {
            let mut before = read(store, run, &restart.before)?;
            for (call, prompt) in read(store, run, &restart.after)? {
                let Some(found) = before.iter().position(|(other, earlier)| {
                    model(other) == model(call) && other.scope == call.scope && prompt.continues(earlier)
                }) else {
                    continue;
                };
                let (last, earlier) = before.remove(found);
                // Older calls of this conversation, and later ones of this attempt, tell nothing more.
                before.retain(|(other, prompt)| model(other) != model(last) || !earlier.continues(prompt));
                out.extend(compare(prices, restart.hour, (last, earlier), (call, prompt)));
            }
        }
        Ok(out)
    }
}

/// Finds the conversations that later attempts of a run went on with, in its `entries`, which are in order.
///
/// Errors: those of the store and of `entries`. Returns none for a run that does not record requests.
pub fn find(
    store: &dyn Store,
    run: RunNo,
    prices: &PriceTable,
    attempts: &[Attempt],
    entries: impl IntoIterator<Item = Result<Entry, Error>>,
) -> Result<Vec<Resumption>, Error> {
    let mut restarts = Restarts::of(attempts.iter().map(|attempt| attempt.no));
    for entry in entries {
        restarts.add(&entry?);
    }
    restarts.resumptions(store, run, prices)
}

/// Reads the prompts of calls; those whose requests are not kept are left out.
fn read<'a>(store: &dyn Store, run: RunNo, calls: &'a [Entry]) -> Result<Vec<(&'a Entry, Prompt)>, Error> {
    let mut out = Vec::new();
    for call in calls {
        let Some(bytes) = body::stored(store, run, call.seq)? else { continue };
        if let Ok(body) = serde_json::from_slice::<Value>(&bytes) {
            out.push((call, Prompt::read(&body)));
        }
    }
    Ok(out)
}

/// Compares two calls of one conversation. `hour`: whether a call before the restart has written to a cache for an hour.
fn compare(
    prices: &PriceTable,
    hour: bool,
    (before, earlier): (&Entry, Prompt),
    (after, later): (&Entry, Prompt),
) -> Option<Resumption> {
    let (old, new) = (usage(before)?, usage(after)?);
    let detail = after.call.as_ref()?;
    let caching = match detail.path.contains("/messages") {
        true => Caching::Marked { hour },
        false => Caching::Automatic,
    };
    let covered = caching.covered(old);
    let rebought = rebought::tokens(covered, new);
    let price = prices.lookup(&detail.model);
    // The attribution block's number differs from call to call: a provider that has read anything of these prompts from
    // its cache has taken the block out.
    let (earlier, later) = match old.cache_read > 0 || new.cache_read > 0 {
        true => (earlier.without_attribution(), later.without_attribution()),
        false => (earlier, later),
    };
    let cost = price.map(|found| rebought::extra(&found.price, new, detail.tier, rebought).0);
    Some(Resumption {
        attempt: after.attempt,
        before: before.seq,
        after: after.seq,
        covered,
        read: new.cache_read,
        rebought,
        cost_nano_usd: cost,
        expired: after.opened_at.ms_since(before.closed_at.unwrap_or(before.opened_at)) > caching.lives_ms(),
        difference: later.leaves(&earlier),
    })
}

fn usage(e: &Entry) -> Option<&Usage> {
    let is_answered = e.kind == Kind::Call && e.state == State::Done;
    e.call.as_ref().filter(|_| is_answered)?.usage.as_ref()
}

fn model(e: &Entry) -> &str {
    e.call.as_ref().map_or("", |call| call.model.as_str())
}

/// Number of entries before a call among which its conversation's last call is looked for.
const LATELY: i64 = 400;

/// Returns the resumption that begins with this call; `None` if the call begins none. Searches the newest entries only.
fn of_call(
    store: &dyn Store,
    run: RunNo,
    seq: Seq,
    prices: &PriceTable,
) -> Result<Option<Resumption>, Error> {
    let mut entries = store.entries(run, Seq((seq.0 - LATELY).max(0)), LATELY as usize)?;
    entries.retain(|e| e.seq <= seq);
    let attempts: Vec<Attempt> = store.attempts(run)?;
    let of = entries.last().map(|e| e.attempt);
    let own: Vec<Attempt> = attempts.into_iter().filter(|a| Some(a.no) == of).collect();
    Ok(find(store, run, prices, &own, entries.into_iter().map(Ok))?.into_iter().find(|one| one.after == seq))
}

/// Number of first calls of an attempt that are looked at: an agent's sub-agents go on as well.
const FIRST_CALLS: u32 = 12;

/// Notes a settled call. Searches for a resumption in a thread of its own, after the answer: no client waits for the
/// search.
pub fn settled(host: &Arc<Host>, call: &Call, seq: Seq) {
    let (run, attempt) = (call.seat.run, call.seat.attempt);
    if attempt <= AttemptNo(1) || call.seat.record != Record::All || call.seat.shared {
        return;
    }
    let memory = host.memories.of(run);
    let is_first = {
        let mut memory = memory.lock();
        let (of, calls) = &mut memory.first_calls;
        if *of != Some(attempt) {
            (*of, *calls) = (Some(attempt), 0);
        }
        *calls = calls.saturating_add(1);
        *calls <= FIRST_CALLS
    };
    if !is_first {
        return;
    }
    let host = host.clone();
    tokio::task::spawn_blocking(move || match of_call(host.store.as_ref(), run, seq, &host.config.prices) {
        Ok(Some(found)) if !found.expired => {
            host.metrics.rebought(found.rebought, found.cost_nano_usd.unwrap_or(0));
        }
        Ok(_) => {}
        Err(e) => {
            tracing::warn!(run = run.0, %seq, error = %e, "cannot tell what a restart bought again")
        }
    });
}

#[cfg(test)]
mod tests {
    use outlast_core::{journal::CallDetail, words::Micros};

    use super::*;

    // Bug: the entries of a run were gathered before its restarts were looked for. Consequence: `show` of a million entries,
    // and each supervisor's end, took 1.3 GB. Cause: a list where a few calls around each restart are enough.
    #[test]
    fn a_long_run_leaves_a_few_calls_around_its_newest_restarts() {
        let (lives, calls) = (3 * MOST_RESTARTS as i64, 100);
        let mut restarts = Restarts::of((1..=lives).map(AttemptNo));
        for seq in 0..lives * calls {
            let (run, no) = (RunNo(1), AttemptNo(1 + seq / calls));
            let call = CallDetail { usage: Some(Usage::default()), ..CallDetail::default() };
            let entry = Entry::new(run, Seq(seq + 1), Kind::Call, State::Done, no, "".into(), Micros(seq));
            restarts.add(&Entry { call: Some(Box::new(call)), ..entry });
            let held: usize = restarts.found.values().map(|r| r.before.len() + r.after.len()).sum();
            assert!(held + restarts.newest.len() <= (2 * MOST_RESTARTS + 1) * CALLS, "{held}");
        }
        let found: Vec<i64> = restarts.found.keys().map(|no| no.0).collect();
        assert_eq!(found, (lives - MOST_RESTARTS as i64 + 1..=lives).collect::<Vec<_>>());
        let newest = &restarts.found[&AttemptNo(lives)];
        let seqs = |calls: &[Entry]| calls.iter().map(|e| e.seq.0).collect::<Vec<_>>();
        let first = (lives - 1) * calls + 1;
        assert_eq!(seqs(&newest.before), (first - CALLS as i64..first).rev().collect::<Vec<_>>());
        assert_eq!(seqs(&newest.after), (first..first + CALLS as i64).collect::<Vec<_>>());
    }
}
