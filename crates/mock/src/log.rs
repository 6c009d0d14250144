//! Log of paid requests on disk, against which a crash test compares the ledger.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use parking_lot::Mutex;
use serde_json::Value;

/// Append-only file of JSON lines, one for each paid request.
#[derive(Debug)]
pub(super) struct Log {
    file: Mutex<File>,
}

impl Log {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open the log {}: {error}", path.display()))
        })?;
        Ok(Self { file: Mutex::new(file) })
    }

    /// Appends a line in one write: the line survives the death of this process, and no reader sees half of it.
    pub fn append(&self, line: &Value) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.lock().write_all(&bytes)
    }
}
