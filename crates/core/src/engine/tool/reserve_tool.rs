//! Reserve tool: puts a tool call on disk before it is sent, or finds what became of the same call in an earlier life.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        actor::Actor,
        loaded::{Loaded, Need},
        rule::guard,
        step::begin_step::append,
    },
    journal::{Entry, Kind, Opening, Role, State, ToolDetail, payload::Payload},
    run::origin::NOBODYS,
    words::{
        digest::{Digest, MatchKey},
        id::{Micros, Seq, Slot},
    },
};

/// Opens a tool call, or finds its recorded answer.
///
/// Synced: intent before effect. A *life* is one process that makes the run's tool calls. The call of an earlier life
/// is found by the client's id. A call whose id is unknown is the repetition of an equal call whose answer reached
/// nobody. Calls without ids are found in order: the nth equal call of a life is the nth of the life before. A call
/// that was cut off is taken over if it was never sent or may be repeated; else it is `InDoubt`, and becomes `unknown`.
///
/// Whoever gets `Recorded` or `InDoubt` marks it by `Delivered` once its client has it: until then another life finds it.
/// Errors: `LeaseLost`, so that a stale attempt sends nothing; `RunHalted`, `NotRunning` and `RunEnded` for a call that
/// would be sent.
#[derive(Clone, Debug)]
pub struct ReserveTool {
    pub actor: Actor,
    pub slot: Slot,
    /// Boundary that no answer crosses: the iteration's scope.
    pub scope: Arc<str>,
    pub server: String,
    pub tool: String,
    /// The client's own id of the call; `None` from a client that gives none.
    pub id: Option<String>,
    /// Digest of everything that is asked of the tool, in canonical JSON.
    pub arguments: Digest,
    /// Description of the call, for people.
    pub about: Payload,
    /// Whether the call may be sent again while its outcome is unknown.
    pub repeatable: bool,
    /// Whether the call is sent as soon as this is on disk. If not, `SendTool` is submitted before it is sent.
    pub leaves: bool,
    /// Whether recorded answers are not given to a call without an id: the call only reads, and this process
    /// has since made other calls than the process before it.
    pub anew: bool,
}

/// State of a tool call after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The call is open, and this process may send it. `new`: no earlier process has made it.
    Send { opening: Opening, new: bool },
    /// The call's answer is recorded.
    Recorded { seq: Seq, state: State },
    /// The call may have been done, and nobody knows whether. It is not sent again by itself.
    InDoubt { seq: Seq },
    /// A live process is making the same call.
    InFlight { seq: Seq },
}

/// Fate of an earlier entry of the same call.
enum Fate {
    Mine(Seq),
    Recorded(Seq, State),
    InDoubt(Seq),
    InFlight(Seq),
}

impl ReserveTool {
    pub fn match_key(&self) -> MatchKey {
        MatchKey::of_tool(&self.server, &self.tool, &self.arguments, &self.scope)
    }

    /// Returns the key that the tool gets with the call of the entry `seq` in the run `run`: the same in each life, and
    /// another one for each other call. A database that lost its last commits gives numbers out again.
    pub fn idempotency_key(&self, run: &str, seq: Seq) -> String {
        Digest::of(format!("{run}\0{seq}\0{}", self.match_key()).as_bytes()).to_string()[..32].to_owned()
    }

    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::from(guard::needs(&self.actor, self.slot));
        needs.extend([Need::OpenAttempts(self.actor.run), Need::Matching(self.actor.run, self.match_key())]);
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Reserved, Error> {
        guard::is_driven(l, &self.actor)?;
        match self.find(l) {
            Some(Fate::InFlight(seq)) => Ok(Reserved::InFlight { seq }),
            Some(Fate::Recorded(seq, state)) => {
                self.hold(l, seq)?;
                Ok(Reserved::Recorded { seq, state })
            }
            Some(Fate::InDoubt(seq)) => {
                let entry = self.hold(l, seq)?;
                entry.state = State::Unknown;
                entry.closed_at.get_or_insert(now);
                Ok(Reserved::InDoubt { seq })
            }
            Some(Fate::Mine(seq)) => self.send(l, seq, false),
            None => {
                let seq = self.append(l, now)?;
                self.send(l, seq, true)
            }
        }
    }

    /// Finds the newest entry with the call's id; else the oldest entry that this call is the repetition of.
    fn find(&self, l: &Loaded) -> Option<Fate> {
        let (run, key) = (self.actor.run, self.match_key());
        let entries = l.all::<Entry>();
        let its = || {
            entries.clone().filter(|e| {
                (e.run, e.kind, e.match_key) == (run, Kind::Tool, Some(key)) && e.state != State::Void
            })
        };
        let named =
            |e: &&Entry| self.id.as_ref().zip(e.tool.as_ref()).is_some_and(|(id, tool)| tool.is_named(id));
        match its().filter(named).last() {
            Some(same) => Some(self.fate(l, same)),
            None => its().find(|e| self.is_lost(l, e)).map(|e| self.fate(l, e)),
        }
    }

    fn fate(&self, l: &Loaded, e: &Entry) -> Fate {
        let sent = e.tool.as_ref().is_none_or(|tool| tool.is_sent());
        match e.state {
            State::Open if guard::lives(l, e.instance) => Fate::InFlight(e.seq),
            State::Open if !sent || self.repeatable => Fate::Mine(e.seq),
            State::Open | State::Unknown => Fate::InDoubt(e.seq),
            state => Fate::Recorded(e.seq, state),
        }
    }

    /// Returns whether this call repeats the call of entry `e`, though no id says so: the entry's answer did
    /// not reach this attempt, and no other process waits for it.
    fn is_lost(&self, l: &Loaded, e: &Entry) -> bool {
        let reached = match self.id {
            // A model that chose the call anew has had all answers that reached anybody, as has a fork's.
            Some(_) => e.delivered_to.is_some() || e.attempt == NOBODYS,
            None => e.delivered_to == Some(self.actor.attempt),
        };
        if reached || e.instance == Some(self.actor.instance) {
            return false;
        }
        match e.state {
            // What a live process of an ended attempt waits for is waited for here, too; a sibling's call is its own.
            State::Open => !(guard::lives(l, e.instance) && l.is_open(e.run, e.attempt)),
            // A call that may be repeated now is made anew.
            State::Unknown => !guard::lives(l, e.instance) && !self.repeatable,
            _ => !guard::lives(l, e.instance) && !self.anew,
        }
    }

    /// Makes the entry this process's, so that no other call of this life finds it. Its attempt stays: it made the call.
    fn hold<'a>(&self, l: &'a mut Loaded, seq: Seq) -> Result<&'a mut Entry, Error> {
        let entry = l.entry_mut(self.actor.run, seq).ok_or(Error::NotLoaded("the tool call"))?;
        entry.instance = Some(self.actor.instance);
        self.name(entry);
        Ok(entry)
    }

    /// Lets the call be found under this id, too: a client that loses its answer again asks for it by that one.
    fn name(&self, entry: &mut Entry) {
        if let (Some(id), Some(tool)) = (&self.id, &mut entry.tool)
            && !tool.is_named(id)
        {
            tool.later_ids.push(id.clone());
        }
    }

    fn append(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let run = self.actor.run;
        let tool = ToolDetail {
            server: self.server.clone(),
            tool: self.tool.clone(),
            id: self.id.clone(),
            ..ToolDetail::default()
        };
        let seq =
            append(l, &self.actor, Kind::Tool, State::Open, self.scope.clone(), Some(tool.name()), now)?;
        let entry = l.entry_mut(run, seq).ok_or(Error::NotLoaded("the tool call"))?;
        entry.match_key = Some(self.match_key());
        entry.tool = Some(Box::new(tool));
        l.keep_payload(run, seq, Role::About, self.about.clone());
        Ok(seq)
    }

    fn send(&self, l: &mut Loaded, seq: Seq, new: bool) -> Result<Reserved, Error> {
        guard::may_open(l, self.actor.run)?;
        let entry = l.take_over(&self.actor, seq).ok_or(Error::NotLoaded("the tool call"))?;
        self.name(entry);
        if let Some(tool) = &mut entry.tool {
            tool.sends += i64::from(self.leaves);
            tool.repeatable = self.repeatable;
        }
        Ok(Reserved::Send { opening: l.opening(&self.actor, seq), new })
    }
}
