//! Agents of the world and the life of a call: held or not, let go by the plan, opened, answered, billed.

use outlast_core::{
    call::plan::{CallId, Plan, Verdict},
    reads::rows,
    state::Table,
    store::Error,
};

use super::{
    CALM_MS, Event, Login,
    plan::{Change, LOGIN, Whose},
    truth::Head,
    waiting::{LOOK_MS, Memory, Waiting},
};
use crate::Rng;

/// Number of times that a client asks the same again because no answer came.
const MOST_TRIES: u32 = 4;

/// A run's agent: it makes calls, and may wait busily once between them.
#[derive(Default)]
pub struct Agent {
    pub index: usize,
    pub life: u32,
    pub server: usize,
    pub is_done: bool,
    calls_left: u32,
    /// Number of calls that are left when it begins to wait; `None` if it does not.
    waits_at: Option<u32>,
    waits: Option<Waiting>,
    /// Memory of its server about it.
    memory: Memory,
    /// Call that was let go and is not over; `None` if there is none.
    under_way: Option<CallId>,
    /// Whether `under_way` has reached its provider.
    has_left: bool,
    /// Head of its answer; `None` before it comes.
    head: Option<Option<Head>>,
}

impl Agent {
    pub fn draw(index: usize, servers: usize, rng: &Rng) -> Agent {
        let calls_left = rng.between(5, 30) as u32;
        Agent {
            index,
            server: rng.below(servers as u64) as usize,
            calls_left,
            waits_at: rng.chance(30).then(|| rng.between(1, u64::from(calls_left)) as u32),
            ..Agent::default()
        }
    }

    /// Notes an answer. Returns whether the agent has anything left to ask.
    fn answered(&mut self, now_ms: u64, rng: &Rng) -> bool {
        match &self.waits {
            Some(waits) if !waits.is_over(now_ms) => return true,
            Some(_) => self.waits = None,
            None => self.calls_left = self.calls_left.saturating_sub(1),
        }
        if self.waits_at == Some(self.calls_left) {
            self.waits_at = None;
            self.waits = Some(Waiting::draw(rng, now_ms));
        }
        self.is_done = self.calls_left == 0 && self.waits.is_none();
        !self.is_done
    }
}

impl Login {
    pub(super) fn ask(&mut self, agent: usize, life: u32, tries: u32) {
        let (now_ms, now) = (self.engine.now_ms(), self.engine.now());
        let at = &mut self.agents[agent];
        if at.life != life || at.is_done || at.under_way.is_some() {
            return;
        }
        let server = &self.servers[at.server];
        if !server.is_up || server.instance.is_none() {
            at.server = (at.server + 1) % self.servers.len();
            at.memory = Memory::default();
            return self.engine.after(1_000, Event::Ask { agent, life, tries });
        }
        if tries >= MOST_TRIES {
            return self
                .engine
                .breaks(Some(format!("P3: a call of run {agent} is held for ever: asked {tries} times")));
        }
        if let Some(waits) = &at.waits
            && at.memory.judge(waits, [agent as u64, u64::from(life)], self.engine.bug, (now_ms, now), tries)
        {
            let patience_ms = waits.patience_ms;
            self.engine.saw("held");
            self.engine.after(LOOK_MS, Event::Look { agent, life, tries });
            return self.engine.after(patience_ms, Event::GivesUp { agent, life, tries });
        }
        self.enter(agent);
    }

    pub(super) fn look(&mut self, agent: usize, life: u32, tries: u32) {
        let (now_ms, bug) = (self.engine.now_ms(), self.engine.bug);
        let at = &mut self.agents[agent];
        let Some(waits) = at.waits.as_ref().filter(|_| at.life == life && at.memory.is_held(tries)) else {
            return;
        };
        if !at.memory.is_over(waits, bug, now_ms) {
            let wrong = at.memory.wrong(waits, now_ms);
            self.engine.breaks(wrong);
            return self.engine.after(LOOK_MS, Event::Look { agent, life, tries });
        }
        at.memory.goes_on();
        self.engine.saw("held, and went on");
        self.enter(agent);
    }

    pub(super) fn give_up(&mut self, agent: usize, life: u32, tries: u32) {
        let now_ms = self.engine.now_ms();
        let at = &mut self.agents[agent];
        let Some(waits) = at.waits.as_ref().filter(|_| at.life == life && at.memory.is_held(tries)) else {
            return;
        };
        let wrong = at.memory.wrong(waits, now_ms);
        at.memory.goes_on();
        self.engine.saw("held, and its client left");
        self.engine.breaks(wrong);
        self.engine.after(500, Event::Ask { agent, life, tries: tries + 1 });
    }

    /// Asks the plan whether the agent's call may leave.
    fn enter(&mut self, agent: usize) {
        self.calls += 1;
        let call = CallId(self.calls);
        let Agent { life, server, .. } = self.agents[agent];
        self.change(server, Whose { agent, life, call }, Change::Enter);
    }

    pub(super) fn entered(&mut self, server: usize, whose: Whose, verdict: Result<Verdict, Error>) {
        let (agent, life) = (whose.agent, whose.life);
        let again = Event::Ask { agent, life, tries: 0 };
        match verdict {
            Ok(Verdict::Go) => {
                self.engine.saw("plan let go");
                if self.truth.is_silent && self.is_answered {
                    let wrong =
                        format!("P5: a call of run {agent} goes, and an answer has told nothing of a plan");
                    self.engine.breaks(Some(wrong));
                }
                self.truth.went();
                self.agents[agent].under_way = Some(whose.call);
                self.opens(server, whose);
            }
            Ok(Verdict::Wait) => {
                self.engine.saw("plan waits");
                let is_calm = self.stirred_ms + CALM_MS < self.engine.now_ms();
                if is_calm && self.agents.iter().all(|agent| agent.under_way.is_none()) {
                    let kept = rows::kept::<Plan>(&*self.engine.disk, Table::Plans, LOGIN);
                    self.engine.say(|| format!("{kept:?}"));
                    let wrong = format!("P4: a call of run {agent} waits for others, and none is under way");
                    self.engine.breaks(Some(wrong));
                }
                let ms = self.engine.rng.between(1_000, 4_000);
                self.engine.after(ms, again);
            }
            Ok(Verdict::Rest(reached)) => {
                self.engine.saw("plan rests");
                let wrong = self.truth.rests(&reached);
                self.engine.breaks(wrong);
                let ms = u64::try_from(reached.until.ms_since(self.engine.now())).unwrap_or(0);
                let later = self.engine.rng.between(1_000, 5_000);
                self.engine.after(ms + later, again);
            }
            Ok(Verdict::Untold) if self.truth.is_silent => {
                self.engine.saw("plan untold");
                self.agents[agent].is_done = true;
            }
            Ok(Verdict::Untold) => {
                self.engine.breaks(Some("P4: nothing is told, and answers tell".to_owned()))
            }
            // The store may have taken it all the same.
            Err(_) => {
                self.engine.saw("plan not asked");
                self.change_later(server, whose, Change::NeverLeft, 100);
                self.engine.after(1_000, again);
            }
        }
    }

    pub(super) fn opened(&mut self, server: usize, whose: Whose, is_open: bool) {
        let (agent, life) = (whose.agent, whose.life);
        if self.agents[agent].under_way != Some(whose.call) {
            return;
        }
        // Its budget may have no room for it.
        if !is_open || self.engine.rng.chance(5) {
            self.engine.saw("plan let go in vain");
            self.agents[agent].under_way = None;
            self.stirred_ms = self.engine.now_ms();
            self.change(server, whose, Change::NeverLeft);
            return self.engine.after(1_000, Event::Ask { agent, life, tries: 0 });
        }
        let at = &mut self.agents[agent];
        at.has_left = true;
        if let Some(waits) = &mut at.waits {
            at.memory.left(life, waits);
        }
        let rng = &self.engine.rng;
        let head_ms = rng.between(200, 4_000);
        let end_ms = head_ms + rng.between(100, 15_000);
        let part = rng.between(500, 1_500) as i64;
        match rng.below(100) {
            // An error tells nothing, and costs nothing.
            0..=5 => {
                self.engine.after(head_ms, Event::Head(whose, None));
                self.engine.after(head_ms + 1, Event::End(whose, 0));
            }
            // The connection breaks before an answer comes.
            6..=11 => {
                let part = if rng.chance(50) { part } else { 0 };
                self.engine.after(end_ms, Event::End(whose, part));
            }
            _ => {
                self.engine.after(head_ms, Event::Head(whose, Some(Head::default())));
                self.engine.after(end_ms, Event::End(whose, part));
            }
        }
    }

    pub(super) fn head(&mut self, whose: Whose, head: Option<Head>) {
        if self.agents[whose.agent].under_way != Some(whose.call) {
            return;
        }
        let head = head.map(|_| self.truth.head());
        let at = &mut self.agents[whose.agent];
        at.head = Some(head.clone());
        let server = at.server;
        // A task of its own: the call may be over before it begins.
        match self.engine.rng.chance(10) {
            true => self.change_later(server, whose, Change::Told(head), 100),
            false => self.change(server, whose, Change::Told(head)),
        }
    }

    pub(super) fn end(&mut self, whose: Whose, part: i64) {
        let (agent, life, now_ms) = (whose.agent, whose.life, self.engine.now_ms());
        if self.agents[agent].under_way != Some(whose.call) {
            return;
        }
        let passed = self.truth.bill(part);
        self.engine.breaks(passed);
        self.stirred_ms = now_ms;
        let at = &mut self.agents[agent];
        (at.under_way, at.has_left) = (None, false);
        let (server, head) = (at.server, at.head.take());
        self.is_answered |= matches!(head, Some(Some(_)));
        let at = &mut self.agents[agent];
        if at.answered(now_ms, &self.engine.rng) {
            let ms = match &mut at.waits {
                Some(waits) => waits.looks(now_ms) - now_ms,
                None => self.engine.rng.between(10, 5_000),
            };
            self.engine.after(ms, Event::Ask { agent, life, tries: 0 });
        }
        self.change(server, whose, Change::Ended(head));
    }

    /// Ends an agent with its server, and starts it again. What it had at its provider is billed as far as it came.
    pub(super) fn start_again(&mut self, agent: usize) {
        let servers = self.servers.len() as u64;
        let (part, ms) = (self.engine.rng.between(0, 1_500) as i64, self.engine.rng.between(500, 8_000));
        let at = &mut self.agents[agent];
        at.life += 1;
        at.memory = Memory::default();
        (at.under_way, at.head) = (None, None);
        let has_left = std::mem::take(&mut at.has_left);
        at.server = self.engine.rng.below(servers) as usize;
        let (life, is_done) = (at.life, at.is_done);
        if has_left {
            let passed = self.truth.bill(part);
            self.engine.breaks(passed);
        }
        if !is_done {
            self.engine.after(ms, Event::Ask { agent, life, tries: 0 });
        }
    }
}
