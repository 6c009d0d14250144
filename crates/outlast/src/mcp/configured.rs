//! MCP servers at `/mcp/NAME`: `[mcp.NAME]` of the user's own `outlast.toml`.
//!
//! A directory's file may name none: it could have a command run, or have what an agent writes sent elsewhere.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
};

use outlast_server::mcp::remote::Target;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{host::Way, secrets::Secrets};
use crate::{
    agent::servers::{MAX_NAME, is_name},
    settings::{
        file::{self, Error},
        surroundings::Surroundings,
    },
};

/// Name of the table of MCP servers, which is also the command whose settings stand beside the servers.
pub const TABLE: &str = "mcp";

/// Environment variables that every server gets. Any other has to be named in the settings, because this process's
/// environment holds providers' keys.
const PASSED: [&str; 9] = ["HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"];

/// MCP server that is offered at `/mcp/NAME`.
#[derive(Clone, Debug)]
pub struct Server {
    pub way: Way,
    pub tools: Tools,
    /// Values that are not recorded: those of the variables and headers that it gets.
    pub secrets: Secrets,
}

/// MCP server as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    command: Option<Vec<String>>,
    /// Names of the variables that the server's command is given.
    #[serde(default)]
    env: Vec<String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Names of headers, each with the variable that holds the header's value.
    #[serde(default)]
    header_env: BTreeMap<String, String>,
    #[serde(default)]
    trust: bool,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    idempotent: Vec<String>,
}

/// Reads the tables `[mcp.NAME]`. Errors name the file and the key in it.
pub fn load(around: &Surroundings) -> Result<BTreeMap<String, Server>, Error> {
    let Some((path, table)) = file::own_tables(around, TABLE)? else { return Ok(BTreeMap::new()) };
    let mut servers = BTreeMap::new();
    for (name, value) in table {
        // Any other key is a setting of the command.
        let toml::Value::Table(written) = value else { continue };
        let read = server(&name, written, around);
        let read = read.map_err(|why| Error::bad(&path, format!("{TABLE}.{name}"), why))?;
        servers.insert(name, read);
    }
    Ok(servers)
}

fn server(name: &str, written: toml::Table, around: &Surroundings) -> Result<Server, String> {
    if !is_name(name) {
        return Err(format!("its name: wanted 1 to {MAX_NAME} of A-Z a-z 0-9 . _ -"));
    }
    let written: Written = file::read_as(toml::Value::Table(written))?;
    let tools = Tools::new(written.trust, written.reads, written.idempotent);
    let has_headers = !written.headers.is_empty() || !written.header_env.is_empty();
    let mut secrets = Secrets::default();
    let way = match (written.command, written.url) {
        (Some(argv), None) if !argv.is_empty() && !has_headers => {
            let passed = PASSED.iter().filter_map(|name| Some((OsString::from(name), around.var(name)?)));
            let mut variables: Vec<(OsString, OsString)> =
                passed.map(|(name, value)| (name, value.to_owned())).collect();
            for name in &written.env {
                let value = around.var(name).ok_or_else(|| format!("env: the variable {name} is not set"))?;
                variables.push((name.into(), value.to_owned()));
            }
            secrets = Secrets::of(variables.iter().cloned(), &written.env);
            Way::Command { argv: argv.into_iter().map(OsString::from).collect(), variables: Some(variables) }
        }
        (None, Some(url)) if written.env.is_empty() => {
            let mut headers: Vec<(String, String)> = written.headers.into_iter().collect();
            for (header, name) in written.header_env {
                let value = around.var(&name).and_then(|value| value.to_str());
                let value = value.ok_or_else(|| format!("header_env: the variable {name} is not set"))?;
                headers.push((header, value.to_owned()));
            }
            secrets = secrets.with_headers(&headers);
            Way::Url(Target::new(&url, &headers).map_err(|e| format!("url: {e}"))?)
        }
        _ => return Err("wanted command (with env) or url (with headers, header_env), one of them".into()),
    };
    Ok(Server { way, tools, secrets })
}

// --- Treatment of a server's tools when the outcome of a call is unknown: by settings, or by the hints of a server
// that is trusted.

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
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Server, String> {
        let around = Surroundings::new(
            &[("PATH", "/bin"), ("OPENAI_API_KEY", "sk-1"), ("LOGIN", "Bearer x")],
            Path::new("/nowhere"),
        );
        server("mail", text.parse().unwrap(), &around)
    }

    #[test]
    fn a_command_gets_the_variables_that_are_named_and_no_keys() {
        let server =
            read("command = [\"mail\", \"--stdio\"]\nenv = [\"LOGIN\"]\nreads = [\"get_*\"]").unwrap();
        let Way::Command { argv, variables: Some(variables) } = server.way else { panic!("no command") };
        assert_eq!(argv, ["mail", "--stdio"]);
        let names: Vec<_> = variables.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["PATH", "LOGIN"]);
        assert_eq!(server.tools.reads, ["get_*"]);
    }

    #[test]
    fn a_server_is_a_command_or_a_url() {
        assert!(read("url = \"https://x\"\nheader_env = { Authorization = \"LOGIN\" }").is_ok());
        for (text, wanted) in [
            ("", "wanted command"),
            ("command = []", "wanted command"),
            ("command = [\"a\"]\nurl = \"https://x\"", "one of them"),
            ("command = [\"a\"]\nheaders = { A = \"b\" }", "one of them"),
            ("url = \"https://x\"\nenv = [\"PATH\"]", "one of them"),
            ("url = \"x\"", "wanted https://"),
            ("url = \"http://mail.example\"\nheaders = { A = \"b\" }", "https only"),
            ("command = [\"a\"]\nenv = [\"NOT_SET\"]", "NOT_SET is not set"),
            ("url = \"https://x\"\nheader_env = { A = \"NOT_SET\" }", "NOT_SET is not set"),
            ("command = [\"a\"]\ntoken = \"x\"", "unknown field"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(is_name("a.b-c_1") && !is_name("") && !is_name("a/b") && !is_name(&"x".repeat(65)));
    }

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
