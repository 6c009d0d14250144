//! Doubt: lost calls, the amounts they hold, and the settlement that later replaces their estimates.

use crate::{
    engine::prelude::*,
    journal::{CallDetail, Correction},
    run::InDoubt,
};

/// Returns the oldest lost call of this key that has no retry; `None` if there is none. The next call of the key is its
/// retry.
pub fn lost_without_retry(l: &Loaded, run: RunNo, key: MatchKey) -> Option<Seq> {
    l.all::<Entry>()
        .find(|e| {
            e.run == run
                && e.kind == Kind::Call
                && e.match_key == Some(key)
                && e.is_lost()
                && e.retried_by.is_none()
        })
        .map(|e| e.seq)
}

/// Returns the number of lost tries whose reservation was passed on, each to the next, up to this entry.
pub fn inheritances(e: &Entry) -> u8 {
    e.call.as_ref().map_or(0, |c| c.inheritances)
}

/// Passes on to a retry the part of the lost call's reservation that the retry needs. That part is no longer in doubt;
/// the rest stays in doubt, so that a retry never gives back more than it has reserved. Returns the amounts passed on,
/// and the number of lost tries whose reservations were passed on up to this retry.
pub fn inherit(l: &mut Loaded, run: RunNo, lost: Seq, wanted: &Amounts) -> Result<(Amounts, u8), Error> {
    let entry = life::of(l, run, lost)?;
    let taken = entry.held.least(wanted);
    entry.held -= taken;
    let chain = inheritances(entry) + 1;
    for no in charges(l, run, lost)? {
        l.envelope_mut(no)?.doubt -= taken;
    }
    Ok((taken, chain))
}

/// Makes the outcome of an open call unknown. The call stays charged at its reservation and counts as one call. Under
/// `in_doubt = "refund"` nothing stays reserved; the true outcome can still be posted later.
pub fn make_unknown(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let refund = l.run(run)?.policy.in_doubt == InDoubt::Refund;
    let entry = life::of(l, run, seq)?;
    let calls = Amounts::default().with(Unit::Calls, entry.held[Unit::Calls]);
    let doubt = if refund { Amounts::default() } else { entry.held - calls };
    let release = entry.held - doubt;
    entry.state = State::Unknown;
    entry.closed_at = Some(now);
    entry.held = doubt;
    entry.spent += calls;
    for no in charges(l, run, seq)? {
        let e = l.envelope_mut(no)?;
        e.reserved -= release;
        e.spent += calls;
        e.doubt += doubt;
    }
    Ok(())
}

/// Gives back what a retry inherited when the retry came to nothing (`void`, or `failed` at zero). The amount is
/// reserved for the lost call again, which then has no retry.
///
/// `held` is the amount that was reserved for the retry when it closed. If its inheritance has moved on to a further
/// retry, that retry gives it back. A lost call that was settled meanwhile passes the amount on to the call before it.
pub fn give_back(l: &mut Loaded, run: RunNo, retry: Seq, held: Amounts) -> Result<(), Error> {
    let has_heir = l.entry(run, retry).is_some_and(|e| e.retried_by.is_some());
    let (mut giver, mut rest) = (retry, held);
    while let Some((lost, inherited)) = behind(l, run, giver) {
        rest = rest.least(&inherited);
        if let Some(call) = life::of(l, run, giver)?.call.as_mut() {
            call.inherited -= rest;
        }
        let entry = life::of(l, run, lost)?;
        if entry.state == State::Unknown {
            entry.held += rest;
            if !has_heir {
                entry.retried_by = None;
            }
            for no in charges(l, run, lost)? {
                let e = l.envelope_mut(no)?;
                e.reserved += rest;
                e.doubt += rest;
            }
            return Ok(());
        }
        giver = lost;
    }
    Ok(())
}

/// Settles the lost calls behind a retry that settled at `cost`. Each is posted at its estimate or at what the limits
/// leave, whichever is less; the rest of the estimate is recorded as unbacked.
pub fn settle_lost(l: &mut Loaded, run: RunNo, retry: Seq, cost: Amounts, now: Micros) -> Result<(), Error> {
    if l.run(run)?.policy.in_doubt != InDoubt::AsRetry {
        return Ok(());
    }
    let mut next = behind(l, run, retry);
    while let Some((lost, _)) = next {
        if l.entry(run, lost).is_some_and(Entry::is_lost) {
            let estimate = estimate(l, run, lost, retry, cost);
            let entry = life::of(l, run, lost)?;
            let held = std::mem::take(&mut entry.held);
            let charges = charges(l, run, lost)?;
            for &no in &charges {
                let e = l.envelope_mut(no)?;
                e.doubt -= held;
                e.reserved -= held;
            }
            let posted = headroom(l, &charges, estimate)?;
            for &no in &charges {
                l.envelope_mut(no)?.spent += posted;
            }
            let missing = estimate - posted;
            let entry = life::of(l, run, lost)?;
            entry.state = State::Failed;
            entry.spent += posted;
            if let Some(call) = entry.call.as_mut() {
                call.correction = Some(Correction {
                    at: now,
                    posted,
                    unbacked_nano_usd: missing.cost(),
                    unbacked_tokens: missing.tokens(),
                    why: format!("lost; charged as its retry, entry {retry}"),
                });
            }
        }
        next = behind(l, run, lost);
    }
    Ok(())
}

/// Returns what a lost call is charged when a retry of it settled at `cost`: the same or, where the retry's answer was
/// cut off at a lower cap than the lost call had, the lost call's own bound.
fn estimate(l: &Loaded, run: RunNo, lost: Seq, retry: Seq, cost: Amounts) -> Amounts {
    let call = |seq| l.entry(run, seq).and_then(|e| e.call.as_deref());
    match (call(lost), call(retry)) {
        (Some(lost), Some(retry)) if is_cut_below(retry, lost) => cost.most(&lost.reserved),
        _ => cost,
    }
}

/// Returns whether the retry's output cap was clamped below the lost call's cap, and the retry may have ended
/// at the cap. Without usage this is taken to be so.
fn is_cut_below(retry: &CallDetail, lost: &CallDetail) -> bool {
    let Some(cap) = retry.clamped_to else { return false };
    lost.clamped_to.is_none_or(|own| cap < own) && retry.usage.is_none_or(|usage| usage.output >= cap)
}

/// Returns `want`, limited to the room that every envelope has.
fn headroom(l: &Loaded, charges: &[EnvelopeNo], want: Amounts) -> Result<Amounts, Error> {
    let mut least = Amounts::of(want.cost(), want.tokens());
    for &no in charges {
        let e = l.envelope(no)?;
        for u in [Unit::CostNanoUsd, Unit::Tokens] {
            if let Some(free) = e.free(u) {
                least[u] = least[u].min(free.max(0));
            }
        }
    }
    Ok(least)
}

/// Returns whether an earlier lost try of the same request was answered after all.
pub fn is_answered_before(l: &Loaded, run: RunNo, seq: Seq) -> bool {
    let earlier = |seq: &Seq| behind(l, run, *seq).map(|(lost, _)| lost);
    std::iter::successors(earlier(&seq), earlier)
        .any(|seq| l.entry(run, seq).is_some_and(|e| e.state == State::Done && e.replayable))
}

/// Returns the lost call that an entry retries, and the amounts it inherited from it.
fn behind(l: &Loaded, run: RunNo, retry: Seq) -> Option<(Seq, Amounts)> {
    let call = l.entry(run, retry)?.call.as_ref()?;
    Some((call.retry_of?, call.inherited))
}

/// Returns the envelopes that a call is charged to: its run's, and the windows it was admitted under.
pub fn charges(l: &Loaded, run: RunNo, seq: Seq) -> Result<Vec<EnvelopeNo>, Error> {
    let windows = l.entry(run, seq).map_or(&[][..], Entry::windows);
    Ok([&l.run(run)?.charges[..], windows].concat())
}
