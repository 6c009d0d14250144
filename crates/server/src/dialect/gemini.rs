//! Gemini's `generateContent` and `streamGenerateContent`. The path names the model and says whether the answer
//! streams.

mod answer;
mod request;

use super::{AnswerStream, BadRequest, Dialect, Outcome, Request, Upstream, lenient::parse_json};

const MAX_OUTPUT_TOKENS: &str = "maxOutputTokens";

#[derive(Clone, Copy, Debug)]
pub struct Gemini;

impl Dialect for Gemini {
    fn name(&self) -> &'static str {
        "gemini.generate_content"
    }

    fn upstream(&self) -> Upstream {
        Upstream::Gemini
    }

    fn parse(&self, target: &str, body: &[u8]) -> Result<Request, BadRequest> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (model, verb) = path.rsplit('/').next().and_then(|last| last.split_once(':')).unwrap_or_default();
        let stream = verb == "streamGenerateContent";
        // Without `alt=sse` a stream is one JSON array.
        let array_stream = stream && !query.split('&').any(|pair| pair == "alt=sse");
        Ok(Request { stream, array_stream, ..request::parse(model, body)? })
    }

    fn read_json(&self, body: &[u8]) -> Outcome {
        parse_json(body).map(|body| answer::read(&body)).unwrap_or_default()
    }

    fn read_stream(&self, request: &Request) -> AnswerStream {
        let stream = AnswerStream::new(answer::ChunkReader::new(request.choices));
        if request.array_stream { stream.of_an_array() } else { stream }
    }
}

#[cfg(test)]
mod tests;
