//! Copies of a CLI agent's session files, kept in the store with the run, and put back where a file is damaged or gone.
//!
//! A session file is JSON lines and only grows. Each checkpoint holds what has been added since the one before it, so a
//! copy costs what is new. A file that was written anew is copied anew. Sub-agents' files, in the directory that bears
//! the session's name, are copied with it.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outlast_core::{
    engine::{Actor, Checkpoint, checkpoint::Name},
    journal::{Kind, Payload, Role},
    run::Origin,
    store::{self, Ask as _, Durability, Sought, Store},
    words::{Digest, Micros, RunNo, Seq, Slot, calendar},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{SHORT, session};
use crate::disk::{self, beside, write_new};

/// Interval at which the session's files are checked for new lines.
const EVERY: Duration = Duration::from_secs(3);

/// Most bytes of a session file that one checkpoint holds.
const CHUNK: usize = 4 << 20;

/// Deepest level of directories, below the session's own, in which files of sub-agents are searched.
const DEPTH: usize = 3;

/// Session whose files are copied into the store, and the directory below which its program keeps them.
#[derive(Clone, Debug)]
pub struct Kept {
    pub run: RunNo,
    pub session: String,
    pub directory: PathBuf,
}

/// Newest part of one session file that the store holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    /// Byte offset of the part in the file.
    offset: usize,
    len: usize,
    /// Entry of the checkpoint that holds the part before this one; `None` for the first part.
    before: Option<i64>,
}

/// Session file that was restored from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    pub path: PathBuf,
    /// Path to which the damaged file was moved; `None` if the file was gone.
    pub damaged: Option<PathBuf>,
}

impl Kept {
    /// Copies into the store what the session's files have gained since the last copy. Returns the number of copied
    /// bytes.
    ///
    /// Errors: the store's. A file that cannot be read now is left for the next copy.
    pub async fn keep(&self, store: &dyn Store, actor: Actor) -> Result<usize, store::Error> {
        let mut all = 0;
        let mut known = self.list(store)?;
        for name in self.found() {
            let Ok(bytes) = fs::read(self.directory.join(&name)) else { continue };
            let whole = whole_lines(&bytes);
            let newest = if known.contains(&name) { self.newest(store, &name)? } else { None };
            let from = match &newest {
                None => 0,
                // Cut, or written anew and short: only a resumption judges that.
                Some((_, part, _)) if bytes.len() < part.offset + part.len => continue,
                Some((_, part, last)) if bytes[part.offset..part.offset + part.len] != **last => 0,
                Some((_, part, _)) => part.offset + part.len,
            };
            let new = whole.get(from..).unwrap_or_default();
            if new.is_empty() || !is_sound(new) {
                continue;
            }
            if !known.contains(&name) {
                known.push(name.clone());
                let value = serde_json::to_vec(&known).unwrap_or_default();
                self.save(store, actor, self.key(), &value).await?;
            }
            let before = newest.filter(|_| from > 0).map(|(seq, ..)| seq.0);
            self.add(store, actor, &name, (from, before), new).await?;
            all += new.len();
        }
        Ok(all)
    }

    /// Stores what a file has gained behind the byte `from`, where the part `before` ends.
    async fn add(
        &self,
        store: &dyn Store,
        actor: Actor,
        name: &str,
        (from, mut before): (usize, Option<i64>),
        new: &[u8],
    ) -> Result<(), store::Error> {
        for (at, chunk) in new.chunks(CHUNK).enumerate() {
            let part = Part { offset: from + at * CHUNK, len: chunk.len(), before };
            let mut value = serde_json::to_vec(&part).unwrap_or_default();
            value.push(b'\n');
            value.extend_from_slice(chunk);
            before = Some(self.save(store, actor, self.key_of(name), &value).await?.0);
        }
        Ok(())
    }

    /// Stores a copy of this session under the id `new`, as the session was at the fork's point `origin`. `moved`: the
    /// directories that origin and fork work in. Returns the new session; `None` if the store has no copy of this one.
    ///
    /// The copies go into the fork's journal: from there [`Kept::mend`] writes the files.
    pub async fn copy_as_of(
        &self,
        store: &dyn Store,
        actor: Actor,
        (origin, new): (Origin, &str),
        moved: (&str, &str),
    ) -> Result<Option<Kept>, store::Error> {
        let (theirs, own) =
            (Kept { run: origin.run, ..self.clone() }, Kept { session: new.into(), ..self.clone() });
        let end = End::of(store, origin)?;
        let mut names: Vec<(String, String)> = Vec::new();
        // The session's own file last: with it, the session is there.
        for name in theirs.list(store)?.into_iter().rev() {
            let named = renamed(&own.named(&name, &self.session), moved.0, moved.1);
            if named == name {
                return Ok(None);
            }
            names.push((name, named));
        }
        if names.is_empty() {
            return Ok(None);
        }
        let list: Vec<&String> = names.iter().map(|(_, named)| named).collect();
        self.save(store, actor, own.key(), &serde_json::to_vec(&list).unwrap_or_default()).await?;
        let quoted = |id: &str| format!("\"{id}\"");
        for (name, named) in &names {
            let lines = rewritten(&self.as_of(store, name, &theirs, (origin.seq, end))?, moved.0, moved.1);
            // Only a whole string is the id: texts that name a file of the origin's still lead there.
            let lines = match std::str::from_utf8(&lines) {
                Ok(text) => text.replace(&quoted(&self.session), &quoted(new)).into_bytes(),
                Err(_) => lines,
            };
            own.add(store, actor, named, (0, None), &lines).await?;
        }
        Ok(Some(own))
    }

    /// Reads a file as it was at a fork's point: the copies up to there and, of later copies of the origin's, the lines
    /// before the end.
    fn as_of(
        &self,
        store: &dyn Store,
        name: &str,
        theirs: &Kept,
        (point, end): (Seq, End),
    ) -> Result<Vec<u8>, store::Error> {
        let known = self.newest_part(store, name)?;
        let mut bytes = self.since(store, name, None)?;
        let mut len = bytes.len();
        // A fork of an older Outlast went on in its origin's session, and has copies of its own.
        if known.is_none_or(|known| known <= point) {
            bytes.extend(theirs.since(store, name, known)?);
        }
        let later = bytes[len..].split_inclusive(|b| *b == b'\n');
        len += later.take_while(|line| end.has(line)).map(<[u8]>::len).sum::<usize>();
        Ok(whole_lines(&bytes[..len]).to_owned())
    }

    /// Checks the session's files against their copies, and puts back those that are damaged or gone. Returns the files
    /// put back; a damaged file is kept under another name.
    ///
    /// Errors: the store's; a file that cannot be read or written.
    pub fn mend(&self, store: &dyn Store) -> Result<Vec<Mended>, Error> {
        let mut out = Vec::new();
        for name in self.list(store)? {
            let Some((_, part, last)) = self.newest(store, &name)? else { continue };
            let path = self.directory.join(&name);
            let unread = |why| Error::File { path: path.clone(), why };
            let found = disk::present(fs::read(&path)).map_err(unread)?;
            let end = part.offset + part.len;
            if let Some(bytes) = &found
                && bytes.get(part.offset..end).is_some_and(|own| own == last)
                && is_sound(bytes)
            {
                continue;
            }
            // A sound file that holds something else was written anew by its program: it is its own truth, if it
            // holds no less.
            if found.as_ref().is_some_and(|bytes| bytes.len() >= end && is_sound(bytes)) {
                continue;
            }
            let mut copy = self.since(store, &name, None)?;
            if let Some(more) = found.as_ref().and_then(|bytes| bytes.strip_prefix(copy.as_slice())) {
                let sound = more.split_inclusive(|b| *b == b'\n').take_while(|line| is_sound(line)).flatten();
                copy.extend(whole_lines(&sound.copied().collect::<Vec<u8>>()));
            }
            let damaged = put_back(&path, &copy).map_err(|why| Error::File { path: path.clone(), why })?;
            out.push(Mended { path, damaged });
        }
        Ok(out)
    }

    /// Reads from its parts what a file's copy has gained since the part `after`; all of it without one. Nothing if the
    /// file was written anew since.
    fn since(&self, store: &dyn Store, name: &str, after: Option<Seq>) -> Result<Vec<u8>, store::Error> {
        let (mut parts, mut at) = (Vec::new(), self.newest_part(store, name)?);
        while let Some(seq) = at.filter(|_| at > after) {
            let (_, part, bytes) = self.part(store, name, seq)?;
            parts.push(bytes);
            at = part.before.map(Seq);
        }
        if at != after {
            parts.clear();
        }
        parts.reverse();
        Ok(parts.concat())
    }

    fn newest(&self, store: &dyn Store, name: &str) -> Result<Option<(Seq, Part, Vec<u8>)>, store::Error> {
        self.newest_part(store, name)?.map(|seq| self.part(store, name, seq)).transpose()
    }

    fn newest_part(&self, store: &dyn Store, name: &str) -> Result<Option<Seq>, store::Error> {
        let key = self.key_of(name);
        Ok(store.newest(self.run, &Sought::done(Kind::Checkpoint, &key))?.map(|entry| entry.seq))
    }

    fn part(&self, store: &dyn Store, name: &str, seq: Seq) -> Result<(Seq, Part, Vec<u8>), store::Error> {
        let corrupt = |what: &str| store::Error::Corrupt {
            what: format!("the copy of the session file {name}, entry {seq}: {what}"),
        };
        let payload = store.payload(self.run, seq, Role::Value)?.ok_or_else(|| corrupt("it is missing"))?;
        let bytes = payload.decode().map_err(|e| corrupt(&e.to_string()))?;
        let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(|| corrupt("it has no head"))?;
        let part: Part = serde_json::from_slice(&bytes[..end]).map_err(|e| corrupt(&e.to_string()))?;
        let body = bytes[end + 1..].to_vec();
        match body.len() == part.len && part.before.is_none_or(|before| before < seq.0) {
            true => Ok((seq, part, body)),
            false => Err(corrupt("its length is another")),
        }
    }

    /// Moves the session's files to where its program looks for them when it works in the directory `to`: names of projects'
    /// directories are made of its path, and lines have it as their `cwd`. Their copies in the store are given up: the next
    /// [`keep`](Self::keep) copies them anew. Called again after a kill, it goes on.
    ///
    /// Errors: the store's; a file that cannot be read or written.
    pub async fn go_along(&self, store: &dyn Store, actor: Actor, from: &str, to: &str) -> Result<(), Error> {
        let known = self.list(store)?;
        if !known.is_empty() {
            self.save(store, actor, self.key(), b"[]").await?;
        }
        let names = known.into_iter().chain(self.found());
        let old: BTreeSet<String> = names.map(|name| renamed(&name, to, from)).collect();
        let mut left = Vec::new();
        // The session's own file, by which the others are found, comes last.
        for name in old.iter().rev() {
            let (path, new) = (self.directory.join(name), self.directory.join(renamed(name, from, to)));
            let failed = |why| Error::File { path: path.clone(), why };
            let Some(bytes) = disk::present(fs::read(&path)).map_err(failed)? else { continue };
            if path == new && first_directory(&bytes).as_deref() != Some(from) {
                continue;
            }
            disk::write(&new, &rewritten(&bytes, from, to)).map_err(failed)?;
            left.extend((path != new).then_some(path));
        }
        left.into_iter().try_for_each(|path| fs::remove_file(&path).map_err(|why| Error::File { path, why }))
    }

    /// Returns the names of the files that the store has copies of, relative to the directory.
    fn list(&self, store: &dyn Store) -> Result<Vec<String>, store::Error> {
        let names: Vec<String> = session::newest(store, self.run, &self.key())?.unwrap_or_default();
        // A name that leads elsewhere was not written by us.
        Ok(names.into_iter().filter(|name| is_below(name)).collect())
    }

    /// Returns the size of all the session's files now, in bytes.
    fn bytes(&self) -> u64 {
        let size = |name: &String| fs::metadata(self.directory.join(name)).map_or(0, |m| m.len());
        self.found().iter().map(size).sum()
    }

    /// Returns the names of the session's files: its own, and those of its sub-agents.
    fn found(&self) -> Vec<String> {
        let Some(own) = super::transcript(&self.directory, &self.session) else { return Vec::new() };
        let of_agents = super::files_below(&own.with_extension(""), DEPTH).filter(|entry| {
            entry.file_type().is_ok_and(|kind| kind.is_file())
                && entry.path().extension().is_some_and(|e| e == "jsonl")
        });
        let name = |path: PathBuf| Some(path.strip_prefix(&self.directory).ok()?.to_str()?.to_owned());
        [own.clone()].into_iter().chain(of_agents.map(|entry| entry.path())).filter_map(name).collect()
    }

    /// Returns the name of another session's file as this session's.
    fn named(&self, name: &str, other: &str) -> String {
        let short = |id: &str| format!("-{}.jsonl", id.get(..SHORT).unwrap_or(id));
        name.replace(other, &self.session).replace(&short(other), &short(&self.session))
    }

    fn key(&self) -> Name {
        Name::own(&format!("transcripts:{}", self.session))
    }

    fn key_of(&self, name: &str) -> Name {
        Name::own(&format!("transcript:{name}"))
    }

    async fn save(
        &self,
        store: &dyn Store,
        actor: Actor,
        name: Name,
        value: &[u8],
    ) -> Result<Seq, store::Error> {
        let checkpoint = Checkpoint { actor, slot: Slot::DRIVER, name, value: Payload::encode(value) };
        store.ask(checkpoint, Durability::Committed).await
    }
}

/// End of what a fork has of its origin's session.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Moment at which the fork's point was done. A person's next prompt comes after it.
    done: Micros,
    /// Moment at which the next entry began.
    next: Micros,
}

impl End {
    fn of(store: &dyn Store, origin: Origin) -> Result<End, store::Error> {
        let done =
            store.entry(origin.run, origin.seq)?.and_then(|entry| entry.closed_at).unwrap_or(Micros(0));
        let mut end = End { done, next: origin.at };
        let mut next = Seq(origin.seq.0 + 1);
        while let Some(entry) = store.entry(origin.run, next)? {
            if entry.kind != Kind::Checkpoint && entry.opened_at >= done {
                end.next = end.next.min(entry.opened_at);
                break;
            }
            next = Seq(next.0 + 1);
        }
        Ok(end)
    }

    /// Returns whether a fork has this line. One that does not say when it was written belongs to those
    /// before it.
    fn has(&self, line: &[u8]) -> bool {
        let Ok(read) = serde_json::from_slice::<Value>(line) else { return true };
        let Some(at) = read["timestamp"].as_str().and_then(calendar::parse_rfc3339) else { return true };
        at < self.next && (at < self.done || !is_prompt(&read))
    }
}

/// Returns whether a session's line is what a person, or Outlast, says to the model. Tools' results may have the same kind.
fn is_prompt(line: &Value) -> bool {
    let is_said = match line["type"].as_str() {
        Some("user" | "user.message" | "queue-operation") => true,
        Some("response_item") => line["payload"]["role"] == "user",
        Some("event_msg") => line["payload"]["type"] == "user_message",
        _ => false,
    };
    let pieces = line["message"]["content"].as_array().or(line["message"]["parts"].as_array());
    let is_result = |piece: &Value| piece["type"] == "tool_result" || piece.get("functionResponse").is_some();
    is_said && !pieces.is_some_and(|pieces| pieces.iter().any(is_result))
}

/// Returns the name of a session's file where its program works in another directory: Claude Code and Qwen Code name a
/// project's directory by its path, Gemini CLI by the path's SHA-256.
fn renamed(name: &str, from: &str, to: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let names = |path: &str| [path.chars().map(plain).collect(), Digest::of(path.as_bytes()).to_string()];
    let (old, new) = (names(from), names(to));
    let part = |part: &str| match old.iter().position(|old| old == part) {
        Some(index) => new[index].clone(),
        None => part.to_owned(),
    };
    name.split('/').map(part).collect::<Vec<String>>().join("/")
}

/// Returns lines of a session with another directory as their `cwd`.
fn rewritten(lines: &[u8], from: &str, to: &str) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(lines) else { return lines.to_owned() };
    let field = |path: &str| {
        let quoted = serde_json::to_string(path).unwrap_or_default();
        format!("\"cwd\":{}", quoted.trim_end_matches('"'))
    };
    let (old, new) = (field(from), field(to));
    let text = text.replace(&format!("{old}\""), &format!("{new}\""));
    text.replace(&format!("{old}/"), &format!("{new}/")).into_bytes()
}

/// Returns the directory that the first line of a session names which names any.
fn first_directory(lines: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(lines).ok()?;
    let (_, value) = text.split_once("\"cwd\":")?;
    serde_json::Deserializer::from_str(value).into_iter().next()?.ok()
}

/// Copies a session's files as they grow, until the future is dropped. `kept` returns the session, `None` as long as
/// the agent has none.
///
/// Nothing is copied before the attempt has made a call (`has_called`): otherwise the copy alone would count as
/// progress of an agent that dies at its start.
pub async fn follow(
    store: Arc<dyn Store>,
    actor: Actor,
    kept: impl Fn(&dyn Store) -> Result<Option<Kept>, store::Error>,
    has_called: impl Fn(&dyn Store) -> Result<bool, store::Error>,
) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(EVERY).await;
        let copied = async {
            let Some(kept) = kept(store.as_ref())? else { return Ok(()) };
            let bytes = kept.bytes();
            if bytes != seen && has_called(store.as_ref())? {
                kept.keep(store.as_ref(), actor).await?;
                seen = bytes;
            }
            Ok::<_, store::Error>(())
        };
        // The end of the attempt copies the rest, and says what is wrong.
        if let Err(error) = copied.await {
            tracing::debug!(%error, "the session's files are not copied now");
        }
    }
}

/// Error of restoring a session's files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: io::Error },
}

/// Returns the bytes up to the end of the last whole line.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    &bytes[..end]
}

/// Returns whether each line is JSON, and the last one is whole.
fn is_sound(bytes: &[u8]) -> bool {
    let is_json = |line: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok();
    bytes.is_empty()
        || bytes.ends_with(b"\n")
            && bytes.split(|b| *b == b'\n').all(|line| line.trim_ascii().is_empty() || is_json(line))
}

fn is_below(name: &str) -> bool {
    let mut parts = Path::new(name).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Writes a file that only the person may read (0600), completely or not at all. Returns the path to which an
/// existing file was moved; `None` if there was none.
fn put_back(path: &Path, bytes: &[u8]) -> io::Result<Option<PathBuf>> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let beside = |ending: &str| beside(path, ending);
    let new = beside(".outlast-new");
    write_new(&new, bytes)?;
    let damaged = (0..)
        .map(|n| beside(&if n == 0 { ".damaged".to_owned() } else { format!(".damaged-{n}") }))
        .find(|damaged| fs::symlink_metadata(damaged).is_err());
    let damaged = match damaged {
        Some(damaged) if path.exists() => {
            fs::rename(path, &damaged)?;
            Some(damaged)
        }
        _ => None,
    };
    fs::rename(&new, path)?;
    Ok(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_sound_if_each_line_is_json_and_the_last_one_whole() {
        for (text, wanted) in [
            ("", true),
            ("{\"a\":1}\n\n[2]\n", true),
            ("{\"a\":1}\n{\"b\"", false),
            ("{\"a\":1}\n{\"b\":\n{\"c\":1}\n", false),
            ("{\"a\":1}", false),
            ("\0\0\0\n", false),
        ] {
            assert_eq!(is_sound(text.as_bytes()), wanted, "{text:?}");
        }
        assert_eq!(whole_lines(b"a\nb"), b"a\n");
        assert_eq!(whole_lines(b"ab"), b"");
    }

    #[test]
    fn a_fork_has_what_was_written_before_its_end_and_no_later_prompt() {
        let at = |text: &str| calendar::parse_rfc3339(text).unwrap();
        let end = End { done: at("2026-11-27T15:00:10Z"), next: at("2026-11-27T15:00:20Z") };
        let result = r#""message":{"content":[{"type":"tool_result"}]}"#;
        for (second, line, wanted) in [
            (9, r#""type":"user""#, true),
            (10, r#""type":"user""#, false),
            (10, r#""type":"queue-operation""#, false),
            (10, r#""type":"response_item","payload":{"role":"user"}"#, false),
            (10, r#""type":"response_item","payload":{"role":"assistant"}"#, true),
            (10, &format!(r#""type":"user",{result}"#), true),
            (19, r#""type":"assistant""#, true),
            (20, r#""type":"assistant""#, false),
        ] {
            let line = format!(r#"{{"timestamp":"2026-11-27T15:00:{second:02}.000Z",{line}}}"#);
            assert_eq!(end.has(line.as_bytes()), wanted, "{line}");
        }
        assert!(end.has(br#"{"type":"user"}"#), "it does not say when");
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_not_followed() {
        for (name, wanted) in
            [("p/a.jsonl", true), ("../a", false), ("/a", false), ("p/../../a", false), ("", false)]
        {
            assert_eq!(is_below(name), wanted, "{name}");
        }
    }

    #[test]
    fn what_is_put_back_is_for_the_person_alone_and_what_was_there_stays_beside() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p/q/s.jsonl");
        assert_eq!(put_back(&path, b"1\n").unwrap(), None);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for (ending, text) in [(".damaged", "1\n"), (".damaged-1", "2\n")] {
            let beside =
                put_back(&path, if ending == ".damaged" { b"2\n" } else { b"3\n" }).unwrap().unwrap();
            assert!(beside.to_str().unwrap().ends_with(ending), "{beside:?}");
            assert_eq!(fs::read_to_string(&beside).unwrap(), text);
        }
        assert_eq!(fs::read(&path).unwrap(), b"3\n");
    }
}
