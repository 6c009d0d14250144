//! A file beside the store that is given up when the disk is full, so that settlements land.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// Bytes kept in reserve.
const SIZE: usize = 4 << 20;

/// Free bytes from which on the ballast is made anew.
const ROOM: u64 = 64 << 20;

pub struct Ballast {
    path: PathBuf,
    released: bool,
}

impl Ballast {
    /// Makes the file if there is room. Its absence is no error: it is a reserve.
    pub fn make(store: &Path) -> Ballast {
        let mut path = store.as_os_str().to_owned();
        path.push(".ballast");
        let mut ballast = Ballast { path: path.into(), released: false };
        if !ballast.path.exists() && ballast.write().is_err() {
            ballast.released = true;
        }
        ballast
    }

    fn write(&mut self) -> std::io::Result<()> {
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let written = open.and_then(|mut f: File| f.write_all(&vec![0; SIZE]));
        if written.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        written
    }

    /// Gives its room up. False when there was none left to give.
    pub fn release(&mut self) -> bool {
        self.released = true;
        fs::remove_file(&self.path).is_ok()
    }

    /// Whether room is short; makes the file anew when it is not any more.
    pub fn is_released(&mut self) -> bool {
        if !self.released {
            return false;
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let free = rustix::fs::statvfs(directory).map_or(0, |s| s.f_bavail * s.f_frsize);
        if free >= ROOM && self.write().is_ok() {
            self.released = false;
        }
        self.released
    }
}
