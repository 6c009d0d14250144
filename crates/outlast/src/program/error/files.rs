//! Errors of the files that are kept with a run.

use std::io;

use outlast_core::{run::Status, store};
use outlast_files as files;

use crate::{
    program::exit_code::{REFUSED, UNAVAILABLE, USAGE},
    settings::store_address,
};

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error(transparent)]
    Files(#[from] files::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("the store of files: {0}")]
    Io(#[from] io::Error),
    #[error("files are kept in a directory of this machine: {0}")]
    NoPlace(#[from] store_address::Error),
    #[error("no files are kept with run {run}")]
    NotKept { run: String },
    #[error("run {run} has no snapshot of its files {when}")]
    NoSnapshot { run: String, when: String },
    #[error("{path:?} is not kept in the snapshot at entry {entry}")]
    NoPath { path: String, entry: i64 },
    #[error("{directory} is not empty")]
    HasOthers { directory: String },
    #[error("run {run} is {}: its agent may be writing files", .status.name())]
    InUse { run: String, status: Status },
    #[error("not everything is restored, because of changes meanwhile or files that are not kept: {}", .paths.join(", "))]
    Left { paths: Vec<String> },
}

impl FilesError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            FilesError::Files(e @ (files::Error::Refused(_) | files::Error::Busy(_))) => (e.code(), REFUSED),
            FilesError::Files(e) => (e.code(), UNAVAILABLE),
            FilesError::Store(e) => (e.code(), UNAVAILABLE),
            FilesError::Io(_) => ("files_io", UNAVAILABLE),
            FilesError::NoPlace(_) => ("files_no_place", USAGE),
            FilesError::NotKept { .. } => ("files_not_kept", REFUSED),
            FilesError::NoSnapshot { .. } => ("files_no_snapshot", REFUSED),
            FilesError::NoPath { .. } => ("files_no_path", REFUSED),
            FilesError::HasOthers { .. } => ("files_not_empty", USAGE),
            FilesError::InUse { .. } => ("files_in_use", REFUSED),
            FilesError::Left { .. } => ("files_left", REFUSED),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            FilesError::Files(files::Error::Refused(refused)) => {
                match (refused.changed.first(), &refused.head) {
                    (Some(path), _) => {
                        format!("`--force {path}` restores it all the same; what is there now is kept first")
                    }
                    (None, Some((then, _))) => format!(
                        "the same with `--force HEAD` restores the files and leaves the commits; \
                         `git reset --soft {then}` takes these back, too, and is typed first"
                    ),
                    (None, None) => return None,
                }
            }
            FilesError::Files(files::Error::Busy(_)) => "try again when it has ended".into(),
            FilesError::Files(files::Error::Corrupt { .. } | files::Error::Missing(_)) => {
                "`outlast verify` names all that is damaged".into()
            }
            FilesError::NoPlace(_) => "set HOME, or leave --files out".into(),
            FilesError::NotKept { .. } => "begin a run with `outlast run --files -- CMD`".into(),
            FilesError::NoSnapshot { run, .. } => format!("`outlast files {run}` lists what there is"),
            FilesError::HasOthers { .. } => "name another directory".into(),
            FilesError::InUse { run, .. } => format!("`outlast stop {run}` first"),
            FilesError::Left { .. } => "look at these paths, and type it again".into(),
            FilesError::Files(_) | FilesError::Store(_) | FilesError::Io(_) | FilesError::NoPath { .. } => {
                return None;
            }
        })
    }
}
