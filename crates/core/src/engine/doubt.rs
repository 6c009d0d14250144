//! Doubt: calls that were lost, what they hold, and how truth replaces the estimate.

use crate::{
    digest::MatchKey,
    engine::Error,
    id::{EnvelopeNo, Micros, RunNo, Seq},
    journal::{Correction, Entry, Kind, State},
    loaded::Loaded,
    run::InDoubt,
    unit::{Amounts, Unit},
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

/// Takes over what the lost try holds, as far as the retry needs it: that is no longer in doubt, it
/// backs the retry. What the retry does not need stays where it is: it could not be given back once
/// others had reserved it. Returns what was taken and the length of the chain.
pub fn inherit(l: &mut Loaded, run: RunNo, lost: Seq, needs: &Amounts) -> Result<(Amounts, u8), Error> {
    let entry = entry_mut(l, run, lost)?;
    let taken = entry.held.min(needs);
    entry.held -= taken;
    let chain = inheritances(entry) + 1;
    for no in charges(l, run)? {
        l.envelope_mut(no)?.resolve_doubt(&taken);
    }
    Ok((taken, chain))
}

/// The outcome of an open call is unknown from now on: it stays charged at its reservation, and
/// it was one call. Under `in_doubt = "refund"` it is closed at nothing instead.
pub fn make_unknown(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let refund = l.run(run)?.policy.in_doubt == InDoubt::Refund;
    let entry = entry_mut(l, run, seq)?;
    let calls = Amounts::default().with(Unit::Calls, entry.held[Unit::Calls]);
    let money = entry.held - calls;
    entry.spent += calls;
    entry.closed_at = Some(now);
    let (release, doubt) = if refund {
        entry.held = Amounts::default();
        entry.state = State::Failed;
        (calls + money, Amounts::default())
    } else {
        entry.held = money;
        entry.state = State::Unknown;
        (calls, money)
    };
    for no in charges(l, run)? {
        let e = l.envelope_mut(no)?;
        e.release(&release);
        e.post(&calls);
        e.doubt(&doubt);
    }
    Ok(())
}

/// The retry came to nothing (`void`, or `failed` at zero), and held `held`: the nearest try behind
/// it that is still in doubt has what it gave again, and no retry.
///
/// A retry that had been lost itself may have passed its hold on to a retry of its own. Then it
/// gives back what it still held, and stays in the chain: its successor backs the rest, and gives
/// that back when it comes to nothing too.
pub fn give_back(l: &mut Loaded, run: RunNo, retry: Seq, held: &Amounts) -> Result<(), Error> {
    let Some((mut lost, inherited)) = behind(l, run, retry) else { return Ok(()) };
    let mut back = inherited.min(held);
    let entry = entry_mut(l, run, retry)?;
    let has_successor = entry.retried_by.is_some();
    if let Some(call) = entry.call.as_mut() {
        call.inherited = if has_successor { inherited - back } else { Amounts::default() };
    }
    while entry_mut(l, run, lost)?.state != State::Unknown {
        let Some((earlier, owed)) = behind(l, run, lost) else { return Ok(()) };
        back = back.min(&owed);
        lost = earlier;
    }
    let entry = entry_mut(l, run, lost)?;
    if !has_successor {
        entry.retried_by = None;
    }
    entry.held += back;
    for no in charges(l, run)? {
        let e = l.envelope_mut(no)?;
        e.reserve(&back);
        e.doubt(&back);
    }
    Ok(())
}

/// The retry settled: each lost try behind it is posted at the retry's cost or the headroom left,
/// whichever is less. Returns what no headroom covered, in nano-USD.
pub fn settle_lost(l: &mut Loaded, run: RunNo, retry: Seq, cost: Amounts, now: Micros) -> Result<i64, Error> {
    if l.run(run)?.policy.in_doubt != InDoubt::AsRetry {
        return Ok(0);
    }
    let charges = charges(l, run)?;
    let mut unbacked = 0;
    let mut next = behind(l, run, retry);
    while let Some((lost, _)) = next {
        let entry = entry_mut(l, run, lost)?;
        if entry.state == State::Unknown {
            let held = std::mem::take(&mut entry.held);
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

fn charges(l: &Loaded, run: RunNo) -> Result<Vec<EnvelopeNo>, Error> {
    Ok(l.run(run)?.charges.to_vec())
}

fn entry_mut(l: &mut Loaded, run: RunNo, seq: Seq) -> Result<&mut Entry, Error> {
    l.entry_mut(run, seq).ok_or(Error::NotLoaded("the entry"))
}
