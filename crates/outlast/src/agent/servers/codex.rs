//! MCP servers of Codex: `[mcp_servers]` of the person's `config.toml`.
//!
//! Measured with 0.169: `-c mcp_servers.NAME.command=…` replaces that member and keeps the others, before every file; a
//! project's `.codex/config.toml` counts in directories that are trusted; `-p NAME` adds `NAME.config.toml`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    AT_A_URL, Handed, ODD, OF_A_PROFILE, OF_THE_MACHINE, OF_THE_PROJECT, ON_THE_LINE, RESTRICTED, Servers,
    StartContext, UNREADABLE, names, settings, upwards,
};

const TABLE: &str = "mcp_servers";

/// Options of a command line that decide which servers Codex starts.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Keys that `-c KEY=…` sets.
    pub set: Vec<String>,
    pub profile: Option<String>,
}

/// Reads the servers that Codex would start, and those that are recorded.
pub fn servers(asked: &ServerOptions, place: StartContext<'_>) -> Servers {
    let mut servers = Servers::default();
    let Some(own) = place.around.expand("${CODEX_HOME:-~/.codex}") else { return servers };
    let machine = place.machine.join("codex");
    let read = |path: PathBuf| table(&path);
    let config = match read(own.join("config.toml")) {
        Ok(config) => config,
        Err(name) => {
            servers.told.leave(&name, UNREADABLE);
            return servers;
        }
    };
    // Where other files name a server too, which definition counts is Codex's affair.
    let of_file = |table: &Value| names(&table[TABLE]).collect();
    let mut others: Vec<(&str, Result<BTreeSet<String>, String>)> = Vec::new();
    for directory in upwards(place.directory).map(|d| d.join(".codex")).filter(|d| !is_same(d, &own)) {
        others.push((OF_THE_PROJECT, read(directory.join("config.toml")).map(|t| of_file(&t))));
    }
    if let Some(profile) = &asked.profile {
        others.push((OF_A_PROFILE, read(own.join(format!("{profile}.config.toml"))).map(|t| of_file(&t))));
    }
    let profiles = config["profiles"].as_object().into_iter().flatten();
    let in_profiles = profiles.flat_map(|(_, profile)| names(&profile[TABLE])).collect();
    others.push((OF_A_PROFILE, Ok(in_profiles)));
    others.push((OF_THE_MACHINE, read(machine.join("config.toml")).map(|t| of_file(&t))));
    let on_the_line = |key: &String| {
        let name = key.strip_prefix(TABLE)?.strip_prefix('.')?.split('.').next()?;
        Some(name.trim_matches('"').to_owned())
    };
    others.push((ON_THE_LINE, Ok(asked.set.iter().filter_map(on_the_line).collect())));
    let managed = ["requirements.toml", "managed_config.toml"].map(|name| machine.join(name));
    let managed = managed.into_iter().chain([own.join("managed_config.toml")]);
    let restricted = asked.set.iter().any(|key| key == TABLE)
        || managed.into_iter().any(|path| read(path).map_or(true, |t| t.get(TABLE).is_some()));
    let mut words = Vec::new();
    for (name, entry) in config[TABLE].as_object().into_iter().flatten() {
        if entry["enabled"] == false {
            continue;
        }
        let elsewhere = others.iter().find_map(|(why, names)| match names {
            Ok(names) if !names.contains(name) => None,
            // A file that cannot be read may name it.
            _ => Some(*why),
        });
        let is_command = entry["command"].is_string();
        let why = match (is_command, elsewhere) {
            (false, _) if !entry["url"].is_null() => Some(AT_A_URL),
            (false, _) => Some(ODD),
            (true, Some(why)) => Some(why),
            (true, None) => restricted.then_some(RESTRICTED),
        };
        if let Some(recorded) = servers.record(place.program, (name, entry), why, &variables(entry)) {
            // JSON's texts and lists of texts are TOML's, too.
            words.push(format!("{TABLE}.{name}.command={}", Value::from(recorded.command)));
            words.push(format!("{TABLE}.{name}.args={}", Value::from(recorded.arguments)));
        }
    }
    for (why, named) in others {
        for name in named.unwrap_or_default() {
            if !servers.told.left.contains_key(&name) {
                servers.told.leave(&name, why);
            }
        }
    }
    if !words.is_empty() {
        servers.handed = Handed::Words(words);
    }
    servers
}

/// Returns the names of the variables that a server's settings give it.
fn variables(entry: &Value) -> Vec<String> {
    let passed = entry["env_vars"].as_array().into_iter().flatten();
    names(&entry["env"]).chain(passed.filter_map(|name| name.as_str().map(str::to_owned))).collect()
}

/// Reads a file of TOML; `null` if it does not exist. The error names the file.
fn table(path: &Path) -> Result<Value, String> {
    settings(path, |text| serde_json::to_value(text.parse::<toml::Table>().ok()?).ok())
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().is_some_and(|one| Some(one) == other.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::surroundings::Surroundings;

    const CONFIG: &str = "[mcp_servers.mail]\ncommand = \"mail\"\nargs = [\"-x\", 'a \"b\"']\n\
        [mcp_servers.issues]\nurl = \"https://x\"\n[mcp_servers.off]\ncommand = \"off\"\nenabled = false\n\
        [mcp_servers.files]\ncommand = \"/o/outlast\"\nargs = [\"mcp\", \"--\", \"files\"]\n";

    fn check(files: &[(&str, &str)], asked: &ServerOptions, told: &str, words: &[&str]) {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in [(".codex/config.toml", CONFIG), ("project/sub/x", "")].iter().chain(files) {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let around = Surroundings::new(&[("HOME", home.path().to_str().unwrap())], home.path());
        let place = StartContext {
            around: &around,
            directory: &home.path().join("project/sub"),
            machine: &home.path().join("etc"),
            program: Path::new("/o/outlast"),
        };
        let servers = servers(asked, place);
        assert_eq!(servers.told.words().as_deref(), Some(told), "{files:?}");
        let handed = match servers.handed {
            Handed::Words(words) => words,
            _ => Vec::new(),
        };
        assert_eq!(handed, words, "{files:?}");
        for word in handed {
            word.parse::<toml::Table>().unwrap();
        }
    }

    #[test]
    fn the_persons_servers_are_recorded_by_two_settings_each() {
        check(
            &[],
            &ServerOptions::default(),
            "MCP servers: files, mail recorded; not recorded issues (at a URL)",
            &[
                "mcp_servers.mail.command=\"/o/outlast\"",
                r#"mcp_servers.mail.args=["mcp","--name","mail","--","mail","-x","a \"b\""]"#,
            ],
        );
    }

    #[test]
    fn a_server_that_is_named_elsewhere_too_is_left_to_codex() {
        let left =
            |why: &str| format!("MCP servers: files recorded; not recorded issues (at a URL), mail ({why})");
        let again = "[mcp_servers.mail]\ncommand = \"other\"\n";
        for (file, why) in [
            ("project/.codex/config.toml", OF_THE_PROJECT),
            (".codex/p.config.toml", OF_A_PROFILE),
            ("etc/codex/config.toml", OF_THE_MACHINE),
        ] {
            let asked = ServerOptions { profile: Some("p".into()), ..ServerOptions::default() };
            check(&[(file, again)], &asked, &left(why), &[]);
        }
        let asked = ServerOptions { set: vec!["mcp_servers.mail.args".into()], ..ServerOptions::default() };
        check(&[], &asked, &left(ON_THE_LINE), &[]);
        check(
            &[("etc/codex/requirements.toml", "[mcp_servers.mail.identity]\ncommand = \"mail\"\n")],
            &ServerOptions::default(),
            "MCP servers: not recorded files (your settings say which servers are allowed), issues (at a URL), \
             mail (your settings say which servers are allowed)",
            &[],
        );
    }

    #[test]
    fn a_broken_file_leaves_what_it_might_name_to_codex() {
        check(
            &[(".codex/config.toml", "[")],
            &ServerOptions::default(),
            "MCP servers: not recorded config.toml (its settings cannot be read)",
            &[],
        );
        check(
            &[("project/.codex/config.toml", "[")],
            &ServerOptions::default(),
            "MCP servers: not recorded files (in the project's settings), issues (at a URL), \
             mail (in the project's settings)",
            &[],
        );
    }
}
