//! Iterations of a loop: what the next one begins with, the command that ends the loop, and what follows one that is over.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use outlast_core::{
    engine::{self, Actor, BeginIteration, JudgeIteration, run::iteration::STUCK},
    journal::Payload,
    reads::{self, places},
    run::{Claims, Looping, Status, Verdict, looping::UNCHANGED},
    state::{At, run_namespace},
    store::{self, Ask as _, Durability, Store},
    words::{Digest, InstanceNo, RunId},
};
use outlast_process::{
    exit::Exit,
    spawn::{self, Stdin},
};

use super::{
    Driver,
    attempt::{EndedBy, Hold, Watch},
};
use crate::{
    loops::task_context::CONTEXT,
    program::{
        checkout,
        error::{CliError, InputError, RunError},
        say::say,
    },
    render::amount::some,
    supervisor::story,
};

/// Least time from the start of one iteration to the next when nothing shows whether they make progress.
const PACE: Duration = Duration::from_secs(1);

/// Iteration of a loop that the next attempt belongs to.
pub(super) struct Iteration {
    /// Whether the iteration is new, so that no answer of earlier iterations is replayed.
    pub fresh: bool,
    /// Number of the iteration, counted from 0.
    pub no: i64,
    /// Input and progress mark of a new iteration that are not stored yet; `None` if the iteration is already
    /// stored.
    begins: Option<Beginning>,
}

struct Beginning {
    input: Option<Payload>,
    mark: Option<String>,
}

impl Driver {
    /// Returns the iteration of the next attempt, and makes its input the agent's standard input; `None` if the run is
    /// no loop. An iteration that was begun before keeps its input, whatever the file holds now.
    pub(super) async fn iteration(&mut self) -> Result<Option<Iteration>, CliError> {
        let Some(looping) = self.view.spec.looping().cloned() else { return Ok(None) };
        let view = story::view(self.store.as_ref(), &self.view)?;
        let turns = view.run.turns.clone().unwrap_or_default();
        let fresh = turns.finished > view.run.iteration;
        let no = view.run.iteration + i64::from(fresh);
        let kept = reads::entries::iteration_input(self.store.as_ref(), view.run.no, no)?;
        let is_begun = kept.is_some();
        let input = match (kept, &looping.input) {
            (Some(kept), _) => kept,
            (None, Some(file)) => Some(Payload::encode(&read_input(file)?)),
            (None, None) => None,
        };
        if looping.input.is_some() {
            let read = |p: &Payload| p.decode().map(|bytes| bytes.to_vec());
            let bytes = input.as_ref().map(read).transpose().map_err(|e| store::Error::Corrupt {
                what: format!("what iteration {} of {} began with: {e}", no + 1, view.run.id),
            })?;
            self.stdin = Some(bytes.unwrap_or_default());
        }
        self.iteration = Some(no + 1);
        if is_begun {
            return Ok(Some(Iteration { fresh, no, begins: None }));
        }
        let first = turns.judged == 0 && turns.mark.is_none();
        let mark = if first { self.mark_of_loop().await? } else { None };
        Ok(Some(Iteration { fresh, no, begins: Some(Beginning { input, mark }) }))
    }

    /// Stores the iteration's input and progress mark before its first attempt starts. Does nothing for an iteration
    /// that was begun before.
    pub(super) async fn begin(
        &self,
        iteration: Iteration,
        claims: &Claims,
        instance: InstanceNo,
    ) -> Result<(), CliError> {
        let Some(Beginning { input, mark }) = iteration.begins else { return Ok(()) };
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        let begin = BeginIteration { actor, iteration: iteration.no, input, mark };
        self.store.ask(begin, Durability::Synced).await?;
        Ok(())
    }

    /// Decides whether the loop ends after a finished iteration, which may be one that an earlier supervisor
    /// started and did not judge: runs `--until`, and compares the progress marks to see whether the
    /// iteration changed anything. Returns the exit code if the loop has ended or was stopped; `None` if the
    /// run continues.
    pub(super) async fn judge_iteration(&mut self) -> Result<Option<u8>, CliError> {
        let Some(looping) = self.view.spec.looping().cloned() else { return Ok(None) };
        let view = story::view(self.store.as_ref(), &self.view)?;
        let finished = match &view.run.turns {
            Some(turns) if turns.finished > turns.judged => turns.finished,
            _ => return Ok(None),
        };
        if view.run.status == Status::Halted {
            return self.finish(Status::Halted).map(Some);
        }
        // Holding the lease ensures that the `--until` command is run by one process only.
        self.hold().await?;
        let until = match &looping.until {
            Some(until) => match self.ask_until(until, finished).await? {
                Ok(met) => met,
                Err(code) => return Ok(Some(code)),
            },
            None => false,
        };
        let mark = self.mark_of_loop().await?;
        // The lease may have been lost while git and the command ran.
        let (_, instance) = self.hold().await?;
        let run = view.run.no;
        let judge = JudgeIteration { run, instance, looping: looping.clone(), mark: mark.clone(), until };
        let verdict = match self.store.ask(judge, Durability::Synced).await {
            Err(store::Error::Engine(engine::Error::RunEnded { .. } | engine::Error::RunHalted { .. })) => {
                let status = story::view(self.store.as_ref(), &self.view)?.run.status;
                return self.finish(status).map(Some);
            }
            judged => judged?,
        };
        self.say_verdict(&looping, verdict, finished)?;
        Ok(match verdict {
            Verdict::Next => {
                // If nothing can show that the loop stands still, it must at least not spin.
                let pace = if mark.is_none() { PACE.saturating_sub(self.lived) } else { Duration::ZERO };
                self.pause(pace).await?
            }
            Verdict::Until | Verdict::Enough => Some(self.finish(Status::Completed)?),
            Verdict::Stuck => Some(self.finish(Status::Failed)?),
        })
    }

    fn say_verdict(&self, looping: &Looping, verdict: Verdict, finished: i64) -> Result<(), CliError> {
        match verdict {
            Verdict::Next => {
                let turns = story::view(self.store.as_ref(), &self.view)?.run.turns.unwrap_or_default();
                let still = match turns.unchanged {
                    0 => String::new(),
                    n => format!("; nothing changed ({n} of {UNCHANGED})"),
                };
                say(&format!("iteration {finished} is over; starting iteration {}{still}", finished + 1));
            }
            Verdict::Until => {
                let until = looping.until.as_deref().unwrap_or_default();
                say(&format!("the loop is done: `{until}` succeeded after iteration {finished}"));
            }
            Verdict::Enough => {
                say(&format!("the loop is done: {} (--max-iterations)", some(finished, "iteration")));
            }
            Verdict::Stuck => {
                say(STUCK);
                let id = crate::render::short::called(&self.view);
                say(&format!(
                    "hint: look at what it does with `outlast show {id}`; `outlast resume {id}` goes on"
                ));
            }
        }
        Ok(())
    }

    /// Runs `--until` in the agent's directory and environment. The inner error is an exit code: the run was
    /// stopped meanwhile.
    async fn ask_until(&mut self, until: &str, finished: i64) -> Result<Result<bool, u8>, CliError> {
        self.iteration = Some(finished);
        let claims = self.last_claims()?;
        let env = self.environment(claims).map_err(RunError::Supervisor)?;
        let (ends, output) = self.output(None, None)?;
        let hold = Hold::default();
        let command = spawn::Command {
            argv: self.before(["sh", "-c", until]),
            cwd: PathBuf::from(&self.command.directory),
            umask: self.command.umask,
            env,
            stdin: Stdin::Null,
            stdout: ends.stdout,
            stderr: ends.stderr,
            terminal: ends.terminal,
            limits: spawn::Limits::default(),
        };
        let id = self.view.run.id.clone();
        let not_run = |why: String| RunError::UntilNotRun {
            command: until.to_owned(),
            why,
            run: id.to_string(),
            iteration: finished,
        };
        let watch = Watch {
            attempt: claims.attempt,
            hold: &hold,
            goes_on_itself: false,
            stop_at_limit: false,
            is_killed: false,
            printed: None,
            after: None,
        };
        let outcome = match self.watch(command, output, watch).await {
            Ok(outcome) => outcome,
            Err(RunError::Supervisor(e)) => return Err(e.into()),
            Err(e) => return Err(not_run(e.to_string()).into()),
        };
        match outcome.by {
            EndedBy::Person | EndedBy::Machine => {
                return Ok(Err(self.interrupted(outcome.by == EndedBy::Person).await?));
            }
            _ => {}
        }
        match judge_until(outcome.exit) {
            Until::Met => Ok(Ok(true)),
            Until::NotYet => Ok(Ok(false)),
            Until::NotRun(code) => Err(not_run(format!("the shell cannot run it (exit {code})")).into()),
        }
    }

    /// Returns the claims of the run's newest attempt. It is over, so its token grants nothing.
    fn last_claims(&self) -> Result<Claims, CliError> {
        let attempts = self.store.attempts(self.view.run.no)?;
        let last = attempts.last().ok_or(RunError::NoAttempt)?;
        Ok(Claims { run: last.run, attempt: last.no, slot: last.slot, fence: last.fence })
    }

    /// Returns the loop's progress mark; `None` without one. Prints once if git cannot tell.
    async fn mark_of_loop(&mut self) -> Result<Option<String>, CliError> {
        let (store, id) = (self.store.clone(), self.view.run.id.clone());
        let directory = self.command.directory.clone();
        let ours = self.context.place.without_secret();
        let look = move || {
            let place = Directory {
                directory: Path::new(&directory),
                store: ours.as_deref().filter(|store| store.starts_with('/')),
            };
            progress_mark(&place, store.as_ref(), &id)
        };
        let Mark { digest, no_git } =
            tokio::task::spawn_blocking(look).await.map_err(std::io::Error::other)??;
        if let Some(why) = no_git.filter(|_| !self.said_no_git) {
            self.said_no_git = true;
            let judged = match digest {
                Some(_) => "progress is judged by the task context alone",
                None => {
                    "iterations that change nothing are not noticed (neither git nor a task context tells)"
                }
            };
            say(&format!("{judged}: {why}"));
        }
        Ok(digest)
    }
}

/// Largest input of an iteration that is stored, in bytes.
const MAX_INPUT: u64 = 64 << 20;

/// Reads the whole file that `--stdin` names.
///
/// Errors: the file cannot be read, is no regular file, or is larger than `MAX_INPUT`.
pub fn read_input(path: &str) -> Result<Vec<u8>, CliError> {
    let bad = |why: String| InputError::Iteration { path: path.to_owned(), why };
    let file = File::open(path).map_err(|e| bad(e.to_string()))?;
    // A pipe would have nothing left for the second iteration.
    if !file.metadata().map_err(|e| bad(e.to_string()))?.is_file() {
        return Err(bad("it is no regular file".into()).into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_INPUT + 1).read_to_end(&mut bytes).map_err(|e| bad(e.to_string()))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(bad("it is larger than 64 MiB, and cannot be kept with the run".into()).into());
    }
    Ok(bytes)
}

/// Result of the `--until` command, which decides whether a loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Met,
    NotYet,
    /// The shell found no such command or could not execute it, and exited with this code: a mistake in the command.
    NotRun(i32),
}

fn judge_until(exit: Exit) -> Until {
    match exit.code {
        Some(0) => Until::Met,
        Some(code @ (126 | 127)) => Until::NotRun(code),
        _ => Until::NotYet,
    }
}

// --- Progress of a loop's iteration: git's HEAD, the worktree and the task context as one digest.
//
// Two iterations with the same mark changed nothing that lasts.

/// Largest changed file that is read, in bytes. A larger one counts by its time and size.
const MAX_READ: u64 = 64 << 20;

/// Directory to examine, with git's environment and the store to leave out.
struct Directory<'a> {
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
fn progress_mark(place: &Directory<'_>, store: &dyn Store, run: &RunId) -> Result<Mark, store::Error> {
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
mod tests_of_input {
    use super::*;

    #[test]
    fn only_success_ends_a_loop_and_a_command_that_is_not_there_is_a_mistake() {
        for (exit, wanted) in [
            (Exit::code(0), Until::Met),
            (Exit::code(1), Until::NotYet),
            (Exit::code(2), Until::NotYet),
            (Exit::signal(9), Until::NotYet),
            (Exit::code(126), Until::NotRun(126)),
            (Exit::code(127), Until::NotRun(127)),
        ] {
            assert_eq!(judge_until(exit), wanted, "{exit}");
        }
    }

    #[test]
    fn an_input_is_a_regular_file_that_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str, wanted: Result<&[u8], &str>| {
            let path = dir.path().join(name);
            match (read_input(path.to_str().unwrap()), wanted) {
                (Ok(bytes), Ok(wanted)) => assert_eq!(bytes, wanted),
                (Err(e), Err(wanted)) => assert!(e.to_string().contains(wanted), "{e}"),
                (had, _) => panic!("{name}: {:?}", had.map_err(|e| e.to_string())),
            }
        };
        std::fs::write(dir.path().join("prompt"), b"do it\xff\n").unwrap();
        check("prompt", Ok(b"do it\xff\n"));
        check("missing", Err("No such file"));
        check(".", Err("it is no regular file"));
    }
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
        let now =
            || progress_mark(&Directory { directory: dir.path(), store: None }, &store, &id).unwrap().digest;
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
