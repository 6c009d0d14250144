//! Providers of the LLM APIs: a row each, with all that tells one from another. Their paths are in `route`, their endpoints
//! behind `Dialect`.

use bytes::Bytes;
use http::HeaderMap;
use outlast_core::{call::plan::WindowUse, words::Cause};
use serde_json::Value;

use super::{outage, plan, refusal, told_time::Says};

/// Provider family whose base URL, credential and error shape a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upstream {
    OpenAi,
    Anthropic,
    Gemini,
}

impl Upstream {
    pub const ALL: [Upstream; 3] = [Upstream::OpenAi, Upstream::Anthropic, Upstream::Gemini];

    /// Returns the provider's row.
    pub fn row(self) -> &'static ProviderRow {
        match self {
            Upstream::OpenAi => &OPENAI,
            Upstream::Anthropic => &ANTHROPIC,
            Upstream::Gemini => &GEMINI,
        }
    }

    /// Returns the provider's name in digests, the journal, metrics and settings.
    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// Facts of a provider.
#[derive(Debug)]
pub struct ProviderRow {
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Address that client programs call by default. The hosts below it are those of its regions.
    pub host: &'static str,
    /// Variable in which SDKs read the base URL, and the path that they expect in it.
    pub url_variable: &'static str,
    pub url_path: &'static str,
    /// Variables in which SDKs read the key: the usual one first; the last that is set counts.
    pub key_variables: &'static [&'static str],
    /// Header of the key, and what stands before the key in it.
    pub key_header: (&'static str, &'static str),
    /// Bytes before and behind the data of a frame that ends a broken stream.
    pub error_frame: (&'static str, &'static str),
    /// Builds the error of a status, with the proxy's code and a message.
    pub error: fn(u16, &str, &str) -> Value,
    /// Whether `code` and `message` stand beside `error` too. An SDK may take such a `code` for the HTTP status.
    pub repeats_code: bool,
    /// Type of the error by which a client knows a usage limit; empty: none.
    pub limit_type: &'static str,
    /// Tells a refusal of a key, or the end of a quota, that its status alone does not tell.
    pub refused_key: fn(u16, &[u8]) -> Option<Cause>,
    /// Readers of logins of this provider's subscriptions; `None`: it has none.
    pub plan: Option<PlanRow>,
}

/// Subscriptions of a provider.
#[derive(Debug)]
pub struct PlanRow {
    /// Reads the use of the plan's windows from the headers of an answer.
    pub windows: fn(&Says<'_>) -> Vec<WindowUse>,
    /// Reads the account that a request names.
    pub account: fn(&HeaderMap, &[u8]) -> Option<String>,
}

impl ProviderRow {
    /// Returns the address of the provider's own API.
    pub fn base(&self) -> String {
        format!("https://{}", self.host)
    }

    /// Returns the frame that reports `error` in a stream.
    pub fn frame(&self, error: &Value) -> Bytes {
        let (before, behind) = self.error_frame;
        // JSON as serde_json writes it holds no raw line end, so it is one data line.
        format!("{before}{error}{behind}").into()
    }
}

static OPENAI: ProviderRow = ProviderRow {
    name: "openai",
    title: "OpenAI",
    host: "api.openai.com",
    url_variable: "OPENAI_BASE_URL",
    url_path: "/v1",
    key_variables: &["OPENAI_API_KEY"],
    key_header: ("authorization", "Bearer "),
    error_frame: ("data: ", "\n\n"),
    error: refusal::openai,
    repeats_code: true,
    // Codex gives up on an error of this name, and would retry any other.
    limit_type: "usage_limit_reached",
    refused_key: outage::openai,
    plan: Some(PlanRow { windows: plan::codex, account: plan::chatgpt_account }),
};

static ANTHROPIC: ProviderRow = ProviderRow {
    name: "anthropic",
    title: "Anthropic",
    host: "api.anthropic.com",
    url_variable: "ANTHROPIC_BASE_URL",
    url_path: "",
    key_variables: &["ANTHROPIC_API_KEY"],
    key_header: ("x-api-key", ""),
    error_frame: ("event: error\ndata: ", "\n\n"),
    error: refusal::anthropic,
    repeats_code: true,
    limit_type: "",
    refused_key: outage::anthropic,
    plan: Some(PlanRow { windows: plan::anthropic, account: plan::claude_account }),
};

static GEMINI: ProviderRow = ProviderRow {
    name: "gemini",
    title: "Gemini",
    host: "generativelanguage.googleapis.com",
    url_variable: "GOOGLE_GEMINI_BASE_URL",
    url_path: "",
    key_variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
    key_header: ("x-goog-api-key", ""),
    error_frame: ("data: ", "\r\n\r\n"),
    error: refusal::google,
    repeats_code: false,
    limit_type: "",
    refused_key: outage::google,
    plan: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_has_names_of_its_own_and_stands_at_its_place() {
        for (at, upstream) in Upstream::ALL.into_iter().enumerate() {
            assert_eq!(upstream as usize, at, "addresses and keys are kept by place");
            let of = |fact: fn(&ProviderRow) -> &str| {
                Upstream::ALL.iter().filter(|other| fact(other.row()) == fact(upstream.row())).count()
            };
            assert_eq!([of(|row| row.name), of(|row| row.host), of(|row| row.url_variable)], [1; 3]);
            assert!(!upstream.row().key_variables.is_empty());
        }
    }
}
