//! Access to MCP servers at `/mcp/NAME`: in whose name a client calls tools.

use http::request::Parts;

use crate::{
    mcp::{front, recorder::Caller},
    proxy::{host::Host, seat},
    wire::{
        access::NotLetIn,
        refuse::Refusal,
        who::{self, Who},
    },
};

/// Returns the server that a request is for; its path may have a `/run/TOKEN` prefix. `None` for any other path.
pub fn name(parts: &Parts) -> Option<&str> {
    front::name(who::path(&parts.uri))
}

/// Returns the attempt in whose name a client calls tools. It is that of a run token, or of the run that a header names:
/// calls in the run that all callers of a day share would be replayed to each other.
pub async fn caller(host: &Host, parts: &Parts) -> Result<Caller, Refusal> {
    let caller = who::caller(&host.config.access, &host.token_keys, &parts.uri, &parts.headers)?;
    seat::serves(host, &caller.who)?;
    if caller.who == Who::Nobody {
        return Err(NotLetIn::NoRun.into());
    }
    let seat = seat::seat(host, caller.who).await?;
    Ok(Caller { run: seat.run, attempt: seat.attempt, slot: seat.slot, scope: seat.scope })
}
