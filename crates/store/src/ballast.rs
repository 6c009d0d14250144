//! A file beside the store, deleted when the disk is full so that settlements still have room.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// Size of the ballast file, in bytes.
const SIZE: usize = 4 << 20;

/// Free bytes on the disk from which the ballast is recreated: as much again is then left for new work. Not more, as a
/// small disk that was full once would never have enough.
const ROOM: u64 = 2 * SIZE as u64;

pub struct Ballast {
    path: PathBuf,
    released: bool,
}

impl Ballast {
    /// Creates the reserve file beside `store` if there is room. A missing file is no error: it is only a reserve.
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

    /// Deletes the reserve file. Returns false if there was none.
    pub fn release(&mut self) -> bool {
        self.released = true;
        fs::remove_file(&self.path).is_ok()
    }

    /// Returns whether disk space is short. Recreates the reserve file once there is enough space again.
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
