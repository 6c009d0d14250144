//! OpenAI's `/v1/responses`, which Codex and newer agents use.

mod answer;
mod request;

use super::{AnswerStream, BadRequest, Dialect, Outcome, Request, Upstream, lenient::parse_json};

const MAX_OUTPUT_TOKENS: &str = "max_output_tokens";

#[derive(Clone, Copy, Debug)]
pub struct OpenAiResponses;

impl Dialect for OpenAiResponses {
    fn name(&self) -> &'static str {
        "openai.responses"
    }

    fn upstream(&self) -> Upstream {
        Upstream::OpenAi
    }

    fn keeps_answers(&self) -> bool {
        true
    }

    fn parse(&self, _target: &str, body: &[u8]) -> Result<Request, BadRequest> {
        request::parse(body)
    }

    fn read_json(&self, body: &[u8]) -> Outcome {
        parse_json(body).map(|body| answer::read(&body)).unwrap_or_default()
    }

    fn read_stream(&self, _request: &Request) -> AnswerStream {
        AnswerStream::new(answer::ResponseReader::default())
    }
}

#[cfg(test)]
mod tests;
