//! Resume tax: input that a restarted agent bought again although its last call had left it in the provider's cache.
//! Told in `show` and at a run's end; `outlast journal RUN --cache` names the first byte that differs.
//!
//! The tax is derived from the recorded requests and their usage when somebody asks: no call is slower for it.

use outlast_core::{
    body,
    journal::{Entry, Kind, State},
    price::{PriceTable, rebought, rebought::Caching},
    reads::entries,
    run::attempt::Attempt,
    store::{RunView, Store},
    words::{
        id::{AttemptNo, Seq},
        usage::Usage,
    },
};
use outlast_server::dialect::prompt::{Difference, Prompt};
use serde_json::{Map, Value, json};

use crate::{
    program::error::CliError,
    render::{
        amount::{put_money, some, usd},
        look::{Page, Paint, clean_line},
    },
    settings::prices,
};

/// Most restarts that are looked at, the newest ones: each costs the reading of some requests.
const MOST_RESTARTS: usize = 50;

/// Number of first calls of an attempt, and of last calls before it, among which conversations are found again.
const CALLS: usize = 12;

/// Most characters that are shown of each side of a difference.
const WIDTH: usize = 110;

/// Conversation that an agent went on with after a restart, and the input that it paid for again.
pub struct Resumption {
    pub attempt: AttemptNo,
    /// Last call of the conversation before the restart.
    pub before: Seq,
    /// First call of the conversation after the restart.
    pub after: Seq,
    /// Number of tokens of the conversation that the provider's cache held after the call `before`.
    pub covered: u64,
    pub read: u64,
    pub rebought: u64,
    /// Cost of the tokens paid for again, less the price of reading them from the cache; `None` without a known price.
    pub cost_nano_usd: Option<i64>,
    /// Whether the cached prefix had expired before `after`: paying again is then no fault of the restart.
    pub expired: bool,
    pub difference: Option<Difference>,
}

/// Totals over a run's restarts; restarts at which the cache had expired are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tax {
    pub restarts: i64,
    pub tokens: i64,
    pub cost_nano_usd: i64,
    /// Number of tokens that were paid for again because the tools or the system text had changed.
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

    /// Returns the line about the resume tax for `outlast show`; `None` if no token was paid for again.
    pub fn line(&self) -> Option<String> {
        let (tokens, restarts) = (some(self.tokens, "token"), some(self.restarts, "restart"));
        let cost = usd(self.cost_nano_usd);
        (self.tokens > 0)
            .then(|| format!("re-bought {cost} usd, {tokens} that the cache had, over {restarts}"))
    }

    pub fn put(&self, object: &mut Map<String, Value>) {
        object.insert("resume_tax_tokens".into(), self.tokens.into());
        put_money(object, "resume_tax", Some(self.cost_nano_usd));
    }
}

/// Finds the conversations of a run that later attempts continued. `entries` are the run's entries, in order.
///
/// Errors: those of the store. Returns none for a run that does not record requests.
pub fn resumptions(
    store: &dyn Store,
    view: &RunView,
    attempts: &[Attempt],
    entries: &[Entry],
) -> Result<Vec<Resumption>, CliError> {
    let calls: Vec<&Entry> = entries.iter().filter(|e| usage(e).is_some()).collect();
    let mut first_calls: Vec<usize> = attempts
        .iter()
        .filter_map(|a| calls.iter().position(|e| e.attempt == a.no))
        .filter(|at| *at > 0)
        .collect();
    first_calls.drain(..first_calls.len().saturating_sub(MOST_RESTARTS));
    let mut out = Vec::new();
    if first_calls.is_empty() {
        return Ok(out);
    }
    let prices = prices::of_view(view)?;
    for at in first_calls {
        let attempt = calls[at].attempt;
        let mut before = read(store, view, calls[at.saturating_sub(CALLS)..at].iter().rev())?;
        let after = calls[at..].iter().take(CALLS).take_while(|e| e.attempt == attempt);
        for (call, prompt) in read(store, view, after)? {
            let Some(found) = before.iter().position(|(other, earlier)| {
                model(other) == model(call) && other.scope == call.scope && prompt.continues(earlier)
            }) else {
                continue;
            };
            let (last, earlier) = before.remove(found);
            // Older calls of this conversation, and later ones of this attempt, tell nothing more.
            before.retain(|(other, prompt)| model(other) != model(last) || !earlier.continues(prompt));
            out.extend(compare(&prices, &calls[..at], (last, &earlier), (call, &prompt)));
        }
    }
    Ok(out)
}

/// Reads the prompts of the calls. Calls whose requests are not kept are left out.
fn read<'e, 'a: 'e>(
    store: &dyn Store,
    view: &RunView,
    calls: impl Iterator<Item = &'e &'a Entry>,
) -> Result<Vec<(&'a Entry, Prompt)>, CliError> {
    let mut out = Vec::new();
    for call in calls {
        let Some(bytes) = body::stored(store, view.run.no, call.seq)? else { continue };
        if let Ok(body) = serde_json::from_slice::<Value>(&bytes) {
            out.push((*call, Prompt::read(&body)));
        }
    }
    Ok(out)
}

fn compare(
    prices: &PriceTable,
    past: &[&Entry],
    (before, earlier): (&Entry, &Prompt),
    (after, later): (&Entry, &Prompt),
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
        difference: later.leaves(earlier),
    })
}

fn usage(e: &Entry) -> Option<&Usage> {
    let is_answered = e.kind == Kind::Call && e.state == State::Done;
    e.call.as_ref().filter(|_| is_answered)?.usage.as_ref()
}

fn model(e: &Entry) -> &str {
    e.call.as_ref().map_or("", |call| call.model.as_str())
}

/// Prints what each restart paid for again, and the first byte in which its request differs from the one before.
pub fn print(store: &dyn Store, view: &RunView, page: &mut Page) -> Result<(), CliError> {
    let (attempts, entries) = (store.attempts(view.run.no)?, entries::all(store, view.run.no)?);
    let found = resumptions(store, view, &attempts, &entries)?;
    if page.look.json {
        let mut all = Map::new();
        all.insert("run".into(), view.run.id.as_str().into());
        Tax::of(&found).put(&mut all);
        all.insert("resumptions".into(), found.iter().map(Resumption::object).collect());
        return Ok(page.json(&Value::Object(all))?);
    }
    if found.is_empty() {
        return Ok(page.line("no restarted agent has gone on with a conversation whose requests are kept")?);
    }
    for one in &found {
        one.print(page)?;
    }
    let line = Tax::of(&found).line();
    Ok(page.line(line.as_deref().unwrap_or("nothing was bought again that the cache had"))?)
}

impl Resumption {
    fn print(&self, page: &mut Page) -> Result<(), CliError> {
        let title =
            format!("attempt {}: entry {} goes on from entry {}", self.attempt, self.after, self.before);
        page.line(&page.look.paint(Paint::Strong, &title))?;
        let cost =
            self.cost_nano_usd.map_or_else(|| "no price known".to_owned(), |n| format!("{} usd", usd(n)));
        let expired = if self.expired { ": its entry had expired" } else { "" };
        page.line(&format!(
            "  the cache had {}; {} read, {} bought again ({cost}){expired}",
            some(i64::try_from(self.covered).unwrap_or(i64::MAX), "token"),
            self.read,
            self.rebought,
        ))?;
        let Some(d) = &self.difference else {
            return Ok(page.line("  it begins with all that was sent before")?);
        };
        let share = 100 * d.same_bytes / d.bytes.max(1);
        page.line(&format!("  the same for {share} % of the bytes; they differ first in {d}"))?;
        let side = |text: &Option<String>| {
            text.as_deref().map_or_else(|| "has ended".to_owned(), |text| clean_line(text, WIDTH))
        };
        page.line(&format!("    before  {}", side(&d.before)))?;
        Ok(page.line(&format!("    after   {}", side(&d.after)))?)
    }

    fn object(&self) -> Value {
        let mut object = Map::new();
        object.insert("attempt".into(), json!(self.attempt));
        object.insert("before".into(), json!(self.before));
        object.insert("after".into(), json!(self.after));
        object.insert("covered_tokens".into(), self.covered.into());
        object.insert("read_tokens".into(), self.read.into());
        object.insert("rebought_tokens".into(), self.rebought.into());
        put_money(&mut object, "rebought", self.cost_nano_usd);
        object.insert("expired".into(), self.expired.into());
        object.insert(
            "difference".into(),
            json!(self.difference.as_ref().map(|d| json!({
                "part": d.part,
                "place": d.place,
                "byte": d.byte,
                "same_bytes": d.same_bytes,
                "bytes": d.bytes,
                "before": d.before,
                "after": d.after,
            }))),
        );
        Value::Object(object)
    }
}
