//! Git's status as a new conversation is told it, where the program's own words about git are left out.

use std::path::Path;

use crate::program::checkout::git;

/// Most lines of `git status`, and most of its bytes, that a new conversation is told.
const LINES: usize = 60;
const BYTES: usize = 4096;

/// Number of newest commits that a new conversation is told.
const COMMITS: &str = "5";

/// Returns branch, changed files and newest commits of a directory as text; `None` without git or a working tree.
pub fn status(directory: &Path) -> Option<String> {
    let status = git(directory, &["status", "--short", "--branch"])?;
    // A repository without a commit has none to tell.
    let commits = git(directory, &["log", "--oneline", "--no-decorate", "-n", COMMITS]).unwrap_or_default();
    Some(words(&status, &commits))
}

fn words(status: &str, commits: &str) -> String {
    let mut lines = status.lines();
    let branch = lines.next().unwrap_or_default().trim_start_matches('#').trim();
    let changed: Vec<&str> = lines.collect();
    let mut out =
        format!("[Outlast] Git as this conversation began; it is not told again.\nBranch: {branch}\n");
    match changed.len() {
        0 => out.push_str("No file was changed.\n"),
        count => {
            let mut shown = 0;
            for line in changed.iter().take(LINES) {
                if out.len() + line.len() >= BYTES {
                    break;
                }
                shown += 1;
                out.push_str(line);
                out.push('\n');
            }
            if shown < count {
                out.push_str(&format!("… and {} more\n", count - shown));
            }
        }
    }
    if !commits.is_empty() {
        out.push_str("Newest commits:\n");
        out.push_str(commits);
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_with_its_branch_files_and_commits() {
        let told = words("## main...origin/main\n M a.rs\n?? b.rs\n", "1234567 first\n");
        assert!(
            told.contains("Branch: main...origin/main\n M a.rs\n?? b.rs\nNewest commits:\n1234567 first"),
            "{told}"
        );
        assert!(words("## main\n", "").ends_with("No file was changed."));
    }

    #[test]
    fn a_long_status_is_cut() {
        let files: String = (0..500).map(|n| format!("?? file-{n}\n")).collect();
        let told = words(&format!("## main\n{files}"), "");
        assert!(told.len() < BYTES + 100 && told.ends_with(&format!("… and {} more", 500 - LINES)), "{told}");
    }

    #[test]
    fn a_directory_without_a_repository_has_no_status() {
        // An empty directory below the root of the file system's temporary files, which is no working tree.
        assert_eq!(status(tempfile::tempdir().unwrap().path()), None);
    }
}
