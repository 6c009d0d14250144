//! Rules that tell which names of a tree are kept.

use std::{
    ffi::OsStr,
    fs,
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use gix_glob::{Pattern, pattern::Case, wildmatch};
use serde::{Deserialize, Serialize};

use crate::{Id, beneath, tree::Passed};

/// Names that are not kept unless a rule of the user's begins with `!`: they usually hold secrets.
pub const SECRETS: [&str; 17] = [
    ".env",
    ".env.*",
    "!.env.example",
    "!.env.sample",
    "!.env.template",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa",
    "id_ecdsa",
    "id_ed25519",
    ".netrc",
    ".pypirc",
    ".aws/",
    ".ssh/",
    ".gnupg/",
];

/// Most bytes of a `.gitignore` that are read.
const LONGEST_IGNORE: u64 = 1 << 20;

/// Rules of which names are kept.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Whether files that `.gitignore` names are kept too.
    pub keep_ignored: bool,
    /// Patterns of names that are not kept, after those of [`SECRETS`], in the syntax of `.gitignore`. The last pattern
    /// that matches counts.
    pub exclude: Vec<String>,
    /// Path of Outlast's store: it is not kept, nor is any file beside it whose name begins with its own.
    pub store: Option<PathBuf>,
}

/// Prefix of the directory in which a restoration prepares files.
pub(crate) const STAGE: &str = ".outlast-restore-";

/// Patterns of one file, for the names at and below one directory.
struct List {
    /// Digest of these patterns, and of all rules before them.
    rules: Id,
    /// Length of the directory's path with its slash, at which the paths that are matched begin. A list from above the
    /// root has a prefix in place of it.
    skip: usize,
    prefix: Vec<u8>,
    patterns: Vec<Pattern>,
}

/// The rules, ready for a walk from one root.
pub(crate) struct Judge {
    excluded: List,
    /// Lists of `.gitignore` files, the outermost first.
    ignored: Vec<List>,
    keep_ignored: bool,
    /// Directory of the store, by device and inode, and the name of the store in it.
    store: Option<((u64, u64), Vec<u8>)>,
}

impl Judge {
    /// `own`: device and inode of the directory of the objects.
    pub fn new(rules: &Rules, root: &Path, own: Option<(u64, u64)>) -> Judge {
        let lines: Vec<&str> = SECRETS.into_iter().chain(rules.exclude.iter().map(String::as_str)).collect();
        let store = rules.store.as_ref().and_then(|store| {
            let at = fs::metadata(store.parent()?).ok()?;
            Some(((at.dev(), at.ino()), store.file_name()?.as_encoded_bytes().to_vec()))
        });
        let all = format!("{lines:?} {} {store:?} {own:?}", rules.keep_ignored);
        let patterns = lines.into_iter().filter_map(gix_glob::parse).collect();
        let excluded = List { rules: Id::of(all.as_bytes()), skip: 0, prefix: Vec::new(), patterns };
        let mut judge = Judge { excluded, ignored: Vec::new(), keep_ignored: rules.keep_ignored, store };
        if !rules.keep_ignored
            && let Some(places) = places(root)
        {
            let inside = root.strip_prefix(&places.top).unwrap_or(Path::new(""));
            judge.add_from_above(fs::read(places.common.join("info/exclude")).ok(), inside);
            // Those of directories between the top and the root. The root's own is read by the walk.
            let above: Vec<&Path> = inside.ancestors().skip(1).collect();
            for directory in above.into_iter().rev() {
                let below = inside.strip_prefix(directory).unwrap_or(inside);
                judge.add_from_above(fs::read(places.top.join(directory).join(".gitignore")).ok(), below);
            }
        }
        judge
    }

    fn add_from_above(&mut self, text: Option<Vec<u8>>, inside: &Path) {
        let mut prefix = inside.as_os_str().as_encoded_bytes().to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        if let Some(text) = text {
            self.add(0, prefix, &text);
        }
    }

    fn add(&mut self, skip: usize, prefix: Vec<u8>, text: &[u8]) {
        let rules = Id::of(&[&self.rules().0[..], &Id::of(&prefix).0[..], text].concat());
        self.ignored.push(List { rules, skip, prefix, patterns: patterns(text) });
    }

    /// Returns the digest of all rules that hold where the walk is.
    pub fn rules(&self) -> Id {
        self.ignored.last().map_or(self.excluded.rules, |list| list.rules)
    }

    /// Enters a directory, and returns whether it has a list of its own, which [`Judge::leave`] removes.
    pub fn enter(&mut self, directory: &OwnedFd, path: &[u8], has_list: bool) -> bool {
        if self.keep_ignored || !has_list {
            return false;
        }
        let Ok(file) = beneath::file(directory, OsStr::new(".gitignore")) else { return false };
        let mut text = Vec::new();
        if !file.metadata().is_ok_and(|m| m.is_file())
            || file.take(LONGEST_IGNORE).read_to_end(&mut text).is_err()
        {
            return false;
        }
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        self.add(skip, Vec::new(), &text);
        true
    }

    pub fn leave(&mut self) {
        self.ignored.pop();
    }

    /// Returns why a name is not kept; `None`: it is. `directory`: device and inode of the directory it is in.
    pub fn passes(
        &self,
        path: &[u8],
        name_at: usize,
        is_directory: bool,
        directory: (u64, u64),
    ) -> Option<Passed> {
        let name = &path[name_at..];
        if name == b".git" {
            return Some(Passed::Repository);
        }
        let is_store =
            |(at, store): &((u64, u64), Vec<u8>)| *at == directory && name.starts_with(store.as_slice());
        if name.starts_with(STAGE.as_bytes()) || self.store.as_ref().is_some_and(is_store) {
            return Some(Passed::Ours);
        }
        if self.excluded.judges(path, is_directory) == Some(true) {
            return Some(Passed::Excluded);
        }
        let ignored = self.ignored.iter().rev().find_map(|list| list.judges(path, is_directory));
        (ignored == Some(true)).then_some(Passed::Ignored)
    }
}

impl List {
    /// Returns whether the last pattern that matches names the path, or takes it back; `None`: none matches.
    fn judges(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let whole;
        let path = if self.prefix.is_empty() {
            &path[self.skip..]
        } else {
            whole = [&self.prefix, path].concat();
            &whole
        };
        let name_at = path.iter().rposition(|byte| *byte == b'/').map(|at| at + 1);
        let mode = wildmatch::Mode::NO_MATCH_SLASH_LITERAL;
        let matches = |pattern: &&Pattern| {
            pattern.matches_repo_relative_path(
                path.into(),
                name_at,
                Some(is_directory),
                Case::Sensitive,
                mode,
            )
        };
        self.patterns.iter().rev().find(matches).map(|pattern| !pattern.is_negative())
    }
}

/// Reads the lines of a `.gitignore`: without comments, and without blanks at an end unless a backslash keeps them.
fn patterns(text: &[u8]) -> Vec<Pattern> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let line = |line: &[u8]| {
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        while let [rest @ .., b' '] = line
            && !rest.ends_with(b"\\")
        {
            line = rest;
        }
        (!line.starts_with(b"#")).then(|| gix_glob::parse(line)).flatten()
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

// --- Facts that are recorded of the repository that a directory belongs to. Nothing of it is changed.

/// State of a repository: HEAD, branch and index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    /// Commit of HEAD; `None`: the branch has none yet, or it cannot be read.
    pub head: Option<String>,
    /// Name of the branch, `refs/heads/…`; `None`: HEAD is detached.
    pub branch: Option<String>,
    /// SHA-256 of the index; `None` without one.
    pub index: Option<Id>,
}

/// Directories of a repository: of the worktree, and the one that all its worktrees share.
pub(crate) struct Places {
    own: PathBuf,
    pub common: PathBuf,
    /// Top of the working tree.
    pub top: PathBuf,
}

/// Returns the repository to which `directory` belongs: the nearest one above it.
pub(crate) fn places(directory: &Path) -> Option<Places> {
    directory.ancestors().find_map(|top| {
        let dot_git = top.join(".git");
        let own = if dot_git.is_dir() {
            dot_git
        } else {
            // A worktree or a submodule has a file that says where.
            let text = fs::read_to_string(&dot_git).ok()?;
            top.join(text.strip_prefix("gitdir:")?.trim())
        };
        let common = match fs::read_to_string(own.join("commondir")) {
            Ok(text) => own.join(text.trim()),
            Err(_) => own.clone(),
        };
        Some(Places { own, common, top: top.to_owned() })
    })
}

/// Returns whether a directory is in the working tree of a repository.
pub fn is_working_tree(directory: &Path) -> bool {
    places(directory).is_some()
}

impl Places {
    pub fn read(&self) -> Repository {
        let text = fs::read_to_string(self.own.join("HEAD")).unwrap_or_default();
        let branch = text.strip_prefix("ref:").map(|name| name.trim().to_owned());
        let head = match &branch {
            Some(branch) => self.commit(branch),
            None => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        };
        let index = fs::read(self.own.join("index")).ok().map(|bytes| Id::of(&bytes));
        Repository { head, branch, index }
    }

    fn commit(&self, name: &str) -> Option<String> {
        if let Ok(text) = fs::read_to_string(self.common.join(name)) {
            return Some(text.trim().to_owned());
        }
        let packed = fs::read_to_string(self.common.join("packed-refs")).ok()?;
        let line = packed.lines().find(|line| line.split_once(' ').is_some_and(|(_, of)| of == name))?;
        line.split_once(' ').map(|(commit, _)| commit.to_owned())
    }
}
