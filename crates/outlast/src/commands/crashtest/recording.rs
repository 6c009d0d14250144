//! Recording of a run: its calls, each with the answer that it got.

use std::fs;

use outlast_core::run::masks::Rules;
use outlast_server::{
    api::read::exchange::Exchange,
    dialect::{Upstream, canonical},
};
use serde::Deserialize;

use crate::{commands::prelude::*, disk, render::text::exact_line};

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
    pub fn of_run(store: &dyn Store, view: &RunView, keys: Vec<String>) -> Result<Recording, CliError> {
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
    pub fn load(path: &Path) -> Result<Option<Recording>, CliError> {
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
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from)?;
        Ok(disk::replace(path, &disk::beside(path, ".new"), &text)?)
    }

    /// Returns the same recording, of whose requests is left out what the user's masks name, and what the proxy adds.
    pub fn with_rules(self, masks: Option<outlast_core::run::masks::Masks>) -> Result<Recording, CliError> {
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

    /// Returns the number of the recorded call that answers a request: of equal ones the first that was `served` least.
    pub fn find(&self, body: &[u8], served: impl Fn(usize) -> u32) -> Option<usize> {
        let wanted = self.canonical(body);
        let same =
            (0..self.calls.len()).filter(|n| self.canonical(self.calls[*n].request.as_bytes()) == wanted);
        same.min_by_key(|n| served(*n))
    }

    /// Says in words where a request differs from the recorded one that is most like it.
    pub fn divergence(&self, number: u32, body: &[u8]) -> String {
        let now = self.canonical(body);
        let same = |call: &Call| common(&self.canonical(call.request.as_bytes()), &now);
        let Some(nearest) = self.calls.iter().max_by_key(|call| same(call)) else {
            return format!("request {number} is asked, and the recording has no call");
        };
        let (at, was) = (same(nearest), self.canonical(nearest.request.as_bytes()));
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

    /// Returns the form by which requests are compared: bytes that are no JSON as they are.
    fn canonical(&self, body: &[u8]) -> Vec<u8> {
        canonical(body, &self.rules).unwrap_or_else(|_| body.to_vec())
    }
}

/// Returns the number of bytes with which both texts begin.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
