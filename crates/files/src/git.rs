//! Facts that are recorded of the repository that a directory belongs to. Nothing of it is changed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::Id;

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
