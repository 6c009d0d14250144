//! `active_state.json`: a copy of the context as a file, for people, `jq` and older scripts. The store is the source of
//! truth: the file is never read back.
//!
//! Written atomically (a new file is synced, then renamed over the old one) with mode 0600, after each commit by the
//! process that committed, and before each attempt.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use outlast_core::{
    store::{RunView, Store},
    words::AttemptNo,
};
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

use super::{NAMED, TaskContext};
use crate::{
    disk,
    program::{error::CliError, run_directory::RunDirectory, say::say},
    render::time::rfc3339,
    settings::{store_address::StoreAddress, surroundings::Surroundings},
};

/// Version of the mirror file's layout. A file with a larger one is a newer Outlast's, and is not overwritten.
pub const SCHEMA: i64 = 1;

/// Longest wait for another writer of the same file.
const PATIENCE: Duration = Duration::from_secs(5);

/// Mirror file of a run: a copy of its task context as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub file: PathBuf,
    directory: RunDirectory,
}

/// Reason why the mirror file was not written. The task context is in the store all the same.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} has schema {had}, and this outlast knows schemas up to {SCHEMA}: it is left alone", path.display())]
    Newer { path: PathBuf, had: i64 },
    #[error("{} is no state file of Outlast: it is left alone", path.display())]
    Foreign { path: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot write {}: another process has been writing it for {} s", path.display(), PATIENCE.as_secs())]
    Busy { path: PathBuf },
}

impl Mirror {
    /// Returns the run's mirror: its own file, or the one that `--state-file` named when the run was made.
    pub fn of(place: &StoreAddress, view: &RunView, around: &Surroundings) -> Result<Mirror, CliError> {
        let directory = RunDirectory::of(place, &view.run.id, around)?;
        let asked = view.spec.command.as_ref().and_then(|c| c.state_file.as_ref());
        let file = asked.map_or_else(|| directory.state_file(), PathBuf::from);
        Ok(Mirror { file, directory })
    }

    /// Rewrites the file from the store. A failure to write it is only printed, since the context itself is committed.
    /// Errors: those of the store.
    pub fn renew(&self, store: &dyn Store, view: &RunView, attempt: AttemptNo) -> Result<(), CliError> {
        let written = match self.lock() {
            Ok(lock) => {
                // The context is read under the lock, so that no older copy is written last.
                let context = TaskContext::read(store, &view.run.id)?;
                let at = context.at.map_or_else(|| store.now(), Ok)?;
                let text = document(&context, view.run.id.as_str(), attempt, rfc3339(at));
                let written = self.write(&text, view.run.id.as_str());
                drop(lock);
                written
            }
            Err(e) => Err(e),
        };
        if let Err(e) = written {
            say(&format!("{e}; the context itself is safe in the store (`outlast ctx get`)"));
            if let Error::Newer { .. } | Error::Foreign { .. } = e {
                say("hint: move that file away, or name another one with --state-file");
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<File, Error> {
        let path = self.directory.path().join("state.lock");
        let io = |source| Error::Io { path: path.clone(), source };
        self.directory.make().map_err(io)?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let opened = disk::open_directory(self.directory.path());
        let file = opened.and_then(|below| disk::open_below(&below, "state.lock", flags)).map_err(io)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(fs::TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(fs::TryLockError::WouldBlock) => return Err(Error::Busy { path: self.file.clone() }),
                Err(fs::TryLockError::Error(source)) => return Err(io(source)),
            }
        }
    }

    fn write(&self, text: &str, run: &str) -> Result<(), Error> {
        let is_own = self.file.starts_with(self.directory.path());
        may_replace(&self.file, is_own)?;
        replace(&self.file, text, run).map_err(|source| Error::Io { path: self.file.clone(), source })
    }
}

/// Returns the content of the mirror file. Keys that are not set are absent; those without a member of their own in the
/// layout are in `context`.
fn document(context: &TaskContext, run: &str, attempt: AttemptNo, timestamp: String) -> String {
    let values = context.values.iter().map(|(k, v)| (k.clone(), v.clone()));
    let (named, others): (Map<_, _>, Map<_, _>) =
        values.partition(|(k, _)| NAMED.iter().any(|(name, _)| name == k));
    let mut document = json!({ "schema": SCHEMA, "run_id": run, "attempt": attempt.0 });
    for (k, v) in named {
        document[k] = v;
    }
    document["timestamp"] = timestamp.into();
    document["memory_refs"] = json!(context.references);
    if !others.is_empty() {
        document["context"] = others.into();
    }
    format!("{document:#}\n")
}

/// Refuses to replace a file that is not known to be ours: a newer Outlast's file may hold more than we understand,
/// and a file that was named by mistake is a person's work.
fn may_replace(file: &Path, is_own: bool) -> Result<(), Error> {
    let unread = |source| Error::Io { path: file.to_owned(), source };
    let Some(text) = disk::present(fs::read(file)).map_err(unread)? else { return Ok(()) };
    let schema = serde_json::from_slice::<Value>(&text).ok().and_then(|v| v.get("schema")?.as_i64());
    match schema {
        Some(had) if had > SCHEMA => Err(Error::Newer { path: file.to_owned(), had }),
        Some(_) => Ok(()),
        // In the run's own directory, a file without a schema can only be a damaged one of ours.
        None if is_own || text.is_empty() => Ok(()),
        None => Err(Error::Foreign { path: file.to_owned() }),
    }
}

/// Replaces the file at `path` by `text`, atomically and durably.
fn replace(path: &Path, text: &str, run: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    disk::replace(path, &path.with_file_name(format!(".{name}.{run}.tmp")), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn context(values: &[(&str, &str)]) -> TaskContext {
        let values = values.iter().map(|(k, v)| ((*k).to_owned(), Value::from(*v))).collect();
        TaskContext { values, ..TaskContext::default() }
    }

    #[test]
    fn the_seeds_keys_stand_at_the_top_and_an_unset_one_is_absent() {
        let hard = "quote \" and\nline $(id)";
        let context = context(&[("task_id", hard), ("progress_stage", "tests"), ("pr", "7")]);
        let text = document(&context, "r", AttemptNo(3), "2026-11-21T06:00:00Z".into());
        let read: Value = serde_json::from_str(&text).unwrap();
        let wanted = serde_json::json!({
            "schema": 1, "run_id": "r", "attempt": 3, "task_id": hard, "progress_stage": "tests",
            "timestamp": "2026-11-21T06:00:00Z", "memory_refs": {}, "context": {"pr": "7"},
        });
        assert_eq!(read, wanted);
    }

    #[test]
    fn only_our_own_older_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("active_state.json");
        let check = |text: &str, is_own: bool, wanted: Option<&str>| {
            fs::write(&file, text).unwrap();
            let found = may_replace(&file, is_own).map_err(|e| e.to_string());
            match wanted {
                None => found.unwrap(),
                Some(part) => assert!(found.unwrap_err().contains(part), "{text}"),
            }
        };
        check(r#"{"schema": 1}"#, false, None);
        check(r#"{"schema": 0}"#, false, None);
        check("", false, None);
        check(r#"{"schema": 2}"#, true, Some("schema 2"));
        check(r#"{"schema": 2}"#, false, Some("left alone"));
        check(r#"{"task_id": "of the trap"}"#, false, Some("no state file of Outlast"));
        check("# Notes", false, Some("no state file of Outlast"));
        check(r#"{"schema": 1, "task"#, true, None);
    }

    #[test]
    fn a_file_is_replaced_at_once_and_nobodys_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, victim) = (dir.path().join("s.json"), dir.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join(".s.json.r.tmp")).unwrap();
        std::os::unix::fs::symlink(&victim, &file).unwrap();
        replace(&file, "new", "r").unwrap();
        assert_eq!(
            (fs::read_to_string(&file).unwrap(), fs::read_to_string(&victim).unwrap()),
            ("new".into(), "mine".into())
        );
        assert_eq!(fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
