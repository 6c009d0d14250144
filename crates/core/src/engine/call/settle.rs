//! Settle: closes a call with its true cost, or lets it be sent again. Parts of its answer are stored as they come.

use crate::{
    engine::{prelude::*, run::process},
    journal::Correction,
    words::{ServiceTier, Usage},
};

/// Amount that a call is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bill {
    /// The provider's usage, priced.
    Usage { usage: Usage, tier: ServiceTier, cost_nano_usd: i64, price_hash: String },
    /// No usage arrived: the call is charged its reservation and marked `estimated`, never zero.
    Reservation,
    /// The provider refused the call: one call, no money, no tokens.
    Nothing,
}

/// Outcome with which a call's entry closes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Close {
    /// The answer is whole: 2xx, with its terminal event seen.
    Done(Bill),
    /// The upstream sent an error status or a broken answer.
    Failed(Bill),
    /// The request was never sent: nothing is charged, not even a call.
    Void,
    /// The request may have reached the provider: the call stays charged at its reservation.
    #[default]
    Unknown,
}

/// Closes an open call: ledger, answer and reservation in one commit.
///
/// Synced: durable before visible. Authorised by the instance that opened the entry, even if its attempt is
/// over: a paid answer is recorded although its agent is gone.
/// A call that was swept to `unknown` can be settled once. Errors: `AlreadySettled`, `AlreadyTaken`.
#[derive(Clone, Debug, Default)]
pub struct Settle {
    pub opening: Opening,
    /// Attempt to which `active_ms` is added: only for an attempt that an HTTP header began, and that no supervisor
    /// renews.
    pub attempt: AttemptNo,
    pub close: Close,
    /// Time in which a call of `attempt` was in flight and which is not yet added to its active time, in milliseconds.
    pub active_ms: i64,
    pub http_status: Option<u16>,
    pub upstream_request_id: Option<String>,
    pub error: Option<String>,
    /// Answer as stored; `None` if it is not kept, and then it cannot be replayed.
    pub answer: Option<Payload>,
}

impl Settle {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = life::needs(&self.opening);
        if self.active_ms > 0 {
            needs.push(Need::Attempt(self.opening.run, self.attempt));
        }
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Settled, Error> {
        let entry = life::entry(l, &self.opening, |kind| kind == Kind::Call)?;
        let late = entry.state == State::Unknown;
        let corrected = entry.call.as_ref().is_some_and(|c| c.correction.is_some());
        if (entry.state != State::Open && !late) || corrected || (late && self.close == Close::Unknown) {
            return Err(Error::AlreadySettled { seq: self.opening.seq.0, state: entry.state.name() });
        }
        if self.active_ms > 0 {
            let active = process::Active { run: self.opening.run, attempt: self.attempt, ms: self.active_ms };
            process::post_active(l, &active, now)?;
        }
        self.describe(l);
        let charged = within::Charged::of(l);
        let held = l.entry(self.opening.run, self.opening.seq).map_or_else(Amounts::default, |e| e.held);
        let settled = match &self.close {
            Close::Unknown => {
                doubt::make_unknown(l, self.opening.run, self.opening.seq, now)?;
                Amounts::default()
            }
            Close::Void => {
                self.close_entry(l, State::Void, Amounts::default(), late, now)?;
                self.return_loop(l)?;
                doubt::give_back(l, self.opening.run, self.opening.seq, held)?;
                Amounts::default()
            }
            Close::Done(bill) | Close::Failed(bill) => {
                let state = if matches!(self.close, Close::Done(_)) { State::Done } else { State::Failed };
                let money = self.charge(l, bill);
                self.close_entry(l, state, money.with(Unit::Calls, 1), late, now)?;
                if money.is_zero() && state == State::Failed {
                    doubt::give_back(l, self.opening.run, self.opening.seq, held)?;
                } else {
                    doubt::settle_lost(l, self.opening.run, self.opening.seq, money, now)?;
                }
                money
            }
        };
        let overrun = self.note_overrun(l, settled, held);
        charged.post(l)?;
        self.count(l)?;
        let run = l.run(self.opening.run)?;
        let own = l.envelope(run.envelope())?;
        Ok(Settled {
            cost_nano_usd: settled.cost(),
            overrun_nano_usd: overrun.cost(),
            overrun_tokens: overrun.tokens(),
            run_spent_nano_usd: own.spent.cost(),
            run_status: run.status,
        })
    }

    fn charge(&self, l: &mut Loaded, bill: &Bill) -> Amounts {
        let call = l.entry_mut(self.opening.run, self.opening.seq).and_then(|e| e.call.as_mut());
        match bill {
            Bill::Nothing => Amounts::default(),
            Bill::Reservation => call.map_or_else(Amounts::default, |call| {
                call.estimated = true;
                // Not the held amount: a retry of a lost call may have inherited that.
                call.reserved
            }),
            Bill::Usage { usage, tier, cost_nano_usd, price_hash } => {
                if let Some(call) = call {
                    call.usage = Some(*usage);
                    call.tier = *tier;
                    call.price_hash = Some(price_hash.clone());
                }
                Amounts::of_call(*cost_nano_usd, usage.total())
            }
        }
    }

    /// Moves the entry's amounts in its envelopes from reserved to spent.
    fn close_entry(
        &self,
        l: &mut Loaded,
        state: State,
        spent: Amounts,
        late: bool,
        now: Micros,
    ) -> Result<(), Error> {
        let Some(entry) = l.entry_mut(self.opening.run, self.opening.seq) else { return Ok(()) };
        let held = std::mem::take(&mut entry.held);
        // A swept call was already posted as one call.
        let posting = if late { spent - entry.spent } else { spent };
        entry.state = state;
        entry.spent = spent;
        entry.closed_at = Some(now);
        entry.replayable = state == State::Done && self.answer.is_some();
        if let Some(call) = entry.call.as_mut().filter(|_| late) {
            let why = "its outcome arrived after it was taken for lost".to_owned();
            call.correction =
                Some(Correction { at: now, posted: spent, unbacked_nano_usd: 0, unbacked_tokens: 0, why });
        }
        for no in doubt::charges(l, self.opening.run, self.opening.seq)? {
            let e = l.envelope_mut(no)?;
            if late {
                e.doubt -= held;
            }
            e.reserved -= held;
            e.spent += posting;
        }
        if let Some(payload) = self.answer.clone().filter(|_| state == State::Done) {
            l.keep_payload(self.opening.run, self.opening.seq, Role::Answer, payload);
        }
        Ok(())
    }

    fn return_loop(&self, l: &mut Loaded) -> Result<(), Error> {
        let counted = l
            .entry(self.opening.run, self.opening.seq)
            .and_then(|e| e.call.as_ref())
            .is_some_and(|c| c.implicit_loop);
        if counted {
            let own = l.run(self.opening.run)?.envelope();
            l.envelope_mut(own)?.spent[Unit::Loops] -= 1;
        }
        Ok(())
    }

    fn describe(&self, l: &mut Loaded) {
        if let Some(call) = l.entry_mut(self.opening.run, self.opening.seq).and_then(|e| e.call.as_mut()) {
            call.http_status = self.http_status;
            call.upstream_request_id = self.upstream_request_id.clone();
            call.error = self.error.clone();
            if call.resting {
                // The call's final status is the outcome of its last try.
                call.resting = false;
                call.tries.pop();
            }
        }
    }

    fn note_overrun(&self, l: &mut Loaded, settled: Amounts, held: Amounts) -> Amounts {
        let overrun = (settled - held).most(&Amounts::default());
        let call = l.entry_mut(self.opening.run, self.opening.seq).and_then(|e| e.call.as_mut());
        if let Some(call) = call.filter(|_| !overrun.is_zero()) {
            (call.overrun_nano_usd, call.overrun_tokens) = (overrun.cost(), overrun.tokens());
        }
        overrun
    }

    fn count(&self, l: &mut Loaded) -> Result<(), Error> {
        let Some(e) = l.entry(self.opening.run, self.opening.seq) else { return Ok(()) };
        let (closed, replayable, scope) = (matches!(e.state, State::Done), e.replayable, e.scope.clone());
        // Nobody asks again for answers inside a step that is done, nor for two answers of one request.
        let unasked = within::is_over(l, self.opening.run, self.opening.seq)
            || doubt::is_answered_before(l, self.opening.run, self.opening.seq);
        let run = l.run_mut(self.opening.run)?;
        run.closed += i64::from(closed);
        if replayable && !unasked && scope == iteration_scope(run.iteration) {
            run.answers += 1;
            for outer in within::around(l, self.opening.run, self.opening.seq) {
                if let Some(e) = l.entry_mut(self.opening.run, outer) {
                    e.step.get_or_insert_default().answers += 1;
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub cost_nano_usd: i64,
    pub overrun_nano_usd: i64,
    pub overrun_tokens: i64,
    /// Spent amount of the run's own envelope, in nano-USD.
    pub run_spent_nano_usd: i64,
    pub run_status: Status,
}

/// Records the failed tries of an open call, and whether the next try is about to be sent.
///
/// The call keeps its reservation. `resting`: the call is between two tries, and nothing of it is being sent;
/// `Committed` is enough, because a crash that loses the record makes the call `unknown`, which is safe. Not
/// `resting`: the next try is about to be sent, which `Synced` records first.
/// Returns whether the next try may be sent: not in a run that has ended, is halted or was stopped, and not
/// after a time limit.
/// Errors: `AlreadyTaken` when another opening has the entry; `AlreadySettled` when a sweep has closed the
/// entry.
#[derive(Clone, Debug)]
pub struct Retry {
    pub opening: Opening,
    /// All tries so far, oldest first: the upstream's status, or `None` where it was not reached.
    pub tries: Vec<Option<u16>>,
    pub resting: bool,
}

impl Retry {
    pub fn needs(&self) -> Vec<Need> {
        life::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<bool, Error> {
        let Opening { run: no, seq, .. } = self.opening;
        life::open_entry(l, &self.opening, |kind| kind == Kind::Call)?;
        let run = l.run(no)?;
        let is_open = guard::open_run(run).is_ok_and(|halt| halt.is_none());
        let may_leave = is_open && !run.stop_requested && guard::time_over(l, no, 0, now)?.is_none();
        let call = l.entry_mut(no, seq).and_then(|e| e.call.as_mut()).ok_or(Error::NotLoaded("the call"))?;
        call.tries.clone_from(&self.tries);
        call.resting = self.resting || !may_leave;
        Ok(may_leave)
    }
}

/// Returns the outcome with which a call closes if all of its tries failed.
///
/// A refused call counts as one call without cost; a call that never reached the upstream is `void`.
pub fn close(tries: &[Option<u16>]) -> Close {
    if tries.iter().any(Option::is_some) { Close::Failed(Bill::Nothing) } else { Close::Void }
}

/// Returns whether the call rests between two tries, so that nothing of it is being sent.
pub fn is_resting(l: &Loaded, run: RunNo, seq: Seq) -> bool {
    l.entry(run, seq).and_then(|e| e.call.as_ref()).is_some_and(|c| c.resting)
}

/// Closes a call whose process died between two tries. All its tries have failed, so nothing of it is in doubt.
pub fn give_up(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    let entry = l.entry(run, seq).ok_or(Error::NotLoaded("the entry"))?;
    let tries = entry.call.as_ref().map_or_else(Vec::new, |c| c.tries.clone());
    let settle = Settle {
        opening: Opening::of(entry).unwrap_or_default(),
        attempt: entry.attempt,
        close: close(&tries),
        active_ms: 0,
        http_status: tries.last().copied().flatten(),
        upstream_request_id: None,
        error: Some("its process ended between two tries".into()),
        answer: None,
    };
    settle.decide(l, now).map(drop)
}

/// Stores one part of an entry's payload. `Committed` is enough: the closing that needs it syncs it.
///
/// A commit thus carries not much more than a part, and other operations of the group do not wait for 64 MiB.
/// Nobody reads the part before the closing; parts left by a dead process are overwritten.
/// Authorised by the entry's own instance. Errors: `AlreadyTaken`, `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct StorePart {
    pub opening: Opening,
    pub role: Role,
    pub part: Payload,
}

impl StorePart {
    /// Splits `payload` into operations to submit before the entry is closed, and the part that its closing carries.
    pub fn before(opening: Opening, role: Role, payload: Payload) -> (Vec<StorePart>, Payload) {
        let mut parts = payload.clone().into_parts();
        let last = parts.pop().unwrap_or(payload);
        (parts.into_iter().map(|part| StorePart { opening, role, part }).collect(), last)
    }

    pub fn needs(&self) -> Vec<Need> {
        life::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let Opening { run, seq, .. } = self.opening;
        let entry = life::entry(l, &self.opening, |_| true)?;
        // A call that was swept may still be answered.
        if !matches!(entry.state, State::Open | State::Unknown) {
            return Err(Error::AlreadySettled { seq: seq.0, state: entry.state.name() });
        }
        l.keep_payload(run, seq, self.role, self.part.clone());
        Ok(())
    }
}
