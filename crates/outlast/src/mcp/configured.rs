//! MCP servers at `/mcp/NAME`: `[mcp.NAME]` of the user's own `outlast.toml`.
//!
//! A directory's file may name none: it could have a command run, or have what an agent writes sent elsewhere.

use std::{collections::BTreeMap, ffi::OsString};

use outlast_server::mcp::remote::Target;
use serde::Deserialize;

use super::{host::Way, secrets::Secrets, tools::Tools};
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
}
