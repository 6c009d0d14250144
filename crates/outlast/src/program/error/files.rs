//! Errors of the files that are kept with a run.

use std::io;

use outlast_core::{run::Status, store};
use outlast_files::Error;

use crate::{
    program::exit_code::{REFUSED, UNAVAILABLE, USAGE},
    render::quote::word,
    settings::store_address,
};

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum FilesError {
        #[error(transparent)]
        Files(#[from] Error as e) => match e {
            Error::Refused(_) | Error::Busy(_) => (e.code(), REFUSED),
            _ => (e.code(), UNAVAILABLE),
        }, hint_of(e);
        #[error(transparent)]
        Store(#[from] store::Error as e) => (e.code(), UNAVAILABLE);
        #[error("the store of files: {0}")]
        Io(#[from] io::Error as e) => ("files_io", UNAVAILABLE);
        #[error("files are kept in a directory of this machine: {0}")]
        NoPlace(#[from] store_address::Error as e) => ("files_no_place", USAGE), "set HOME, or leave --files out";
        #[error("no files are kept with run {run}")]
        NotKept { run: String } => ("files_not_kept", REFUSED), "begin a run with `outlast run --files -- CMD`";
        #[error("run {run} has no snapshot of its files {when}")]
        NoSnapshot { run: String, when: String } => ("files_no_snapshot", REFUSED),
            format!("`outlast files {run}` lists what there is");
        #[error("{path:?} is not kept in the snapshot at entry {entry}")]
        NoPath { path: String, entry: i64 } => ("files_no_path", REFUSED);
        #[error("{directory} is not empty")]
        HasOthers { directory: String } => ("files_not_empty", USAGE), "name another directory";
        #[error("run {run} is {}: its agent may be writing files", .status.name())]
        InUse { run: String, status: Status } => ("files_in_use", REFUSED), format!("`outlast stop {run}` first");
        #[error("not everything is restored, because of changes meanwhile or files that are not kept: {}", .paths.join(", "))]
        Left { paths: Vec<String> } => ("files_left", REFUSED), "look at these paths, and type it again";
    }
}

fn hint_of(e: &Error) -> Option<String> {
    match e {
        Error::Refused(refused) => match (&refused.changed[..], &refused.head) {
            ([], Some((then, _))) => Some(format!(
                "`git reset --soft {then}`, typed first, takes the commits back, too; `--force HEAD` restores the files and \
                 leaves the commits; a program that leaves `files_from` out goes on with the files as they are"
            )),
            (changed, head) => {
                let head = head.as_ref().map(|_| "HEAD".to_owned());
                let words = changed.iter().map(|path| word(path)).chain(head);
                let words: Vec<String> = words.map(|path| format!("--force {path}")).collect();
                let what = if words.len() == 1 { "it" } else { "them" };
                Some(format!(
                    "`{}` restores {what} all the same; what is there now is kept first",
                    words.join(" ")
                ))
            }
        },
        Error::Busy(_) => Some("try again when it has ended".into()),
        Error::Corrupt { .. } | Error::Missing(_) => {
            Some("`outlast verify` names all that is damaged".into())
        }
        _ => None,
    }
}
