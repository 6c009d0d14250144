//! Routing of requests: the paths that may go upstream, and the dialect that reads each. Any other path is
//! refused.
//!
//! Spellings of a path: which targets two servers could read differently, and which paths a lenient server takes for one.

use percent_encoding::percent_decode_str;

use super::{Dialect, Upstream, anthropic_messages, openai_chat, openai_embeddings, openai_responses};

/// Headers of a request that distinguish two providers which have a path in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFacts {
    pub anthropic_version: bool,
    pub x_api_key: bool,
}

/// Decision about a request by its method and target.
#[derive(Clone, Copy, Debug)]
pub enum Route<'t> {
    /// The request costs money: it is admitted, journaled and settled.
    Metered(&'static Dialect),
    /// The request costs nothing: it is passed on and not journaled.
    Free { upstream: Upstream },
    /// The request costs nothing and names a stored answer of the upstream: it is passed on only if that answer is in
    /// the run's own journal.
    Kept { upstream: Upstream, id: &'t str },
    /// The request costs money, or prepares something that does, in a way that the proxy cannot meter: it is refused
    /// with `reason` (403).
    Refused { upstream: Upstream, reason: &'static str },
    /// The path is not on the list: the request is refused (403).
    Unknown,
    /// The target is ambiguous, so that the upstream could read it differently than the proxy does: the request is
    /// refused (400).
    Bad(&'static str),
}

impl Route<'_> {
    /// Returns the upstream whose API is addressed; `None` if it is not known.
    pub fn upstream(&self) -> Option<Upstream> {
        match self {
            Route::Metered(dialect) => Some(dialect.upstream),
            Route::Free { upstream } | Route::Kept { upstream, .. } | Route::Refused { upstream, .. } => {
                Some(*upstream)
            }
            Route::Unknown | Route::Bad(_) => None,
        }
    }
}

/// Routes a request by its method and target. `path_and_query`: the target without a run token.
///
/// The query is not read; it goes upstream unchanged.
pub fn route<'t>(method: &str, path_and_query: &'t str, headers: HeaderFacts) -> Route<'t> {
    if let Some(reason) = ambiguous(path_and_query) {
        return Route::Bad(reason);
    }
    let path = path_and_query.split_once('?').map_or(path_and_query, |(path, _)| path);
    let mut segments: Vec<&str> = path[1..].split('/').collect();
    // Google's preview version has the same methods.
    if segments[0] == "v1alpha" {
        segments[0] = "v1beta";
    }
    let shared = match headers {
        HeaderFacts { anthropic_version: false, x_api_key: false } => Upstream::OpenAi,
        _ => Upstream::Anthropic,
    };
    match (method, segments.as_slice()) {
        ("POST", ["v1", "chat", "completions"]) => Route::Metered(&openai_chat::DIALECT),
        ("POST", ["v1", "deployments", name, "chat", "completions"]) if !name.is_empty() => {
            Route::Metered(&openai_chat::DIALECT)
        }
        ("POST", ["v1", "deployments", name, "embeddings"]) if !name.is_empty() => {
            Route::Metered(&openai_embeddings::DIALECT)
        }
        ("POST", ["v1", "responses"]) => Route::Metered(&openai_responses::DIALECT),
        ("GET" | "DELETE", ["v1", "responses", id]) | ("GET", ["v1", "responses", id, "input_items"])
            if !id.is_empty() =>
        {
            Route::Kept { upstream: Upstream::OpenAi, id }
        }
        ("POST", ["v1", "embeddings"]) => Route::Metered(&openai_embeddings::DIALECT),
        ("POST", ["v1", "messages"]) => Route::Metered(&anthropic_messages::DIALECT),
        ("POST", ["v1", "messages", "count_tokens"]) => Route::Free { upstream: Upstream::Anthropic },
        ("GET", ["v1", "models"]) => Route::Free { upstream: shared },
        ("GET", ["v1", "models", id]) if !id.is_empty() => Route::Free { upstream: shared },
        ("GET", ["v1beta", "models"]) => Route::Free { upstream: Upstream::Gemini },
        ("GET", ["v1beta", "models", id]) if !id.is_empty() && !loose(id).contains(':') => {
            Route::Free { upstream: Upstream::Gemini }
        }
        ("POST", ["v1beta" | "v1", "models", last]) if last.contains(':') => gemini(last),
        (_, segments) => match not_understood(segments, shared) {
            Some((upstream, reason)) => Route::Refused { upstream, reason },
            None => Route::Unknown,
        },
    }
}

/// Returns the name of Azure's deployment that a target asks, whatever model its body names; `None` for any other path.
pub fn deployment(target: &str) -> Option<&str> {
    target.strip_prefix("/v1/deployments/")?.split(['/', '?']).next()
}

/// Returns whether a path is in a version that only Gemini's API has.
pub fn is_geminis(path: &str) -> bool {
    ["/v1beta/", "/v1alpha/"].iter().any(|version| path.starts_with(version))
}

/// Routes a method of a Gemini model: `last` is a path segment such as `gemini-3:generateContent`.
fn gemini(last: &str) -> Route<'static> {
    let upstream = Upstream::Gemini;
    let refused = |reason| Route::Refused { upstream, reason };
    match last.split_once(':') {
        Some(("", _)) | None => Route::Unknown,
        Some((_, "generateContent" | "streamGenerateContent")) => Route::Metered(&super::gemini::DIALECT),
        Some((_, "countTokens")) => Route::Free { upstream },
        Some((_, "embedContent" | "batchEmbedContents")) => {
            refused("Gemini's embeddings are not metered yet")
        }
        Some((_, "predict" | "predictLongRunning")) => refused("images and videos are not metered yet"),
        Some((_, "batchGenerateContent" | "asyncBatchEmbedContent")) => {
            refused("batches are not metered yet")
        }
        Some((_, "bidiGenerateContent")) => refused("realtime sessions are not metered yet"),
        Some(_) => Route::Unknown,
    }
}

/// Returns the upstream and the reason for a known endpoint that is refused, whatever the method: reading a file or
/// a batch is of no use without creating one.
fn not_understood(segments: &[&str], shared: Upstream) -> Option<(Upstream, &'static str)> {
    use Upstream::{Anthropic, Gemini, OpenAi};
    Some(match segments {
        ["v1", "messages", "batches", ..] => (Anthropic, "message batches are not metered yet"),
        ["v1", "complete"] => (Anthropic, "text completions are not metered yet"),
        ["v1", "sessions" | "environments" | "deployments" | "deployment_runs" | "dreams", ..] => {
            (Anthropic, "managed agents are not metered yet")
        }
        ["v1", "responses", "compact"] => (OpenAi, "compactions are not metered yet"),
        ["v1", "responses", "input_tokens"] => (OpenAi, "input tokens of responses are not counted yet"),
        ["v1", "responses", _, "cancel"] => (OpenAi, "background responses are not metered yet"),
        ["v1", "conversations", ..] => (OpenAi, "conversations are not metered yet"),
        ["v1", "completions", ..] => (OpenAi, "text completions are not metered yet"),
        ["v1", "images", ..] => (OpenAi, "images are not metered yet"),
        ["v1", "videos", ..] => (OpenAi, "videos are not metered yet"),
        ["v1", "audio", ..] => (OpenAi, "audio is not metered yet"),
        ["v1", "realtime" | "live", ..] => (OpenAi, "realtime sessions are not metered yet"),
        ["v1", "assistants" | "threads", ..] => (OpenAi, "assistants are not metered yet"),
        ["v1", "batches", ..] => (OpenAi, "batches are not metered yet"),
        ["v1", "uploads", ..] => (OpenAi, "uploads are not metered yet"),
        ["v1", "vector_stores", ..] => (OpenAi, "vector stores are not metered yet"),
        ["v1", "containers", ..] => (OpenAi, "containers are not metered yet"),
        ["v1", "fine_tuning", ..] => (OpenAi, "fine-tuning is not metered yet"),
        ["v1", "evals", ..] => (OpenAi, "evals are not metered yet"),
        ["v1", "moderations", ..] => (OpenAi, "moderations are not metered yet"),
        ["v1", "agents" | "chatkit", ..] => (shared, "hosted agents are not metered yet"),
        ["v1", "files", ..] => (shared, "files are not metered yet"),
        ["v1", "skills", ..] => (shared, "skills are not metered yet"),
        // Vertex paths name a project, Bedrock paths a model. Both APIs authenticate with a cloud account, by
        // signature or token.
        ["v1" | "v1beta1" | "v1beta", "projects", .., last]
            if last.ends_with(":rawPredict") || last.ends_with(":streamRawPredict") =>
        {
            (Anthropic, "Vertex AI is not metered: its calls are authorised for a cloud account")
        }
        ["v1" | "v1beta1" | "v1beta", "projects" | "publishers", ..] => {
            (Gemini, "Vertex AI is not metered: its calls are authorised for a cloud account")
        }
        ["model", _, "invoke" | "invoke-with-response-stream" | "converse" | "converse-stream"]
        | ["model-invocation-job" | "async-invoke" | "guardrail", ..] => {
            (Anthropic, "Bedrock is not metered: its calls are signed for the host that they go to")
        }
        ["v1beta", "cachedContents", ..] => (Gemini, "cached contents are not metered yet"),
        ["v1beta", "files", ..] | ["upload" | "download", "v1beta", ..] => {
            (Gemini, "files are not metered yet")
        }
        ["v1beta", "batches", ..] => (Gemini, "batches are not metered yet"),
        ["v1beta", "interactions", ..] => (Gemini, "interactions are not metered yet"),
        ["v1beta", ..] => (Gemini, "this part of the Gemini API is not metered yet"),
        ["api", "chat" | "generate" | "embed" | "embeddings"] => {
            (OpenAi, "the Ollama API is not metered yet")
        }
        _ => return None,
    })
}

/// Returns the reason why two servers could read this target differently, if there is one.
///
/// Other spellings stay open: letters of another case, a slash at the end, and encoded signs such as `%3A`: see [`loose`].
pub fn ambiguous(target: &str) -> Option<&'static str> {
    if !target.starts_with('/') {
        return Some("the target must be a path, not a whole URL");
    }
    if target.bytes().any(|b| b <= b' ' || b == 0x7f || b == b'\\' || b == b'#') {
        return Some("the target holds a character that a path cannot hold");
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." | ".." => return Some("the path holds a dot segment"),
            "" if segments.peek().is_some() => return Some("the path holds an empty segment"),
            segment if segment.contains(';') => return Some("the path holds parameters, after a ;"),
            _ => {}
        }
    }
    path.match_indices('%').find_map(|(at, _)| {
        let code = path.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            None => Some("the path holds a % that encodes nothing"),
            Some(b'/' | b'\\') => Some("the path holds an encoded slash"),
            Some(b'.') => Some("the path holds an encoded dot"),
            Some(b';') => Some("the path holds parameters, after an encoded ;"),
            Some(b'?' | b'#') => Some("the path holds an encoded end of a path"),
            Some(b'%') => Some("the path is encoded twice"),
            Some(0..=0x1f | 0x7f) => Some("the path holds an encoded control character"),
            Some(b) if b.is_ascii_alphanumeric() || b"-_~".contains(&b) => {
                Some("the path encodes a character that needs no encoding")
            }
            Some(_) => None,
        }
    })
}

/// Returns an unambiguous path as a server may read it that decodes it, and minds neither the letters' case nor slashes
/// and spaces at the end.
pub fn loose(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    decoded.trim_end_matches(|c: char| c == '/' || c.is_whitespace()).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAUDE: HeaderFacts = HeaderFacts { anthropic_version: true, x_api_key: false };

    fn says(method: &str, target: &str, headers: HeaderFacts) -> String {
        match route(method, target, headers) {
            Route::Metered(dialect) => format!("metered {}", dialect.name),
            Route::Free { upstream } => format!("free {upstream:?}"),
            Route::Kept { upstream, id } => format!("kept {upstream:?} {id}"),
            Route::Refused { upstream, .. } => format!("refused {upstream:?}"),
            Route::Unknown => "unknown".into(),
            Route::Bad(_) => "bad".into(),
        }
    }

    fn check(cases: &[(&str, &str, &str)]) {
        for (method, target, wanted) in cases {
            assert_eq!(says(method, target, HeaderFacts::default()), *wanted, "{method} {target}");
        }
    }

    #[test]
    fn each_path_has_one_fate() {
        check(&[
            ("POST", "/v1/chat/completions", "metered openai.chat"),
            ("POST", "/v1/messages?beta=true", "metered anthropic.messages"),
            ("POST", "/v1/messages/count_tokens", "free Anthropic"),
            ("GET", "/v1/models", "free OpenAi"),
            ("GET", "/v1/models/gpt-5.4", "free OpenAi"),
            ("POST", "/v1/deployments/D/chat/completions", "metered openai.chat"),
            ("POST", "/v1/deployments/D/embeddings", "metered openai.embeddings"),
            ("POST", "/v1/deployments/D/images/generations", "refused Anthropic"),
            ("POST", "/v1/deployments//chat/completions", "bad"),
            ("GET", "/v1/chat/completions", "unknown"),
            ("post", "/v1/chat/completions", "unknown"),
            ("POST", "/v1/chat/completions/", "unknown"),
            ("POST", "/chat/completions", "unknown"),
            ("DELETE", "/v1/models/ft:x", "unknown"),
            ("GET", "/v1/models/", "unknown"),
            ("GET", "/v1/organizations/users", "unknown"),
            ("GET", "/", "unknown"),
            ("POST", "/v1/responses", "metered openai.responses"),
            ("POST", "/v1/responses?x=1", "metered openai.responses"),
            ("GET", "/v1/responses", "unknown"),
            ("GET", "/v1/responses/resp_1?include=a", "kept OpenAi resp_1"),
            ("DELETE", "/v1/responses/resp_1", "kept OpenAi resp_1"),
            ("GET", "/v1/responses/resp_1/input_items", "kept OpenAi resp_1"),
            ("POST", "/v1/responses/resp_1", "unknown"),
            ("GET", "/v1/responses/", "unknown"),
            ("POST", "/v1/responses/resp_1/cancel", "refused OpenAi"),
            ("POST", "/v1/responses/input_tokens", "refused OpenAi"),
            ("POST", "/v1/responses/compact", "refused OpenAi"),
            ("POST", "/v1/messages/batches", "refused Anthropic"),
            ("POST", "/v1/embeddings", "metered openai.embeddings"),
            ("GET", "/v1/embeddings", "unknown"),
            ("POST", "/v1/images/generations", "refused OpenAi"),
            ("GET", "/v1/files/file-1", "refused OpenAi"),
            ("POST", "/v1beta/models/gemini-3:generateContent?alt=sse", "metered gemini.generate_content"),
            ("POST", "/v1/models/gemini-3:streamGenerateContent", "metered gemini.generate_content"),
            ("POST", "/v1beta/models/gemini-3:countTokens", "free Gemini"),
            ("POST", "/v1alpha/models/gemini-3:generateContent", "metered gemini.generate_content"),
            ("POST", "/v1alpha/models/gemini-3:predict", "refused Gemini"),
            ("POST", "/v1alpha/cachedContents", "refused Gemini"),
            ("POST", "/batch", "unknown"),
            (
                "POST",
                "/$rpc/google.ai.generativelanguage.v1beta.GenerativeService/GenerateContent",
                "unknown",
            ),
            ("GET", "/v1beta/models", "free Gemini"),
            ("GET", "/v1alpha/models/gemini-3", "free Gemini"),
            ("GET", "/v1beta/models/gemini-3", "free Gemini"),
            ("GET", "/v1beta/models/gemini-3:generateContent", "refused Gemini"),
            ("GET", "/v1beta/models/gemini-3%3AgenerateContent", "refused Gemini"),
            ("POST", "/v1beta/models/:generateContent", "unknown"),
            ("POST", "/v1beta/models/imagen-4:predict", "refused Gemini"),
            ("POST", "/v1beta/models/gemini-3:batchEmbedContents", "refused Gemini"),
            ("POST", "/v1beta/cachedContents", "refused Gemini"),
            ("POST", "/upload/v1beta/files", "refused Gemini"),
            (
                "POST",
                "/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent",
                "refused Gemini",
            ),
            (
                "POST",
                "/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict",
                "refused Anthropic",
            ),
            ("POST", "/model/anthropic.claude/invoke", "refused Anthropic"),
            ("POST", "/model/anthropic.claude/converse-stream", "refused Anthropic"),
            ("POST", "/api/chat", "refused OpenAi"),
        ]);
    }

    #[test]
    fn shared_paths_go_to_anthropic_when_its_headers_are_there() {
        for headers in [CLAUDE, HeaderFacts { anthropic_version: false, x_api_key: true }] {
            assert_eq!(says("GET", "/v1/models?limit=20", headers), "free Anthropic");
            assert_eq!(says("GET", "/v1/models/claude-opus-4-8", headers), "free Anthropic");
            assert_eq!(says("POST", "/v1/files", headers), "refused Anthropic");
            assert_eq!(says("POST", "/v1/chat/completions", headers), "metered openai.chat");
        }
    }

    #[test]
    fn a_target_that_can_be_read_in_two_ways_is_bad() {
        check(&[
            ("POST", "http://api.openai.com/v1/chat/completions", "bad"),
            ("POST", "v1/messages", "bad"),
            ("POST", "", "bad"),
            ("POST", "*", "bad"),
            ("POST", "//evil/v1/messages", "bad"),
            ("POST", "/v1//messages", "bad"),
            ("POST", "/v1/./messages", "bad"),
            ("POST", "/v1/models/../messages", "bad"),
            ("GET", "/v1/models/..", "bad"),
            ("GET", "/v1/models/%2e%2E", "bad"),
            ("GET", "/v1/models/a%2Fb", "bad"),
            ("GET", "/v1/models/a%5cb", "bad"),
            ("GET", "/v1/models/a%252e", "bad"),
            ("GET", "/v1/models/a%", "bad"),
            ("GET", "/v1/models/a%é", "bad"),
            ("GET", "/v1/models/a%00", "bad"),
            ("GET", "/v1/models\\..\\x", "bad"),
            ("GET", "/v1/models#x", "bad"),
            ("POST", "/v1/m%65ssages", "bad"),
            ("POST", "/v1/messages;a=b", "bad"),
            ("POST", "/v1/messages%3Ba", "bad"),
            ("GET", "/v1/responses/%3Fa", "bad"),
            ("GET", "/v1/models/ft%3Agpt", "free OpenAi"),
            ("GET", "/v1/models?after=../%2e%2f", "free OpenAi"),
        ]);
    }
}
