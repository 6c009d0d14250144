//! Reserves and settles calls that do not pass the proxy, for SDKs without a base URL.

use std::sync::Arc;

use outlast_core::{
    engine::call::{
        admit::{Admission, Admit},
        settle::{Bill, Close, Settle},
    },
    envelope::Refusal,
    journal::iteration_scope,
    price::Bound,
    store::{Ask as _, Durability},
    words::{
        clock::random,
        digest::{Digest, MatchKey},
        id::Seq,
        usage::{ServiceTier, Usage},
    },
};

use crate::{
    error::{Failure, refused_hint},
    open_run::OpenRun,
    shared::Core,
};

/// Picodollars in one nano-USD.
const PICO: i128 = 1_000;

/// Opens a call entry that reserves the amounts. Returns None if calls in flight hold the room, so that the caller
/// tries again; on the `last` try that is the error `admission_timeout`. Errors: `BudgetExceeded`, which halts the run.
pub fn reserve(
    core: &Core,
    open_run: &OpenRun,
    label: &str,
    nano_usd: i64,
    tokens: i64,
    last: bool,
) -> Result<Option<Seq>, Failure> {
    let scope = iteration_scope(open_run.iteration_of());
    // A random digest: the proxy cannot replay a call that did not pass it.
    let chance: [u8; 32] = random(core.context.entropy.as_ref());
    let digest = Digest::of(&chance);
    let admit = Admit {
        actor: open_run.actor(),
        slot: open_run.slot(),
        match_key: MatchKey::new(&digest, &scope, None),
        scope,
        within: None,
        digest,
        upstream: Arc::from("reserved"),
        path: Arc::from(""),
        model: Arc::from(label),
        stream: false,
        idempotency_key: None,
        bound: Bound {
            input_tokens: u64::try_from(tokens).unwrap_or(0),
            input_pico: 0,
            output_pico_per_token: 0,
            fixed_pico: i128::from(nano_usd) * PICO,
            choices: 1,
            cap: 0,
            floor_cap: 0,
        },
        priced: true,
        unknown_fee: None,
        caller: None,
        usual_cap: None,
        taken: Vec::new(),
        connection: 0,
        retry_count: 0,
        answered_with_error: false,
        behind: false,
        active_ms: 0,
        waits: 0,
        request: None,
    };
    match core.store.ask(admit, Durability::Synced).wait()? {
        Admission::Go { opening, .. } => {
            open_run.openings().lock().keep(opening);
            Ok(Some(opening.seq))
        }
        Admission::Replay { seq } | Admission::Join { seq, .. } => Ok(Some(seq)),
        Admission::Refused(refusal) => Err(Failure::refused(&refusal, open_run.id_of())),
        Admission::Wait { refusal } if last => Err(no_room(open_run, &refusal)),
        Admission::Wait { .. } => Ok(None),
    }
}

fn no_room(open_run: &OpenRun, refusal: &Refusal) -> Failure {
    // The rest of the run's own budget is held by calls in flight, and comes back when they settle.
    let hint = refusal.whose.is_some().then(|| refused_hint(refusal, open_run.id_of()));
    Failure::new(
        "admission_timeout",
        format!("run {}: no room for the reservation: {}", open_run.id_of(), refusal.message()),
        Some(hint.as_deref().unwrap_or("calls in flight hold the rest of the budget")),
    )
}

/// Settles the call at its cost in nano-USD. None: the call was never sent, and nothing is charged.
pub fn settle(
    core: &Core,
    open_run: &OpenRun,
    seq: Seq,
    nano_usd: Option<i64>,
    tokens: i64,
) -> Result<(), Failure> {
    let close = nano_usd.map_or(Close::Void, |cost_nano_usd| {
        let usage = Usage { input: u64::try_from(tokens).unwrap_or(0), ..Usage::default() };
        let (tier, price_hash) = (ServiceTier::default(), "said by the caller".to_owned());
        Close::Done(Bill::Usage { usage, tier, cost_nano_usd, price_hash })
    });
    let settle = Settle {
        opening: open_run.opening(seq.0),
        attempt: open_run.actor().attempt,
        close,
        active_ms: 0,
        http_status: None,
        upstream_request_id: None,
        error: None,
        answer: None,
    };
    core.store.ask(settle, Durability::Synced).wait()?;
    open_run.openings().lock().forget(open_run.actor().run, seq);
    Ok(())
}
