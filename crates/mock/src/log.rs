//! Log of paid requests on disk, against which a crash test compares the ledger.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use parking_lot::Mutex;
use serde::Serialize;

use super::plan::Used;

/// One paid request.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    /// Number of this request among all paid requests of this process, counted from 1. Concurrent requests may be
    /// logged out of order.
    pub n: u64,
    /// Time of the request, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub dialect: &'static str,
    pub model: &'a str,
    pub stream: bool,
    pub digest: &'a str,
    pub occurrence: u64,
    /// First 6 characters of the credential: enough to tell two keys apart, not to use one.
    pub credential: &'a str,
    /// Length of the decoded body, in bytes.
    pub bytes: usize,
    /// Input tokens, cached ones included.
    pub input_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub output_tokens: u64,
    /// Text of the last user message that carries no tool results, or the beginning of it.
    pub asked: &'a str,
    /// Windows of the plan after the request; absent without a plan.
    #[serde(skip_serializing_if = "<[Used]>::is_empty")]
    pub plan: &'a [Used],
}

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
    pub fn append(&self, line: &Line<'_>) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.lock().write_all(&bytes)
    }
}
