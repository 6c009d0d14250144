//! Directory of a run: files that belong to the run and not to a process, beside its store.
//!
//! `<store file>.runs/<run id>/` for a store in a file; `$XDG_STATE_HOME/outlast/runs/<digest of the
//! address>/<run id>/` for a database. Mode 0700. Its files can be made again from the store, or are for
//! people: losing them loses no work.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use outlast_core::words::{Digest, RunId};

use crate::disk::{beside, present};
use crate::settings::{
    store_address::{self, StoreAddress},
    surroundings::Surroundings,
};

/// Returns the directory of this machine for one kind of a store's files. Errors: a database, and no XDG_STATE_HOME or
/// HOME.
pub fn of_store(
    place: &StoreAddress,
    kind: &str,
    around: &Surroundings,
) -> Result<PathBuf, store_address::Error> {
    match place {
        StoreAddress::File(store) => Ok(beside(store, &format!(".{kind}"))),
        StoreAddress::Postgres(_) => {
            let state = around.state_directory().ok_or(store_address::Error::Nowhere)?;
            let of_store = Digest::of(place.to_string().as_bytes()).to_string();
            Ok(state.join(kind).join(&of_store[..16]))
        }
    }
}

/// Path of one run's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Returns a run's directory without creating anything. Errors: a database, and no XDG_STATE_HOME or HOME.
    pub fn of(
        place: &StoreAddress,
        run: &RunId,
        around: &Surroundings,
    ) -> Result<RunDirectory, store_address::Error> {
        Ok(RunDirectory { path: of_store(place, "runs", around)?.join(file_name(run)) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory and its parents. Idempotent.
    ///
    /// Errors: the file system's; `PermissionDenied` if it exists and others may enter it.
    pub fn make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        if fs::metadata(&self.path)?.permissions().mode() & 0o077 != 0 {
            let what = format!("{} can be entered by others (wanted mode 0700)", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }

    /// Removes the directory and all that is in it. Idempotent.
    pub fn remove(&self) -> io::Result<()> {
        present(fs::remove_dir_all(&self.path)).map(drop)
    }

    /// Returns the path of the task context's mirror file: see `outlast ctx`.
    pub fn state_file(&self) -> PathBuf {
        self.path.join("active_state.json")
    }

    /// Returns the directory of the agent's output, in which each attempt has a file.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Returns the path of the log to which a supervisor in the background writes its messages.
    pub fn said(&self) -> PathBuf {
        self.path.join("supervisor.log")
    }

    /// Returns the path of the file in which the tools' processes are listed that a guardian, or a command, ended for a
    /// killed supervisor.
    pub fn left(&self) -> PathBuf {
        self.path.join("left.json")
    }

    /// Returns the directory of the files by which intercepted programs trust the run's authority.
    pub fn authorities(&self) -> PathBuf {
        self.path.join("authorities")
    }

    /// Returns the directory of an adapter's files for its agent: settings and hooks.
    pub fn agent(&self) -> PathBuf {
        self.path.join("agent")
    }
}

/// Returns the run id as a file name. Ids that begin with a dot are escaped.
fn file_name(run: &RunId) -> String {
    match run.as_str().strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => run.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runs_files_are_beside_its_store() {
        let around = Surroundings::new(&[("HOME", "/home/ann")], Path::new("/work"));
        let check = |place: StoreAddress, run: &str, wanted: &str| {
            let run = RunId::new(run).unwrap();
            assert_eq!(RunDirectory::of(&place, &run, &around).unwrap().path(), Path::new(wanted));
        };
        check(StoreAddress::File("/a/runs.db".into()), "nightly", "/a/runs.db.runs/nightly");
        check(StoreAddress::File("/a/runs.db".into()), "..", "/a/runs.db.runs/%2E.");
        let database = |url: &str| {
            RunDirectory::of(&StoreAddress::Postgres(url.into()), &RunId::new("n").unwrap(), &around).unwrap()
        };
        assert!(database("postgres://db/x").path().starts_with("/home/ann/.local/state/outlast/runs"));
        assert_eq!(
            database("postgres://ann:a@db/x"),
            database("postgres://ann:b@db/x"),
            "a password is no part of it"
        );
        assert_ne!(database("postgres://db/x"), database("postgres://db/y"));
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let around = Surroundings::new(&[], dir.path());
        let place = StoreAddress::File(dir.path().join("s.db"));
        let of_run = RunDirectory::of(&place, &RunId::new("r").unwrap(), &around).unwrap();
        of_run.make().unwrap();
        of_run.make().unwrap();
        fs::set_permissions(of_run.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(of_run.make().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
