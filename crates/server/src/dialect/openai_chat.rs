//! OpenAI's `/v1/chat/completions`, as OpenAI and the many compatible servers speak it.

mod answer;
mod request;

pub(super) use self::{answer::read_usage, request::reasons_by_name};
use super::{AnswerStream, BadRequest, Dialect, Outcome, Request, Upstream, lenient::parse_json};

const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

#[derive(Clone, Copy, Debug)]
pub struct OpenAiChat;

impl Dialect for OpenAiChat {
    fn name(&self) -> &'static str {
        "openai.chat"
    }

    fn upstream(&self) -> Upstream {
        Upstream::OpenAi
    }

    fn parse(&self, _target: &str, body: &[u8]) -> Result<Request, BadRequest> {
        request::parse(body)
    }

    fn read_json(&self, body: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(body) = parse_json(body) {
            outcome.usage = answer::note(&body, &mut outcome);
        }
        outcome
    }

    fn read_stream(&self, request: &Request) -> AnswerStream {
        AnswerStream::new(answer::ChatReader::new(request.client_asked_usage, request.choices))
    }
}

#[cfg(test)]
mod tests;
