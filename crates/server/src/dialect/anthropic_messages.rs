//! Anthropic's `/v1/messages`: its row, and the reading of its answers, whole or as a stream of events.

mod request;

use outlast_core::words::{ServiceTier, Usage};
use serde_json::Value;

use super::{
    AnswerStream, Dialect, Upstream,
    answer::{EventReader, FrameKind, Outcome, StreamEvent, carries, text, upstream_error},
    request::read_body,
};

const MAX_TOKENS: &str = "max_tokens";

pub static DIALECT: Dialect = Dialect {
    name: "anthropic.messages",
    upstream: Upstream::Anthropic,
    keeps_answers: false,
    parse: |_, body| read_body(body, request::Parser::new()),
    read,
    read_stream: |_| AnswerStream::new(MessageReader::default()),
};

/// Reads the facts of a whole answer.
fn read(answer: &Value) -> Outcome {
    let mut outcome = Outcome { error: upstream_error(&answer["error"]), ..Outcome::default() };
    note_message(answer, &mut outcome);
    let mut counts = Counts::default();
    counts.update(&answer["usage"]);
    outcome.usage = counts.usage();
    outcome.usage_so_far = outcome.usage;
    outcome
}

/// Reader of the events of a streamed answer.
#[derive(Debug, Default)]
struct MessageReader {
    counts: Counts,
    /// Whether a `message_delta` with usage came, so that the output count is final.
    output_told: bool,
}

impl EventReader for MessageReader {
    fn read(&mut self, event: &mut StreamEvent<'_>, outcome: &mut Outcome) -> FrameKind {
        let data = &event.data;
        // The SDK goes by the event's name and the data repeats it; some servers leave the name out.
        let kind = if event.name.is_empty() { data["type"].as_str().unwrap_or_default() } else { event.name };
        let known = outcome.usage_so_far;
        match kind {
            "message_start" => {
                note_message(&data["message"], outcome);
                self.update(&data["message"]["usage"], outcome);
                FrameKind::Data
            }
            "message_delta" => {
                self.output_told |= data["usage"]["output_tokens"].is_u64();
                note_tier(&data["usage"], outcome);
                self.update(&data["usage"], outcome);
                match text(&data["delta"]["stop_reason"]) {
                    None if outcome.usage_so_far == known => FrameKind::Ping,
                    None => FrameKind::Data,
                    Some(reason) => {
                        outcome.finish = Some(reason);
                        self.settle(outcome);
                        FrameKind::Stop
                    }
                }
            }
            "message_stop" => {
                self.settle(outcome);
                FrameKind::Terminal
            }
            "error" => {
                outcome.error = upstream_error(&data["error"]).or(Some(Default::default()));
                FrameKind::Error
            }
            "content_block_start" | "content_block_stop" => FrameKind::Data,
            _ if data.is_null() || carries(data) => FrameKind::Data,
            _ => FrameKind::Ping,
        }
    }

    /// Some compatible servers send no `message_stop` behind the stop reason.
    fn ends(&mut self, outcome: &mut Outcome) -> bool {
        // The usage was taken over with it.
        outcome.finish.is_some()
    }
}

impl MessageReader {
    fn update(&mut self, usage: &Value, outcome: &mut Outcome) {
        self.counts.update(usage);
        outcome.usage_so_far = self.counts.usage();
        if outcome.finish.is_some() {
            self.settle(outcome);
        }
    }

    /// Takes the usage over once the output was counted: `message_start` alone reports an output of only a
    /// token or so.
    fn settle(&self, outcome: &mut Outcome) {
        if self.output_told {
            outcome.usage = self.counts.usage();
        }
    }
}

fn note_message(message: &Value, outcome: &mut Outcome) {
    outcome.id = text(&message["id"]);
    outcome.model = text(&message["model"]);
    outcome.finish = text(&message["stop_reason"]);
    note_tier(&message["usage"], outcome);
}

fn note_tier(usage: &Value, outcome: &mut Outcome) {
    match usage["service_tier"].as_str() {
        Some("standard") => outcome.tier = Some(ServiceTier::Standard),
        Some("priority") => outcome.tier = Some(ServiceTier::Priority),
        Some("batch") => outcome.tier = Some(ServiceTier::Batch),
        _ => {}
    }
}

/// Anthropic's token counts reported so far. In a stream they are cumulative: the largest wins, nothing is added. Some
/// compatible servers report a count at one end of the stream and zero at the other.
#[derive(Debug, Default)]
struct Counts {
    input: Option<u64>,
    output: Option<u64>,
    cache_read: u64,
    cache_creation: u64,
    /// The 5-minute and 1-hour parts of `cache_creation`, where reported.
    split: Option<(u64, u64)>,
    thinking: u64,
    web_searches: u64,
    /// Usage of compactions, which the other counts of the answer leave out.
    besides: Usage,
}

impl Counts {
    fn update(&mut self, usage: &Value) {
        let set = |field: &mut u64, value: &Value| *field = value.as_u64().unwrap_or(0).max(*field);
        self.input = usage["input_tokens"].as_u64().max(self.input);
        self.output = usage["output_tokens"].as_u64().max(self.output);
        set(&mut self.cache_read, &usage["cache_read_input_tokens"]);
        set(&mut self.cache_creation, &usage["cache_creation_input_tokens"]);
        set(&mut self.thinking, &usage["output_tokens_details"]["thinking_tokens"]);
        set(&mut self.web_searches, &usage["server_tool_use"]["web_search_requests"]);
        self.split = read_split(&usage["cache_creation"]).or(self.split);
        if let Some(iterations) = usage["iterations"].as_array() {
            self.besides = besides(iterations);
        }
    }

    fn usage(&self) -> Option<Usage> {
        let (cache_write_5m, cache_write_1h) = divide(self.cache_creation, self.split);
        let output = self.output?;
        Some(Usage {
            input: self.input?.saturating_add(self.besides.input),
            cache_read: self.cache_read.saturating_add(self.besides.cache_read),
            cache_write_5m: cache_write_5m.saturating_add(self.besides.cache_write_5m),
            cache_write_1h: cache_write_1h.saturating_add(self.besides.cache_write_1h),
            output: output.saturating_add(self.besides.output),
            reasoning: self.thinking.min(output),
            web_searches: self.web_searches,
        })
    }
}

fn read_split(split: &Value) -> Option<(u64, u64)> {
    let part = |name: &str| split[name].as_u64();
    match (part("ephemeral_5m_input_tokens"), part("ephemeral_1h_input_tokens")) {
        (None, None) => None,
        (short, long) => Some((short.unwrap_or(0), long.unwrap_or(0))),
    }
}

/// Splits `total` cache writes into 5-minute and 1-hour ones. All are 5-minute writes unless the split says
/// otherwise. A total that outgrew its split (only the first event has one) grew by the kind that was in use.
fn divide(total: u64, split: Option<(u64, u64)>) -> (u64, u64) {
    match split {
        None => (total, 0),
        Some((0, long)) if long > 0 => (0, total.max(long)),
        Some((short, long)) => {
            let total = total.max(short.saturating_add(long));
            (total - long.min(total), long.min(total))
        }
    }
}

/// Sums the compactions of a request, which its top-level counts leave out.
fn besides(iterations: &[Value]) -> Usage {
    let mut sum = Usage::default();
    for iteration in iterations.iter().filter(|i| i["type"].as_str() == Some("compaction")) {
        let mut counts = Counts::default();
        // An iteration has the fields of a usage, but no iterations of its own.
        counts.update(iteration);
        if let Some(usage) = counts.usage() {
            sum.input = sum.input.saturating_add(usage.input);
            sum.cache_read = sum.cache_read.saturating_add(usage.cache_read);
            sum.cache_write_5m = sum.cache_write_5m.saturating_add(usage.cache_write_5m);
            sum.cache_write_1h = sum.cache_write_1h.saturating_add(usage.cache_write_1h);
            sum.output = sum.output.saturating_add(usage.output);
        }
    }
    sum
}

#[cfg(test)]
mod tests;
