//! Variables of a command: the file of `--env-file`, and the names that a run began with.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::settings::surroundings::Surroundings;

/// Names and beginnings of names that a session sets for itself. That they are missing in another session says nothing
/// about the command.
const OF_A_SESSION: &str = "\
    ALACRITTY_ COLORFGBG COLORTERM COLUMNS DBUS_ DESKTOP_ DISPLAY GDM GNOME_ GPG_ INVOCATION_ID \
    JOURNAL_STREAM KITTY_ KONSOLE_ LC_ LESS LINES LISTEN_ LS_COLORS MAIL MANAGERPID NOTIFY_SOCKET OLDPWD \
    OUTLAST_ PS1 PWD QT_ SESSION_ SHLVL SSH_ STY SYSTEMD_ TERM TERM_ TMUX TMUX_ VSCODE_ VTE_VERSION \
    WEZTERM_ WINDOW WINDOWID XDG_ ZELLIJ ZELLIJ_ _";

/// Error of a file of `--env-file` that is not accepted.
#[derive(Debug, thiserror::Error)]
#[error("--env-file {}: {why}; nothing was started", .path.display())]
pub struct Error {
    path: PathBuf,
    why: String,
}

/// Reads a file of `NAME=VALUE` lines. `export` and quotes are allowed, `#` begins a comment line.
///
/// Errors: the file cannot be read; a line is not `NAME=VALUE`, or sets a variable of Outlast's own. Errors quote no
/// value.
pub fn read(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let bad = |why: String| Error { path: path.to_owned(), why };
    let text = fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let mut found = BTreeMap::new();
    for (number, pair) in assignments(&text) {
        let pair = pair.filter(|(name, value)| is_name(name) && !value.contains('\0'));
        let why = || format!("line {number} is not NAME=VALUE, or sets a variable of Outlast's own");
        let (name, value) = pair.ok_or_else(|| bad(why()))?;
        found.insert(name.to_owned(), value.to_owned());
    }
    Ok(found)
}

fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    plain
        && !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("OUTLAST_")
}

/// Returns the lines of a file that sets variables, each with its number, and its name and value if it is NAME=VALUE.
/// Blank lines and comments are passed over, `export` and quotes are taken off.
pub(super) fn assignments(text: &str) -> impl Iterator<Item = (usize, Option<(&str, &str)>)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(i, line)| {
        let line = line.strip_prefix("export ").unwrap_or(line);
        (i + 1, line.split_once('=').map(|(name, value)| (name.trim(), unquoted(value.trim()))))
    })
}

/// Returns the value without the quotes around it, if it has some.
fn unquoted(value: &str) -> &str {
    let inside = |q: char| value.strip_prefix(q)?.strip_suffix(q);
    inside('"').or_else(|| inside('\'')).unwrap_or(value)
}

/// Returns the names of all variables in `around`, except those of a terminal session.
pub fn names(around: &Surroundings) -> Vec<String> {
    let all = around.variables().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = all.filter(|name| !is_of_a_session(name)).collect();
    names.sort_unstable();
    names
}

fn is_of_a_session(name: &str) -> bool {
    OF_A_SESSION.split(' ').any(|word| match word.ends_with('_') && word != "_" {
        true => name.starts_with(word),
        false => name == word,
    })
}

/// Returns the `names` that are neither set in `around` nor in `kept`, except those of a terminal session, which runs
/// kept once.
pub fn missing(names: &[String], kept: &BTreeMap<String, String>, around: &Surroundings) -> Vec<String> {
    let is_here = |name: &String| around.is_set(name) || kept.contains_key(name);
    names.iter().filter(|name| !is_here(name) && !is_of_a_session(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_variables_is_read_or_refused_by_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("env");
        let check = |text: &str, wanted: Result<&[(&str, &str)], &str>| {
            fs::write(&path, text).unwrap();
            match (read(&path), wanted) {
                (Ok(found), Ok(wanted)) => {
                    let found: Vec<(&str, &str)> =
                        found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                    assert_eq!(found, wanted, "{text}");
                }
                (Err(e), Err(wanted)) => {
                    let told = e.to_string();
                    assert!(told.contains(wanted) && !told.contains("s3cret"), "{told}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        check("# mine\nexport A='x y'\n\nB = \"\"\nC=a=b", Ok(&[("A", "x y"), ("B", ""), ("C", "a=b")]));
        check("A=1\ns3cret", Err("line 2 is not NAME=VALUE"));
        check("OUTLAST_STORE=s3cret", Err("line 1"));
        check("1A=s3cret", Err("line 1"));
    }

    #[test]
    fn what_is_missing_is_what_neither_the_session_nor_the_run_has() {
        let began = Surroundings::new(
            &[
                ("PATH", "/bin"),
                ("AWS_PROFILE", "a"),
                ("DB", "x"),
                ("KEPT", "y"),
                ("SSH_TTY", "t"),
                ("TERM_PROGRAM", "tmux"),
                ("TMUX_PANE", "%0"),
                ("PWD", "/"),
            ],
            Path::new("/"),
        );
        let names = names(&began);
        assert_eq!(names, ["AWS_PROFILE", "DB", "KEPT", "PATH"]);
        let kept = [("KEPT".to_owned(), "y".to_owned()), ("PATH".to_owned(), "/bin".to_owned())].into();
        let now = Surroundings::new(&[("DB", "")], Path::new("/"));
        assert_eq!(missing(&names, &kept, &now), ["AWS_PROFILE"]);
        assert_eq!(missing(&["TMUX_PANE".into()], &kept, &now), [""; 0], "of a run of an earlier version");
    }
}
