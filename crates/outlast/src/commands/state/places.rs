//! `outlast state namespaces | agents`: shows where anything is kept.

use outlast_core::reads::places;
use outlast_server::api::state::show;

use super::{super::prelude::*, WIDTH};
use crate::render::time::rfc3339;

pub fn namespaces(store: &dyn Store, page: &mut Page) -> Result<(), CliError> {
    let found = places::namespaces(store)?;
    if page.look.json {
        let shown: Vec<_> = found.iter().map(show::namespace).collect();
        return Ok(page.json(&json!({ "namespaces": shown }))?);
    }
    if found.is_empty() {
        return Ok(page.line("nothing was written yet")?);
    }
    let mut table =
        Table::new(&[("NAMESPACE", Side::Left), ("COMMIT", Side::Right), ("WRITTEN", Side::Left)]);
    for n in &found {
        let name = Cell::new(clean_line(&n.name, WIDTH));
        table.row(vec![name, Cell::new(n.commit.to_string()), Cell::new(rfc3339(n.at))]);
    }
    let look = page.look;
    Ok(page.text(&table.render(look, 0))?)
}

pub fn agents(store: &dyn Store, namespace: &str, page: &mut Page) -> Result<(), CliError> {
    let found = places::agents(store, namespace)?;
    if page.look.json {
        return Ok(page.json(&json!({ "agents": found }))?);
    }
    if found.is_empty() {
        page.line(&format!("no agents in namespace {}", clean_line(namespace, WIDTH)))?;
    }
    for agent in &found {
        page.line(&clean_line(agent, WIDTH))?;
    }
    Ok(())
}
