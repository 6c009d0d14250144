//! Anthropic's `/v1/messages`.

mod answer;
mod request;

use super::{AnswerStream, BadRequest, Dialect, Outcome, Request, Upstream, lenient::parse_json};

const MAX_TOKENS: &str = "max_tokens";

#[derive(Clone, Copy, Debug)]
pub struct AnthropicMessages;

impl Dialect for AnthropicMessages {
    fn name(&self) -> &'static str {
        "anthropic.messages"
    }

    fn upstream(&self) -> Upstream {
        Upstream::Anthropic
    }

    fn parse(&self, _target: &str, body: &[u8]) -> Result<Request, BadRequest> {
        request::parse(body)
    }

    fn read_json(&self, body: &[u8]) -> Outcome {
        parse_json(body).map(|body| answer::read(&body)).unwrap_or_default()
    }

    fn read_stream(&self, _request: &Request) -> AnswerStream {
        AnswerStream::new(answer::MessageReader::default())
    }
}

#[cfg(test)]
mod tests;
