//! Doubt: calls that were lost, what they hold, and how truth replaces the estimate.

use crate::{
    engine::{Error, loaded::Loaded},
    envelope::unit::{Amounts, Unit},
    journal::{Correction, Entry, Kind, State},
    run::InDoubt,
    words::{
        digest::MatchKey,
        id::{EnvelopeNo, Micros, RunNo, Seq},
    },
};

/// The oldest lost try of this key that has no retry: the next call of the key is its retry.
pub fn lost_without_retry(l: &Loaded, run: RunNo, key: MatchKey) -> Option<Seq> {
    l.entries
        .iter()
        .map(|r| &r.value)
        .find(|e| {
            e.run == run
                && e.kind == Kind::Call
                && e.match_key == Some(key)
                && e.is_lost()
                && e.retried_by.is_none()
        })
        .map(|e| e.seq)
}

/// How many inheritances lie behind an entry.
pub fn inheritances(e: &Entry) -> u8 {
    e.call.as_ref().map_or(0, |c| c.inheritances)
}

/// Takes over of what the lost try holds as much as its retry will hold: that is no longer in doubt,
/// it backs the retry. What is left stays in doubt, so that a retry never gives back more than it holds.
/// Returns what was taken and the length of the chain.
pub fn inherit(l: &mut Loaded, run: RunNo, lost: Seq, wanted: &Amounts) -> Result<(Amounts, u8), Error> {
    let entry = entry_mut(l, run, lost)?;
    let taken = entry.held.least(wanted);
    entry.held -= taken;
    let chain = inheritances(entry) + 1;
    for no in charges(l, run, lost)? {
        l.envelope_mut(no)?.resolve_doubt(&taken);
    }
    Ok((taken, chain))
}

/// The outcome of an open call is unknown from now on: it stays charged at its reservation, and
/// it was one call. Under `in_doubt = "refund"` it holds nothing; its truth can still come.
pub fn make_unknown(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let refund = l.run(run)?.policy.in_doubt == InDoubt::Refund;
    let entry = entry_mut(l, run, seq)?;
    let calls = Amounts::default().with(Unit::Calls, entry.held[Unit::Calls]);
    let doubt = if refund { Amounts::default() } else { entry.held - calls };
    let release = entry.held - doubt;
    entry.state = State::Unknown;
    entry.closed_at = Some(now);
    entry.held = doubt;
    entry.spent += calls;
    for no in charges(l, run, seq)? {
        let e = l.envelope_mut(no)?;
        e.release(&release);
        e.post(&calls);
        e.doubt(&doubt);
    }
    Ok(())
}

/// The retry came to nothing (`void`, or `failed` at zero): the lost try has what it gave again,
/// and no retry.
///
/// `held` is what the retry held when it closed: where its inheritance has moved on to a retry of its
/// own, that one gives it back. A try whose own truth came meanwhile passes it on to the one before it.
pub fn give_back(l: &mut Loaded, run: RunNo, retry: Seq, held: Amounts) -> Result<(), Error> {
    let has_heir = l.entry(run, retry).is_some_and(|e| e.retried_by.is_some());
    let (mut giver, mut rest) = (retry, held);
    while let Some((lost, inherited)) = behind(l, run, giver) {
        rest = rest.least(&inherited);
        if let Some(call) = entry_mut(l, run, giver)?.call.as_mut() {
            call.inherited -= rest;
        }
        let entry = entry_mut(l, run, lost)?;
        if entry.state == State::Unknown {
            entry.held += rest;
            if !has_heir {
                entry.retried_by = None;
            }
            for no in charges(l, run, lost)? {
                let e = l.envelope_mut(no)?;
                e.reserve(&rest);
                e.doubt(&rest);
            }
            return Ok(());
        }
        giver = lost;
    }
    Ok(())
}

/// The retry settled: each lost try behind it is posted at the retry's cost or the headroom left,
/// whichever is less. Returns what no headroom covered, in nano-USD.
pub fn settle_lost(l: &mut Loaded, run: RunNo, retry: Seq, cost: Amounts, now: Micros) -> Result<i64, Error> {
    if l.run(run)?.policy.in_doubt != InDoubt::AsRetry {
        return Ok(0);
    }
    let mut unbacked = 0;
    let mut next = behind(l, run, retry);
    while let Some((lost, _)) = next {
        let entry = entry_mut(l, run, lost)?;
        if entry.state == State::Unknown {
            let held = std::mem::take(&mut entry.held);
            let charges = charges(l, run, lost)?;
            for &no in &charges {
                let e = l.envelope_mut(no)?;
                e.resolve_doubt(&held);
                e.release(&held);
            }
            let posted = headroom(l, &charges, cost)?;
            for &no in &charges {
                l.envelope_mut(no)?.post(&posted);
            }
            let missing = cost.cost() - posted.cost();
            unbacked += missing;
            let entry = entry_mut(l, run, lost)?;
            entry.state = State::Failed;
            entry.spent += posted;
            if let Some(call) = entry.call.as_mut() {
                call.correction = Some(Correction {
                    at: now,
                    posted,
                    unbacked_nano_usd: missing,
                    why: format!("lost; charged as its retry, entry {retry}"),
                });
            }
        }
        next = behind(l, run, lost);
    }
    Ok(unbacked)
}

/// `want`, or what every envelope has room for.
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

/// The lost try an entry is the retry of, and what it inherited from it.
fn behind(l: &Loaded, run: RunNo, retry: Seq) -> Option<(Seq, Amounts)> {
    let call = l.entry(run, retry)?.call.as_ref()?;
    Some((call.retry_of?, call.inherited))
}

/// The envelopes that a call is charged to: its run's, and the windows it was admitted under.
pub fn charges(l: &Loaded, run: RunNo, seq: Seq) -> Result<Vec<EnvelopeNo>, Error> {
    let windows = l.entry(run, seq).map_or(&[][..], Entry::windows);
    Ok([&l.run(run)?.charges[..], windows].concat())
}

fn entry_mut(l: &mut Loaded, run: RunNo, seq: Seq) -> Result<&mut Entry, Error> {
    l.entry_mut(run, seq).ok_or(Error::NotLoaded("the entry"))
}
