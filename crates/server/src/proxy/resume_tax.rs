//! Resume tax: input that a restarted agent bought again although its last call had left it in the provider's cache.
//!
//! The tax is derived from the recorded requests and their usage when somebody asks: no call is slower for it.

use std::sync::Arc;

use outlast_core::{
    body,
    journal::{Entry, Kind, State},
    price::{PriceTable, rebought, rebought::Caching},
    run::{Record, attempt::Attempt},
    store::{Error, Store},
    words::{
        id::{AttemptNo, RunNo, Seq},
        usage::Usage,
    },
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

/// Finds the conversations that later attempts of a run went on with. `entries` are the run's entries, in order.
///
/// Errors: those of the store. Returns none for a run that does not record requests.
pub fn find(
    store: &dyn Store,
    run: RunNo,
    prices: &PriceTable,
    attempts: &[Attempt],
    entries: &[Entry],
) -> Result<Vec<Resumption>, Error> {
    let calls: Vec<&Entry> = entries.iter().filter(|e| usage(e).is_some()).collect();
    let mut first_calls: Vec<usize> = attempts
        .iter()
        .filter_map(|a| calls.iter().position(|e| e.attempt == a.no))
        .filter(|at| *at > 0)
        .collect();
    first_calls.drain(..first_calls.len().saturating_sub(MOST_RESTARTS));
    let mut out = Vec::new();
    for at in first_calls {
        let attempt = calls[at].attempt;
        let mut before = read(store, run, calls[at.saturating_sub(CALLS)..at].iter().rev())?;
        let after = calls[at..].iter().take(CALLS).take_while(|e| e.attempt == attempt);
        for (call, prompt) in read(store, run, after)? {
            let Some(found) = before.iter().position(|(other, earlier)| {
                model(other) == model(call) && other.scope == call.scope && prompt.continues(earlier)
            }) else {
                continue;
            };
            let (last, earlier) = before.remove(found);
            // Older calls of this conversation, and later ones of this attempt, tell nothing more.
            before.retain(|(other, prompt)| model(other) != model(last) || !earlier.continues(prompt));
            out.extend(compare(prices, &calls[..at], (last, earlier), (call, prompt)));
        }
    }
    Ok(out)
}

/// Reads the prompts of calls; those whose requests are not kept are left out.
fn read<'e, 'a: 'e>(
    store: &dyn Store,
    run: RunNo,
    calls: impl Iterator<Item = &'e &'a Entry>,
) -> Result<Vec<(&'a Entry, Prompt)>, Error> {
    let mut out = Vec::new();
    for call in calls {
        let Some(bytes) = body::stored(store, run, call.seq)? else { continue };
        if let Ok(body) = serde_json::from_slice::<Value>(&bytes) {
            out.push((*call, Prompt::read(&body)));
        }
    }
    Ok(out)
}

fn compare(
    prices: &PriceTable,
    past: &[&Entry],
    (before, earlier): (&Entry, Prompt),
    (after, later): (&Entry, Prompt),
) -> Option<Resumption> {
    let (old, new) = (usage(before)?, usage(after)?);
    let detail = after.call.as_ref()?;
    let hour = past.iter().filter_map(|e| usage(e)).any(|usage| usage.cache_write_1h > 0);
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
    Ok(find(store, run, prices, &own, &entries)?.into_iter().find(|one| one.after == seq))
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
