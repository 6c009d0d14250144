//! Progress of a loop's iteration: git's HEAD, the worktree and the task context as one digest.
//!
//! Two iterations with the same mark changed nothing that lasts.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use outlast_core::{
    reads::places,
    state::{At, run_namespace},
    store::{self, Store},
    words::{Digest, RunId},
};

use crate::{loops::task_context::CONTEXT, program::checkout};

/// Largest changed file that is read, in bytes. A larger one counts by its time and size.
const MAX_READ: u64 = 64 << 20;

/// Directory to examine, with git's environment and the store to leave out.
pub struct Directory<'a> {
    pub directory: &'a Path,
    /// Path of the store; `None`: it is not a file. Files whose path begins with it are Outlast's own and do not count.
    pub store: Option<&'a str>,
}

/// Digest of the working tree and the task context: if two iterations end with the same one, the loop made no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Digest of the state, in hex; `None` if there is neither git nor a task context: progress is then unknown.
    pub digest: Option<String>,
    /// Reason why git could not tell the state of the working tree; `None` if it could.
    pub no_git: Option<String>,
}

/// Computes the mark as of now. Runs git and writes nothing. Errors: those of the store.
pub fn mark(place: &Directory<'_>, store: &dyn Store, run: &RunId) -> Result<Mark, store::Error> {
    let worktree = worktree(place);
    let context = context(store, run)?;
    let no_git = worktree.as_ref().err().cloned();
    let told: Vec<u8> = match (worktree, context) {
        (Err(_), None) => return Ok(Mark { digest: None, no_git }),
        (worktree, context) => [worktree.unwrap_or_default(), context.unwrap_or_default()]
            .iter()
            .flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.iter().copied()))
            .collect(),
    };
    Ok(Mark { digest: Some(Digest::of(&told).to_string()), no_git })
}

/// Returns the names and values of the run's task context as bytes; `None` if the context is empty.
fn context(store: &dyn Store, run: &RunId) -> Result<Option<Vec<u8>>, store::Error> {
    let mut told = Vec::new();
    for item in places::keys(store, &run_namespace(run), CONTEXT, At::default())? {
        for part in [item.key.as_bytes(), &item.value.unwrap_or_default()] {
            told.extend((part.len() as u64).to_le_bytes());
            told.extend(part);
        }
    }
    Ok((!told.is_empty()).then_some(told))
}

/// Returns the state of the worktree around the directory: git's status lines, and the contents of files that
/// differ.
fn worktree(place: &Directory<'_>) -> Result<Vec<u8>, String> {
    let mut root = checkout::output(place.directory, &["rev-parse", "--show-toplevel"])?;
    if root.ends_with(b"\n") {
        root.pop();
    }
    let root = PathBuf::from(OsStr::from_bytes(&root));
    let flags = ["--porcelain=v2", "-z", "--branch", "--untracked-files=all"];
    let status = checkout::status(place.directory, &flags)?;
    let mut told = Vec::new();
    for change in changes(&status) {
        let path = change.path.map(|path| root.join(OsStr::from_bytes(path)));
        let ours = |path: &Path| {
            place.store.is_some_and(|store| path.as_os_str().as_bytes().starts_with(store.as_bytes()))
        };
        if path.as_deref().is_some_and(ours) {
            continue;
        }
        told.extend(change.line);
        told.push(0);
        if let Some(path) = path {
            told.extend(content(&path, change.tracked).into_bytes());
        }
    }
    Ok(told)
}

/// Describes a file that differs: a tracked one by its content, any other by its time and size.
fn content(path: &Path, tracked: bool) -> String {
    let Ok(meta) = fs::symlink_metadata(path) else { return "gone".into() };
    if meta.is_symlink() {
        return fs::read_link(path).map_or_else(|_| "link".into(), |to| format!("link {}", to.display()));
    }
    if tracked
        && meta.is_file()
        && meta.len() <= MAX_READ
        && let Ok(bytes) = fs::read(path)
    {
        return Digest::of(&bytes).to_string();
    }
    format!("{} {} {}", meta.mtime(), meta.mtime_nsec(), meta.len())
}

/// One record of `git status --porcelain=v2 -z --branch`.
#[derive(Debug, PartialEq, Eq)]
struct Change<'a> {
    line: &'a [u8],
    /// Path of a file that differs; `None` for a header line.
    path: Option<&'a [u8]>,
    tracked: bool,
}

/// Returns the records that describe the worktree. The distance from the upstream is left out, because a
/// fetch changes it.
fn changes(status: &[u8]) -> Vec<Change<'_>> {
    let mut records = status.split(|b| *b == 0).filter(|r| !r.is_empty());
    let mut found = Vec::new();
    while let Some(line) = records.next() {
        // Number of fields before the path, which may contain spaces.
        let fields = match line.first() {
            Some(b'#') if line.starts_with(b"# branch.oid ") || line.starts_with(b"# branch.head ") => {
                found.push(Change { line, path: None, tracked: true });
                continue;
            }
            Some(b'1') => 8,
            Some(b'2') => {
                // The original path of a renamed file follows as a record of its own.
                records.next();
                9
            }
            Some(b'u') => 10,
            Some(b'?') => 1,
            _ => continue,
        };
        let path = line.splitn(fields + 1, |b| *b == b' ').nth(fields);
        found.push(Change { line, path, tracked: line[0] != b'?' });
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outlast_core::{
        engine::{Actor, Change, Claim, Claimed, Put, Register, Start},
        memory::MemoryStore,
        run::Identity,
        state::Name,
        store::{Ask as _, Durability},
        words::{ManualClock, Micros, Slot},
    };

    use super::*;

    #[test]
    fn a_status_names_the_files_that_differ() {
        let status =
            b"# branch.oid 1234\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +1 -0\0\
            1 .M N... 100644 100644 100644 aa aa a file\0\
            2 R. N... 100644 100644 100644 aa aa R100 new name\0old name\0\
            u UU N... 100644 100644 100644 100644 aa bb cc both\0\
            ? left over\0";
        let found: Vec<(Option<&str>, bool)> = changes(status)
            .iter()
            .map(|c| (c.path.map(|p| std::str::from_utf8(p).unwrap()), c.tracked))
            .collect();
        let named = [("a file", true), ("new name", true), ("both", true), ("left over", false)];
        let wanted: Vec<_> =
            [(None, true); 2].into_iter().chain(named.map(|(p, tracked)| (Some(p), tracked))).collect();
        assert_eq!(found, wanted);
        assert!(changes(b"").is_empty());
    }

    struct Repository(tempfile::TempDir);

    impl Repository {
        fn git(&self, args: &[&str]) {
            let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
            checkout::output(self.0.path(), &[&who, args].concat()).unwrap();
        }

        fn worktree(&self) -> Vec<u8> {
            let store = self.0.path().join("runs.db");
            let store = store.to_str();
            worktree(&Directory { directory: &self.0.path().join("below"), store }).unwrap()
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.path().join(name), text).unwrap();
        }
    }

    #[test]
    fn whatever_lasts_changes_the_mark_and_nothing_else_does() {
        let r = Repository(tempfile::tempdir().unwrap());
        fs::create_dir(r.0.path().join("below")).unwrap();
        r.git(&["init", "-q", "-b", "main"]);
        r.write(".gitignore", "ignored\n");
        let mut before = r.worktree();
        let mut check = |what: &str, changes: bool, act: &dyn Fn()| {
            act();
            let now = r.worktree();
            assert_eq!(now != before, changes, "{what}");
            before = now;
        };
        check("nothing", false, &|| ());
        check("a file that is ignored", false, &|| r.write("ignored", "x"));
        check("a file of the store's", false, &|| r.write("runs.db-wal", "x"));
        check("a new file", true, &|| r.write("a", "1"));
        check("staged", true, &|| r.git(&["add", "a", ".gitignore"]));
        check("changed after staging", true, &|| r.write("a", "2"));
        check("the same again", false, &|| r.write("a", "2"));
        check("another content of the same size", true, &|| r.write("a", "3"));
        check("committed", true, &|| r.git(&["commit", "-qam", "one"]));
        check("changed", true, &|| r.write("a", "4"));
        check("changed on", true, &|| r.write("a", "5"));
        check("thrown away", true, &|| r.git(&["checkout", "-q", "a"]));
        check("another branch", true, &|| r.git(&["checkout", "-qb", "other"]));
        check("an untracked file", true, &|| r.write("below/b c", "1"));
        check("an untracked file that grew", true, &|| r.write("below/b c", "12"));
        check("removed", true, &|| fs::remove_file(r.0.path().join("a")).unwrap());
    }

    #[test]
    fn a_directory_that_is_no_repository_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let place = Directory { directory: dir.path(), store: None };
        assert!(worktree(&place).unwrap_err().contains("not a git repository"));
    }

    #[test]
    fn without_a_repository_the_task_context_alone_tells_of_progress() {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(1))));
        let instance =
            store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
        let id = RunId::new("r").unwrap();
        let start = Start::new(id.clone());
        let run = store.run_verb(start, Durability::Synced).unwrap().run;
        let slot = Slot::DRIVER;
        let claim = Claim { run, slot, instance, label: None, fresh: false, restart: false };
        let Claimed::Attempt { attempt, .. } = store.run_verb(claim, Durability::Synced).unwrap() else {
            panic!("refused")
        };
        let put = |value: &str| {
            let name = Name::new(run_namespace(&id), CONTEXT, "progress_stage");
            let actor = Some((Actor { run, attempt, instance }, slot));
            let changes = vec![Change::set(name, value.as_bytes())];
            store.run_verb(Put { actor, changes, ..Put::default() }, Durability::Synced).unwrap();
        };
        let dir = tempfile::tempdir().unwrap();
        let now = || mark(&Directory { directory: dir.path(), store: None }, &store, &id).unwrap().digest;
        assert_eq!(now(), None, "nothing tells anything");
        put("tests");
        let tests = now();
        assert!(tests.is_some());
        put("tests");
        assert_eq!(now(), tests, "the same value again is no progress");
        put("review");
        assert!(now().is_some_and(|review| Some(review) != tests));
    }
}
