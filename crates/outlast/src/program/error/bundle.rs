//! Errors of bundles, in which runs leave their store.

use std::io;

use crate::program::exit_code::{REFUSED, UNAVAILABLE, USAGE};

#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("{file} cannot be read: {why}")]
    Unread { file: String, why: io::Error },
    #[error("{file} cannot be written: {why}")]
    Unwritten { file: String, why: io::Error },
    #[error("{file} is no bundle of outlast")]
    NotOne { file: String },
    #[error("{file} is torn, or was changed: its digest is not that of what it holds")]
    Damaged { file: String },
    #[error(
        "{file} was written by a later outlast ({by}): its format is {found}, and this program reads up to {known}"
    )]
    Newer { file: String, by: String, found: u32, known: u32 },
    #[error("{file} {}", if *.by_another { "has a signature, and not that of this key" } else { "has no signature" })]
    Unsigned { file: String, by_another: bool },
    #[error("{file} has no {kind} key to read: {why}")]
    Key { file: String, kind: &'static str, why: String },
    #[error("{file} is there already")]
    Exists { file: String },
    #[error("run {run} is a part of run {parent}, which it cannot leave")]
    Child { run: String, parent: String },
    #[error("run {run} is in this store already{}", if *.moved { ", where it was moved away from" } else { "" })]
    Here { run: String, moved: bool },
    #[error("run {run} was not moved to another store")]
    NotMoved { run: String },
    #[error("run {run} is halted here, and not known to be at {to}: {why}")]
    CutOff { run: String, to: String, why: String },
    #[error("the bundle: {0}")]
    Io(#[from] io::Error),
}

impl BundleError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            BundleError::Unread { .. } | BundleError::Unwritten { .. } | BundleError::Io(_) => {
                ("bundle_io", UNAVAILABLE)
            }
            BundleError::NotOne { .. } => ("bundle_unknown", REFUSED),
            BundleError::Damaged { .. } => ("bundle_damaged", REFUSED),
            BundleError::Newer { .. } => ("bundle_newer", REFUSED),
            BundleError::Unsigned { .. } => ("bundle_unsigned", REFUSED),
            BundleError::Key { .. } => ("bundle_key", USAGE),
            BundleError::Exists { .. } => ("bundle_exists", REFUSED),
            BundleError::Child { .. } => ("run_has_parent", REFUSED),
            BundleError::Here { .. } => ("run_exists", REFUSED),
            BundleError::NotMoved { .. } => ("run_not_moved", REFUSED),
            BundleError::CutOff { .. } => ("move_cut_off", UNAVAILABLE),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            BundleError::NotOne { .. } => "`outlast export RUN --bundle FILE` writes one".into(),
            BundleError::Damaged { .. } => {
                "copy it again from where it was written; nothing was changed here".into()
            }
            BundleError::Newer { .. } => "import it with that version, or a later one".into(),
            BundleError::Unsigned { .. } => {
                "have it written again with `outlast export RUN --bundle FILE --sign KEYFILE`; nothing was changed here"
                    .into()
            }
            BundleError::Key { kind: "private", .. } => {
                "`openssl genpkey -algorithm ed25519 -out KEYFILE` makes one".into()
            }
            BundleError::Key { .. } => "`openssl pkey -in KEYFILE -pubout -out PUBLIC` writes it".into(),
            BundleError::Exists { .. } => "name another file".into(),
            BundleError::Child { parent, .. } => {
                format!("`outlast export {parent} --bundle FILE` takes all of it along")
            }
            BundleError::Here { run, moved: true } => {
                format!("`outlast rm {run}` deletes what stayed here; then it can come back")
            }
            BundleError::Here { run, moved: false } => {
                format!("`outlast show {run}` tells of it; nothing was changed")
            }
            BundleError::NotMoved { run } => format!("leave --take-back out: `outlast resume {run}`"),
            BundleError::CutOff { run, to, .. } => format!(
                "`outlast move {run} {to}` again goes on; only if it never came there: `outlast resume {run} --take-back`"
            ),
            BundleError::Unread { .. } | BundleError::Unwritten { .. } | BundleError::Io(_) => return None,
        })
    }
}
