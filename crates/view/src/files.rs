//! Files that a run keeps.

use serde::Serialize;

/// Change of one path between two snapshots of a run's files.
#[derive(Clone, Debug, Serialize)]
pub struct FileChange {
    /// Path below the directory that is kept; that of a directory ends with `/`.
    pub path: String,
    /// `added`, `changed`, `removed`, or `mode` where only the permissions differ.
    pub what: &'static str,
    /// Numbers of lines; `None`: not compared, because a side is no text or is large.
    pub lines_added: Option<usize>,
    pub lines_removed: Option<usize>,
    /// Unified diff, where it was asked for and lines differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}
