//! The git checkout of a directory: its branch, and the commits that were made in it.
//!
//! An agent may have written all of it, its settings too. The branch is read off git's own files, and git is run so that
//! it starts no program that these settings name, asks nobody over the network, and is ended if it hangs. (A submodule's own
//! filters are not switched off.)

use std::{
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use outlast_core::words::Micros;
use outlast_process::reap::Helper;

use crate::render::time;

/// Longest time for which git may work.
const LONGEST: Duration = Duration::from_secs(30);

/// Most bytes of its answer that are read, and most commits that are told.
const BYTES: u64 = 16 << 20;
const COMMITS: &str = "50";

/// Most bytes of one of git's files that are read.
const HEAD: u64 = 4096;

/// Environment variables that git is given.
const KEPT: [&str; 3] = ["PATH", "HOME", "XDG_CONFIG_HOME"];

/// Branch or commit that is checked out in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Name of the branch; the beginning of the commit's id where no branch is.
    pub name: String,
    /// Whether the directory is in a worktree beside the repository's own.
    pub is_worktree: bool,
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.is_worktree { " (worktree)" } else { "" })
    }
}

/// Commits of a span of time, newest first, and the files that they changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commits {
    /// Each with the beginning of its id and its subject.
    pub commits: Vec<String>,
    pub files: Vec<String>,
}

/// Returns what is checked out in a directory now; `None` if it is in no checkout, or is not there.
pub fn branch(directory: &Path) -> Option<Branch> {
    let git = directory.ancestors().map(|at| at.join(".git")).find(|git| git.exists())?;
    // A worktree has a file that names its directory below the repository's.
    let (git, is_worktree) = match small(&git) {
        Some(text) => {
            let own = PathBuf::from(text.strip_prefix("gitdir:")?.trim());
            (git.parent()?.join(own), text.contains("/worktrees/"))
        }
        None => (git, false),
    };
    let head = small(&git.join("HEAD"))?;
    let head = head.trim();
    let name = match head.strip_prefix("ref: ") {
        Some(name) => name.strip_prefix("refs/heads/").unwrap_or(name),
        None => head.get(..8)?,
    };
    Some(Branch { name: name.to_owned(), is_worktree })
}

/// Returns the id of the commit that is checked out in a directory; `None` without git or a commit.
pub fn head(directory: &Path) -> Option<String> {
    branch(directory)?;
    git(directory, &["rev-parse", "--verify", "--quiet", "HEAD"]).map(|id| id.trim().to_owned())
}

/// Returns the commits that were made between two moments on what is checked out in a directory, without those that `head`
/// has: git's times are whole seconds. None without git, or where it is in no checkout.
pub fn commits(directory: &Path, head: Option<&str>, since: Micros, until: Micros) -> Commits {
    let (since, until) = (time::utc(since), time::utc(until));
    let (since, until) = (format!("--since={since} +0000"), format!("--until={until} +0000"));
    // A commit's line begins with a character that no path in git's answer has.
    let words =
        ["log", &since, &until, "-n", COMMITS, "--no-decorate", "--no-show-signature", "--no-ext-diff"];
    let words = [words.as_slice(), &["--name-only", "--format=%x01%h %s", "HEAD"]].concat();
    // A run may work in another checkout by now, which does not have that commit.
    let not = head.map(|head| format!("^{head}"));
    let told = not.and_then(|not| git(directory, &[words.as_slice(), &[&*not]].concat()));
    let told = told.or_else(|| git(directory, &words)).unwrap_or_default();
    let mut found = Commits::default();
    for line in told.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix('\u{1}') {
            Some(commit) => found.commits.push(commit.to_owned()),
            None if !found.files.iter().any(|file| file == line) => found.files.push(line.to_owned()),
            None => {}
        }
    }
    found
}

/// Returns what `git status` prints. Errors: one line that says why there is nothing.
///
/// A changed file goes through the filter that its attributes name, which is a program of the repository's settings: each
/// is switched off. What differs is then told by the file as it is.
pub fn status(directory: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let settings = output(directory, &["config", "--null", "--name-only", "--list"])?;
    let settings = String::from_utf8(settings).map_err(|_| "git's settings are no UTF-8")?;
    let is_filter = |name: &&str| {
        let ends = [".clean", ".process", ".required"];
        name.starts_with("filter.") && ends.iter().any(|end| name.ends_with(end))
    };
    let mut off = Vec::new();
    for name in settings.split_terminator('\0').filter(is_filter) {
        // `-c` takes the first `=` for the end of the name.
        if name.contains('=') {
            return Err(format!("git's setting {name:?} cannot be switched off"));
        }
        off.push(format!("{name}={}", if name.ends_with(".required") { "false" } else { "" }));
    }
    let off = off.iter().flat_map(|setting| ["-c", setting]);
    output(directory, &off.chain(["status"]).chain(words.iter().copied()).collect::<Vec<_>>())
}

/// Runs git in a directory and returns what it printed; `None` if it fails or hangs.
pub fn git(directory: &Path, words: &[&str]) -> Option<String> {
    output(directory, words).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs git in a directory and returns what it printed. Errors: one line that says why there is nothing.
pub fn output(directory: &Path, words: &[&str]) -> Result<Vec<u8>, String> {
    let kept = KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new("git");
    command
        // It must take no lock from under a git of the agent's own.
        .args([
            "--no-optional-locks",
            "--no-pager",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.untrackedCache=false",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args(words)
        .current_dir(directory)
        .env_clear()
        .envs(kept)
        // A partial clone's missing objects are not fetched: a remote's settings can name any program.
        .envs([("GIT_ALLOW_PROTOCOL", "none"), ("GIT_NO_LAZY_FETCH", "1"), ("GIT_TERMINAL_PROMPT", "0")])
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let not_run = |e: io::Error| format!("git: {e}");
    let mut child = Helper::start(&mut command).map_err(not_run)?;
    let read = [child.stdout().map(reader), child.stderr().map(reader)];
    let status = child.ends_within(LONGEST).map_err(not_run)?;
    let status = status.ok_or_else(|| format!("git did not end within {} s", LONGEST.as_secs()))?;
    let [out, err] = read.map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
    match status.success() {
        true => Ok(out),
        false => {
            let text = String::from_utf8_lossy(&err);
            Err(text.lines().next().unwrap_or("git failed").chars().take(200).collect())
        }
    }
}

/// Reads beside the process, up to a limit: at that its pipe is closed, which ends it.
fn reader(pipe: impl io::Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(BYTES).read_to_end(&mut bytes);
        bytes
    })
}

/// Reads a small text file; `None` for anything else: a pipe would never end.
fn small(path: &Path) -> Option<String> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(HEAD).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_read_off_a_repository_and_a_worktree() {
        let all = tempfile::tempdir().unwrap();
        let (main, tree) = (all.path().join("main"), all.path().join("tree"));
        let own = main.join(".git/worktrees/tree");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(tree.join("below")).unwrap();
        fs::write(main.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(own.join("HEAD"), "0123456789abcdef0123456789abcdef01234567\n").unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).unwrap();
        assert_eq!(branch(&main).unwrap().to_string(), "main");
        assert_eq!(branch(&tree.join("below")).unwrap().to_string(), "01234567 (worktree)");
        assert_eq!(branch(&all.path().join("nowhere")), None);
    }

    #[test]
    fn a_directory_without_a_repository_has_no_commits() {
        let here = tempfile::tempdir().unwrap();
        assert_eq!(head(here.path()), None);
        assert_eq!(commits(here.path(), None, Micros(0), Micros(1)), Commits::default());
    }
}
