//! A socket in front of the database's that cuts a connection where a test wants it.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
};

/// Where the next COMMIT's connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cut {
    Nowhere,
    /// The server never sees the COMMIT.
    BeforeCommit,
    /// The server commits, and its answer is lost.
    AfterCommit,
}

/// The simple query `COMMIT`, as it is on the wire.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

pub struct Relay {
    directory: tempfile::TempDir,
    cut: Arc<AtomicU8>,
}

impl Relay {
    /// Relays to the socket in `server`. Its threads end with the test's process.
    pub fn to(server: &Path) -> Relay {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(directory.path())).unwrap();
        let cut = Arc::new(AtomicU8::new(Cut::Nowhere as u8));
        let (server, armed) = (socket(server), cut.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, armed) = (client.unwrap(), armed.clone());
                let server = UnixStream::connect(&server).unwrap();
                let (answers, asker) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass(answers, asker, |_| Cut::Nowhere));
                thread::spawn(move || pass(client, server, |bytes| at_commit(bytes, &armed)));
            }
        });
        Relay { directory, cut }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Arms the relay for one COMMIT.
    pub fn cut_next(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::SeqCst);
    }

    /// Whether the cut that was ordered has happened.
    pub fn has_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst) == Cut::Nowhere as u8
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join(".s.PGSQL.5432")
}

fn at_commit(bytes: &[u8], armed: &AtomicU8) -> Cut {
    if !bytes.ends_with(COMMIT) {
        return Cut::Nowhere;
    }
    match armed.swap(Cut::Nowhere as u8, Ordering::SeqCst) {
        x if x == Cut::BeforeCommit as u8 => Cut::BeforeCommit,
        x if x == Cut::AfterCommit as u8 => Cut::AfterCommit,
        _ => Cut::Nowhere,
    }
}

/// Copies one direction until an end is gone or `look` says where to cut.
fn pass(mut from: UnixStream, mut to: UnixStream, look: impl Fn(&[u8]) -> Cut) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let cut = look(&buffer[..n]);
        if cut == Cut::AfterCommit {
            // The asker is gone before there can be an answer.
            let _ = from.shutdown(Shutdown::Both);
        }
        if cut == Cut::BeforeCommit || to.write_all(&buffer[..n]).is_err() || cut != Cut::Nowhere {
            break;
        }
    }
    for end in [from, to] {
        // The other direction's thread may have shut it down before.
        let _ = end.shutdown(Shutdown::Both);
    }
}
