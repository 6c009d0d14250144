//! Trust in a directory's settings: which file the user trusts, and with which content.
//!
//! A record is a file below `~/.config/outlast/trusted`, which a confined agent does not see. It holds the digest of the
//! content that was trusted, so that a file that changes is no longer trusted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use outlast_core::words::Digest;

use crate::{disk, settings::surroundings::Surroundings};

/// Trust of the user in a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The file is the user's own.
    Own,
    /// The user trusts the file with this content.
    Given,
    /// The file was trusted with another content.
    Outdated,
    None,
}

impl Trust {
    /// Returns whether the file counts.
    pub fn is_given(self) -> bool {
        matches!(self, Trust::Own | Trust::Given)
    }
}

/// Returns the user's trust in a directory's settings file at `path` with the content `text`.
pub fn of(around: &Surroundings, path: &Path, text: &str) -> Trust {
    match record_of(around, path).and_then(|record| fs::read_to_string(record).ok()) {
        Some(kept) if kept == content(path, text) => Trust::Given,
        Some(_) => Trust::Outdated,
        None => Trust::None,
    }
}

/// Records trust in the settings file at `path` with the content `text`, in place of an earlier content. Durable.
pub fn give(around: &Surroundings, path: &Path, text: &str) -> io::Result<()> {
    let record = record_of(around, path).ok_or_else(nowhere)?;
    disk::write(&record, content(path, text).as_bytes())
}

/// Withdraws trust in the settings file at `path`. Returns whether there was any.
pub fn withdraw(around: &Surroundings, path: &Path) -> io::Result<bool> {
    let record = record_of(around, path).ok_or_else(nowhere)?;
    Ok(disk::present(fs::remove_file(record))?.is_some())
}

fn record_of(around: &Surroundings, path: &Path) -> Option<PathBuf> {
    let name = Digest::of(path.as_os_str().as_encoded_bytes()).to_string();
    Some(around.config_directory()?.join("trusted").join(name))
}

/// Returns the content of a record, as `sha256sum` prints it.
fn content(path: &Path, text: &str) -> String {
    format!("{}  {}\n", Digest::of(text.as_bytes()), path.display())
}

fn nowhere() -> io::Error {
    io::Error::other("neither XDG_CONFIG_HOME nor HOME is set")
}
