//! `outlast digest`: tells what happened while nobody looked.

use super::prelude::*;
use crate::{
    digest::{self, Ground},
    notify::endpoint,
};

/// Tell what happened while nobody looked: what is done, what stands still and why, what it cost
///
/// `[notify] digest = "08:00"` in ~/.config/outlast/outlast.toml sends the same every day.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast digest --since 22:00\n  outlast digest --since 22:00 --json")]
pub struct DigestArgs {
    /// From this moment on: 22:00, 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when, default_value = "24h")]
    pub since: When,
}

pub fn digest(args: &DigestArgs, Desk { store, context, page, .. }: Desk) -> Result {
    let now = store.now()?;
    let ground = Ground::of(context, endpoint::load(&context.around)?.link);
    let digest = digest::gather(store, &ground, args.since.resolve(now), now.plus_ms(1))?;
    if page.look.json {
        return Ok(page.json(&digest)?);
    }
    let title = page.look.paint(Paint::Strong, &digest::title(&digest));
    page.line(&title)?;
    page.text(&format!("{}\n", digest::text(&digest)))?;
    Ok(digest.link.iter().try_for_each(|link| page.line(link))?)
}
