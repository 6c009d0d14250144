//! Treatment of a server's tools when the outcome of a call is unknown: by settings, or by the hints of a server
//! that is trusted.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Effect of a tool on the world, which decides whether a call in doubt may be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// A second call may have a second effect, so a call in doubt is not repeated.
    #[default]
    Acts,
    /// Calls of the tool can be repeated without a further effect.
    Idempotent,
    /// The tool only reads.
    Reads,
}

impl Manner {
    /// Returns whether a call in doubt may be sent again.
    pub fn repeatable(self) -> bool {
        self != Manner::Acts
    }

    /// Returns the side effect that a policy is asked about: an empty text for a tool that only reads; `None`, unknown,
    /// for any other, which every rule fits.
    pub fn side_effect(self) -> Option<&'static str> {
        (self == Manner::Reads).then_some("")
    }
}

/// Tools of one server.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// Whether the server's own hints about its tools are believed. A false hint would let an effect happen twice.
    pub trusted: bool,
    /// Names, or beginnings of names such as `get_*`, of tools that only read.
    pub reads: Vec<String>,
    /// Names, or beginnings of names such as `put_*`, of idempotent tools.
    pub idempotent: Vec<String>,
    hinted: HashMap<String, Manner>,
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow, default)]
    tools: Vec<Tool<'a>>,
}

#[derive(Deserialize)]
struct Tool<'a> {
    name: String,
    #[serde(borrow, default)]
    annotations: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    read_only_hint: bool,
    idempotent_hint: bool,
}

impl Tools {
    pub fn new(trusted: bool, reads: Vec<String>, idempotent: Vec<String>) -> Tools {
        Tools { trusted, reads, idempotent, hinted: HashMap::new() }
    }

    /// Reads the hints about the tools from the server's answer to `tools/list`.
    pub fn learn(&mut self, result: &RawValue) {
        let Ok(list) = serde_json::from_str::<List<'_>>(result.get()) else { return };
        for tool in list.tools {
            let hints = tool.annotations.and_then(|a| serde_json::from_str::<Hints>(a.get()).ok());
            let hints = hints.unwrap_or_default();
            let manner = match (hints.read_only_hint, hints.idempotent_hint) {
                (true, _) => Manner::Reads,
                (false, true) => Manner::Idempotent,
                (false, false) => Manner::Acts,
            };
            self.hinted.insert(tool.name, manner);
        }
    }

    /// Returns the manner of a tool. Settings take precedence over a trusted server's hints; without either it is
    /// `Acts`.
    pub fn manner(&self, tool: &str) -> Manner {
        let names = |patterns: &[String]| {
            patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => tool.starts_with(start),
                None => pattern == tool,
            })
        };
        if names(&self.reads) {
            return Manner::Reads;
        }
        if names(&self.idempotent) {
            return Manner::Idempotent;
        }
        self.hinted.get(tool).copied().filter(|_| self.trusted).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_count_for_trusted_servers_and_settings_count_before_them() {
        let list = r#"{"tools":[{"name":"get","annotations":{"readOnlyHint":true}},
            {"name":"put","annotations":{"idempotentHint":true,"readOnlyHint":false}},{"name":"pay"},
            {"name":"odd","annotations":{"readOnlyHint":"yes"}}]}"#;
        let raw: &RawValue = serde_json::from_str(list).unwrap();
        let check = |trusted: bool, reads: &[&str], idempotent: &[&str], wanted: [Manner; 4]| {
            let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect();
            let mut tools = Tools::new(trusted, texts(reads), texts(idempotent));
            tools.learn(raw);
            assert_eq!(["get", "put", "pay", "odd"].map(|t| tools.manner(t)), wanted);
        };
        use Manner::{Acts, Idempotent, Reads};
        check(false, &[], &[], [Acts; 4]);
        check(true, &[], &[], [Reads, Idempotent, Acts, Acts]);
        check(false, &["p*"], &["get", "pay"], [Idempotent, Reads, Reads, Acts]);
        check(true, &["pay"], &[], [Reads, Idempotent, Reads, Acts]);
    }
}
