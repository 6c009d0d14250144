//! Recording of a run: its calls, each with the answer that it got.

use outlast_core::run::masks::Rules;
use outlast_server::{
    api::read::exchange::Exchange,
    dialect::{Upstream, canonical},
};
use serde::Deserialize;

use super::noted;
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
}

/// Recorded call, with texts as they were sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call {
    request: String,
    pub answer: String,
}

/// Recorded call that answers a request, which has a note to the model of a resumed agent besides (`noted`).
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    pub index: usize,
    pub note: Option<Note>,
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
        Ok(Recording { keys, calls, rules: Rules::default() })
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
        Ok(Recording { rules, ..self })
    }

    /// Adds a call, and returns its number.
    pub fn add(&mut self, request: &[u8], answer: String) -> usize {
        self.calls.push(Call { request: String::from_utf8_lossy(request).into_owned(), answer });
        self.calls.len() - 1
    }

    /// Returns the recorded call that answers a request: of equal ones the first that was `served` least.
    pub fn find(&self, body: &[u8], served: impl Fn(usize) -> u32) -> Option<Recorded> {
        let (wanted, note) = self.compared(body, None);
        let same = |n: &usize| self.compared(self.calls[*n].request.as_bytes(), note).0 == wanted;
        let index = (0..self.calls.len()).filter(same).min_by_key(|n| served(*n))?;
        Some(Recorded { index, note })
    }

    /// Says in words where a request differs from the recorded one that is most like it.
    pub fn divergence(&self, number: u32, body: &[u8]) -> String {
        let (now, note) = self.compared(body, None);
        let compared = |call: &Call| self.compared(call.request.as_bytes(), note).0;
        let same = |call: &Call| common(&compared(call), &now);
        let Some(nearest) = self.calls.iter().max_by_key(|call| same(call)) else {
            return format!("request {number} is asked, and the recording has no call");
        };
        let (at, was) = (same(nearest), compared(nearest));
        let around = |text: &[u8]| {
            let from = at.saturating_sub(SHOWN / 2).min(text.len());
            let part = &text[from..text.len().min(at + SHOWN)];
            exact_line(&String::from_utf8_lossy(part), 2 * SHOWN)
        };
        format!(
            "request {number} is not in the recording: it has …{}… where …{}… was",
            around(&now),
            around(&was)
        )
    }

    /// Returns the form by which requests are compared, and the note of this one: bytes that are no JSON as they are, and
    /// without notes where it, or the one that it is compared with (`other`), has one.
    fn compared(&self, body: &[u8], other: Option<Note>) -> (Vec<u8>, Option<Note>) {
        let whole = canonical(body, &self.rules).unwrap_or_else(|_| body.to_vec());
        match noted::without_notes(&whole) {
            Some((request, note)) if note.or(other).is_some() => (request, note),
            _ => (whole, None),
        }
    }
}

/// Returns the number of bytes with which both texts begin.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
