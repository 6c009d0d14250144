//! Recording of a run: its calls, each with the answer that it got.

use std::borrow::Cow;

use outlast_core::run::masks::Rules;
use outlast_server::{api::read::exchange::Exchange, dialect::Upstream};
use serde::Deserialize;

use super::noted::Compared;
use crate::{agent::note::Note, commands::prelude::*, disk};

/// Characters of two requests that are shown around the first difference.
const SHOWN: usize = 60;

/// Calls of a clean run, in their order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    /// Providers of whose keys the run had one, by their names.
    pub keys: Vec<String>,
    pub calls: Vec<Call>,
    /// Parts of requests that are not compared.
    #[serde(skip)]
    rules: Rules,
    /// Each call's request as it is compared.
    #[serde(skip)]
    compared: Vec<Compared>,
    /// Whether requests had ids that their client had made, which are not compared.
    #[serde(skip)]
    pub has_client_ids: bool,
}

/// Recorded call, with texts as they were sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call {
    request: String,
    pub answer: String,
}

/// Place of a request in the recording.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Recorded call that answers it; `None`: no recording has what a model says to it.
    pub index: Option<usize>,
    /// Whether it has a note to the model of a resumed agent (`noted`).
    pub is_noted: bool,
    /// Whether the note is why it has no answer: it tells of tool calls, or the agent has kept a part of the answer that was
    /// on its way.
    pub is_told: bool,
}

impl Call {
    /// Returns the answer's media type, by its first byte: streams of events begin with a word.
    pub fn media_type(&self) -> &'static str {
        match self.answer.trim_start().starts_with(['{', '[']) {
            true => "application/json",
            false => "text/event-stream",
        }
    }
}

impl Recording {
    /// Reads the calls of a run that has completed. Errors: a call to an upstream that is not served from recordings, one
    /// whose request or answer is not kept or is no text; those of the store.
    pub fn of_run(store: &dyn Store, view: &RunView, keys: Vec<String>) -> Result<Recording> {
        let mut calls = Vec::new();
        for entry in entries::each(store, view.run.no) {
            let entry = entry?;
            let Some(call) =
                entry.call.as_ref().filter(|_| entry.kind == Kind::Call && entry.state == State::Done)
            else {
                continue;
            };
            if !Upstream::ALL.iter().any(|upstream| upstream.name() == call.upstream) {
                let message = format!("a call goes to the upstream {}", call.upstream);
                let hint = "a crash test plays OpenAI's, Anthropic's and Gemini's APIs back; call the others by one of them";
                return Err(CliError::usage(message, Some(hint)));
            }
            let seq = entry.seq;
            let exchange = Exchange::read(store, entry)?;
            let text = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            let (Some(request), Some(answer)) = (text(exchange.request), text(exchange.answer)) else {
                return Err(CliError::usage(
                    format!("call {seq} of the recording has no text that is kept"),
                    None,
                ));
            };
            calls.push(Call { request, answer });
        }
        Ok(Recording { keys, calls, ..Recording::default() })
    }

    /// Reads the recording that a file holds; `None`: there is no file. Errors: it cannot be read, or is no recording.
    pub fn load(path: &Path) -> Result<Option<Recording>> {
        let text = match fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let bad = |e: serde_json::Error| {
            CliError::usage(
                format!("{} is no recording: {e}", path.display()),
                Some("remove it to make a new one"),
            )
        };
        Ok(Some(serde_json::from_slice(&text).map_err(bad)?))
    }

    /// Writes the recording to a file of mode 0600: prompts and answers may be private.
    pub fn save(&self, path: &Path) -> Result {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from)?;
        Ok(disk::replace(path, &disk::beside(path, ".new"), &text)?)
    }

    /// Returns the same recording, of whose requests is left out what the user's masks name, and what the proxy adds.
    pub fn with_rules(self, masks: Option<outlast_core::run::masks::Masks>) -> Result<Recording> {
        let mut masks = masks.unwrap_or_default();
        masks.leave_out.push("/stream_options".into());
        let rules = masks.compile().map_err(|e| CliError::usage(e.why, None))?;
        let calls: Vec<Call> = self.calls;
        let mut recording = Recording { keys: self.keys, rules, ..Recording::default() };
        calls.into_iter().for_each(|call| recording.push(call));
        Ok(recording)
    }

    /// Adds a call, and returns its number.
    pub fn add(&mut self, request: &[u8], answer: String) -> usize {
        self.push(Call { request: String::from_utf8_lossy(request).into_owned(), answer });
        self.calls.len() - 1
    }

    fn push(&mut self, call: Call) {
        let (compared, has_ids) = Compared::read(call.request.as_bytes(), &self.rules);
        self.has_client_ids |= has_ids;
        self.compared.push(compared);
        self.calls.push(call);
    }

    /// Returns where a request is in the recording: of equal calls the first that was `served` least answers it.
    pub fn find(&self, body: &[u8], served: impl Fn(usize) -> u32) -> Found {
        let (wanted, calls, note) = self.forms(body);
        let same = |n: &usize| calls[*n] == wanted;
        let index = (0..calls.len()).filter(same).min_by_key(|n| served(*n));
        let goes_on = || index.is_none() && calls.iter().any(|call| wanted.goes_on_from(call));
        let is_told = note.is_some_and(|note| note == Note::OfCalls && index.is_some() || goes_on());
        Found { index: index.filter(|_| !is_told), is_noted: note.is_some(), is_told }
    }

    /// Says in words where a request differs from the recorded one that is most like it.
    pub fn divergence(&self, number: u32, body: &[u8]) -> String {
        let (now, calls, _) = self.forms(body);
        let now = now.text();
        let same = |call: &String| common(call.as_bytes(), now.as_bytes());
        let Some(was) = calls.iter().map(Compared::text).max_by_key(same) else {
            return format!("request {number} is asked, and the recording has no call");
        };
        let at = same(&was);
        let around = |text: &[u8]| {
            let from = at.saturating_sub(SHOWN / 2).min(text.len());
            let part = &text[from..text.len().min(at + SHOWN)];
            exact_line(&String::from_utf8_lossy(part), 2 * SHOWN)
        };
        format!(
            "request {number} is not in the recording: it has …{}… where …{}… was",
            around(now.as_bytes()),
            around(was.as_bytes())
        )
    }

    /// Returns the forms in which a request and the recorded ones are compared, and its note: all without notes where it has one.
    fn forms(&self, body: &[u8]) -> (Compared, Cow<'_, [Compared]>, Option<Note>) {
        let whole = Compared::read(body, &self.rules).0;
        match whole.clone().without_notes() {
            (_, None) => (whole, Cow::Borrowed(&self.compared), None),
            (bare, note) => {
                let calls = self.compared.iter().map(|call| call.clone().without_notes().0).collect();
                (bare, Cow::Owned(calls), note)
            }
        }
    }
}

/// Returns the number of bytes with which both texts begin.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::note;
    use serde_json::json;

    #[test]
    fn a_request_with_a_note_is_answered_told_or_diverged() {
        let asked = |turns: &[&str]| {
            let turns = turns.iter().enumerate().map(
                |(n, said)| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": said}),
            );
            json!({"model": "m", "messages": turns.collect::<Vec<_>>()}).to_string()
        };
        let calls = [asked(&["one"]), asked(&["one", "said", "two"])]
            .map(|request| Call { request, answer: "{}".into() })
            .into();
        let recording = Recording { calls, ..Recording::default() }.with_rules(None).unwrap();
        let plain = note::words("killed by SIGKILL", &[]);
        let of_calls =
            plain.replace(" No tool call was in flight.", "\nBefore the crash you had started: Bash");
        let check = |turns: &[&str], index: Option<usize>, is_noted: bool, is_told: bool| {
            let found = recording.find(asked(turns).as_bytes(), |_| 0);
            assert_eq!(found, Found { index, is_noted, is_told }, "{turns:?}");
        };
        check(&["one"], Some(0), false, false);
        check(&["one", "said", "two"], Some(1), false, false);
        check(&["one", "said"], None, false, false);
        check(&[&format!("one\n{plain}")], Some(0), true, false);
        check(&["one", "said", "two", "kept", &plain], None, true, true);
        check(&[&format!("one\n{of_calls}")], None, true, true);
        check(&[&format!("three\n{plain}")], None, true, false);
    }
}
