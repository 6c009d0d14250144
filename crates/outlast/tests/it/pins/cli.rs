//! Commands, options and their values; exit statuses; variables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use crate::line::outlast;

use super::{codes, pin};

/// Completion script for bash: names and values, without prose.
#[test]
fn commands_and_options_keep_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let done = outlast(dir.path()).args(["completions", "bash"]).assert().success();
    let script = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    // `outlast__subcmd__state,keep)` names a command as it is typed: `-` and the separator read the same.
    let mut typed = BTreeMap::from([("outlast".to_owned(), "outlast".to_owned())]);
    let (mut of, mut option) = (String::new(), String::new());
    let mut found = BTreeSet::new();
    let mut paths: Vec<(String, String, String)> = Vec::new();
    for line in script.lines().map(str::trim) {
        if let Some((parent, word)) = line.strip_suffix(')').and_then(|l| l.split_once(',')) {
            paths.push((parent.to_owned(), word.to_owned(), String::new()));
        } else if let Some(name) = line.strip_prefix("cmd=\"").and_then(|l| l.strip_suffix('"'))
            && let Some(last) = paths.last_mut().filter(|p| p.2.is_empty())
        {
            last.2 = name.to_owned();
        }
    }
    // Parents come before their children when sorted by length.
    paths.sort_by_key(|(parent, _, name)| (parent.len(), name.clone()));
    for (parent, word, name) in paths {
        if let Some(parent) = typed.get(&parent).cloned() {
            typed.insert(name, format!("{parent} {word}"));
        }
    }
    for line in script.lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(')').filter(|l| typed.contains_key(*l)) {
            (of, option) = (typed[name].clone(), String::new());
        } else if let Some(name) = line.strip_suffix(')').filter(|l| l.starts_with('-')) {
            option = name.to_owned();
        } else if let Some(words) = line.strip_prefix("opts=\"").and_then(|l| l.strip_suffix('"')) {
            let mut words: Vec<&str> = words.split(' ').collect();
            words.sort_unstable();
            if !of.is_empty() && !of.split(' ').any(|w| w == "help") {
                found.insert(format!("{of}: {}\n", words.join(" ")));
            }
        } else if line.starts_with("COMPREPLY=") && !option.is_empty() {
            let values = line.split("compgen -W \"").nth(1).and_then(|l| l.split('"').next());
            let values = values.filter(|v| !v.starts_with('$')).unwrap_or("VALUE");
            found.insert(format!("{of} {option}: {values}\n"));
            option.clear();
        }
    }
    assert!(found.len() > 200, "the script reads otherwise: {found:?}");
    pin("commands", &found.into_iter().collect::<String>());
}

/// Names of variables in the sources, and that a flag's variable is named after it.
#[test]
fn variables_keep_their_names() {
    let mut names = BTreeSet::new();
    for text in codes::sources(&["rs", "py", "sh"]) {
        for quote in ['"', '\'', '$', '{', '`'] {
            for rest in text.split(&format!("{quote}OUTLAST_")).skip(1) {
                let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c == '_')).unwrap_or(rest.len());
                if !rest[..end].is_empty() && !rest.starts_with("TEST_") {
                    names.insert(format!("OUTLAST_{}\n", &rest[..end]));
                }
            }
        }
    }
    // Words of messages that end in an underscore are beginnings of names, as OUTLAST_CTX_NAME.
    pin("variables", &names.into_iter().collect::<String>());
    let dir = tempfile::tempdir().unwrap();
    for (name, line) in
        [("OUTLAST_ADMIT_WAIT", "serve"), ("OUTLAST_SERVE_ADMIT_WAIT", "serve"), ("OUTLAST_LS_LIMIT", "ls")]
    {
        let done = outlast(dir.path()).arg(line).env(name, "nonsense").assert().code(2);
        let told = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(told.contains(name), "{name}: {told}");
    }
}

#[test]
fn exit_statuses_keep_their_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let mut told = String::new();
    let mut exits = |what: &str, line: &[&str], variables: &[(&str, &str)]| {
        let mut command = outlast(dir.path());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").envs(variables.iter().copied());
        let output = command.args(line).output().unwrap();
        writeln!(told, "{}  {what}", output.status.code().unwrap()).unwrap();
    };
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(dir.path().join("file"), "no program\n").unwrap();
    exits("store missing", &["ls"], &[]);
    exits("finished", &["run", "--run", "a", "--", "true"], &[]);
    exits("of no such run", &["show", "nobody"], &[]);
    exits("line", &["runn"], &[]);
    exits("setting", &["ls"], &[("OUTLAST_LIMIT", "x")]);
    exits("no place of a store", &["ls", "--store", "mysql://x"], &[]);
    exits("halted", &["run", "--run", "h", "--restarts", "0", "--", "sh", "-c", "kill -9 $$"], &[]);
    exits("halted, again", &["resume", "h"], &[]);
    exits("failed", &["run", "--run", "f", "--", "sh", "-c", "exit 65"], &[]);
    exits("not executable", &["run", "--run", "x", "--", &at("file")], &[]);
    exits("not found", &["run", "--run", "n", "--", "no-such-command"], &[]);
    exits("detached", &["run", "--run", "d", "-d", "--", "sh", "-c", "sleep 60"], &[]);
    exits("held", &["resume", "d"], &[]);
    exits("stopped", &["stop", "d"], &[]);
    exits("cancelled", &["cancel", "d"], &[]);
    exits("resumed though it was cancelled", &["resume", "d"], &[]);
    exits("interrupted", &["run", "--run", "i", "--", "sh", "-c", "kill -TERM $PPID; sleep 60"], &[]);
    exits("damage", &["verify", "--store", &at("file")], &[]);
    pin("exits", &told);
}
