//! Changes of the login's plan by compare-and-set, as the proxy makes them, and their outcomes.

use outlast_core::{
    call::plan::{CallId, Heard, Plan, Verdict},
    engine::{self, Change as Write, Put, PutRow},
    envelope::Ceilings,
    reads::rows,
    state::Table,
    store::Store as _,
};

use super::{Event, Login, truth::Head};
use crate::{Fleet as _, prelude::*};

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

/// Purpose of an operation.
pub enum Then {
    Changed(Whose, Change, Option<Verdict>),
    Opened(Whose),
}

impl Login {
    /// Opens a call's entry: a synced commit behind that of the plan.
    pub(super) fn opens(&mut self, server: usize, whose: Whose) {
        let name = Name::new("calls", "sim", format!("run-{}", whose.agent));
        let changes = vec![Write::set(name, whose.call.0.to_string().as_bytes())];
        let put = Put { actor: None, changes, transaction: None };
        let now_ms = self.engine.now_ms();
        self.servers[server].queue(put, Durability::Synced, Then::Opened(whose), now_ms);
        self.commit_soon(server);
    }

    /// Changes the plan by a server.
    pub(super) fn change(&mut self, server: usize, whose: Whose, change: Change) {
        self.engine.say(|| format!("server {server}: {whose:?} {change:?}"));
        match self.decide(server, whose.call, &change) {
            Ok((verdict, Some(put))) => {
                let (then, now_ms) = (Then::Changed(whose, change, verdict), self.engine.now_ms());
                self.servers[server].queue(put, Durability::Committed, then, now_ms);
            }
            Ok((verdict, None)) => self.changed(server, whose, change, verdict, Ok(())),
            Err(e) => self.changed(server, whose, change, None, Err(e)),
        }
        self.commit_soon(server);
    }

    pub(super) fn change_later(&mut self, server: usize, whose: Whose, change: Change, ms: u64) {
        let life = self.servers[server].life;
        self.engine.after(ms, Event::Change { server, life, whose, change });
    }

    /// Decides a change. Returns the verdict on a call that asks to leave, and what is to be written, if anything is.
    fn decide(
        &self,
        server: usize,
        id: CallId,
        change: &Change,
    ) -> Result<(Option<Verdict>, Option<PutRow>), Error> {
        let (bug, at) = (self.engine.bug, &self.servers[server]);
        let kept = at.store.read(|disk| rows::kept::<Plan>(disk, Table::Plans, LOGIN))?;
        let (mut plan, now) = (kept.row.clone(), self.engine.now());
        let mut verdict = None;
        match change {
            Change::Enter => {
                let instance = at.instance.ok_or(Error::Closed)?;
                let admit = |plan: &mut Plan| match bug {
                    Some(Bug::PlanCallsForgotten) => {
                        let mut seen = without_calls(plan);
                        let verdict = seen.admit(id, instance, &self.ceilings, now);
                        if verdict == Verdict::Go {
                            plan.admit(id, instance, &Ceilings::default(), now);
                        }
                        verdict
                    }
                    _ => plan.admit(id, instance, &self.ceilings, now),
                };
                verdict = Some(admit(&mut plan));
                if verdict == Some(Verdict::Wait) && bug != Some(Bug::DeadNotBuried) {
                    let row = |no| at.store.read(|disk| disk.instance(no)).ok().flatten();
                    let is_dead = |no: &InstanceNo| row(*no).is_none_or(|i| i.life != Life::Live);
                    let dead: Vec<InstanceNo> = plan.in_flight().filter(is_dead).collect();
                    if !dead.is_empty() {
                        plan.bury(|no| !dead.contains(&no), now);
                        verdict = Some(admit(&mut plan));
                    }
                }
            }
            Change::Told(head) => plan.told(Some(id), &heard(head), now),
            Change::Ended(head) => {
                let heard = head.as_ref().filter(|_| bug != Some(Bug::EndWithoutItsHead)).map(heard);
                plan.ended(id, heard.as_ref(), now);
            }
            Change::NeverLeft => plan.never_left(id),
        }
        if plan == kept.row {
            return Ok((verdict, None));
        }
        let mut put = rows::put(Table::Plans, LOGIN, &plan, kept.version)?;
        if bug == Some(Bug::PlanWrittenBlind) {
            put.expected = None;
        }
        Ok((verdict, Some(put)))
    }

    /// Handles the outcome of a change. One that met another server's is made again.
    pub(super) fn changed(
        &mut self,
        server: usize,
        whose: Whose,
        change: Change,
        verdict: Option<Verdict>,
        result: Result<(), Error>,
    ) {
        self.engine.say(|| format!("server {server}: {whose:?} {change:?}: {verdict:?}, {result:?}"));
        match (change, verdict, result) {
            (change, _, Err(Error::Engine(engine::Error::Conflict { .. }))) => {
                self.change(server, whose, change)
            }
            (Change::Enter, _, Err(e)) => self.entered(server, whose, Err(e)),
            (Change::Enter, Some(verdict), Ok(_)) => self.entered(server, whose, Ok(verdict)),
            (Change::Told(Some(head)) | Change::Ended(Some(Some(head))), _, Ok(_)) => {
                self.truth.learnt(&head)
            }
            (_, _, Err(_)) if self.engine.bug == Some(Bug::EndUnnoted) => {}
            (change, _, Err(_)) => {
                self.engine.saw("plan noted again");
                self.change_later(server, whose, change, 1_000);
            }
            (_, _, Ok(_)) => {}
        }
    }
}

fn heard(head: &Option<Head>) -> Heard {
    let windows = head.as_ref().map_or_else(Vec::new, |head| head.told.clone());
    Heard { windows, is_answer: head.is_some() }
}

/// Plants a defect: returns the plan without the calls that are under way.
fn without_calls(plan: &Plan) -> Plan {
    let mut told = serde_json::to_value(plan).unwrap_or_default();
    told["calls"] = serde_json::Value::Array(Vec::new());
    serde_json::from_value(told).unwrap_or_default()
}
