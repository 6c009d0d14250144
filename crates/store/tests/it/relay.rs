//! A socket in front of the database's that cuts a connection where a test wants it, and counts what passes.

use std::{
    collections::{HashSet, VecDeque},
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Where a COMMIT's connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server never sees the COMMIT.
    BeforeCommit,
    /// The server commits, and its answer is lost.
    AfterCommit,
    /// The server sees the COMMIT, and all that came with it, only after `Relay::thaw`.
    Frozen,
    /// The client's connection is lost, and the server sees the COMMIT, and all that came with it, only at
    /// `Relay::deliver_late`.
    Late,
}

/// The simple query `COMMIT`, as it is on the wire.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// Beginning of a statement that is a whole group, and commits by itself.
const WHOLE_GROUP: &[u8] = b"WITH written_0 AS";

/// Last message of the server's answers to a transaction: it is ready, and none is open.
const IDLE: &[u8] = b"Z\0\0\0\x05I";

pub struct Relay {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
}

/// Counts of what passed the relay since they were last read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Number of batches of requests that the client sent while no answer was outstanding.
    pub round_trips: usize,
    pub statements: usize,
    /// Statements that were given a name.
    pub named: usize,
}

#[derive(Default)]
struct Shared {
    /// Cuts of the next COMMITs, or groups that commit by themselves, in order.
    cuts: Mutex<VecDeque<Cut>>,
    /// What a [`Cut::Late`] holds back, and the connection to the server.
    late: Mutex<Option<Late>>,
    passed: Mutex<Passed>,
    is_thawed: Mutex<bool>,
    thawed: Condvar,
    spoils_tokens: AtomicBool,
    forgets_settings: AtomicBool,
}

/// Connection to the server, and bytes that it has not seen.
type Late = (UnixStream, Vec<u8>);

/// One connection, as both of its directions see it.
#[derive(Default)]
struct Link {
    batch: Mutex<Batch>,
    /// Names of the statements that are a whole group, the empty one too.
    whole_groups: Mutex<HashSet<Vec<u8>>>,
    /// The server's answers are lost from here on, and the connection with the COMMIT's.
    is_lost: AtomicBool,
}

/// Requests that the client sends before it waits for an answer.
#[derive(Default)]
struct Batch {
    /// Requests that are not answered yet.
    open: usize,
    /// Whether the client may not have sent all of it yet, whatever the server has answered.
    goes_on: bool,
    /// Whether the server has answered with a failure, and not said yet that it is ready again.
    has_failed: bool,
}

/// Size at which tokio-postgres sends what it has of a batch, before the rest of it.
const SENT_IN_PARTS: usize = 8 << 10;

impl Relay {
    /// Relays to the socket in `server`. Its threads end with the test's process.
    pub fn to(server: &Path) -> Relay {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(directory.path())).unwrap();
        let shared = Arc::<Shared>::default();
        let (server, ours) = (socket(server), shared.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, ours, link) = (client.unwrap(), ours.clone(), Arc::<Link>::default());
                let server = UnixStream::connect(&server).unwrap();
                let (answers, asker) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let theirs = link.clone();
                thread::spawn(move || {
                    let mut messages = Messages::default();
                    pass(answers, asker, None, |bytes| theirs.answered(&mut messages, bytes));
                });
                thread::spawn(move || {
                    let mut messages = Messages { untyped: true, ..Messages::default() };
                    let late = Some(&ours.late);
                    pass(client, server, late, |bytes| link.asked(&ours, &mut messages, bytes));
                });
            }
        });
        Relay { directory, shared }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Arms the relay for one COMMIT more.
    pub fn cut_next(&self, cut: Cut) {
        self.shared.cuts.lock().unwrap().push_back(cut);
    }

    /// Whether the cut that was ordered has happened.
    pub fn has_cut(&self) -> bool {
        self.shared.cuts.lock().unwrap().is_empty()
    }

    /// From now on, sessions find another's token in their server's connection, as behind a pooler.
    pub fn spoil_tokens(&self) {
        self.shared.spoils_tokens.store(true, Ordering::SeqCst);
    }

    /// From now on, sessions do not begin with the settings that they ask for, as behind a pooler that drops them.
    pub fn forgets_settings(&self) {
        self.shared.forgets_settings.store(true, Ordering::SeqCst);
    }

    /// Lets what is frozen go on.
    pub fn thaw(&self) {
        *self.shared.is_thawed.lock().unwrap() = true;
        self.shared.thawed.notify_all();
    }

    /// Sends the server what a [`Cut::Late`] held back, and waits until it has done with it.
    pub fn deliver_late(&self) {
        let (mut server, bytes) = self.shared.late.lock().unwrap().take().unwrap();
        server.write_all(&bytes).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        // The answers are read here or by the other direction's thread. Both see the end.
        while let Ok(1..) = server.read(&mut [0; 4096]) {}
    }

    /// Returns the counts over all connections since the last call.
    pub fn passed(&self) -> Passed {
        std::mem::take(&mut *self.shared.passed.lock().unwrap())
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join(".s.PGSQL.5432")
}

/// Treatment of bytes that a client or the server sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    On,
    /// The bytes are not passed on.
    Lost,
    /// The bytes are not passed on, and the connection ends.
    Cut,
    /// The client's connection ends, and the bytes are kept for later.
    Late,
}

impl Shared {
    fn wait_for_thaw(&self) {
        let is_thawed = self.is_thawed.lock().unwrap();
        drop(self.thawed.wait_while(is_thawed, |is_thawed| !*is_thawed).unwrap());
    }
}

impl Link {
    /// Looks at what the client sends.
    fn asked(&self, shared: &Shared, messages: &mut Messages, bytes: &mut [u8]) -> Way {
        let begins_with = b"outlast_session.token=";
        let quoted = b"set_config('outlast_session.token', '";
        if shared.forgets_settings.load(Ordering::SeqCst) || shared.spoils_tokens.load(Ordering::SeqCst) {
            spoil_token(begins_with, bytes);
        }
        if shared.spoils_tokens.load(Ordering::SeqCst) {
            spoil_token(quoted, bytes);
        }
        let all = messages.complete(bytes);
        let commits = bytes.ends_with(COMMIT) | self.binds_whole_group(&all);
        let types: Vec<u8> = all.iter().map(|message| message[0]).collect();
        let mut batch = self.batch.lock().unwrap();
        let mut passed = shared.passed.lock().unwrap();
        let begins = batch.open == 0 && !batch.goes_on;
        passed.round_trips += usize::from(begins && types.iter().any(|t| b"PBQ".contains(t)));
        passed.statements += types.iter().filter(|t| b"EQ".contains(t)).count();
        passed.named += all.iter().filter(|message| message[0] == b'P' && message[5] != 0).count();
        batch.open += types.iter().filter(|t| b"QS".contains(t)).count();
        batch.goes_on = bytes.len() >= SENT_IN_PARTS && !commits;
        drop((batch, passed));
        if !commits {
            return Way::On;
        }
        let cut = shared.cuts.lock().unwrap().pop_front();
        match cut {
            None => Way::On,
            Some(Cut::BeforeCommit) => Way::Cut,
            Some(Cut::AfterCommit) => {
                self.is_lost.store(true, Ordering::SeqCst);
                Way::On
            }
            Some(Cut::Frozen) => {
                shared.wait_for_thaw();
                Way::On
            }
            Some(Cut::Late) => Way::Late,
        }
    }

    /// Whether one of these messages has the server run a whole group. Notes the names that statements are given.
    fn binds_whole_group(&self, messages: &[Vec<u8>]) -> bool {
        let mut whole = self.whole_groups.lock().unwrap();
        let mut binds = false;
        for message in messages {
            let mut texts = message[5..].split(|byte| *byte == 0);
            let [first, second] = [texts.next().unwrap_or_default(), texts.next().unwrap_or_default()];
            match message[0] {
                b'P' if second.starts_with(WHOLE_GROUP) && message.windows(4).any(|part| part == b"lock") => {
                    whole.insert(first.to_vec());
                }
                b'P' => drop(whole.remove(first)),
                b'B' => binds |= whole.contains(second),
                _ => {}
            }
        }
        binds
    }

    /// Looks at what the server sends.
    fn answered(&self, messages: &mut Messages, bytes: &[u8]) -> Way {
        let mut batch = self.batch.lock().unwrap();
        for message in messages.complete(bytes) {
            // A failure is an answer. The client may go on before the server says that it is ready again.
            let answers = match message[0] {
                b'E' => !std::mem::replace(&mut batch.has_failed, true),
                b'Z' => !std::mem::take(&mut batch.has_failed),
                _ => false,
            };
            batch.open = batch.open.saturating_sub(usize::from(answers));
        }
        drop(batch);
        match self.is_lost.load(Ordering::SeqCst) {
            false => Way::On,
            true if bytes.windows(IDLE.len()).any(|part| part == IDLE) => Way::Cut,
            true => Way::Lost,
        }
    }
}

/// Overwrites a session's token where it stands behind `name`.
fn spoil_token(name: &[u8], bytes: &mut [u8]) {
    if let Some(at) = bytes.windows(name.len()).position(|part| part == name) {
        bytes[at + name.len()..][..32].fill(b'0');
    }
}

/// Reads messages off a stream of them.
#[derive(Default)]
struct Messages {
    /// The client's first message has no type.
    untyped: bool,
    rest: Vec<u8>,
}

impl Messages {
    /// The messages with a type that end with these bytes.
    fn complete(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.rest.extend(bytes);
        let mut all = Vec::new();
        loop {
            let head = usize::from(!self.untyped);
            let Some(length) = self.rest.get(head..head + 4) else { return all };
            let end = head + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.rest.len() < end {
                return all;
            }
            let message: Vec<u8> = self.rest.drain(..end).collect();
            if !self.untyped {
                all.push(message);
            }
            self.untyped = false;
        }
    }
}

/// Copies one direction until an end is gone or `look` says where to cut.
///
/// A receiver that is gone does not end the connection: its last words may still be on their way in the other direction,
/// whose thread ends it after them.
fn pass(
    mut from: UnixStream,
    mut to: UnixStream,
    late: Option<&Mutex<Option<Late>>>,
    mut look: impl FnMut(&mut [u8]) -> Way,
) {
    let mut buffer = [0; 256 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        match look(&mut buffer[..n]) {
            Way::On if to.write_all(&buffer[..n]).is_err() => return,
            Way::On | Way::Lost => {}
            Way::Cut => break,
            Way::Late => {
                from.shutdown(Shutdown::Both).unwrap();
                *late.unwrap().lock().unwrap() = Some((to, buffer[..n].to_vec()));
                return;
            }
        }
    }
    for end in [from, to] {
        // The other direction's thread may have shut it down before.
        let _ = end.shutdown(Shutdown::Both);
    }
}
