//! The manners of servers that speak OpenAI's API and are not OpenAI, each at a path of its own.
//!
//! | base URL | as |
//! |---|---|
//! | `…/openai/v1` | Azure: the key is in `api-key`, or a token in `Authorization` |
//! | `…/api/v1` | OpenRouter: `usage.cost` tells the cost, a millionth of a dollar for each token |
//! | `…/ollama/v1` | Ollama: no key is wanted, and a stream never tells its usage |

use http::{Uri, uri::PathAndQuery};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Manner {
    /// The providers' own.
    #[default]
    Own,
    Azure,
    OpenRouter,
    Ollama,
}

impl Manner {
    /// Takes what stands before `/v1/` off a target, and says what it means.
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

    /// What OpenRouter says that `tokens` cost, in USD.
    pub fn cost(self, tokens: u64) -> Option<f64> {
        (self == Manner::OpenRouter).then(|| tokens as f64 / 1e6)
    }
}
