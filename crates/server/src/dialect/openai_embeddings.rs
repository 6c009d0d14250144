//! OpenAI's `/v1/embeddings`, as OpenAI and the compatible servers speak it. Embeddings have no output tokens
//! and no stream.

use outlast_core::words::Usage;
use serde_json::Value;

use super::{
    AnswerStream, BadRequest, Dialect, Outcome, Request, Upstream,
    answer::{EventReader, FrameKind, StreamEvent, text, upstream_error},
    json_spans::{Kind, Scanner, wrong_type},
    request::{BodyReader, read_body, required},
};

pub static DIALECT: Dialect = Dialect {
    name: "openai.embeddings",
    upstream: Upstream::OpenAi,
    keeps_answers: false,
    // There is no output, so the cap is 0: the input bound is also the least that has to be reserved.
    parse: |_, body| {
        let request = Request { cap: Some(0), client_asked_usage: true, ..Request::new("") };
        read_body(body, Parser { request, ..Parser::default() })
    },
    read,
    read_stream: |_| AnswerStream::new(NoEvents),
};

/// State of the one pass over a request body.
#[derive(Default)]
struct Parser {
    request: Request,
    model: Option<String>,
    input: Option<()>,
    bytes: u64,
}

impl BodyReader for Parser {
    fn member(&mut self, json: &mut Scanner<'_>, key: &str) -> Result<(), BadRequest> {
        match key {
            "model" => self.model = Some(json.text("model")?),
            "input" => {
                self.input = Some(());
                self.bytes += input(json, &mut self.request)?;
            }
            "user" => json.skip().map(drop)?,
            _ => self.bytes += json.skip()?.raw,
        }
        Ok(())
    }

    fn finish(self, frame: u64) -> Result<Request, BadRequest> {
        let model = required("model", self.model)?;
        required("input", self.input)?;
        Ok(Request { model, input_bound: self.bytes + frame, ..self.request })
    }
}

/// Reads a text, texts, one list of token ids, or lists of them. Returns the largest number of tokens that they
/// can be; ids are counted by their digits, at least one each.
fn input(json: &mut Scanner<'_>, request: &mut Request) -> Result<u64, BadRequest> {
    match json.kind()? {
        Kind::String => {
            request.message_count = 1;
            Ok(json.skip()?.decoded)
        }
        Kind::Array => {
            let mut bytes = 0;
            let frame = json.array(|json, _| {
                request.message_count += 1;
                // Some servers take images here, and bill them by the piece.
                if json.kind()? == Kind::Object {
                    request.note_unpriced("input other than text");
                }
                let value = json.skip()?;
                bytes += value.raw.max(value.decoded);
                Ok(())
            })?;
            Ok(bytes + frame)
        }
        had => Err(wrong_type("input", "a string or an array", had.name())),
    }
}

fn read(answer: &Value) -> Outcome {
    let usage = answer["usage"]["prompt_tokens"].as_u64().max(answer["usage"]["total_tokens"].as_u64());
    let usage = usage.map(|input| Usage { input, ..Usage::default() });
    Outcome {
        usage,
        usage_so_far: usage,
        model: text(&answer["model"]),
        error: upstream_error(&answer["error"]),
        ..Outcome::default()
    }
}

/// Reader for streams, which no server sends for embeddings. An answer that streams all the same is never
/// complete, so it is not replayed.
#[derive(Debug)]
struct NoEvents;

impl EventReader for NoEvents {
    fn read(&mut self, _event: &mut StreamEvent<'_>, _outcome: &mut Outcome) -> FrameKind {
        FrameKind::Data
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn parse(body: &str) -> Result<Request, BadRequest> {
        (DIALECT.parse)("/v1/embeddings", body.as_bytes())
    }

    #[test]
    fn input_other_than_text_has_no_price() {
        for (input, unpriced) in [(r#"[{"image":"x"}]"#, true), (r#"["x"]"#, false), ("[[1]]", false)] {
            let request = parse(&format!(r#"{{"model":"m","input":{input}}}"#)).unwrap();
            assert_eq!(request.unpriced.is_some(), unpriced, "{input}");
        }
    }

    #[test]
    fn input_is_bound_by_its_bytes_and_there_is_no_output() {
        let with = |input: &str| parse(&format!(r#"{{"model":"m","input":{input}}}"#)).unwrap();
        let none = with(r#""""#).input_bound;
        for (input, tokens) in [
            (r#""hello""#, 5),
            (r#""\u4e2d""#, 3),
            (r#"["hello","you"]"#, 8),
            ("[1,22,333]", 3),
            ("[[1,22],[333]]", 3),
        ] {
            let request = with(input);
            assert!(request.input_bound >= none + tokens, "{input}: {}", request.input_bound);
            assert_eq!((request.cap, request.stream, request.choices), (Some(0), false, 1), "{input}");
            assert_eq!((request.unpriced, request.references, request.wants_cache_5m), (None, false, false));
        }
    }

    #[test]
    fn a_bad_request_names_its_field() {
        for (body, message) in [
            (r#"{"input":"x"}"#, "`model` is missing"),
            (r#"{"model":"m"}"#, "`input` is missing"),
            (r#"{"model":"m","input":7}"#, "`input` is a number, wanted a string or an array"),
            (r#"{"model":"m","input":"x","input":"y"}"#, "the key \"input\" is there twice in one object"),
        ] {
            assert_eq!(parse(body).map_err(|e| e.to_string()).err().as_deref(), Some(message), "{body}");
        }
    }

    #[test]
    fn a_cap_changes_nothing_in_a_request_without_output() {
        let body = r#"{"model":"m","input":"x"}"#;
        let edited = parse(body).unwrap().edit(body.as_bytes(), Some(5), true);
        assert!(matches!(edited, Cow::Borrowed(_)));
    }

    #[test]
    fn an_answer_tells_its_input_only() {
        for (answer, input) in [
            (r#"{"data":[],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7}}"#, Some(7)),
            (r#"{"data":[],"usage":{"total_tokens":9}}"#, Some(9)),
            (r#"{"data":[]}"#, None),
            ("nothing", None),
        ] {
            let usage = DIALECT.read_json(answer.as_bytes()).usage;
            assert_eq!(usage.map(|u| (u.input, u.output)), input.map(|n| (n, 0)), "{answer}");
        }
        let refused = DIALECT.read_json(br#"{"error":{"message":"no"}}"#);
        assert_eq!(refused.error.map(|e| e.message).as_deref(), Some("no"));
    }
}
