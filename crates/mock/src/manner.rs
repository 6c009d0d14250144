//! Imitations of servers that speak OpenAI's API and are not OpenAI, each below a path of its own.
//!
//! | base URL | imitates |
//! |---|---|
//! | `…/openai/v1` | Azure: the key is in `api-key`, or a token in `Authorization` |
//! | `…/api/v1` | OpenRouter: `usage.cost` reports the cost, a millionth of a dollar for each token |
//! | `…/ollama/v1` | Ollama: no key is needed, and a stream never reports its usage |

use http::{Uri, uri::PathAndQuery};

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
