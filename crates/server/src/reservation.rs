//! Reservations for calls that do not pass the proxy: their admission and their settlement.

use std::sync::Arc;

use outlast_core::{
    engine::{Actor, Admit, Bill, Close, Settle},
    journal::{Opening, iteration_scope},
    price::Bound,
    words::{AttemptNo, Digest, Entropy, MatchKey, ServiceTier, Slot, Usage, clock::random},
};

/// Picodollars in one nano-USD.
const PICO: i128 = 1_000;

/// Returns the admission of a call that can cost `nano_usd` and `tokens` at most. `label` stands for its model.
pub fn admission(
    (actor, slot, iteration): (Actor, Slot, i64),
    label: &str,
    nano_usd: i64,
    tokens: i64,
    entropy: &dyn Entropy,
) -> Admit {
    let scope = iteration_scope(iteration);
    // A random digest: the proxy cannot replay a call that did not pass it.
    let chance: [u8; 32] = random(entropy);
    let digest = Digest::of(&chance);
    Admit {
        actor,
        slot,
        match_key: MatchKey::new(&digest, &scope, None),
        scope,
        digest,
        upstream: Arc::from("reserved"),
        model: Arc::from(label),
        bound: Bound {
            input_tokens: u64::try_from(tokens).unwrap_or(0),
            fixed_pico: i128::from(nano_usd) * PICO,
            choices: 1,
            ..Bound::default()
        },
        priced: true,
        ..Admit::default()
    }
}

/// Returns the settlement of a reserved call at its cost in nano-USD. `None`: the call was never sent, and nothing is
/// charged.
pub fn settlement(opening: Opening, attempt: AttemptNo, nano_usd: Option<i64>, tokens: i64) -> Settle {
    let close = nano_usd.map_or(Close::Void, |cost_nano_usd| {
        let usage = Usage { input: u64::try_from(tokens).unwrap_or(0), ..Usage::default() };
        let (tier, price_hash) = (ServiceTier::default(), "said by the caller".to_owned());
        Close::Done(Bill::Usage { usage, tier, cost_nano_usd, price_hash })
    });
    Settle { opening, attempt, close, ..Settle::default() }
}
