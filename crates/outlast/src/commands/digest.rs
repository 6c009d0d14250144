//! `outlast digest`: tells what happened while nobody looked.

use outlast_core::store::Store;

use crate::{
    cli::DigestArgs,
    digest::{self, Ground},
    program::{context::Context, error::CliError},
    render::look::{Page, Paint},
    settings::notify,
};

pub fn digest(
    store: &dyn Store,
    context: &Context,
    args: &DigestArgs,
    page: &mut Page,
) -> Result<(), CliError> {
    let now = store.now()?;
    let ground = Ground::of(context, notify::load(&context.around)?.link);
    let digest = digest::gather(store, &ground, args.since.resolve(now), now.plus_ms(1))?;
    if page.look.json {
        return Ok(page.json(&digest)?);
    }
    let title = page.look.paint(Paint::Strong, &digest::title(&digest));
    page.line(&title)?;
    page.line(&digest::text(&digest))?;
    Ok(digest.link.iter().try_for_each(|link| page.line(link))?)
}
