//! Errors of the crate.

use std::{fmt, io, path::PathBuf};

use outlast_core::store;

use crate::Id;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// The store of files cannot be written.
    #[error("{what}: {source}")]
    Keep { what: String, source: io::Error },
    /// The place that machines share failed.
    #[error(transparent)]
    Shared(#[from] store::Error),
    /// Content of the store that is not what Outlast wrote.
    #[error("{what} is damaged")]
    Corrupt { what: String },
    #[error("object {0} is not in the store of files")]
    Missing(Id),
    /// Nothing of the snapshot is kept.
    #[error(
        "the snapshot would bring the kept files to {needed} bytes, more than the {max} bytes of --files-max"
    )]
    OverLimit { needed: u64, max: u64 },
    /// Nothing was changed.
    #[error("nothing is restored: {0}")]
    Refused(Refused),
    /// Another process restores, or snapshots are being removed.
    #[error("another process is restoring files of {0}")]
    Busy(PathBuf),
}

/// Reasons for which a restoration changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Paths that were changed after the run's last snapshot, by somebody else.
    pub changed: Vec<String>,
    /// Commits to which HEAD pointed then and points now, where they differ.
    pub head: Option<(String, String)>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some((then, now)) = &self.head {
            write!(f, "HEAD has moved from {then} to {now}")?;
            between = "; ";
        }
        if !self.changed.is_empty() {
            write!(f, "{between}changed after the run's last snapshot: {}", self.changed.join(", "))?;
        }
        Ok(())
    }
}

impl Error {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Io { .. } | Error::Keep { .. } => "files_io",
            Error::Shared(e) => e.code(),
            Error::Corrupt { .. } | Error::Missing(_) => "files_corrupt",
            Error::OverLimit { .. } => "files_over_limit",
            Error::Refused(_) => "files_changed",
            Error::Busy(_) => "files_busy",
        }
    }
}

/// Result of an I/O operation that is told what it was about.
pub(crate) trait About<T> {
    /// The error is about a file of the tree, or about reading the store.
    fn about(self, what: impl FnOnce() -> String) -> Result<T, Error>;

    /// The error is about writing the store.
    fn kept(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> About<T> for Result<T, E> {
    fn about(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|e| Error::Io { what: what(), source: e.into() })
    }

    fn kept(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|e| Error::Keep { what: what(), source: e.into() })
    }
}

/// Returns a path of the tree for people: bytes that are no UTF-8 are replaced.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
