//! Admit: decides whether an LLM request may go out, and under which reservation.
//!
//! Order of the checks (docs/design/proxy.md): replay, queue, fits, inherits, waits, clamps, refuses.

use std::sync::Arc;

use crate::{
    engine::{
        Admission as Answer,
        call::plan::{Plan, amounts},
        prelude::*,
        rule::replay::{self, Choice},
    },
    journal::{CallDetail, Taker},
    price::Bound,
    run::{OnDivergence, Unpriced},
};

/// Decides a request. If it goes out, reserves its bound and opens its entry in the same commit.
///
/// Synced when the request goes out: intent before effect. Replays and joins write who receives the answer, which no other
/// request of the attempt has then, at whatever process.
/// Errors: `LeaseLost`, `LabelEnded`, `NotRunning`, `RunEnded` and `NotWithin` write nothing.
#[derive(Clone, Debug, Default)]
pub struct Admit {
    pub actor: Actor,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// Open item or step that the call is made in; `scope` is then the scope of calls in it. `None` outside of both.
    pub within: Option<Seq>,
    pub digest: Digest,
    pub match_key: MatchKey,
    pub upstream: Arc<str>,
    pub path: Arc<str>,
    pub model: Arc<str>,
    pub stream: bool,
    pub idempotency_key: Option<String>,
    /// Name of the API token by which the request was let in; `None` for other callers.
    pub caller: Option<Arc<str>>,
    pub bound: Bound,
    /// Whether the price table knows the model. If not, `bound` has no cost.
    pub priced: bool,
    /// Feature of the request that costs more than its tokens, at a fee that is not known; `None` if it has none.
    pub unknown_fee: Option<Arc<str>>,
    /// Output cap that is enough for most answers ([`crate::price::Usual`]), if the request names none and one is
    /// known; else `None`.
    pub usual_cap: Option<u64>,
    /// Entries whose answers connections of this process are receiving for the attempt.
    pub taken: Vec<Seq>,
    /// Number, in its process, of the connection that will receive the answer.
    pub connection: u64,
    /// `x-stainless-retry-count`; 0 when the request is no marked retry.
    pub retry_count: u32,
    /// Whether Outlast answered an earlier request of this attempt and key with an error of its own, without opening a
    /// journal entry.
    pub answered_with_error: bool,
    /// Whether an earlier call of this run waits in this process, so that this one queues behind it, or the upstream
    /// has no turn for it now (`call::rate`). A recorded answer or a call in flight serves this request all the same.
    pub behind: bool,
    /// Active time that is not yet added to the run's envelope, in milliseconds. The time limit counts it.
    pub active_ms: i64,
    /// Number of calls in a row, this one included, that bring the agent nothing new (`call::busy_waiting`).
    pub waits: u32,
    pub request: Option<Payload>,
}

impl Admit {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let more = [Need::OpenAttempts(run), Need::Matching(run, self.match_key), Need::Windows(Some(run))];
        let within = self.within.map(|seq| Need::Entry(run, seq));
        guard::needs(&self.actor, self.slot, more.into_iter().chain(within))
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Answer, Error> {
        guard::is_driven(l, &self.actor)?;
        if let Some(seq) = self.within {
            within::check(l, &self.actor, seq)?;
            // The item's or step's try ended meanwhile: a late request of it must not join the next try.
            if within::calls(l, self.actor.run, seq).as_ref() != Some(&self.scope) {
                return Err(Error::NotWithin { seq: seq.0 });
            }
        }
        let stands_for = match replay::choose(l, self) {
            Choice::Replay(seq) => {
                let counts = l.entry(self.actor.run, seq).is_some_and(|e| self.is_untaken(l, e));
                taking::take(l, &self.actor, seq, self.connection, counts);
                return Ok(Answer::Replay { seq });
            }
            Choice::Join(seq, instance) => return Ok(self.join(l, seq, instance)),
            Choice::New { stands_for } => stands_for,
        };
        guard::unhalt(l, self.actor.run, true, now)?;
        if let Some(refusal) = guard::open_run(l.run(self.actor.run)?)? {
            return Ok(Answer::Refused(refusal));
        }
        if let Some(refusal) = guard::time_over(l, self.actor.run, self.active_ms, now)? {
            return guard::halt(l, self.actor.run, refusal).map(Answer::Refused);
        }
        let windows = windows::open(l, self.actor.run, now)?;
        if let Some(refusal) = self.price_refusal(l, &windows, now)? {
            // A supervised run would only be started again to ask the same, and each item of a job asks the same. The
            // requests of header callers are independent, and one model without a price must not stop the others.
            let run = l.run(self.actor.run)?;
            return match run.command_key.is_some() || run.job.is_some() {
                true => guard::halt(l, self.actor.run, refusal).map(Answer::Refused),
                false => Ok(Answer::Refused(refusal)),
            };
        }
        let repeats = self.repeats(l, stands_for);
        if repeats.lost.is_none()
            && let Some(refusal) = self.divergence_refusal(l, now)?
        {
            return guard::halt(l, self.actor.run, refusal).map(Answer::Refused);
        }
        if self.behind {
            // A replay passes the queue; a new call does not. A call that cannot fit halts the run only when the calls
            // before it are through.
            return Ok(Answer::Wait { refusal: Refusal::plain("queued", now) });
        }
        match Plan::make(self, l, &windows, &repeats, now)? {
            Plan::Go { cap, inherit } => self.go(l, cap, inherit, &repeats, now),
            Plan::Wait(refusal) => Ok(Answer::Wait { refusal }),
            Plan::WaitForOthers(refusal) => {
                self.wait_for_others(l, &refusal)?;
                Ok(Answer::Wait { refusal })
            }
            Plan::Refuse(refusal) => guard::halt(l, self.actor.run, refusal).map(Answer::Refused),
        }
    }

    /// Lets the request wait for a call in flight. The first one of another process notes that on the call, so that its
    /// end is told there.
    fn join(&self, l: &mut Loaded, seq: Seq, instance: InstanceNo) -> Answer {
        taking::take(l, &self.actor, seq, self.connection, false);
        let call = l.entry_mut(self.actor.run, seq).and_then(|e| e.call.as_mut());
        call.into_iter().for_each(|call| call.joined |= instance != self.actor.instance);
        Answer::Join { seq, instance }
    }

    /// Returns what a new call repeats, and its bound: not more than that of a lost try, which was the same request. The
    /// lost try may have been bound more tightly, by a base that its process knew.
    fn repeats(&self, l: &Loaded, stands_for: Option<Seq>) -> Repeats {
        let run = self.actor.run;
        let lost = stands_for
            .filter(|&seq| l.entry(run, seq).is_some_and(Entry::is_lost))
            .or_else(|| doubt::lost_without_retry(l, run, self.match_key));
        let input = lost.and_then(|seq| l.entry(run, seq)).and_then(|e| e.call.as_ref()?.input_bound);
        Repeats { lost, stands_for, bound: input.map_or(self.bound, |tokens| self.bound.with_input(tokens)) }
    }

    /// Sets the run waiting and notes the budget it waits for. Asking again for the same budget writes nothing.
    fn wait_for_others(&self, l: &mut Loaded, refusal: &Refusal) -> Result<(), Error> {
        let run = l.run(self.actor.run)?;
        let same = |known: &Refusal| Refusal { at: refusal.at, ..known.clone() } == *refusal;
        let known = run.status == Status::Waiting && run.halt.as_ref().is_some_and(same);
        if !known && matches!(run.status, Status::Running | Status::Waiting) {
            let run = l.run_mut(self.actor.run)?;
            run.status = Status::Waiting;
            run.halt = Some(refusal.clone());
        }
        Ok(())
    }

    /// Returns the refusal of a call without a price in a run with a limit in usd: such a limit fails closed.
    fn price_refusal(
        &self,
        l: &Loaded,
        windows: &[EnvelopeNo],
        now: Micros,
    ) -> Result<Option<Refusal>, Error> {
        let run = l.run(self.actor.run)?;
        let refusal = match &self.unknown_fee {
            _ if run.policy.unpriced == Unpriced::Free => return Ok(None),
            Some(fee) => Refusal::unknown_fee(fee, now),
            None if self.priced => return Ok(None),
            None => Refusal::unpriced(&self.model, now),
        };
        for &no in run.charges.iter().chain(windows) {
            if l.envelope(no)?.limits[Unit::CostNanoUsd].is_some() {
                return Ok(Some(refusal));
            }
        }
        Ok(None)
    }

    fn divergence_refusal(&self, l: &Loaded, now: Micros) -> Result<Option<Refusal>, Error> {
        let halts = l.run(self.actor.run)?.policy.on_divergence == OnDivergence::Halt;
        Ok((halts && self.untaken(l) > 0).then(|| Refusal::plain("diverged", now)))
    }

    /// Counts the answers of ended attempts that this attempt has not begun to take. A client that has received one
    /// completely may make its next request before the answer is marked as delivered.
    fn untaken(&self, l: &Loaded) -> i64 {
        let attempt = l.attempt(self.actor.run, self.actor.attempt);
        attempt.map_or(0, |a| a.untaken - taking::on_their_way(l, &self.actor))
    }

    /// Returns whether an answer is one of those that [`crate::run::attempt::Attempt::untaken`] counts.
    fn is_untaken(&self, l: &Loaded, e: &Entry) -> bool {
        let own = self.actor.attempt;
        let attempt = l.attempt(self.actor.run, own);
        e.attempt != own
            && e.delivered_to != Some(own)
            && attempt.is_some_and(|a| e.scope == iteration_scope(a.iteration))
    }

    fn go(
        &self,
        l: &mut Loaded,
        cap: Option<u64>,
        inherit: bool,
        repeats: &Repeats,
        now: Micros,
    ) -> Result<Answer, Error> {
        let &Repeats { lost, stands_for, bound } = repeats;
        let implicit_loop = self.is_loop(l, lost, stands_for)?;
        // The windows that the call was weighed against; they exist by now.
        let windows = windows::open(l, self.actor.run, now)?;
        let run = l.run_mut(self.actor.run)?;
        let (seq, charges) = (run.next_seq, run.charges.clone());
        run.next_seq = Seq(seq.0 + 1);
        run.began_at.get_or_insert(now);
        // A probe of a provider that answers no call is no answer yet.
        if run.status == Status::Waiting && run.awaited_outage().is_none() {
            run.halt = None;
            if !run.awaits_a_person(now) {
                run.status = Status::Running;
            }
        }
        let own = run.envelope();
        let held = amounts(match cap {
            Some(cap) => (bound.cost_at(cap), bound.tokens_at(cap)),
            None => bound.full(),
        })
        .with(Unit::Calls, 1);
        let (inherited, inheritances) = match lost.filter(|_| inherit) {
            Some(lost) => {
                let charged = within::Charged::of(l);
                let inherited = doubt::inherit(l, self.actor.run, lost, &held)?;
                charged.post(l)?;
                inherited
            }
            // The call inherits nothing, and the chain goes on.
            None => (
                Amounts::default(),
                lost.and_then(|s| l.entry(self.actor.run, s)).map_or(0, doubt::inheritances),
            ),
        };
        for &no in charges.iter().chain(&windows) {
            l.envelope_mut(no)?.reserved += held - inherited;
        }
        if implicit_loop {
            l.envelope_mut(own)?.spent[Unit::Loops] += 1;
        }
        let failed_between = self.failed_retries_of(l, stands_for);
        for earlier in lost.into_iter().chain(stands_for).chain(failed_between) {
            if let Some(e) = l.entry_mut(self.actor.run, earlier) {
                e.retried_by = Some(seq);
            }
        }
        let Actor { attempt, instance, .. } = self.actor;
        l.insert_entry(Entry {
            instance: Some(instance),
            taken: Some(Taker { attempt, instance, connection: self.connection, counted: false }),
            match_key: Some(self.match_key),
            held,
            call: Some(Box::new(CallDetail {
                upstream: self.upstream.to_string(),
                path: self.path.to_string(),
                model: self.model.to_string(),
                stream: self.stream,
                digest: Some(self.digest),
                idempotency_key: self.idempotency_key.clone(),
                caller: self.caller.as_deref().map(str::to_owned),
                unpriced: self
                    .unknown_fee
                    .as_ref()
                    .or((!self.priced).then_some(&self.model))
                    .map(|what| what.to_string()),
                clamped_to: cap,
                retry_of: lost,
                input_bound: Some(bound.input_tokens),
                reserved: Amounts::of(held.cost(), held.tokens()),
                inherited,
                inheritances,
                implicit_loop,
                within: self.within,
                waits: self.waits,
                windows,
                ..CallDetail::default()
            })),
            ..Entry::new(
                self.actor.run,
                seq,
                Kind::Call,
                State::Open,
                self.actor.attempt,
                self.scope.clone(),
                now,
            )
        });
        if let Some(payload) = &self.request {
            l.keep_payload(self.actor.run, seq, Role::Request, payload.clone());
        }
        // A retry of a lost call is no divergence.
        let diverged = if lost.is_none() { self.note_divergence(l, seq) } else { None };
        Ok(Answer::Go { opening: l.opening(&self.actor, seq), cap, retry_of: lost, diverged })
    }

    /// Returns whether the call counts as a loop: a new call, or the repeat of one that was never sent.
    pub(crate) fn is_loop(
        &self,
        l: &Loaded,
        lost: Option<Seq>,
        stands_for: Option<Seq>,
    ) -> Result<bool, Error> {
        let counted = |seq| {
            let earlier = l.entry(self.actor.run, seq);
            !earlier
                .is_some_and(|e| e.state == State::Void && e.call.as_ref().is_some_and(|c| c.implicit_loop))
        };
        let explicit = l.run(self.actor.run)?.explicit_loops;
        Ok(!explicit && lost.is_none() && !stands_for.is_some_and(counted))
    }

    /// Returns the retries of a lost call that came to nothing and gave back what they had inherited. A call that
    /// stands for the lost call stands for these too: they are tries of one request.
    fn failed_retries_of(&self, l: &Loaded, stands_for: Option<Seq>) -> Vec<Seq> {
        let Some(lost) = stands_for else { return Vec::new() };
        l.all::<Entry>()
            .filter(|e| e.run == self.actor.run && e.attempt == self.actor.attempt)
            .filter(|e| e.retried_by.is_none() && matches!(e.state, State::Failed | State::Void))
            .filter(|e| e.call.as_ref().is_some_and(|c| c.retry_of == Some(lost)))
            .map(|e| e.seq)
            .collect()
    }

    fn note_divergence(&self, l: &mut Loaded, seq: Seq) -> Option<Divergence> {
        l.attempt(self.actor.run, self.actor.attempt).filter(|a| a.untaken > 0 && a.diverged.is_none())?;
        let untaken = Some(self.untaken(l)).filter(|untaken| *untaken > 0)?;
        let a = l.attempt_mut(self.actor.run, self.actor.attempt)?;
        a.diverged = Some(seq);
        a.diverged_untaken = untaken;
        Some(Divergence { untaken })
    }
}

/// Earlier tries that a new call repeats, and the call's bound.
pub struct Repeats {
    /// Earlier try, cut off with its outcome unknown, that the call repeats; `None` if it repeats none.
    pub lost: Option<Seq>,
    /// Entry that was answered with an error and that the call, a marked retry, repeats; `None` if there is none.
    pub stands_for: Option<Seq>,
    pub bound: Bound,
}

/// Outcome of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A new call: reserved and on disk. `cap` is the output cap to send instead of the client's; `None` leaves the
    /// client's.
    Go { opening: Opening, cap: Option<u64>, retry_of: Option<Seq>, diverged: Option<Divergence> },
    /// The recorded answer of entry `seq` serves the request.
    Replay { seq: Seq },
    /// Entry `seq` is in flight under `instance`, and its answer will serve the request.
    Join { seq: Seq, instance: InstanceNo },
    /// The call does not fit now, but room may come back: decide again when a reservation is settled or voided, or a
    /// limit raised.
    Wait { refusal: Refusal },
    /// The request is refused. The run is halted by this, or was halted before.
    Refused(Refusal),
}

/// New call that a restarted attempt made while it had not taken all recorded answers. Reported once per attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub untaken: i64,
}
