//! A login's plan: how far its windows are used, as the provider told last, and whether a call still fits under a run's
//! ceilings.
//!
//! All runs of a login share one [`Plan`], over every process of a store. A provider tells the use of a window in the
//! head of an answer, before it has counted that answer. So the calls that it cannot have counted are kept here, those in
//! flight and those that have ended since, and each is taken to cost what calls have cost lately.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{
    envelope::{Ceilings, Length, Reached, Share},
    words::{InstanceNo, Micros, RunNo},
};

/// Number of reported values of a window from which the cost of a call is estimated.
const SAMPLES: usize = 17;

/// Largest number of runs that are remembered.
const RUNS: usize = 64;

/// Largest number of ended calls that are kept because no answer has counted them.
const ENDED: usize = 64;

/// Time in microseconds after which a call is no longer counted as in flight.
const LONGEST_CALL_US: i64 = 3_600_000_000;

/// Largest difference between two told ends of one window, in microseconds: providers round them.
const SAME_END_US: i64 = 120_000_000;

/// Steps in which providers report shares, the largest first: whole points (hundredths of the window), tenths
/// and hundredths of a point.
const STEPS: [Share; 3] = [Share::POINT, Share(1_000), Share(100)];

/// Most characters of an account's name that are shown.
const ACCOUNT: usize = 8;

/// Splits a login into its provider and the beginning of its account's name.
pub fn short_login(login: &str) -> (&str, String) {
    let (provider, account) = login.split_once(':').unwrap_or((login, ""));
    let account = account.strip_prefix("key:").unwrap_or(account);
    (provider, account.chars().take(ACCOUNT).collect())
}

/// Use of one of a plan's windows, as the head of an answer reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUse {
    pub window: Length,
    pub used: Share,
    pub resets_at: Option<Micros>,
}

/// Report of an answer's head on the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub windows: Vec<WindowUse>,
    /// Whether the answer is no error.
    pub is_answer: bool,
}

/// Number of a call, which no other call of the login has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// Subscription plan of one login: the windows as its provider reported them, and the calls since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    pub windows: Vec<Window>,
    /// Calls that no reported value of a window has counted yet.
    calls: Vec<Call>,
    /// Number of Outlast's own calls that reported values have counted.
    counted: i64,
    /// Time of the last answer, or of the last error whose head reported a window; `None` before the first.
    pub answered_at: Option<Micros>,
    /// Runs that made calls under the login, the newest last.
    runs: VecDeque<RunNo>,
}

/// A window of the plan, as the provider reported it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub length: Length,
    pub used: Share,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Micros>,
    pub told_at: Micros,
    /// Time at which the call was sent whose answer reported this window last.
    sent_at: Micros,
    /// Values reported since the window was last reset: number of calls counted by then, and the share used.
    samples: VecDeque<(i64, Share)>,
    /// Step in which the provider reports the window. The true use may be higher by up to one step.
    step: Share,
    /// Estimated share that one call cost before the window was last reset; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Share>,
}

/// A call that no reported value of a window has counted yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Call {
    id: CallId,
    instance: InstanceNo,
    sent_at: Micros,
    /// Whether the call's answer has begun, so that its head has reported all it can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_told: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<Micros>,
}

/// Decision on whether a call may be sent under ceilings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call may be sent. From here on the plan counts its likely cost.
    Go,
    /// Calls in flight take up the room, or their answers are about to report it. The call is decided again
    /// when they end or answer.
    Wait,
    /// No call fits under the ceiling before the window resets.
    Rest(Reached),
    /// The provider answers, and reports no window that has a ceiling.
    Untold,
}

impl Window {
    /// Returns the share that one of the latest calls has cost; `None` if no reported values show it.
    ///
    /// The estimate includes one step of the reported shares, so that it is not too low. Calls of other
    /// devices count as Outlast's own: no report distinguishes them.
    pub fn per_call(&self) -> Option<Share> {
        let (from, low) = self.samples.front()?;
        let (to, high) = self.samples.back()?;
        if from == to {
            return self.before;
        }
        Some(Share((high.0 - low.0 + self.step.0) / (to - from)))
    }

    /// Returns the time at which the window began; `None` if the provider did not report its end.
    pub fn began_at(&self) -> Option<Micros> {
        Some(Micros(self.resets_at?.0 - self.length.us()))
    }

    /// Returns the time at which `share` is used up if use goes on as it has since the window was reset;
    /// `None` if that is not before the next reset.
    pub fn used_up_at(&self, share: Share) -> Option<Micros> {
        let (began, ends) = (self.began_at()?, self.resets_at?);
        let passed = self.told_at.0.checked_sub(began.0).filter(|us| *us > 0)?;
        if self.used.0 <= 0 {
            return None;
        }
        let whole = i128::from(passed) * i128::from(share.0) / i128::from(self.used.0);
        let at = Micros(i64::try_from(i128::from(began.0) + whole).ok()?);
        (at < ends).then_some(at.max(self.told_at))
    }

    /// Returns whether the window has reset since it was reported, so that the reported use is out of date.
    pub fn is_over(&self, now: Micros) -> bool {
        self.resets_at.map_or(now.0 - self.told_at.0 > self.length.us(), |at| at <= now)
    }

    fn first(told: &WindowUse, sent_at: Micros, counted: i64, now: Micros) -> Window {
        Window {
            length: told.window,
            used: told.used,
            resets_at: told.resets_at,
            told_at: now,
            sent_at,
            samples: [(counted, told.used)].into(),
            step: step(Share::POINT, told.used),
            before: None,
        }
    }

    fn tell(&mut self, told: &WindowUse, sent_at: Micros, counted: i64, now: Micros) {
        let is_late = sent_at < self.sent_at;
        if !is_late && self.has_turned(told, now) {
            let (before, was) = (self.per_call(), self.step);
            *self =
                Window { before, step: step(was, told.used), ..Window::first(told, sent_at, counted, now) };
            return;
        }
        self.step = step(self.step, told.used);
        // An answer to an earlier call may arrive after that of a later one.
        self.used = if is_late { self.used.max(told.used) } else { told.used };
        self.sent_at = self.sent_at.max(sent_at);
        self.resets_at = told.resets_at.or(self.resets_at);
        self.told_at = now;
        match self.samples.back_mut().filter(|(calls, _)| *calls == counted) {
            Some((_, used)) => *used = self.used,
            None => self.samples.push_back((counted, self.used)),
        }
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    fn has_turned(&self, told: &WindowUse, now: Micros) -> bool {
        let most = SAME_END_US.min(self.length.us() / 10);
        let is_another =
            self.resets_at.zip(told.resets_at).is_some_and(|(was, is)| (was.0 - is.0).abs() > most);
        is_another || self.is_over(now) || told.used < self.used
    }
}

/// Returns the largest step that divides `used` and is not larger than `known`.
fn step(known: Share, used: Share) -> Share {
    let fits = |step: &Share| *step <= known && used.0 % step.0 == 0;
    STEPS.into_iter().find(fits).unwrap_or(STEPS[2])
}

impl Plan {
    /// Decides whether a call may be sent. After `Go` the plan counts the call's likely cost until
    /// [`Plan::told`] finds it in a reported value.
    pub fn admit(&mut self, id: CallId, instance: InstanceNo, ceilings: &Ceilings, now: Micros) -> Verdict {
        self.calls.retain(|c| now.0 - c.sent_at.0 < LONGEST_CALL_US);
        let verdict = self.verdict(ceilings, now);
        if verdict == Verdict::Go {
            self.calls.push(Call { id, instance, sent_at: now, has_told: false, ended_at: None });
        }
        verdict
    }

    fn verdict(&self, ceilings: &Ceilings, now: Micros) -> Verdict {
        let in_flight = self.calls.iter().any(|c| c.ended_at.is_none());
        let about_to_tell = self.calls.iter().any(|c| c.ended_at.is_none() && !c.has_told);
        let uncounted = i64::try_from(self.calls.len()).unwrap_or(i64::MAX);
        let (mut is_told, mut waits, mut rest) = (ceilings.is_empty(), false, None::<Reached>);
        for (length, ceiling) in ceilings.iter() {
            let Some(window) = self.windows.iter().find(|w| w.length.is(length)) else { continue };
            is_told = true;
            if window.is_over(now) {
                // One call asks; the others wait for its answer.
                waits |= about_to_tell;
                continue;
            }
            let (used, likely) = (window.used, window.per_call());
            let each = likely.unwrap_or(Share::POINT);
            // What was told may lack a step: within the last one, calls go one by one.
            let most = used.0 + window.step.0;
            if most.saturating_add(each.0.saturating_mul(uncounted + 1)) <= ceiling.0 {
                continue;
            }
            // A call that is alone goes on what was told: its answer tells what the calls before it took.
            let fits_alone = used < ceiling && likely.is_none_or(|each| used.0 + each.0 <= ceiling.0);
            if in_flight {
                waits = true;
            } else if !fits_alone {
                let until = window.resets_at.unwrap_or(Micros(window.told_at.0 + length.us()));
                let reached = Reached { window: length, used, ceiling, per_call: each, until };
                rest = rest.into_iter().chain([reached]).max_by_key(|r| r.until);
            }
        }
        match rest {
            Some(reached) => Verdict::Rest(reached),
            None if waits => Verdict::Wait,
            None if is_told => Verdict::Go,
            None if self.answered_at.is_some() => Verdict::Untold,
            None if about_to_tell => Verdict::Wait,
            None => Verdict::Go,
        }
    }

    /// Takes over what the head of an answer reports, once for each call. `id`: the call, if it was admitted under
    /// ceilings.
    ///
    /// The reported values include every call that had ended before that call was sent.
    pub fn told(&mut self, id: Option<CallId>, heard: &Heard, now: Micros) {
        let mut sent_at = now;
        if let Some(id) = id {
            let Some(call) = self.calls.iter_mut().find(|c| c.id == id && !c.has_told) else { return };
            sent_at = call.sent_at;
            call.has_told = true;
        }
        if heard.is_answer || !heard.windows.is_empty() {
            self.answered_at = Some(now);
        }
        if heard.windows.is_empty() {
            return;
        }
        if id.is_some() {
            let uncounted = self.calls.len();
            self.calls.retain(|c| c.ended_at.is_none_or(|ended| ended >= sent_at));
            self.counted += i64::try_from(uncounted - self.calls.len()).unwrap_or(0);
        }
        for told in &heard.windows {
            match self.windows.iter_mut().find(|w| w.length.is(told.window)) {
                Some(window) => window.tell(told, sent_at, self.counted, now),
                None => self.windows.push(Window::first(told, sent_at, self.counted, now)),
            }
        }
    }

    /// Records that a run makes calls under the login. Only a limited number of runs is remembered, the
    /// newest ones.
    pub fn is_used_by(&mut self, run: RunNo) {
        if self.runs.contains(&run) {
            return;
        }
        if self.runs.len() == RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back(run);
    }

    /// Returns whether the run is remembered as one that made calls under the login.
    pub fn has(&self, run: RunNo) -> bool {
        self.runs.contains(&run)
    }

    /// Notes that a call has ended. Its likely cost counts until a later answer reports the use.
    ///
    /// `heard`: the report of its answer's head, if there was one. The end may be noted first: without the report, the
    /// next call would go as if nothing had been answered yet.
    pub fn ended(&mut self, id: CallId, heard: Option<&Heard>, now: Micros) {
        if let Some(heard) = heard {
            self.told(Some(id), heard, now);
        }
        for call in self.calls.iter_mut().filter(|c| c.id == id) {
            call.ended_at.get_or_insert(now);
        }
        let ended = self.calls.iter().filter(|c| c.ended_at.is_some()).count();
        let mut surplus = ended.saturating_sub(ENDED);
        self.calls.retain(|c| {
            let is_surplus = c.ended_at.is_some() && surplus > 0;
            surplus -= usize::from(is_surplus);
            !is_surplus
        });
    }

    /// Forgets a call that was admitted and then not sent.
    pub fn never_left(&mut self, id: CallId) {
        self.calls.retain(|c| c.id != id);
    }

    /// Marks the calls of processes that `is_alive` denies as ended: a dead process cannot report their end.
    pub fn bury(&mut self, is_alive: impl Fn(InstanceNo) -> bool, now: Micros) {
        for call in self.calls.iter_mut().filter(|c| c.ended_at.is_none() && !is_alive(c.instance)) {
            call.ended_at = Some(now);
        }
    }

    /// Returns the processes that have calls in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = InstanceNo> + '_ {
        self.calls.iter().filter(|c| c.ended_at.is_none()).map(|c| c.instance)
    }

    /// Returns whether reported windows differ enough from the stored ones to be written while no ceiling
    /// needs them.
    pub fn is_news(&self, told: &[WindowUse], now: Micros) -> bool {
        told.iter().any(|told| match self.windows.iter().find(|w| w.length.is(told.window)) {
            Some(w) => w.used != told.used || w.is_over(now) || now.0 - w.told_at.0 > 60_000_000,
            None => true,
        })
    }
}
