//! MCP servers of Claude Code: its file of the person's servers, `.mcp.json` of a project, and `--mcp-config`.
//!
//! Measured with 2.1.197: `--mcp-config` overrides servers of the same name and keeps the others, the last file first;
//! a project's server is started where the person approved it, and without asking where nobody could be asked (`-p`);
//! `${VAR}` is expanded in commands, arguments and variables of every source.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{
    AT_A_URL, Handed, NOT_APPROVED, ODD, RESTRICTED, Servers, StartContext, UNREADABLE, names, settings,
    text, texts, upwards,
};

/// Options of a command line that decide which servers Claude Code starts.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Values of `--mcp-config`: files, or JSON.
    pub given: Vec<String>,
    /// Whether servers of `given` are the only ones.
    pub strict: bool,
    /// Value of `--setting-sources`; `None`: all sources.
    pub sources: Option<String>,
    /// Value of `--settings`: a file, or JSON.
    pub settings: Option<String>,
}

/// Settings that allow or deny servers by their commands. They would no longer fit a command with a recorder in front.
const RESTRICTING: [&str; 4] =
    ["allowedMcpServers", "deniedMcpServers", "allowManagedMcpServersOnly", "strictPluginOnlyCustomization"];

/// Source of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The person's own settings, or the command line.
    Own,
    /// `.mcp.json`: whether the person approved the server.
    Project { approved: bool },
}

/// Reads the servers that Claude Code would start, and those that are recorded.
pub fn servers(asked: &ServerOptions, place: StartContext<'_>) -> Servers {
    let files = Files::of(place);
    // Where the machine has servers of its own, Claude Code refuses any other configuration.
    if files.machine.join("managed-mcp.json").exists() {
        return Servers::default();
    }
    let mut servers = Servers::default();
    let found = match files.found(asked) {
        Ok(found) => found,
        Err(name) => {
            servers.told.leave(&name, UNREADABLE);
            return servers;
        }
    };
    let restricted = files.restrict(asked);
    let mut handed = Map::new();
    for (name, (mut entry, source)) in found {
        let why = match (restricted, source, kind(&entry)) {
            (_, _, Kind::Url) => Some(AT_A_URL),
            (_, _, Kind::Odd) => Some(ODD),
            (true, ..) => Some(RESTRICTED),
            (_, Source::Project { approved: false }, _) => Some(NOT_APPROVED),
            _ => None,
        };
        let variables: Vec<String> = names(&entry["env"]).collect();
        if let Some(recorded) = servers.record(place.program, (&name, &entry), why, &variables) {
            entry["command"] = recorded.command.into();
            entry["args"] = recorded.arguments.into();
            handed.insert(name, entry);
        }
    }
    if !handed.is_empty() {
        servers.handed = Handed::File(json!({"mcpServers": handed}));
    }
    servers
}

enum Kind {
    Command,
    Url,
    Odd,
}

fn kind(entry: &Value) -> Kind {
    match (entry["type"].as_str(), entry["command"].is_string(), entry["url"].is_string()) {
        (None | Some("stdio"), true, _) => Kind::Command,
        (_, _, true) => Kind::Url,
        _ => Kind::Odd,
    }
}

/// Files that Claude Code reads.
struct Files<'a> {
    place: StartContext<'a>,
    /// Directory of the person's settings: `~/.claude`.
    own: PathBuf,
    /// File with the person's servers and projects: `~/.claude.json`.
    global: PathBuf,
    /// Directory of the machine's settings.
    machine: PathBuf,
}

type Found = std::collections::BTreeMap<String, (Value, Source)>;

impl<'a> Files<'a> {
    fn of(place: StartContext<'a>) -> Files<'a> {
        let home = place.around.home().unwrap_or_default();
        let directory = place.around.var("CLAUDE_CONFIG_DIR").map(PathBuf::from);
        let own = directory.clone().unwrap_or_else(|| home.join(".claude"));
        let older = own.join(".config.json");
        let global = if older.exists() { older } else { directory.unwrap_or(home).join(".claude.json") };
        Files { place, own, global, machine: place.machine.join("claude-code") }
    }

    /// Finds each server by name, with the definition that Claude Code would take. The error names what cannot be read.
    fn found(&self, asked: &ServerOptions) -> Result<Found, String> {
        let mut found = Found::new();
        let has = |source: &str| {
            asked.sources.as_ref().is_none_or(|list| list.split(',').any(|named| named.trim() == source))
        };
        let mut add = |servers: &Value, source: Source| {
            for (name, entry) in servers.as_object().into_iter().flatten() {
                found.insert(name.clone(), (entry.clone(), source));
            }
        };
        if !asked.strict {
            let global = object(&self.global)?;
            let project = &global["projects"][self.key().to_string_lossy().as_ref()];
            if has("user") {
                add(&global["mcpServers"], Source::Own);
            }
            if has("project") {
                let consent = Consent::read(self, project, &has)?;
                // The nearest file counts.
                let mut files: Vec<PathBuf> =
                    upwards(self.place.directory).map(|d| d.join(".mcp.json")).collect();
                files.reverse();
                for file in files {
                    for (name, entry) in object(&file)?["mcpServers"].as_object().into_iter().flatten() {
                        if !consent.denies(name) {
                            let source = Source::Project { approved: consent.approves(name) };
                            add(&json!({name: entry}), source);
                        }
                    }
                }
            }
            if has("local") {
                add(&project["mcpServers"], Source::Own);
            }
            let off: Vec<String> = texts(&project["disabledMcpServers"]).unwrap_or_default();
            found.retain(|name, _| !off.iter().any(|off| is_same(off, name)));
        }
        for given in &asked.given {
            let servers = match given.trim_start().starts_with('{') {
                true => serde_json::from_str(given).map_err(|_| "--mcp-config".to_owned())?,
                false => object(&self.place.directory.join(given))?,
            };
            for (name, entry) in servers["mcpServers"].as_object().into_iter().flatten() {
                found.insert(name.clone(), (entry.clone(), Source::Own));
            }
        }
        Ok(found)
    }

    /// Returns the name under which Claude Code knows the project: the directory of its git repository, else its own.
    fn key(&self) -> PathBuf {
        let mut directories = upwards(self.place.directory);
        let own = directories.next().unwrap_or_default();
        let root = [own.clone()].into_iter().chain(directories).find(|d| d.join(".git").exists());
        let Some(root) = root else { return own };
        // A worktree's file names the directory of its repository.
        let linked = text(&root.join(".git")).ok().flatten().and_then(|text| {
            let path = text.strip_prefix("gitdir:")?.trim().to_owned();
            Some(PathBuf::from(path.split_once("/.git/worktrees/")?.0))
        });
        linked.unwrap_or(root)
    }

    /// Tells whether any settings judge servers by their commands. Settings that cannot be read might.
    fn restrict(&self, asked: &ServerOptions) -> bool {
        let mut files =
            vec![self.machine.join("managed-settings.json"), self.own.join("remote-settings.json")];
        files.extend(["settings.json", "settings.local.json"].map(|name| self.own.join(name)));
        let more = std::fs::read_dir(self.machine.join("managed-settings.d"));
        files.extend(more.into_iter().flatten().flatten().map(|entry| entry.path()));
        for directory in upwards(self.place.directory) {
            files.extend(["settings.json", "settings.local.json"].map(|n| directory.join(".claude").join(n)));
        }
        let mut texts: Vec<Option<String>> = Vec::new();
        match &asked.settings {
            Some(given) if given.trim_start().starts_with('{') => texts.push(Some(given.clone())),
            Some(given) => files.push(self.place.directory.join(given)),
            None => {}
        }
        texts.extend(files.iter().map(|file| text(file).unwrap_or_else(|_| Some(RESTRICTING[0].to_owned()))));
        texts.iter().flatten().any(|text| RESTRICTING.iter().any(|key| text.contains(key)))
    }
}

/// Reads a file of JSON; `null` if it does not exist. The error names the file.
fn object(path: &Path) -> Result<Value, String> {
    settings(path, |text| serde_json::from_str(text).ok())
}

/// Answers that the person gave about servers of `.mcp.json`.
#[derive(Default)]
struct Consent {
    all: bool,
    approved: Vec<String>,
    denied: Vec<String>,
}

impl Consent {
    /// Reads what the person said in their own settings, and, once they trust the directory, in its
    /// `.claude/settings.local.json`, where Claude Code keeps its answers. Any file may deny.
    fn read(files: &Files<'_>, project: &Value, has: &dyn Fn(&str) -> bool) -> Result<Consent, String> {
        let mut consent = Consent::default();
        let here = files.place.directory.join(".claude");
        let own = object(&files.own.join("settings.json"))?;
        let local = object(&here.join("settings.local.json"))?;
        let is_trusted = project["hasTrustDialogAccepted"] == true;
        for (settings, counts) in [(&own, has("user")), (&local, has("local") && is_trusted)] {
            if counts {
                consent.all |= settings["enableAllProjectMcpServers"] == true;
                consent.approved.extend(texts(&settings["enabledMcpjsonServers"]).unwrap_or_default());
            }
        }
        let shared = object(&here.join("settings.json"))?;
        for settings in [&own, &local, &shared, project] {
            consent.denied.extend(texts(&settings["disabledMcpjsonServers"]).unwrap_or_default());
        }
        Ok(consent)
    }

    fn approves(&self, name: &str) -> bool {
        self.all || self.approved.iter().any(|approved| approved == name)
    }

    fn denies(&self, name: &str) -> bool {
        self.denied.iter().any(|denied| is_same(denied, name))
    }
}

/// Returns whether two names are one for Claude Code, which takes any odd character for `_`.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> String {
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
    };
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::surroundings::Surroundings;

    /// A home directory, a project in it, and what the machine says.
    struct Bed(tempfile::TempDir);

    impl Bed {
        fn new() -> Bed {
            let bed = Bed(tempfile::tempdir().unwrap());
            bed.file("project/.git/HEAD", "");
            bed.file("project/sub/x", "");
            bed
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn file(&self, name: &str, text: &str) {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace("PROJECT", self.path("project").to_str().unwrap())).unwrap();
        }

        fn servers(&self, asked: &ServerOptions) -> Servers {
            let home = self.path("");
            let around = Surroundings::new(&[("HOME", home.to_str().unwrap())], &home);
            let place = StartContext {
                around: &around,
                directory: &self.path("project/sub"),
                machine: &self.path("etc"),
                program: Path::new("/o/outlast"),
            };
            servers(asked, place)
        }

        /// Checks the line that is told of the servers, and the words of each server that is handed over.
        fn check(&self, asked: &ServerOptions, told: Option<&str>, handed: &[&str]) {
            let servers = self.servers(asked);
            assert_eq!(servers.told.words().as_deref(), told);
            let Handed::File(file) = servers.handed else {
                return assert!(handed.is_empty(), "nothing handed");
            };
            let lines: Vec<String> = file["mcpServers"]
                .as_object()
                .unwrap()
                .values()
                .map(|s| {
                    format!("{} {}", s["command"].as_str().unwrap(), texts(&s["args"]).unwrap().join(" "))
                })
                .collect();
            assert_eq!(lines, handed);
        }
    }

    const GLOBAL: &str = r#"{"mcpServers": {"mail": {"command": "user-mail", "args": ["-x"], "env": {"T": "${T}"}, "timeout": 9},
        "issues": {"type": "http", "url": "https://x"}}, "projects": {"PROJECT": {"mcpServers": {"files": {"command": "local-files"}}}}}"#;

    #[test]
    fn the_persons_own_servers_are_recorded_and_those_at_a_url_are_left() {
        let bed = Bed::new();
        bed.check(&ServerOptions::default(), None, &[]);
        bed.file(".claude.json", GLOBAL);
        let told = Some("MCP servers: files, mail recorded; not recorded issues (at a URL)");
        bed.check(
            &ServerOptions::default(),
            told,
            &[
                "/o/outlast mcp --name files -- local-files",
                "/o/outlast mcp --name mail --hide-env T -- user-mail -x",
            ],
        );
        let Handed::File(file) = bed.servers(&ServerOptions::default()).handed else { panic!() };
        let mail = &file["mcpServers"]["mail"];
        assert_eq!((&mail["env"]["T"], &mail["timeout"]), (&json!("${T}"), &json!(9)), "the rest stays");
        let user = ServerOptions { sources: Some("user".into()), ..ServerOptions::default() };
        bed.check(
            &user,
            Some("MCP servers: mail recorded; not recorded issues (at a URL)"),
            &["/o/outlast mcp --name mail --hide-env T -- user-mail -x"],
        );
    }

    #[test]
    fn a_projects_server_is_recorded_only_where_the_person_approved_it() {
        let project = r#"{"mcpServers": {"mail": {"command": "project-mail"}, "build": {"command": "b"}}}"#;
        let of = |files: &[(&str, &str)], told: &str| {
            let bed = Bed::new();
            bed.file(".claude.json", r#"{"mcpServers": {"mail": {"command": "user-mail"}}}"#);
            bed.file("project/.mcp.json", project);
            files.iter().for_each(|(name, text)| bed.file(name, text));
            assert_eq!(
                bed.servers(&ServerOptions::default()).told.words().as_deref(),
                Some(told),
                "{files:?}"
            );
        };
        let none = "MCP servers: not recorded build (not approved in your own settings), \
                    mail (not approved in your own settings)";
        let build = "MCP servers: build recorded; not recorded mail (not approved in your own settings)";
        let yes = r#"{"enabledMcpjsonServers": ["build"]}"#;
        of(&[], none);
        of(&[(".claude/settings.json", yes)], build);
        // What a checkout brings along is nobody's answer.
        of(&[("project/sub/.claude/settings.json", yes)], none);
        of(&[("project/sub/.claude/settings.local.json", yes)], none);
        let trusted = r#"{"projects": {"PROJECT": {"hasTrustDialogAccepted": true}}}"#;
        of(&[("project/sub/.claude/settings.local.json", yes), (".claude.json", trusted)], build);
        of(&[("project/sub/.claude/settings.json", yes), (".claude.json", trusted)], none);
        of(
            &[(
                ".claude/settings.json",
                r#"{"enableAllProjectMcpServers": true, "disabledMcpjsonServers": ["build"]}"#,
            )],
            "MCP servers: mail recorded",
        );
    }

    #[test]
    fn the_command_lines_servers_come_last_and_may_be_the_only_ones() {
        let bed = Bed::new();
        bed.file(".claude.json", GLOBAL);
        bed.file("project/sub/one.json", r#"{"mcpServers": {"mail": {"command": "one"}}}"#);
        let given = vec!["one.json".to_owned(), r#"{"mcpServers": {"mail": {"command": "two"}}}"#.to_owned()];
        let strict = ServerOptions { given: given.clone(), strict: true, ..ServerOptions::default() };
        bed.check(&strict, Some("MCP servers: mail recorded"), &["/o/outlast mcp --name mail -- two"]);
        let beside = ServerOptions { given, ..ServerOptions::default() };
        assert_eq!(bed.servers(&beside).told.recorded, ["files", "mail"]);
        let gone = ServerOptions {
            given: vec!["gone".into(), "{".into()],
            strict: true,
            ..ServerOptions::default()
        };
        bed.check(&gone, Some("MCP servers: not recorded --mcp-config (its settings cannot be read)"), &[]);
    }

    #[test]
    fn a_server_that_the_person_switched_off_is_not_switched_on() {
        let bed = Bed::new();
        let off =
            GLOBAL.replace(r#""files": {"command": "local-files"}}"#, r#"}, "disabledMcpServers": ["mail"]"#);
        bed.file(".claude.json", &off);
        bed.check(&ServerOptions::default(), Some("MCP servers: not recorded issues (at a URL)"), &[]);
    }

    #[test]
    fn where_servers_are_judged_by_their_commands_all_are_left() {
        let list = r#"{"deniedMcpServers": [{"serverCommand": ["user-mail", "-x"]}]}"#;
        for name in [
            "etc/claude-code/managed-settings.json",
            ".claude/settings.json",
            "project/.claude/settings.json",
        ] {
            let bed = Bed::new();
            bed.file(".claude.json", GLOBAL);
            bed.file(name, list);
            let told = bed.servers(&ServerOptions::default()).told;
            assert_eq!((told.recorded.len(), told.left["mail"].as_str()), (0, RESTRICTED), "{name}");
        }
        let bed = Bed::new();
        bed.file(".claude.json", GLOBAL);
        let given = ServerOptions { settings: Some(list.into()), ..ServerOptions::default() };
        assert_eq!(bed.servers(&given).told.recorded.len(), 0);
        bed.file("etc/claude-code/managed-mcp.json", "{}");
        assert_eq!(bed.servers(&ServerOptions::default()), Servers::default());
    }

    #[test]
    fn a_worktree_is_known_by_its_repository() {
        let bed = Bed::new();
        fs::remove_dir_all(bed.path("project/.git")).unwrap();
        let main = bed.path("main");
        bed.file("project/.git", &format!("gitdir: {}/.git/worktrees/w\n", main.display()));
        bed.file(".claude.json", &GLOBAL.replace("PROJECT", main.to_str().unwrap()));
        assert_eq!(bed.servers(&ServerOptions::default()).told.recorded, ["files", "mail"]);
    }

    #[test]
    fn a_broken_file_leaves_everything_to_claude_code() {
        let bed = Bed::new();
        bed.file(".claude.json", GLOBAL);
        bed.file("project/.mcp.json", "{");
        bed.check(
            &ServerOptions::default(),
            Some("MCP servers: not recorded .mcp.json (its settings cannot be read)"),
            &[],
        );
    }
}
