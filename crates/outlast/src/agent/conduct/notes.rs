//! Notes to an agent's model: what it cannot know of the attempt before, or of the run that its own is a fork of.

use std::{collections::BTreeMap, ffi::OsString};

use outlast_core::{
    engine::Actor,
    reads::called::called,
    run::{Attempt, NOBODYS, Origin},
    store::{self, Store},
    words::AttemptNo,
};
use outlast_server::{api::read::exchange::Exchange, dialect::conversation::Turn};
use serde_json::Value;

use super::{
    super::{
        KeptCalls, hook, note,
        open_calls::SearchScope,
        truth::{self, Left},
    },
    Conduct, fork,
};
use crate::{
    disk,
    program::say::say,
    render::{amount::some, talk},
};

impl Conduct {
    /// Leaves a note for an agent that died before it had kept its session, with a tool in flight. Without
    /// it, the new session's model would replay the recorded answer and run the tool again. An agent without
    /// a session to lose had finished, so what is in flight is another agent's.
    pub(super) async fn tell_anew(
        &mut self,
        store: &dyn Store,
        actor: Actor,
        (before, kept, end): (AttemptNo, Option<&KeptCalls>, &str),
        strays: &[Left],
        env: &mut BTreeMap<OsString, OsString>,
    ) -> Result<(), store::Error> {
        let Some(lost) = self.known() else { return Ok(()) };
        let of = SearchScope { kept, ..self.searched(before, &lost.id) };
        let told = truth::settle(store, actor, &of, strays).await?;
        if told.is_empty() {
            return Ok(());
        }
        let about = in_flight(told.len(), self.takes_note_anew());
        say(&format!("{} had kept no session{about}", self.adapter.name()));
        self.leave_note_anew(&note::words_anew(end, &told), env);
        Ok(())
    }

    /// Leaves a note for a session that is begun anew: by a hook or else with the prompt, if the agent takes one.
    fn leave_note_anew(&mut self, note: &str, env: &mut BTreeMap<OsString, OsString>) {
        if self.with.settings.is_some() {
            self.leave_note(note, env);
        } else if self.adapter.takes_note_anew(&self.line) {
            self.with.note = Some(note.to_owned());
        }
    }

    /// Writes the note into a file for a session that does not begin with a prompt of ours.
    pub(super) fn leave_note(&self, note: &str, env: &mut BTreeMap<OsString, OsString>) {
        let path = self.files.join("note.txt");
        match disk::write(&path, note.as_bytes()) {
            Ok(()) => drop(env.insert(hook::NOTE.into(), path.into_os_string())),
            Err(e) => say(&format!("cannot leave the note {}: {e}", path.display())),
        }
    }

    /// Returns whether a session that is begun anew can be given a note.
    fn takes_note_anew(&self) -> bool {
        self.with.settings.is_some() || self.adapter.takes_note_anew(&self.line)
    }

    /// Returns words for the point at which a fork leaves its origin.
    pub(super) fn point(&self, store: &dyn Store, origin: Origin) -> Result<String, store::Error> {
        let run = store.run(origin.run)?.map_or_else(|| format!("#{}", origin.run), |view| called(&view));
        Ok(format!("the run {run}, as of its entry {}", origin.seq))
    }

    /// Gives the model of a fork, whose session is new, the conversation up to the fork's point, read off the requests that
    /// are shared. `session`: the session that the agent had there.
    pub(super) fn tell_conversation(
        &mut self,
        store: &dyn Store,
        origin: Origin,
        session: &str,
        env: &mut BTreeMap<OsString, OsString>,
    ) -> Result<(), store::Error> {
        let (name, seq) = (self.adapter.name().to_owned(), origin.seq);
        let of = self.searched(NOBODYS, session);
        let mut turns = Vec::new();
        for call in fork::shared(store, self.run, origin)? {
            let exchange = Exchange::read(store, call)?;
            let is_its = |body: &Value| of.session.is_none_or(|id| body.to_string().contains(id));
            let Some(body) = exchange.body().filter(is_its) else { continue };
            let whole: Vec<Turn> = exchange.turns().into_iter().chain(exchange.answered()).collect();
            if whole.len() > turns.len() && (turns.is_empty() || fork::has_tools(&body)) {
                turns = whole;
            }
        }
        let is_told = !turns.is_empty() && self.takes_note_anew();
        let manner = if is_told { "and is told" } else { "without" };
        say(&format!(
            "{name} begins a new session, {manner} the conversation up to entry {seq} of its origin"
        ));
        if is_told {
            let lines: Vec<String> = turns.iter().flat_map(talk::lines).collect();
            let note = note::words_of_new_fork(&self.point(store, origin)?, &lines.join("\n"));
            self.leave_note_anew(&note, env);
        }
        Ok(())
    }
}

/// Returns words for the end of the newest attempt of an iteration before `attempt`: an attempt without a request had no
/// known tools, but it had an end.
pub(super) fn newest_end(attempts: &[Attempt], attempt: AttemptNo, iteration: i64) -> String {
    let newest = attempts.iter().rev().find(|a| a.no < attempt && a.iteration == iteration);
    let exit = newest.and_then(|a| a.exit.as_ref());
    exit.map_or_else(|| "it is not known how".into(), outlast_view::exit_words)
}

/// Returns words for the tool calls that were in flight. `is_told`: the model is told of them.
pub(super) fn in_flight(calls: usize, is_told: bool) -> String {
    let which = format!(
        "{} that {} in flight",
        some(calls as i64, "tool call"),
        if calls == 1 { "was" } else { "were" }
    );
    match (calls, is_told) {
        (0, _) => String::new(),
        (_, true) => format!(", and is told of {which}"),
        (_, false) => {
            format!("; its model cannot be told of {which}: tell it what `outlast show` says")
        }
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::run::Exit;

    use super::*;

    // Bug: a model was told of the same end twice, and not of the newest one. Cause: the end was that of the newest attempt
    // that had made a call, and one that a budget refused has none.
    #[test]
    fn the_end_that_a_model_is_told_is_the_newest_attempts() {
        let attempt =
            |no, iteration, exit| Attempt { no: AttemptNo(no), iteration, exit, ..Attempt::default() };
        let lost = Exit { lost: true, ..Exit::default() };
        let halted = Exit { code: Some(1), stopped: true, ..Exit::default() };
        let attempts = [
            attempt(1, 0, Some(lost)),
            attempt(2, 0, Some(halted)),
            attempt(3, 0, None),
            attempt(4, 1, None),
        ];
        for (no, iteration, wanted) in [
            (2, 0, "lost with its supervisor"),
            (3, 0, "stopped (exited with 1)"),
            (4, 0, "it is not known how"),
            (4, 1, "it is not known how"),
        ] {
            assert_eq!(newest_end(&attempts, AttemptNo(no), iteration), wanted, "@{no}");
        }
    }
}
