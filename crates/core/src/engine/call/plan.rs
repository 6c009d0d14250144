//! Plan: decides whether a new call fits, inherits, waits, is clamped or is refused.

use crate::{
    engine::{Admit, call::admit::Repeats, prelude::*},
    price::Bound,
    run::{Admission, InDoubt},
};

/// Largest number of inheritances in a chain of lost calls.
const MAX_INHERITANCES: u8 = 2;

/// Result of planning a new call.
pub enum Plan {
    Go {
        cap: Option<u64>,
        inherit: bool,
    },
    Wait(Refusal),
    /// The budget of an ancestor run or a named budget refuses: the run waits and is not halted.
    WaitForOthers(Refusal),
    Refuse(Refusal),
}

impl Plan {
    pub fn make(
        op: &Admit,
        l: &Loaded,
        windows: &[EnvelopeNo],
        repeats: &Repeats,
        now: Micros,
    ) -> Result<Plan, Error> {
        let Repeats { lost, stands_for, bound } = repeats;
        let run = l.run(op.actor.run)?;
        let implicit_loop = op.is_loop(l, *lost, *stands_for)?;
        let others = Amounts::default().with(Unit::Calls, 1).with(Unit::Loops, i64::from(implicit_loop));
        let full = amounts(bound.full()) + others;
        // The answers of a batch are compared and kept together, so no call of it is clamped.
        let floor = if run.job.is_some() { full } else { amounts(bound.floor()) + others };
        let charges = [&run.charges[..], windows].concat();
        let room = Room { l, charges: &charges, own: run.envelope() };

        if run.policy.admission == Admission::Observe {
            return Ok(match room.used_up(&full)? {
                None => Plan::Go { cap: None, inherit: false },
                Some((e, u)) => room.refusal(e, u, 1, now)?,
            });
        }
        let none = Amounts::default();
        if room.shortfall(&full, &none)?.is_none() {
            return Ok(Plan::Go { cap: None, inherit: false });
        }
        let inheritable = match lost.and_then(|s| l.entry(op.actor.run, s)) {
            Some(e)
                // A closed window takes nothing back: what it holds for a lost call stays its own.
                if run.policy.in_doubt == InDoubt::AsRetry
                    && doubt::inheritances(e) < MAX_INHERITANCES
                    && e.windows() == windows =>
            {
                e.held
            }
            _ => none,
        };
        if !inheritable.is_zero() {
            if room.shortfall(&full, &inheritable)?.is_none() {
                return Ok(Plan::Go { cap: None, inherit: true });
            }
            if room.shortfall(&floor, &inheritable)?.is_none() {
                let cap = room.largest_cap(bound, &inheritable)?;
                return Ok(Plan::Go { cap, inherit: true });
            }
        }
        if lost.is_none() && run.job.is_none() {
            // Calls that name no cap hold the model's whole maximum. Near a budget's end they would go one at a time.
            let usual = op.usual_cap.map(|cap| cap.max(bound.floor_cap)).filter(|cap| *cap < bound.cap);
            if let Some(cap) = usual
                && room
                    .shortfall(&(amounts((bound.cost_at(cap), bound.tokens_at(cap))) + others), &none)?
                    .is_none()
            {
                return Ok(Plan::Go { cap: Some(cap), inherit: false });
            }
        }
        if room.live_in_refusing(&full)? {
            if room.fits_if_live_came_back(&floor, &inheritable)? {
                let (e, u) = room.shortfall(&full, &none)?.ok_or(Error::NotLoaded("shortfall"))?;
                return Ok(Plan::Wait(room.says(e, u, full[u], now)?));
            }
        } else if room.shortfall(&floor, &none)?.is_none() {
            let cap = room.largest_cap(bound, &none)?;
            return Ok(Plan::Go { cap, inherit: false });
        }
        match room.shortfall(&floor, &none)? {
            Some((e, u)) => room.refusal(e, u, floor[u], now),
            // The floor fits now, but would not fit if calls in flight came back: impossible, because what fits now
            // also fits with more room.
            None => Err(Error::NotLoaded("a refusing unit")),
        }
    }
}

/// Envelopes that a call of the run is admitted against.
struct Room<'a> {
    l: &'a Loaded,
    charges: &'a [EnvelopeNo],
    own: EnvelopeNo,
}

impl Room<'_> {
    fn envelope(&self, no: EnvelopeNo) -> Result<&Envelope, Error> {
        self.l.envelope(no)
    }

    /// Returns the part of `want` that envelope `no` is charged: ancestors see only the units that propagate.
    fn share(&self, no: EnvelopeNo, want: &Amounts) -> Amounts {
        if no == self.own { *want } else { want.propagating() }
    }

    /// Returns the first envelope and unit in which `want` does not fit, the run's own envelope first.
    fn shortfall(&self, want: &Amounts, extra: &Amounts) -> Result<Option<(EnvelopeNo, Unit)>, Error> {
        for &no in self.charges {
            if let Some(u) = self.envelope(no)?.shortfall(&self.share(no, want), extra) {
                return Ok(Some((no, u)));
            }
        }
        Ok(None)
    }

    /// Returns the first unit whose limit is used up, with its envelope; `None` if there is none. For
    /// `admission = "observe"`.
    fn used_up(&self, want: &Amounts) -> Result<Option<(EnvelopeNo, Unit)>, Error> {
        for &no in self.charges {
            let e = self.envelope(no)?;
            let share = self.share(no, want);
            let used = |u: &Unit| share[*u] > 0 && e.limits[*u].is_some_and(|limit| e.spent[*u] >= limit);
            if let Some(u) = Unit::ALL.into_iter().find(used) {
                return Ok(Some((no, u)));
            }
        }
        Ok(None)
    }

    /// Returns whether calls in flight hold a part of the unit that refuses `full`.
    fn live_in_refusing(&self, full: &Amounts) -> Result<bool, Error> {
        for &no in self.charges {
            let e = self.envelope(no)?;
            let share = self.share(no, full);
            let waits = |u: &Unit| e.free(*u).is_some_and(|free| free < share[*u]) && e.live(*u) > 0;
            if Unit::ALL.iter().any(waits) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn fits_if_live_came_back(&self, floor: &Amounts, extra: &Amounts) -> Result<bool, Error> {
        for &no in self.charges {
            let e = self.envelope(no)?;
            let share = self.share(no, floor);
            let fits = |u: Unit| {
                share[u] == 0
                    || e.free(u).is_none_or(|free| {
                        free.saturating_add(e.live(u)).saturating_add(extra[u]) >= share[u]
                    })
            };
            if !Unit::ALL.into_iter().all(fits) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the largest output cap that fits everywhere; `None` when the request's own cap fits.
    fn largest_cap(&self, bound: &Bound, extra: &Amounts) -> Result<Option<u64>, Error> {
        let (mut cost, mut tokens) = (None::<i64>, None::<i64>);
        for &no in self.charges {
            let e = self.envelope(no)?;
            for (least, u) in [(&mut cost, Unit::CostNanoUsd), (&mut tokens, Unit::Tokens)] {
                if let Some(free) = e.free(u) {
                    let free = free.saturating_add(extra[u]).max(0);
                    *least = Some(least.map_or(free, |l| l.min(free)));
                }
            }
        }
        let cost = cost.map(crate::words::money::NanoUsd);
        let cap = bound
            .largest_cap_within(cost, tokens.map(|t| t as u64))
            .ok_or(Error::NotLoaded("a cap although the floor fits"))?;
        Ok((cap < bound.cap).then_some(cap))
    }

    fn refusal(&self, no: EnvelopeNo, u: Unit, needs: i64, now: Micros) -> Result<Plan, Error> {
        let refusal = self.says(no, u, needs, now)?;
        Ok(if no == self.own { Plan::Refuse(refusal) } else { Plan::WaitForOthers(refusal) })
    }

    fn says(&self, no: EnvelopeNo, u: Unit, needs: i64, now: Micros) -> Result<Refusal, Error> {
        let e = self.envelope(no)?;
        let refusal = Refusal::of(u, needs, e, e.free(u).unwrap_or(0), now);
        Ok(match windows::whose(self.l, e, now) {
            Some(whose) if no != self.own => refusal.by(whose),
            _ => refusal,
        })
    }
}

pub fn amounts((cost, tokens): (crate::words::money::NanoUsd, u64)) -> Amounts {
    Amounts::of_call(cost.0, tokens)
}
