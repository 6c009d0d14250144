//! Verbs on tool calls.
//!
//! A tool that reports its own calls opens them by `BeginTool`. A call that goes through Outlast is put on disk by
//! `ReserveTool` before it is sent, which finds what became of the same call in an earlier life. `Record` closes both with
//! their answer.

use std::sync::Arc;

use crate::{engine::prelude::*, journal::ToolDetail, run::NOBODYS, words::OpNo};

/// Opens the tool call `key`, or finds its outcome. [`Record`](crate::engine::step::Record) closes it.
///
/// A key names one tool call of the run, over all its attempts. If an ended attempt left it open, the actor can close it
/// from then on; its first `about` stays. Use `Synced`: intent before effect.
/// Errors: `LeaseLost`, so that a stale attempt begins nothing.
#[derive(Clone, Debug)]
pub struct BeginTool {
    pub actor: Actor,
    pub slot: Slot,
    pub key: String,
    /// Attempt that makes the call: the actor's, or an ended one whose call the actor closes.
    pub made_by: AttemptNo,
    /// Description of the tool call, for the next attempt and for people.
    pub about: Payload,
}

/// Scope of all tool-call entries that [`BeginTool`] opens: they outlive iterations.
pub const SCOPE: &str = "tools";

impl BeginTool {
    pub fn needs(&self) -> Vec<Need> {
        let keyed = Need::Keyed(self.actor.run, Kind::Tool, SCOPE.into(), self.key.clone());
        guard::needs(&self.actor, self.slot, [keyed])
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Tool, Error> {
        guard::drives(l, &self.actor)?;
        let run = self.actor.run;
        let known = l.keyed(Kind::Tool, SCOPE, &self.key);
        let Some((opening, state, attempt)) =
            known.map(|e| (Opening::of(e).unwrap_or_default(), e.state, e.attempt))
        else {
            let key = Some(self.key.clone());
            let entry = life::append(l, &self.actor, Kind::Tool, State::Open, SCOPE, key, now)?;
            entry.attempt = self.made_by;
            let seq = entry.seq;
            l.keep_payload(run, seq, Role::About, self.about.clone());
            return Ok(Tool::Begun(l.opening(&self.actor, seq)));
        };
        let seq = opening.seq;
        match state {
            State::Open if attempt == self.actor.attempt => Ok(Tool::Taken(opening)),
            State::Open => {
                let entry = l.take_over(&self.actor, seq).ok_or(Error::NotLoaded("the tool call"))?;
                entry.attempt = self.made_by;
                Ok(Tool::Again(l.opening(&self.actor, seq)))
            }
            state => Ok(Tool::Ended { seq, state }),
        }
    }
}

/// State of the tool call after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The call is open and may begin.
    Begun(Opening),
    /// An ended attempt left the call open; the actor can close it now.
    Again(Opening),
    /// The call is open in this attempt already.
    Taken(Opening),
    /// The call's outcome was recorded.
    Ended { seq: Seq, state: State },
}

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
        let more = [Need::OpenAttempts(self.actor.run), Need::Matching(self.actor.run, self.match_key())];
        guard::needs(&self.actor, self.slot, more)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Reserved, Error> {
        guard::is_driven(l, &self.actor)?;
        let known = self.find(l).map(|e| {
            let is_sent = e.tool.as_ref().is_none_or(|tool| tool.is_sent());
            (e.seq, e.state, guard::lives(l, e.instance), is_sent)
        });
        match known {
            None => {
                let seq = self.append(l, now)?;
                self.send(l, seq, true)
            }
            Some((seq, State::Open, true, _)) => Ok(Reserved::InFlight { seq }),
            Some((seq, State::Open, _, is_sent)) if !is_sent || self.repeatable => self.send(l, seq, false),
            Some((seq, State::Open | State::Unknown, ..)) => {
                let entry = self.hold(l, seq)?;
                entry.state = State::Unknown;
                entry.closed_at.get_or_insert(now);
                Ok(Reserved::InDoubt { seq })
            }
            Some((seq, state, ..)) => {
                self.hold(l, seq)?;
                Ok(Reserved::Recorded { seq, state })
            }
        }
    }

    /// Finds the newest entry with the call's id; else the oldest entry that this call is the repetition of.
    fn find<'a>(&self, l: &'a Loaded) -> Option<&'a Entry> {
        let (run, key) = (self.actor.run, self.match_key());
        let is_its = |e: &&Entry| {
            (e.run, e.kind, e.match_key) == (run, Kind::Tool, Some(key)) && e.state != State::Void
        };
        let named =
            |e: &&Entry| self.id.as_ref().zip(e.tool.as_ref()).is_some_and(|(id, tool)| tool.is_named(id));
        let its = || l.all::<Entry>().filter(is_its);
        its().filter(named).last().or_else(|| its().find(|e| self.is_lost(l, e)))
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
        let (scope, key) = (self.scope.clone(), Some(tool.name()));
        let entry = life::append(l, &self.actor, Kind::Tool, State::Open, scope, key, now)?;
        (entry.match_key, entry.tool) = (Some(self.match_key()), Some(Box::new(tool)));
        let seq = entry.seq;
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

/// Marks a reserved tool call as sent. From here on, a death of the process leaves the call in doubt.
///
/// Synced, before the call leaves. Errors: `LeaseLost` once the attempt is over, and those of the run's status, so that a
/// call that waited for a person leaves no stopped run; `AlreadyTaken` and `AlreadySettled` as for any closing.
#[derive(Clone, Debug)]
pub struct SendTool {
    pub opening: Opening,
    pub attempt: AttemptNo,
    pub slot: Slot,
}

impl SendTool {
    fn actor(&self) -> Actor {
        Actor { run: self.opening.run, attempt: self.attempt, instance: self.opening.instance }
    }

    pub fn needs(&self) -> Vec<Need> {
        guard::needs(&self.actor(), self.slot, life::needs(&self.opening))
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<i64, Error> {
        guard::is_driven(l, &self.actor())?;
        guard::may_open(l, self.opening.run)?;
        let entry = life::open_entry(l, &self.opening, |kind| kind == Kind::Tool)?;
        let tool = entry.tool.as_mut().ok_or(Error::NotLoaded("the tool call"))?;
        tool.sends += 1;
        Ok(tool.sends)
    }
}

/// Closes a tool call whose server died, or whose client withdrew it: `void` if no server took it, else `unknown`.
///
/// Synced. Authorised by the entry's own process. Errors: `UnknownEntry`, `AlreadyTaken`, `AlreadySettled`.
#[derive(Clone, Debug)]
pub struct GiveUpTool {
    pub opening: Opening,
    /// Whether the server is known not to have taken the call when it was last sent: it could not be reached, or refused.
    /// An earlier life may have sent it too, and nobody knows what became of that.
    pub refused: bool,
}

impl GiveUpTool {
    pub fn needs(&self) -> Vec<Need> {
        life::needs(&self.opening)
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<State, Error> {
        let entry = life::open_entry(l, &self.opening, |kind| kind == Kind::Tool)?;
        let sends = entry.tool.as_ref().map_or(1, |tool| tool.sends);
        entry.state = if sends > i64::from(self.refused) { State::Unknown } else { State::Void };
        entry.closed_at = Some(now);
        Ok(entry.state)
    }
}

/// Notes that the answer to a tool call, or the word that it is in doubt, reached a client that died before its model had
/// it. The next equal call gets it, under whatever id.
///
/// The caller makes sure that the client's processes have ended. Idempotent. Returns the call's state; one that is open or
/// void has no answer, and stays as it is. Errors: `UnknownEntry`, also for an entry that another operation has opened or
/// taken over since: a database that lost its last commits gives a number out a second time.
#[derive(Clone, Debug)]
pub struct GiveBackTool {
    pub run: RunNo,
    pub seq: Seq,
    /// Operation that had opened the entry, or taken it over last, when the caller read it.
    pub op: OpNo,
}

impl GiveBackTool {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.run), Need::Entry(self.run, self.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<State, Error> {
        let id = l.run(self.run)?.id.to_string();
        let unknown = || Error::UnknownEntry { id: id.clone(), seq: self.seq.0 };
        let is_call = l.entry(self.run, self.seq).is_some_and(|e| e.kind == Kind::Tool && e.tool.is_some());
        let entry = l
            .entry_mut(self.run, self.seq)
            .filter(|e| is_call && e.opened_by == self.op)
            .ok_or_else(unknown)?;
        if matches!(entry.state, State::Done | State::Failed | State::Unknown) {
            (entry.delivered_to, entry.instance) = (None, None);
        }
        Ok(entry.state)
    }
}

/// Closes a tool call in doubt as a person states it. The next equal call gets that answer, even from a process that
/// was told of the doubt before.
///
/// Synced. Not idempotent: a call with an answer keeps it. Errors: `UnknownEntry`; `ToolRunning` while the process that
/// made the call lives; `NotInDoubt` for a call that was never sent; `AlreadySettled`; `AlreadyTaken` when it has moved
/// since it was read.
#[derive(Clone, Debug)]
pub struct ResolveTool {
    pub run: RunNo,
    pub seq: Seq,
    /// Instance that had the call when the caller read it; `None` if none had it.
    pub seen: Option<InstanceNo>,
    pub said: Said,
}

/// Outcome of a tool call, as a person states it.
#[derive(Clone, Debug)]
pub enum Said {
    /// The call was made, with this answer.
    Done(Payload),
    /// The call failed, with this answer.
    Failed(Payload),
    /// The call had no effect, and may be made again.
    Rerun,
}

impl ResolveTool {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Run(self.run), Need::Entry(self.run, self.seq)];
        needs.extend(self.seen.map(Need::Instance));
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Seq, Error> {
        let (run, seq) = (self.run, self.seq);
        let id = l.run(run)?.id.to_string();
        let found = l.entry(run, seq).filter(|e| e.kind == Kind::Tool && e.tool.is_some());
        let entry = found.ok_or_else(|| Error::UnknownEntry { id: id.clone(), seq: seq.0 })?;
        let sent = entry.tool.as_ref().is_some_and(|tool| tool.is_sent());
        match entry.state {
            State::Open if entry.instance != self.seen => return Err(Error::AlreadyTaken { seq: seq.0 }),
            State::Open if guard::lives(l, entry.instance) => {
                return Err(Error::ToolRunning { id, seq: seq.0 });
            }
            State::Open if !sent => return Err(Error::ToolNotInDoubt { id, seq: seq.0 }),
            State::Open | State::Unknown => {}
            state => return Err(Error::AlreadySettled { seq: seq.0, state: state.name() }),
        }
        let (state, value) = match &self.said {
            Said::Done(value) => (State::Done, Some(value)),
            Said::Failed(value) => (State::Failed, Some(value)),
            Said::Rerun => (State::Void, None),
        };
        let entry = life::close(l, run, seq, state, now)?;
        // What was told before was the doubt, and not this answer: nobody has it, and nobody holds it.
        (entry.delivered_to, entry.instance) = (None, None);
        entry.tool.iter_mut().for_each(|tool| tool.resolved = true);
        if let Some(value) = value {
            l.keep_payload(run, seq, Role::Value, value.clone());
        }
        Ok(seq)
    }
}
