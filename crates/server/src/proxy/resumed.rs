//! First calls of an agent that was started again: what they bought again is counted, for the metrics of this process.

use std::sync::Arc;

use outlast_core::{
    run::Record,
    words::id::{AttemptNo, Seq},
};

use super::{call::Call, host::Host, resume_tax};

/// Number of first calls of an attempt that are looked at: an agent's sub-agents go on as well.
const CALLS: u32 = 12;

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
        *calls <= CALLS
    };
    if !is_first {
        return;
    }
    let host = host.clone();
    tokio::task::spawn_blocking(move || {
        match resume_tax::of_call(host.store.as_ref(), run, seq, &host.config.prices) {
            Ok(Some(found)) if !found.expired => {
                host.metrics.rebought(found.rebought, found.cost_nano_usd.unwrap_or(0));
            }
            Ok(_) => {}
            Err(e) => {
                tracing::warn!(run = run.0, %seq, error = %e, "cannot tell what a restart bought again")
            }
        }
    });
}
