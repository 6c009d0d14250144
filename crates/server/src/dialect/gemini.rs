//! Gemini's `generateContent` and `streamGenerateContent`: their row, and the reading of their answers, whole or in chunks.
//! The path names the model and says whether the answer streams.

mod request;

use std::collections::BTreeSet;

use outlast_core::words::Usage;
use serde_json::Value;

use super::{
    AnswerStream, BadRequest, Dialect, Request, Upstream,
    answer::{EventReader, FrameKind, Outcome, StreamEvent, carries, finished, grown, text, upstream_error},
};

const MAX_OUTPUT_TOKENS: &str = "maxOutputTokens";

pub static DIALECT: Dialect = Dialect {
    name: "gemini.generate_content",
    upstream: Upstream::Gemini,
    keeps_answers: false,
    parse,
    read,
    read_stream: |request| {
        let stream = AnswerStream::new(ChunkReader::new(request.choices));
        if request.array_stream { stream.of_an_array() } else { stream }
    },
};

fn parse(target: &str, body: &[u8]) -> Result<Request, BadRequest> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (model, verb) = path.rsplit('/').next().and_then(|last| last.split_once(':')).unwrap_or_default();
    let stream = verb == "streamGenerateContent";
    // Without `alt=sse` a stream is one JSON array.
    let array_stream = stream && !query.split('&').any(|pair| pair == "alt=sse");
    Ok(Request { model: model.to_owned(), stream, array_stream, ..request::parse(body)? })
}

/// Reads the facts of a whole answer, of a stream's whole array, or of an error's body.
fn read(answer: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    match answer {
        Value::Array(chunks) => chunks.iter().for_each(|chunk| note(chunk, &mut outcome)),
        whole => note(whole, &mut outcome),
    }
    outcome.usage = outcome.usage_so_far;
    outcome
}

/// Reader of the chunks of a streamed answer. The API has no terminal event: the answer ends with its body.
#[derive(Debug)]
struct ChunkReader {
    choices: u64,
    /// Indices of the candidates that have reported their finish reason.
    finished: BTreeSet<u64>,
    /// Whether the prompt was refused, so that no candidate comes.
    is_blocked: bool,
}

impl ChunkReader {
    fn new(choices: u64) -> Self {
        Self { choices, finished: BTreeSet::new(), is_blocked: false }
    }

    fn has_stopped(&self) -> bool {
        self.is_blocked || self.finished.len() as u64 >= self.choices
    }
}

impl EventReader for ChunkReader {
    fn read(&mut self, event: &mut StreamEvent<'_>, outcome: &mut Outcome) -> FrameKind {
        let chunk = &event.data;
        if chunk.is_null() {
            return FrameKind::Data;
        }
        let known = outcome.usage_so_far;
        note(chunk, outcome);
        if outcome.error.is_some() {
            return FrameKind::Error;
        }
        self.finished.extend(finished(&chunk["candidates"], "finishReason"));
        self.is_blocked |= text(&chunk["promptFeedback"]["blockReason"]).is_some();
        let mut candidates = chunk["candidates"].as_array().into_iter().flatten();
        let gets_on =
            outcome.usage_so_far != known || candidates.any(|candidate| carries(&candidate["content"]));
        match (self.has_stopped(), gets_on) {
            (true, _) => FrameKind::Stop,
            (false, true) => FrameKind::Data,
            (false, false) => FrameKind::Ping,
        }
    }

    fn ends(&mut self, outcome: &mut Outcome) -> bool {
        let is_whole = self.has_stopped();
        if is_whole {
            outcome.usage = outcome.usage_so_far;
        }
        is_whole
    }
}

fn note(answer: &Value, outcome: &mut Outcome) {
    outcome.id = text(&answer["responseId"]).or(outcome.id.take());
    outcome.model = text(&answer["modelVersion"]).or(outcome.model.take());
    if let Some(error) = upstream_error(&answer["error"]) {
        outcome.error = Some(error);
    }
    let mut candidates = answer["candidates"].as_array().into_iter().flatten();
    let finish = candidates.find_map(|candidate| text(&candidate["finishReason"]));
    if let Some(finish) = finish.or_else(|| text(&answer["promptFeedback"]["blockReason"])) {
        outcome.finish.get_or_insert(finish);
    }
    // Cumulative: the latest wins.
    outcome.usage_so_far = grown(outcome.usage_so_far, read_usage(&answer["usageMetadata"]));
}

/// Converts Google's counts: cached tokens are part of the prompt, thoughts are not part of the candidates. A
/// missing count is zero: the API leaves zeros out.
fn read_usage(usage: &Value) -> Option<Usage> {
    let prompt = usage["promptTokenCount"].as_u64()?;
    let count = |field: &str| usage[field].as_u64().unwrap_or(0);
    let cache_read = count("cachedContentTokenCount");
    let (by_tools, reasoning) = (count("toolUsePromptTokenCount"), count("thoughtsTokenCount"));
    let input = prompt.saturating_add(by_tools);
    let output = count("candidatesTokenCount").saturating_add(reasoning);
    Some(Usage {
        input: input.checked_sub(cache_read).unwrap_or(input),
        cache_read,
        output: output.max(count("totalTokenCount").saturating_sub(input)),
        reasoning,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests;
