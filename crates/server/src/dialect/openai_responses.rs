//! OpenAI's `/v1/responses`, which Codex and newer agents use: its row, and the reading of its answers, whole or as a
//! stream of events.

mod request;

use outlast_core::words::Usage;
use serde_json::Value;

use super::{
    AnswerStream, Dialect, Upstream,
    answer::{EventReader, FrameKind, Outcome, StreamEvent, carries, text, upstream_error},
    openai_chat::read_usage,
    request::{read_body, read_tier},
};

const MAX_OUTPUT_TOKENS: &str = "max_output_tokens";

pub static DIALECT: Dialect = Dialect {
    name: "openai.responses",
    upstream: Upstream::OpenAi,
    keeps_answers: true,
    parse: |_, body| read_body(body, request::Parser::new()),
    read,
    read_stream: |_| AnswerStream::new(ResponseReader::default()),
};

/// Names of the counts of a response, for [`read_usage`].
const COUNTS: [&str; 4] = ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details"];

/// Reads the facts of a whole response, or of an error's body.
fn read(response: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    let mut output = Output::default();
    output.note_all(&response["output"]);
    note(response, &output, &mut outcome);
    if response["status"] == "failed" {
        outcome.error.get_or_insert_default();
    }
    outcome
}

/// Reader of the events of a streamed answer.
#[derive(Debug, Default)]
struct ResponseReader {
    output: Output,
}

impl EventReader for ResponseReader {
    fn read(&mut self, event: &mut StreamEvent<'_>, outcome: &mut Outcome) -> FrameKind {
        let data = &event.data;
        // The data repeats the event's name, and the SDKs go by the data; some servers leave it out there.
        let kind = data["type"].as_str().unwrap_or(event.name);
        let response = &data["response"];
        match kind {
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.output.note_all(&response["output"]);
                note(response, &self.output, outcome);
            }
            "response.output_item.done" => self.output.note(&data["item"]),
            "response.created" => {
                outcome.id = text(&response["id"]).or(outcome.id.take());
                outcome.model = text(&response["model"]).or(outcome.model.take());
            }
            _ => {}
        }
        match kind {
            "response.completed" | "response.incomplete" => FrameKind::Terminal,
            "response.failed" => {
                outcome.error.get_or_insert_default();
                FrameKind::Error
            }
            // Some servers put the error into a member of its own, as in their error bodies.
            "error" => {
                let told = upstream_error(&data["error"]).or_else(|| upstream_error(data));
                outcome.error = told.or(Some(Default::default()));
                FrameKind::Error
            }
            _ if upstream_error(&data["error"]).is_some() => {
                outcome.error = upstream_error(&data["error"]);
                FrameKind::Error
            }
            // They repeat the response as far as it is.
            "response.queued" | "response.in_progress" => FrameKind::Ping,
            // A delta may be padded, and names its item.
            _ if data.is_null() => FrameKind::Data,
            _ if kind.ends_with(".delta") && !carries(&data["delta"]) => FrameKind::Ping,
            _ if carries(data) => FrameKind::Data,
            _ => FrameKind::Ping,
        }
    }
}

/// Items of an answer's output. A stream reports each when it is done, and mostly all of them at its end.
#[derive(Debug, Default)]
struct Output {
    ids: Vec<String>,
    searches: u64,
}

impl Output {
    fn note_all(&mut self, items: &Value) {
        items.as_array().into_iter().flatten().for_each(|item| self.note(item));
    }

    fn note(&mut self, item: &Value) {
        let id = text(&item["id"]).filter(|id| !id.is_empty());
        if id.as_ref().is_some_and(|id| self.ids.contains(id)) {
            return;
        }
        self.ids.extend(id);
        // Opening a page and searching within it are not billed.
        let is_search = matches!(item["action"]["type"].as_str(), None | Some("search"));
        self.searches += u64::from(item["type"] == "web_search_call" && is_search);
    }
}

/// Records the facts of a finished response.
fn note(response: &Value, output: &Output, outcome: &mut Outcome) {
    outcome.id = text(&response["id"]).or(outcome.id.take());
    outcome.model = text(&response["model"]).or(outcome.model.take());
    outcome.tier = response["service_tier"].as_str().and_then(read_tier).flatten();
    outcome.error = upstream_error(&response["error"]);
    outcome.finish = text(&response["incomplete_details"]["reason"]).or_else(|| text(&response["status"]));
    let usage = read_usage(&response["usage"], COUNTS);
    outcome.usage = usage.map(|usage| Usage { web_searches: output.searches, ..usage });
    outcome.usage_so_far = outcome.usage;
    outcome.kept = outcome.id.iter().chain(&output.ids).cloned().collect();
}

#[cfg(test)]
mod tests;
