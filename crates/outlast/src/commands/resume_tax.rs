//! Resume tax, as `show`, `spend` and a run's end tell it; `outlast journal RUN --cache` names the first byte that differs.

use outlast_core::{
    journal::Entry,
    reads::entries,
    run::attempt::Attempt,
    store::{RunView, Store},
};
use outlast_server::api::read::resume_tax::{self, difference};
pub use outlast_server::api::read::resume_tax::{Resumption, Tax};
use serde_json::{Map, Value, json};

use crate::{
    program::error::CliError,
    render::{
        amount::{put_money, some, usd},
        look::{Page, Paint, clean_line},
    },
    settings::prices,
};

/// Most characters of each side of a difference.
const WIDTH: usize = 110;

/// Finds the conversations that later attempts of a run went on with. `entries` are the run's entries, in order.
///
/// Errors: those of the store. Returns none for a run that does not record requests.
pub fn resumptions(
    store: &dyn Store,
    view: &RunView,
    attempts: &[Attempt],
    entries: &[Entry],
) -> Result<Vec<Resumption>, CliError> {
    if attempts.len() < 2 {
        return Ok(Vec::new());
    }
    Ok(resume_tax::find(store, view.run.no, &prices::of_view(view)?, attempts, entries)?)
}

/// Returns the line about the resume tax for `outlast show`; `None` if no token was paid for again.
pub fn line(tax: &Tax) -> Option<String> {
    let (tokens, restarts) = (some(tax.tokens, "token"), some(tax.restarts, "restart"));
    let cost = usd(tax.cost_nano_usd);
    (tax.tokens > 0).then(|| format!("re-bought {cost} usd, {tokens} that the cache had, over {restarts}"))
}

pub fn put(tax: &Tax, object: &mut Map<String, Value>) {
    object.insert("resume_tax_tokens".into(), tax.tokens.into());
    put_money(object, "resume_tax", Some(tax.cost_nano_usd));
}

/// Prints what each restart paid for again, and the first byte in which its request differs from the last request
/// before the restart.
pub fn print(store: &dyn Store, view: &RunView, page: &mut Page) -> Result<(), CliError> {
    let (attempts, entries) = (store.attempts(view.run.no)?, entries::all(store, view.run.no)?);
    let found = resumptions(store, view, &attempts, &entries)?;
    if page.look.json {
        let mut all = Map::new();
        all.insert("run".into(), view.run.id.as_str().into());
        put(&Tax::of(&found), &mut all);
        all.insert("resumptions".into(), found.iter().map(object).collect());
        return Ok(page.json(&Value::Object(all))?);
    }
    if found.is_empty() {
        return Ok(page.line("no restarted agent has gone on with a conversation whose requests are kept")?);
    }
    for one in &found {
        print_one(one, page)?;
    }
    let line = line(&Tax::of(&found));
    Ok(page.line(line.as_deref().unwrap_or("nothing was bought again that the cache had"))?)
}

fn print_one(one: &Resumption, page: &mut Page) -> Result<(), CliError> {
    let title = format!("attempt {}: entry {} goes on from entry {}", one.attempt, one.after, one.before);
    page.line(&page.look.paint(Paint::Strong, &title))?;
    let cost = one.cost_nano_usd.map_or_else(|| "no price known".to_owned(), |n| format!("{} usd", usd(n)));
    let expired = if one.expired { ": its entry had expired" } else { "" };
    page.line(&format!(
        "  the cache had {}; {} read, {} bought again ({cost}){expired}",
        some(i64::try_from(one.covered).unwrap_or(i64::MAX), "token"),
        one.read,
        one.rebought,
    ))?;
    let Some(d) = &one.difference else {
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

fn object(one: &Resumption) -> Value {
    let mut object = Map::new();
    object.insert("attempt".into(), json!(one.attempt));
    object.insert("before".into(), json!(one.before));
    object.insert("after".into(), json!(one.after));
    object.insert("covered_tokens".into(), one.covered.into());
    object.insert("read_tokens".into(), one.read.into());
    object.insert("rebought_tokens".into(), one.rebought.into());
    put_money(&mut object, "rebought", one.cost_nano_usd);
    object.insert("expired".into(), one.expired.into());
    object.insert("difference".into(), json!(one.difference.as_ref().map(difference)));
    Value::Object(object)
}
