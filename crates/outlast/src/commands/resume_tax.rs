//! `outlast journal RUN --cache`: what each restart paid for again, and the first byte that differs.

use super::prelude::*;
use crate::program::resume_tax::{Resumption, Tax, line, resumptions};

/// Most characters of each side of a difference.
const WIDTH: usize = 110;

/// Prints what each restart paid for again, and the first byte in which its request differs from the last request
/// before the restart.
pub fn print(store: &dyn Store, view: &RunView, page: &mut Page) -> Result {
    let found = resumptions(store, view, &store.attempts(view.run.no)?)?;
    if page.look.json {
        let total = Tax::of(&found);
        return Ok(page.json(&json!({ "run": view.run.id, "total": total, "resumptions": found }))?);
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

fn print_one(one: &Resumption, page: &mut Page) -> Result {
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
