//! Routes of the fake provider: a request's API, purpose and credential, read from its head.
//!
//! Imitations of servers that speak OpenAI's API and are not OpenAI, each below a path of its own.
//!
//! | base URL | imitates |
//! |---|---|
//! | `…/openai/v1` | Azure: the key is in `api-key`, or a token in `Authorization` |
//! | `…/api/v1` | OpenRouter: `usage.cost` reports the cost, a millionth of a dollar for each token |
//! | `…/ollama/v1` | Ollama: no key is needed, and a stream never reports its usage |

use http::{HeaderValue, Method, Uri, request::Parts, uri::PathAndQuery};

use crate::{gemini, refusal::Refusal, request::Dialect};

/// Purpose of a request.
#[derive(Clone, Copy)]
pub(super) enum Route<'p> {
    /// The list of models.
    Models,
    /// A response that is kept, by its id.
    Kept(&'p str, About),
    /// A count of tokens, which costs nothing.
    CountTokens,
    /// A paid answer.
    Message,
}

/// Part of a kept response that a request is about.
#[derive(Clone, Copy)]
pub(super) enum About {
    Response,
    InputItems,
    Deletion,
}

/// Returns the dialect of a path. Where dialects share the path, the header that Anthropic's clients must send
/// decides.
pub(super) fn dialect(head: &Parts) -> Dialect {
    match head.uri.path() {
        "/v1/chat/completions" => Dialect::OpenAi,
        "/v1/embeddings" => Dialect::Embeddings,
        path if path.starts_with("/v1/responses") => Dialect::Responses,
        path if path.starts_with("/v1/messages") => Dialect::Anthropic,
        path if gemini::is_path(path) => Dialect::Gemini,
        _ if head.headers.contains_key("anthropic-version") => Dialect::Anthropic,
        _ => Dialect::OpenAi,
    }
}

/// Returns the purpose of a request; refuses a path or a method that no API has.
pub(super) fn route(head: &Parts) -> Result<Route<'_>, Refusal> {
    if let Some(kept) = head.uri.path().strip_prefix("/v1/responses/") {
        return match (&head.method, kept.split_once('/')) {
            (&Method::GET, None) => Ok(Route::Kept(kept, About::Response)),
            (&Method::GET, Some((id, "input_items"))) => Ok(Route::Kept(id, About::InputItems)),
            (&Method::DELETE, None) => Ok(Route::Kept(kept, About::Deletion)),
            _ => Err(Refusal::NotFound { what: head.uri.path().to_owned() }),
        };
    }
    let (wanted, route) = match head.uri.path() {
        path if gemini::asks_for_content(path) => (Method::POST, Route::Message),
        path if gemini::is_path(path) && path.ends_with(":countTokens") => (Method::POST, Route::CountTokens),
        "/v1beta/models" => (Method::GET, Route::Models),
        "/v1/chat/completions" | "/v1/responses" | "/v1/embeddings" | "/v1/messages" => {
            (Method::POST, Route::Message)
        }
        "/v1/messages/count_tokens" => (Method::POST, Route::CountTokens),
        "/v1/models" => (Method::GET, Route::Models),
        path => return Err(Refusal::NotFound { what: path.to_owned() }),
    };
    if head.method != wanted {
        let path = head.uri.path().to_owned();
        return Err(Refusal::WrongMethod { path, wanted, had: head.method.clone() });
    }
    Ok(route)
}

/// Returns the credential. Any will do, but there must be one.
pub(super) fn credential(manner: Manner, head: &Parts) -> Result<&str, Refusal> {
    let headers = &head.headers;
    let query = head.uri.query().unwrap_or("");
    let in_query = query.split('&').find_map(|pair| pair.strip_prefix("key="));
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let (found, wanted) = match manner {
        Manner::Own => (
            bearer.or(text("x-api-key")).or(text("x-goog-api-key")).or(in_query),
            "`Authorization: Bearer`, `x-api-key` or `x-goog-api-key`",
        ),
        Manner::OpenRouter => (bearer, "`Authorization: Bearer`"),
        Manner::Azure => (text("api-key").or(bearer).or(text("x-api-key")), "`api-key`"),
        Manner::Ollama => (bearer.or(Some("none")), ""),
    };
    let found = found.map(str::trim).filter(|credential| !credential.is_empty());
    found.ok_or(Refusal::NoCredential { wanted })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Manner {
    /// The behaviour of the real providers.
    #[default]
    Own,
    Azure,
    OpenRouter,
    Ollama,
}

impl Manner {
    /// Removes the path before `/v1/` from `uri`, and returns the manner that this path names; `Own` if it names none.
    pub fn take(uri: &mut Uri) -> Manner {
        let found = [("/openai", Manner::Azure), ("/api", Manner::OpenRouter), ("/ollama", Manner::Ollama)];
        let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
        for (prefix, manner) in found {
            if let Some(rest) = target.strip_prefix(prefix).filter(|rest| rest.starts_with("/v1/"))
                && let Ok(rest) = rest.parse()
            {
                *uri = rest;
                return manner;
            }
        }
        Manner::Own
    }

    /// Returns the cost that OpenRouter reports for `tokens`, in USD; `None` for any other server.
    pub fn cost(self, tokens: u64) -> Option<f64> {
        (self == Manner::OpenRouter).then(|| tokens as f64 / 1e6)
    }
}
