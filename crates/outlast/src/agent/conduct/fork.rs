//! Session of a fork's agent: its own, made from its origin's as that was at the fork's point.

use outlast_core::{
    body,
    engine::Actor,
    journal::{Entry, Kind, State},
    run::{Origin, Record},
    store::{self, Ask as _, Durability, RunView, Store},
    words::{RunNo, Seq, clock::random},
};
use serde_json::Value;

use super::{
    super::{
        Choice, Names,
        session::{self, Session},
        truth,
    },
    Conduct,
};
use crate::{
    agent,
    program::{context::Context, say::say},
    settings::surroundings::Surroundings,
};

/// Number of newest calls in whose requests the session's model is searched.
const LOOK_AT: usize = 8;

/// Returns what becomes of the conversation of a run's agent in a fork of the run, in words; `None` for a run of no
/// agent that is known.
pub fn session_words(view: &RunView, around: &Surroundings) -> Option<String> {
    let command = view.spec.command.as_ref()?;
    let choice = command.agent.as_deref().map(Choice::read).unwrap_or_default();
    let (adapter, line) = agent::find(&choice, &command.argv, around).ok()??;
    let (name, keeps) = (adapter.name(), view.run.policy.record == Record::All);
    if adapter.read(&line, true).names == Names::Nothing {
        return None;
    }
    let takes_note = adapter.has_hooks(&line) || adapter.takes_note_anew(&line);
    Some(match (keeps && adapter.transcripts(around).is_some(), keeps && takes_note) {
        (true, _) => format!("{name} goes on in a session of its own, as of there"),
        (false, true) => format!("{name} begins a new session, and is told the conversation up to there"),
        (false, false) => format!("{name} begins a new session, without the conversation up to there"),
    })
}

impl Conduct {
    /// Gives the agent of a fork a session of its own: a copy of its origin's as of the fork's point or, where that is not
    /// kept, a new one. Nothing is written into the origin's. Returns the session that the agent had there.
    ///
    /// Durable when it returns. The copy's files are written from the journal, so a kill leaves the session whole.
    pub(super) async fn part(
        &mut self,
        store: &dyn Store,
        actor: Actor,
        origin: Origin,
        context: &Context,
    ) -> Result<Option<Session>, store::Error> {
        // A script names sessions that it has begun itself.
        if self.name.is_none() || self.session.is_some() {
            self.line = self.adapter.unbound(&self.line);
            self.reading = self.adapter.read(&self.line, self.with.piped);
        }
        let inherited = session::inherited(store, self.run, &self.key, origin)?;
        let Some(theirs) =
            inherited.clone().filter(|s| !s.spoiled && self.session.as_ref().is_none_or(|own| own == s))
        else {
            return Ok(inherited);
        };
        self.session = Some(theirs.clone());
        let id = session::uuid(random(context.entropy.as_ref()));
        let to = self.directory.to_string_lossy().into_owned();
        let from = match session::find(store, origin.run, &self.key)?.and_then(|known| known.directory) {
            Some(from) => from,
            // An older Outlast did not keep it. A script's agent may work anywhere.
            None => store
                .run(origin.run)?
                .and_then(|view| view.spec.command)
                .filter(|_| self.name.is_none())
                .map_or_else(|| to.clone(), |command| command.directory),
        };
        let own = match self.kept() {
            Some(kept) => match kept.copy_as_of(store, actor, (origin, &id), (&from, &to)).await {
                Err(e @ store::Error::Corrupt { .. }) => {
                    say(&format!("the session {} cannot be copied: {e}", theirs.id));
                    None
                }
                copied => copied?,
            },
            None => None,
        };
        let session = match &own {
            Some(own) => Session { id: own.session.clone(), spoiled: false, directory: Some(to) },
            None => Session { spoiled: true, ..theirs },
        };
        store.ask(session::keep(actor, self.key.clone(), &session), Durability::Synced).await?;
        self.session = Some(session);
        if let Some(own) = own {
            let (name, seq) = (self.adapter.name(), origin.seq);
            say(&format!("{name} has a session of its own, a copy of its origin's as of entry {seq}"));
            // What cannot be written is told with the next check.
            drop(own.mend(store));
        }
        Ok(inherited)
    }

    /// Returns the model to resume a session with, read off the newest request of it that is kept, if the program would
    /// take another one. `fork`: what a fork without calls of its own shares.
    pub(super) fn model(
        &self,
        store: &dyn Store,
        fork: Option<Origin>,
        session: &str,
    ) -> Result<Option<String>, store::Error> {
        let newest = match fork {
            Some(origin) => shared(store, self.run, origin)?,
            None => truth::newest_entries(store, self.run)?
                .into_iter()
                .rev()
                .filter(is_call)
                .take(LOOK_AT)
                .collect(),
        };
        for call in newest {
            let Some(body) = body::stored(store, self.run, call.seq)? else { continue };
            let request: Value = serde_json::from_slice(&body).unwrap_or_default();
            let is_its = request["metadata"]["user_id"].as_str().is_some_and(|id| id.contains(session));
            // Titles and the like are asked without tools.
            if is_its
                && has_tools(&request)
                && let Some(model) = self.adapter.model(&self.line, &request)
            {
                return Ok(Some(model));
            }
        }
        Ok(None)
    }
}

/// Returns the newest calls that a fork shares, the newest first.
pub(super) fn shared(store: &dyn Store, run: RunNo, origin: Origin) -> Result<Vec<Entry>, store::Error> {
    let entries = (1..=origin.seq.0).rev().map(|seq| store.entry(run, Seq(seq)));
    entries.filter_map(Result::transpose).filter(|e| e.as_ref().map_or(true, is_call)).take(LOOK_AT).collect()
}

fn is_call(entry: &Entry) -> bool {
    entry.kind == Kind::Call && entry.state == State::Done
}

/// Returns whether a request is a turn of a conversation with tools.
pub(super) fn has_tools(request: &Value) -> bool {
    request["tools"].as_array().is_some_and(|tools| !tools.is_empty())
}
