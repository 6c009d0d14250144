//! Tool rules of a policy: the tools a run may call, and those that need a person's approval.

use serde::{Deserialize, Serialize};

/// Tool rules of a named policy. A run keeps the rules it was created with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Name of the policy.
    pub policy: String,
    /// Tools that may be called; `None` allows any. A name that ends in `*` matches every tool with that
    /// prefix. `SERVER/TOOL` is a server's tool; a name without a slash is the tool of any server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tool calls that need an approval first; none, if empty.
    pub require: Vec<Requirement>,
}

/// Kind of tool call that needs an approval. Every member that is set has to match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Requirement {
    /// Tool name or pattern, as in [`Rules::tools`]; `None` matches any tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Side effect; `None` matches any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side_effect: Option<String>,
}

impl Rules {
    /// Returns whether the tool may be called at all.
    pub fn allows(&self, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.iter().any(|pattern| fits(pattern, tool)))
    }

    /// Returns whether a person has to be asked under `rules`. Without rules, a person is asked about every call,
    /// except one that states that it has no side effect: an empty one.
    pub fn ask_for(rules: Option<&Rules>, tool: &str, side_effect: Option<&str>) -> bool {
        rules.map_or(side_effect != Some(""), |rules| rules.requires(tool, side_effect))
    }

    /// Returns whether a rule requires an approval for the call. A call that states no side effect matches
    /// any, so that leaving it out evades no rule.
    fn requires(&self, tool: &str, side_effect: Option<&str>) -> bool {
        self.require.iter().any(|r| {
            r.tool.as_deref().is_none_or(|pattern| fits(pattern, tool))
                && r.side_effect.as_deref().is_none_or(|wanted| side_effect.is_none_or(|had| had == wanted))
        })
    }
}

/// Tells whether a pattern names the tool. A pattern without a slash names the tool of any server: a rule for `pay` holds
/// for `bank/pay`.
fn fits(pattern: &str, tool: &str) -> bool {
    let names = |tool: &str| match pattern.strip_suffix('*') {
        Some(start) => tool.starts_with(start),
        None => pattern == tool,
    };
    let own = tool.split_once('/').map(|(_, own)| own).filter(|_| !pattern.contains('/'));
    names(tool) || own.is_some_and(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let one = |tool: Option<&str>, side_effect: Option<&str>| Requirement {
            tool: tool.map(str::to_owned),
            side_effect: side_effect.map(str::to_owned),
        };
        Rules {
            policy: "careful".into(),
            tools: Some(vec!["search".into(), "db_*".into(), "pay".into()]),
            require: vec![
                one(Some("db_drop"), None),
                one(None, Some("external")),
                one(Some("pay*"), Some("write")),
            ],
        }
    }

    #[test]
    fn a_tool_is_allowed_by_its_name_or_its_beginning() {
        let check = |tool: &str, allowed: bool| assert_eq!(rules().allows(tool), allowed, "{tool}");
        check("search", true);
        check("searching", false);
        check("db_read", true);
        check("db_", true);
        check("db", false);
        check("", false);
        check("web/search", true);
        check("web/searching", false);
        check("search/web", false);
        assert!(Rules::default().allows("anything"));
        assert!(!Rules { tools: Some(Vec::new()), ..Rules::default() }.allows("anything"));
    }

    #[test]
    fn a_person_is_asked_where_all_that_a_requirement_names_fits() {
        let check = |tool: &str, effect: Option<&str>, asked: bool| {
            assert_eq!(rules().requires(tool, effect), asked, "{tool} {effect:?}");
        };
        check("db_drop", Some("read"), true);
        check("db_read", Some("read"), false);
        check("db_read", Some("external"), true);
        check("search", None, true);
        check("pay", Some("write"), true);
        check("pay", Some("read"), false);
        check("bank/pay", None, true);
        check("bank/db_drop", Some("read"), true);
        check("db_drop", Some(""), true);
        check("search", Some(""), false);
        assert!(!Rules::default().requires("pay", None));
        let unruled = |effect: Option<&str>| Rules::ask_for(None, "pay", effect);
        assert!(unruled(None) && unruled(Some("read")) && !unruled(Some("")));
    }
}
