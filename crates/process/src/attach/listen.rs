//! The socket of a run, `attach.sock` in its own directory.
//!
//! The directory is private to the user (0700), and so is the socket (0600); the user of each peer is checked
//! all the same. The socket is addressed through the directory's descriptor, because a socket's address has
//! room for only 107 bytes, and a run's directory may have a longer name.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{
            fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use super::stage::Stage;

const NAME: &str = "attach.sock";

/// Listening socket of a run. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
    inode: u64,
}

/// Listens in `directory`, and serves clients on the stage. Replaces an older socket, left by a supervisor that died.
pub fn listen(directory: &Path, stage: Arc<Stage>) -> io::Result<Listening> {
    let path = directory.join(NAME);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let by = open(directory)?;
    let listener = UnixListener::bind(short(&by))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    let inode = fs::metadata(&path)?.ino();
    let thread = std::thread::Builder::new().name("outlast-attach".into()).stack_size(128 << 10);
    thread.spawn(move || accept(&listener, &stage))?;
    Ok(Listening { path, inode })
}

/// Connects to a run's supervisor. Errors: `NotFound` and `ConnectionRefused` if no supervisor listens.
pub fn connect(directory: &Path) -> io::Result<UnixStream> {
    let by = open(directory)?;
    UnixStream::connect(short(&by))
}

fn open(directory: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(directory)
}

fn short(directory: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()).into()
}

fn accept(listener: &UnixListener, stage: &Arc<Stage>) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                tracing::warn!(error = %e, "nobody can attach to this run any more");
                return;
            }
        };
        if !is_ours(&client) {
            continue;
        }
        let stage = stage.clone();
        let thread = std::thread::Builder::new().name("outlast-client".into()).stack_size(128 << 10);
        let served = thread.spawn(move || {
            if let Err(e) = stage.serve(client, false) {
                tracing::info!(error = %e, "a client was not served");
            }
        });
        if let Err(e) = served {
            tracing::warn!(error = %e, "a client was not served");
        }
    }
}

/// Returns whether the process at the other end belongs to this user.
fn is_ours(client: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(client.as_fd());
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A socket of another supervisor, which took the run over, stays.
        if fs::metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::attach::frame::{Frame, Frames, VERSION};

    #[test]
    fn a_run_is_reached_by_its_directory_however_long_its_name_is() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        fs::create_dir(&long).unwrap();
        assert!(connect(&long).is_err());
        let stage = Arc::new(Stage::default());
        let first = listen(&long, stage.clone()).unwrap();
        assert_eq!(fs::metadata(long.join(NAME)).unwrap().permissions().mode() & 0o777, 0o600);
        // The second one takes the place of the first, and dropping the first does not touch it.
        let second = listen(&long, stage.clone()).unwrap();
        drop(first);
        let mut client = connect(&long).unwrap();
        client.write_all(&Frame::Hello { version: VERSION }.encode()).unwrap();
        stage.begun("r", 1);
        let begun = Frame::Begun { pty: false, attempt: 1, run: "r".into() };
        assert_eq!(Frames::default().read(&mut client).unwrap(), Some(begun));
        drop(second);
        assert!(connect(&long).is_err());
    }
}
