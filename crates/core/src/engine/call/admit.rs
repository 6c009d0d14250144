//! Admit: may this LLM request go out, and if so under which reservation?
//!
//! The order is that of ARCHITECTURE.md, "The proxy": replay, queue, fits, inherits, waits, clamps, refuses.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    engine::{
        Error,
        actor::Actor,
        call::{
            admit::Admission as Answer,
            plan::{Plan, amounts},
        },
        loaded::{Loaded, Need, NewPayload},
        rule::{
            doubt, guard,
            replay::{self, Asked, Choice},
            windows, within,
        },
    },
    envelope::{
        Refusal,
        unit::{Amounts, Unit},
    },
    journal::{CallDetail, Entry, Kind, Role, State, iteration_scope, payload::Payload},
    price::Bound,
    run::{OnDivergence, Unpriced, status::Status},
    words::{
        digest::{Digest, MatchKey},
        id::{EnvelopeNo, InstanceNo, Micros, Seq, Slot},
    },
};

/// Decides a request and, when it goes, reserves its bound and opens its entry in one commit.
///
/// Synced when it goes: intent before effect. Replays and joins write nothing.
/// Errors: `LeaseLost`, `LabelEnded`, `NotRunning`, `RunEnded` and `NotWithin` write nothing.
#[derive(Clone, Debug)]
pub struct Admit {
    pub actor: Actor,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// The open item or step it is made in: `scope` is then the one of its calls.
    pub within: Option<Seq>,
    pub digest: Digest,
    pub match_key: MatchKey,
    pub upstream: Arc<str>,
    pub path: Arc<str>,
    pub model: Arc<str>,
    pub stream: bool,
    pub idempotency_key: Option<String>,
    pub bound: Bound,
    /// False when the price table does not know the model: `bound` then has no cost.
    pub priced: bool,
    pub taken: Vec<Seq>,
    /// Recorded answers on their way to this attempt: whoever has one whole may ask on before it is marked delivered.
    pub in_hand: Vec<Seq>,
    pub retry_count: u32,
    pub answered_with_error: bool,
    /// An earlier call of this run waits in this process, and this one goes behind it; or its upstream has no turn for
    /// it now (`call::rate`). What is recorded or in flight serves all the same.
    pub behind: bool,
    /// Active time not yet posted, for the time limit.
    pub active_ms: i64,
    pub request: Option<Payload>,
}

impl Admit {
    pub fn needs(&self) -> Vec<Need> {
        let run = self.actor.run;
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.extend([
            Need::OpenAttempts(run),
            Need::Matching(run, self.match_key),
            Need::Windows(Some(run)),
        ]);
        needs.extend(self.within.iter().chain(&self.in_hand).map(|seq| Need::Entry(run, *seq)));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Answer, Error> {
        guard::drives(l, &self.actor)?;
        if let Some(seq) = self.within {
            within::check(l, &self.actor, seq)?;
            // A try that ended meanwhile: its late request is not the next one's.
            if within::calls(l, self.actor.run, seq).as_ref() != Some(&self.scope) {
                return Err(Error::NotWithin { seq: seq.0 });
            }
        }
        let stands_for = match replay::choose(l, &self.asked()) {
            Choice::Replay(seq) => return Ok(Answer::Replay { seq }),
            Choice::Join(seq, instance) => return Ok(Answer::Join { seq, instance }),
            Choice::New { stands_for } => stands_for,
        };
        if let Some(refusal) = guard::open_run(l.run(self.actor.run)?)? {
            return Ok(Answer::Refused(refusal));
        }
        if let Some(refusal) = guard::time_over(l, self.actor.run, self.active_ms, now)? {
            guard::halt(l, self.actor.run, refusal.clone())?;
            return Ok(Answer::Refused(refusal));
        }
        let windows = windows::open(l, self.actor.run, now)?;
        if let Some(refusal) = self.price_refusal(l, &windows, now)? {
            // What is supervised would only be started again to ask the same. Header callers' requests are
            // each their own, and one model without a price is to stop none of the others.
            if l.run(self.actor.run)?.command_key.is_some() {
                guard::halt(l, self.actor.run, refusal.clone())?;
            }
            return Ok(Answer::Refused(refusal));
        }
        let run = self.actor.run;
        let lost = stands_for
            .filter(|&seq| l.entry(run, seq).is_some_and(Entry::is_lost))
            .or_else(|| doubt::lost_without_retry(l, run, self.match_key));
        if lost.is_none()
            && let Some(refusal) = self.divergence_refusal(l, now)?
        {
            guard::halt(l, self.actor.run, refusal.clone())?;
            return Ok(Answer::Refused(refusal));
        }
        if self.behind {
            // A replay passes a queue. A new call does not, and one that cannot fit halts the run only
            // when those before it are through.
            return Ok(Answer::Wait { refusal: Refusal::plain("queued", now) });
        }
        match Plan::make(self, l, &windows, lost, stands_for, now)? {
            Plan::Go { cap, inherit } => self.go(l, cap, lost, inherit, stands_for, now),
            Plan::Wait(refusal) => Ok(Answer::Wait { refusal }),
            Plan::WaitForOthers(refusal) => {
                self.wait_for_others(l, &refusal)?;
                Ok(Answer::Wait { refusal })
            }
            Plan::Refuse(refusal) => {
                guard::halt(l, self.actor.run, refusal.clone())?;
                Ok(Answer::Refused(refusal))
            }
        }
    }

    /// The run waits, and remembers for which budget. Who asks again and again while it does writes nothing.
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

    fn asked(&self) -> Asked<'_> {
        Asked {
            run: self.actor.run,
            attempt: self.actor.attempt,
            match_key: self.match_key,
            taken: &self.taken,
            retry_count: self.retry_count,
            idempotency_key: self.idempotency_key.as_deref(),
            answered_with_error: self.answered_with_error,
        }
    }

    /// Fail closed: a limit in usd cannot be kept for a model without a price.
    fn price_refusal(
        &self,
        l: &Loaded,
        windows: &[EnvelopeNo],
        now: Micros,
    ) -> Result<Option<Refusal>, Error> {
        let run = l.run(self.actor.run)?;
        if self.priced || run.policy.unpriced == Unpriced::Free {
            return Ok(None);
        }
        for &no in run.charges.iter().chain(windows) {
            if l.envelope(no)?.limits[Unit::CostNanoUsd].is_some() {
                return Ok(Some(Refusal::plain("price_unknown", now)));
            }
        }
        Ok(None)
    }

    fn divergence_refusal(&self, l: &Loaded, now: Micros) -> Result<Option<Refusal>, Error> {
        let halts = l.run(self.actor.run)?.policy.on_divergence == OnDivergence::Halt;
        Ok((halts && self.untaken(l) > 0).then(|| Refusal::plain("diverged", now)))
    }

    /// How many answers of ended attempts this one has not begun to take, as their delivery marks will count them.
    fn untaken(&self, l: &Loaded) -> i64 {
        let (run, own) = (self.actor.run, self.actor.attempt);
        let Some(attempt) = l.attempt(run, own) else { return 0 };
        let scope = iteration_scope(attempt.iteration);
        let is_counted = |e: &&Entry| e.attempt != own && e.delivered_to != Some(own) && e.scope == scope;
        let in_hand: BTreeSet<Seq> = self.in_hand.iter().copied().collect();
        let on_their_way = in_hand.iter().filter_map(|seq| l.entry(run, *seq)).filter(is_counted).count();
        attempt.untaken - i64::try_from(on_their_way).unwrap_or(0)
    }

    fn go(
        &self,
        l: &mut Loaded,
        cap: Option<u64>,
        lost: Option<Seq>,
        inherit: bool,
        stands_for: Option<Seq>,
        now: Micros,
    ) -> Result<Answer, Error> {
        let implicit_loop = self.is_loop(l, lost, stands_for)?;
        // Those it was weighed against: they are there since.
        let windows = windows::open(l, self.actor.run, now)?;
        let run = l.run_mut(self.actor.run)?;
        let (seq, charges) = (run.next_seq, run.charges.clone());
        run.next_seq = Seq(seq.0 + 1);
        run.began_at.get_or_insert(now);
        if run.status == Status::Waiting {
            run.halt = None;
            if !run.awaits_a_person(now) {
                run.status = Status::Running;
            }
        }
        let own = run.envelope();
        let held = amounts(match cap {
            Some(cap) => (self.bound.cost_at(cap), self.bound.tokens_at(cap)),
            None => self.bound.full(),
        })
        .with(Unit::Calls, 1);
        let (inherited, inheritances) = match lost.filter(|_| inherit) {
            Some(lost) => doubt::inherit(l, self.actor.run, lost, &held)?,
            // It takes nothing over, and its chain goes on.
            None => (
                Amounts::default(),
                lost.and_then(|s| l.entry(self.actor.run, s)).map_or(0, doubt::inheritances),
            ),
        };
        for &no in charges.iter().chain(&windows) {
            l.envelope_mut(no)?.reserve(&(held - inherited));
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
        l.insert_entry(Entry {
            run: self.actor.run,
            seq,
            kind: Kind::Call,
            state: State::Open,
            attempt: self.actor.attempt,
            instance: Some(self.actor.instance),
            scope: self.scope.clone(),
            key: None,
            match_key: Some(self.match_key),
            opened_at: now,
            closed_at: None,
            held,
            spent: Amounts::default(),
            delivered_to: None,
            delivered_count: 0,
            retried_by: None,
            replayable: false,
            call: Some(Box::new(CallDetail {
                upstream: self.upstream.to_string(),
                path: self.path.to_string(),
                model: self.model.to_string(),
                stream: self.stream,
                digest: Some(self.digest),
                idempotency_key: self.idempotency_key.clone(),
                clamped_to: cap,
                retry_of: lost,
                reserved: Amounts::of(held.cost(), held.tokens()),
                inherited,
                inheritances,
                implicit_loop,
                within: self.within,
                windows,
                ..CallDetail::default()
            })),
            step: None,
            item: None,
            approval: None,
        });
        if let Some(payload) = &self.request {
            l.payloads.push(NewPayload {
                run: self.actor.run,
                seq,
                role: Role::Request,
                payload: payload.clone(),
            });
        }
        // What repeats a lost call is nothing new.
        let diverged = if lost.is_none() { self.note_divergence(l, seq) } else { None };
        Ok(Answer::Go { seq, cap, retry_of: lost, diverged })
    }

    /// Whether it is counted as a loop: it is new, or repeats a call that never left and gave its loop back.
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

    /// The retries of a lost call that came to nothing and gave back what they had inherited: whoever
    /// stands for the lost call stands for these, too. They are one request's tries.
    fn failed_retries_of(&self, l: &Loaded, stands_for: Option<Seq>) -> Vec<Seq> {
        let Some(lost) = stands_for else { return Vec::new() };
        l.entries
            .iter()
            .map(|r| &r.value)
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

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A new call: reserved and on disk. `cap` is the output cap to send when the client's was too large.
    Go { seq: Seq, cap: Option<u64>, retry_of: Option<Seq>, diverged: Option<Divergence> },
    /// The recorded answer of entry `seq` serves.
    Replay { seq: Seq },
    /// Entry `seq` is in flight under `instance`: its answer will serve.
    Join { seq: Seq, instance: InstanceNo },
    /// Room may come back: decide again when something is settled, voided or raised.
    Wait { refusal: Refusal },
    /// Refused; the run is halted, or was already.
    Refused(Refusal),
}

/// A new call while recorded answers were untaken; said once per attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub untaken: i64,
}
