//! OpenAI's `/v1/chat/completions`, as OpenAI and the many compatible servers speak it: its row, and the reading of its
//! answers, whole or as a stream of chunks.

mod request;

use std::{collections::BTreeSet, ops::Range};

use outlast_core::words::Usage;
use serde_json::Value;

pub(super) use self::request::reasons_by_name;
use super::{
    AnswerStream, Dialect, Upstream,
    answer::{EventReader, FrameKind, Outcome, StreamEvent, carries, finished, grown, text, upstream_error},
    json_spans::Scanner,
    request::{read_body, read_tier},
};

const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

pub static DIALECT: Dialect = Dialect {
    name: "openai.chat",
    upstream: Upstream::OpenAi,
    keeps_answers: false,
    parse: |_, body| read_body(body, request::Parser::new()),
    read: |answer| {
        let mut outcome = Outcome::default();
        outcome.usage = note(answer, &mut outcome);
        outcome
    },
    read_stream: |request| AnswerStream::new(ChatReader::new(request.client_asked_usage, request.choices)),
};

/// Reader of the chunks of a streamed answer.
#[derive(Debug)]
struct ChatReader {
    client_asked_usage: bool,
    choices: usize,
    /// Indices of the choices that have reported their finish reason.
    finished: BTreeSet<u64>,
    /// Whether the chunk that has only the usage came, and none of a choice behind it.
    usage_told: bool,
}

impl ChatReader {
    fn new(client_asked_usage: bool, choices: u64) -> Self {
        let choices = usize::try_from(choices).unwrap_or(usize::MAX);
        Self { client_asked_usage, choices, finished: BTreeSet::new(), usage_told: false }
    }
}

impl EventReader for ChatReader {
    fn read(&mut self, event: &mut StreamEvent<'_>, outcome: &mut Outcome) -> FrameKind {
        if event.bytes.starts_with(b"[DONE]") {
            // The usage on a chunk before the finish reason turned out to be final.
            outcome.usage = outcome.usage.or(outcome.usage_so_far);
            return FrameKind::Terminal;
        }
        let chunk = &event.data;
        if chunk.is_null() {
            return FrameKind::Data;
        }
        let stops: Vec<u64> = finished(&chunk["choices"], "finish_reason").collect();
        self.finished.extend(&stops);
        let known = outcome.usage_so_far;
        let usage = note(chunk, outcome);
        let no_choices = chunk["choices"].as_array().is_some_and(Vec::is_empty);
        // A usage before the last finish reason (some servers send running counts) can still grow.
        let all_told = self.finished.len() >= self.choices || (no_choices && !self.finished.is_empty());
        if usage.is_some() && all_told {
            outcome.usage = outcome.usage_so_far;
        }
        self.usage_told = no_choices && (self.usage_told || usage.is_some_and(|usage| usage.output > 0));
        if upstream_error(&chunk["error"]).is_some() {
            return FrameKind::Error;
        }
        let told_to_us = !self.client_asked_usage && no_choices && chunk["usage"].is_object();
        if told_to_us && chunk["moderation"].is_null() {
            return FrameKind::Swallowed;
        }
        // A chunk that also carries `moderation` was not sent for the proxy alone: only its usage is cut.
        let added = told_to_us || chunk.get("usage").is_some_and(Value::is_null);
        event.cut = if added && !self.client_asked_usage { usage_member(event.bytes) } else { None };
        let mut choices = chunk["choices"].as_array().into_iter().flatten();
        let gets_on = outcome.usage_so_far != known || choices.any(|choice| carries(&choice["delta"]));
        match (!stops.is_empty(), gets_on) {
            (true, _) => FrameKind::Stop,
            (false, true) => FrameKind::Data,
            (false, false) => FrameKind::Ping,
        }
    }

    /// Many compatible servers send no `[DONE]`, and some no finish reason either. A usage without choices comes last.
    fn ends(&mut self, outcome: &mut Outcome) -> bool {
        let is_whole = self.usage_told || self.finished.len() >= self.choices;
        if is_whole {
            outcome.usage = outcome.usage.or(outcome.usage_so_far);
        }
        is_whole
    }
}

/// Records the facts of an answer or chunk in `outcome`, and returns its usage if it has one.
fn note(answer: &Value, outcome: &mut Outcome) -> Option<Usage> {
    if let Some(id) = text(&answer["id"]).filter(|id| !id.is_empty()) {
        outcome.id = Some(id);
    }
    if let Some(model) = text(&answer["model"]).filter(|model| !model.is_empty()) {
        outcome.model = Some(model);
    }
    if let Some(tier) = answer["service_tier"].as_str().and_then(read_tier).flatten() {
        outcome.tier = Some(tier);
    }
    if let Some(error) = upstream_error(&answer["error"]) {
        outcome.error = Some(error);
    }
    let mut choices = answer["choices"].as_array().into_iter().flatten();
    if let Some(reason) = choices.find_map(|choice| text(&choice["finish_reason"])) {
        outcome.finish.get_or_insert(reason);
    }
    let usage = read_usage(&answer["usage"], COUNTS);
    outcome.usage_so_far = grown(outcome.usage_so_far, usage);
    usage
}

/// Names of the counts of a chat completion, for [`read_usage`].
const COUNTS: [&str; 4] =
    ["prompt_tokens", "prompt_tokens_details", "completion_tokens", "completion_tokens_details"];

/// Converts OpenAI's counts, in which cached and cache-write tokens are part of the input, from the members of these
/// names: input, its details, output, its details.
///
/// `None` unless both input and output are there. Some servers leave reasoning out of the output but count it in
/// `total_tokens`, so the difference is output. A detail that is larger than its whole is no part of it.
pub(super) fn read_usage(
    usage: &Value,
    [input, input_details, output, output_details]: [&str; 4],
) -> Option<Usage> {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let input = usage[input].as_u64()?;
    let output = usage[output].as_u64()?.max(count(&usage["total_tokens"]).saturating_sub(input));
    let details = &usage[input_details];
    let (cache_read, cache_write) = (count(&details["cached_tokens"]), count(&details["cache_write_tokens"]));
    let reasoning = count(&usage[output_details]["reasoning_tokens"]);
    Some(Usage {
        input: input.checked_sub(cache_read.saturating_add(cache_write)).unwrap_or(input),
        cache_read,
        cache_write_5m: cache_write,
        output: if reasoning > output { output.saturating_add(reasoning) } else { output },
        reasoning,
        ..Usage::default()
    })
}

/// Returns the range of the top-level `usage` member, with the comma that must go with it.
fn usage_member(data: &[u8]) -> Option<Range<usize>> {
    let mut before = None;
    let mut usage: Option<Range<usize>> = None;
    let mut next = None;
    Scanner::lenient(data)
        .ok()?
        .members(|key, span| {
            if usage.is_some() {
                next.get_or_insert(span.start);
            } else if key == "usage" {
                usage = Some(span);
            } else {
                before = Some(span.end);
            }
        })
        .ok()?;
    let usage = usage?;
    Some(match (before, next) {
        // `,"usage":null`: from the end of the member before it.
        (Some(before), _) => before..usage.end,
        // `"usage":null,` at the front: up to the next key.
        (None, Some(next)) => usage.start..next,
        (None, None) => usage,
    })
}

#[cfg(test)]
mod tests;
