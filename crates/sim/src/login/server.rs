//! Server of a run: its handle of the store, and changes of the login's plan by compare-and-set, as the proxy makes them.

use std::sync::Arc;

use outlast_core::{
    call::plan::{CallId, Heard, Plan, Verdict},
    engine::{
        self,
        op::{Op, Outcome},
        run::{declare_dead::DeclareDead, register::Register},
        state::put::{Change as Write, Put},
    },
    envelope::ceiling::Ceilings,
    memory::MemoryStore,
    reads::plans,
    run::instance::{Identity, Life},
    state::Name,
    store::{Durability, Error, Store as _, Ticket},
    words::id::{InstanceNo, Micros},
};
use outlast_store::group::Step;

use super::truth::Head;
use crate::{
    bug::Bug,
    outside::draw_fault,
    rng::Rng,
    store::{FaultStore, resolved},
};

pub const LOGIN: &str = "anthropic:simulated";

/// Call of a run, in one life of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    pub agent: usize,
    pub life: u32,
    pub call: CallId,
}

/// Change of the login's plan.
#[derive(Clone, Debug)]
pub enum Change {
    /// Asks whether the call may leave.
    Enter,
    /// Takes over what the head of an answer tells; `None` for an answer that tells nothing.
    Told(Option<Head>),
    /// With the head of its answer, unless the connection broke before.
    Ended(Option<Option<Head>>),
    NeverLeft,
}

/// Outcome for the world.
#[derive(Debug)]
pub enum Done {
    Entered(Whose, Result<Verdict, Error>),
    /// The opening of a call that was let go.
    Opened(Whose, bool),
    Learnt(Head),
    /// The store did not take a change of a call that is under way or over.
    Failed(Whose, Change),
}

/// Surroundings of a step.
pub struct Around<'a> {
    pub now_ms: u64,
    pub now: Micros,
    pub rng: &'a Rng,
    pub bug: Option<Bug>,
    pub ceilings: &'a Ceilings,
    /// Probability that a group meets a fault, in percent.
    pub faults: u64,
}

enum Then {
    Registered,
    Changed(Whose, Change, Option<Verdict>),
    Opened(Whose),
    Nothing,
}

/// One life of a server.
pub struct Server {
    pub index: usize,
    pub life: u64,
    pub is_up: bool,
    pub instance: Option<InstanceNo>,
    pub store: FaultStore,
    pending: Vec<(Ticket, Then)>,
}

impl Server {
    pub fn new(index: usize, life: u64, disk: Arc<MemoryStore>, bug: Option<Bug>) -> Server {
        let store = FaultStore::new(disk, bug);
        Server { index, life, is_up: false, instance: None, store, pending: Vec::new() }
    }

    pub fn register(&mut self, now_ms: u64) {
        self.is_up = true;
        let (pid, start_time) = (self.index as u32, self.life);
        let identity = Identity { host: "sim".into(), pid, start_time, ..Identity::default() };
        self.queue(Register { identity }, Durability::Synced, Then::Registered, now_ms);
    }

    /// Opens the store anew, under a new instance. Returns what was queued, which is answered as closed.
    pub fn reopen(&mut self, now_ms: u64) -> Vec<Done> {
        self.store.reopen();
        self.instance = None;
        let lost = std::mem::take(&mut self.pending);
        self.register(now_ms);
        lost.into_iter().filter_map(|(_, then)| failed(then, &Error::Closed)).collect()
    }

    pub fn declares_dead(&mut self, instance: InstanceNo, now_ms: u64) {
        let verdict = DeclareDead { instance, heartbeat_seen: 0, left: false };
        self.queue(verdict, Durability::Synced, Then::Nothing, now_ms);
    }

    /// Opens a call's entry: a synced commit behind that of the plan.
    pub fn opens(&mut self, whose: Whose, now_ms: u64) {
        let name = Name::new("calls", "sim", format!("run-{}", whose.agent));
        let changes = vec![Write::set(name, whose.call.0.to_string().as_bytes())];
        let put = Put { actor: None, changes, transaction: None };
        self.queue(put, Durability::Synced, Then::Opened(whose), now_ms);
    }

    /// Changes the plan. Returns the outcome if nothing has to be written for it.
    pub fn change(&mut self, whose: Whose, change: Change, around: &Around<'_>) -> Option<Done> {
        let kept = match self.store.read(|disk| plans::find(disk, LOGIN)) {
            Ok(kept) => kept,
            Err(e) => return failed(Then::Changed(whose, change, None), &e),
        };
        let (mut plan, id, now) = (kept.plan.clone(), whose.call, around.now);
        let verdict = match &change {
            Change::Enter => {
                let Some(instance) = self.instance else {
                    return failed(Then::Changed(whose, change, None), &Error::Closed);
                };
                let mut verdict = match around.bug {
                    Some(Bug::PlanCallsForgotten) => admit_forgetfully(&mut plan, id, instance, around),
                    _ => plan.admit(id, instance, around.ceilings, now),
                };
                if verdict == Verdict::Wait && around.bug != Some(Bug::DeadNotBuried) {
                    let is_alive = |no| self.store.read(|disk| disk.instance(no)).ok().flatten();
                    let is_dead = |no| is_alive(no).is_none_or(|i| i.life != Life::Live);
                    let dead: Vec<InstanceNo> = plan.in_flight().filter(|no| is_dead(*no)).collect();
                    if !dead.is_empty() {
                        plan.bury(|no| !dead.contains(&no), now);
                        verdict = plan.admit(id, instance, around.ceilings, now);
                    }
                }
                Some(verdict)
            }
            Change::Told(head) => {
                plan.told(Some(id), &heard(head), now);
                None
            }
            Change::Ended(head) => {
                let heard = head.as_ref().filter(|_| around.bug != Some(Bug::EndWithoutItsHead)).map(heard);
                plan.ended(id, heard.as_ref(), now);
                None
            }
            Change::NeverLeft => {
                plan.never_left(id);
                None
            }
        };
        if plan == kept.plan {
            return changed(whose, change, verdict);
        }
        let mut put = match plans::put(LOGIN, &plan, kept.version) {
            Ok(put) => put,
            Err(e) => return failed(Then::Changed(whose, change, verdict), &e),
        };
        if around.bug == Some(Bug::PlanWrittenBlind) {
            put.expected = None;
        }
        self.queue(put, Durability::Committed, Then::Changed(whose, change, verdict), around.now_ms);
        None
    }

    fn queue(&mut self, op: impl Into<Op>, durability: Durability, then: Then, now_ms: u64) {
        let ticket = self.store.submit(op.into(), durability, now_ms);
        self.pending.push((ticket, then));
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Runs the next group. Returns the outcomes, and whether the store has to be opened anew.
    pub fn commit(&mut self, around: &Around<'_>) -> (Vec<Done>, bool) {
        if around.rng.chance(around.faults) {
            let at = around.rng.below(self.pending.len() as u64) as usize;
            self.store.plan(draw_fault(around.rng, at));
        } else {
            self.store.plan(Vec::new());
        }
        while self.store.step(around.now_ms).0 == Step::Ran {}
        let (mut done, mut reopens) = (Vec::new(), false);
        if self.store.has_crashed() {
            return (done, reopens);
        }
        for (mut ticket, then) in std::mem::take(&mut self.pending) {
            let Some(result) = resolved(&mut ticket) else {
                self.pending.push((ticket, then));
                continue;
            };
            match (then, result) {
                (Then::Registered, Ok(Outcome::Registered(no))) => {
                    self.instance = Some(no);
                }
                (Then::Registered, _) => reopens = true,
                (Then::Changed(whose, change, verdict), Ok(_)) => {
                    done.extend(changed(whose, change, verdict))
                }
                (Then::Changed(whose, change, _), Err(Error::Engine(engine::Error::Conflict { .. }))) => {
                    done.extend(self.change(whose, change, around));
                }
                (Then::Opened(whose), Ok(_)) => done.push(Done::Opened(whose, true)),
                (then, Err(e)) => {
                    reopens |= matches!(e, Error::CommitUnknown { .. } | Error::Refused { .. });
                    done.extend(failed(then, &e));
                }
                (Then::Nothing, Ok(_)) => {}
            }
        }
        (done, reopens)
    }
}

fn heard(head: &Option<Head>) -> Heard {
    let windows = head.as_ref().map_or_else(Vec::new, |head| head.told.clone());
    Heard { windows, is_answer: head.is_some() }
}

/// Plants a defect: decides without the calls that are under way.
fn admit_forgetfully(plan: &mut Plan, id: CallId, instance: InstanceNo, around: &Around<'_>) -> Verdict {
    let mut told = serde_json::to_value(&*plan).unwrap_or_default();
    told["calls"] = serde_json::Value::Array(Vec::new());
    let mut told: Plan = serde_json::from_value(told).unwrap_or_default();
    let verdict = told.admit(id, instance, around.ceilings, around.now);
    if verdict == Verdict::Go {
        plan.admit(id, instance, &Ceilings::default(), around.now);
    }
    verdict
}

fn changed(whose: Whose, change: Change, verdict: Option<Verdict>) -> Option<Done> {
    match (change, verdict) {
        (Change::Enter, Some(verdict)) => Some(Done::Entered(whose, Ok(verdict))),
        (Change::Told(Some(head)) | Change::Ended(Some(Some(head))), _) => Some(Done::Learnt(head)),
        _ => None,
    }
}

fn failed(then: Then, e: &Error) -> Option<Done> {
    match then {
        Then::Changed(whose, Change::Enter, _) => Some(Done::Entered(whose, Err(e.clone()))),
        Then::Changed(whose, change, _) => Some(Done::Failed(whose, change)),
        Then::Opened(whose) => Some(Done::Opened(whose, false)),
        Then::Registered | Then::Nothing => None,
    }
}
