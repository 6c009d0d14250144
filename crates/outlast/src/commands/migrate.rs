//! `outlast migrate`: makes the store, or brings it to this version's format, and does nothing else.

use outlast_store::FORMAT;
use serde_json::json;

use crate::{
    program::{context::Context, error::CliError},
    render::look::Page,
};

/// Opens the store, which makes or migrates it, and prints its format.
///
/// Errors: a store of another program, a newer one, and one of an older format that a process still uses.
pub fn migrate(context: &Context, page: &mut Page) -> Result<(), CliError> {
    drop(context.open(true, Default::default())?);
    let place = context.place.to_string();
    if page.look.json {
        return Ok(page.json(&json!({ "place": place, "format": FORMAT }))?);
    }
    Ok(page.line(&format!("{place} has format {FORMAT}, as this outlast writes it"))?)
}
