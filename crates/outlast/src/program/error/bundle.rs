//! Errors of bundles, in which runs leave their store.

use std::io;

use crate::program::exit_code::{REFUSED, UNAVAILABLE, USAGE};

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum BundleError {
        #[error("{file} cannot be read: {why}")]
        Unread { file: String, why: io::Error } => ("bundle_io", UNAVAILABLE);
        #[error("{file} cannot be written: {why}")]
        Unwritten { file: String, why: io::Error } => ("bundle_io", UNAVAILABLE);
        #[error("the bundle: {0}")]
        Io(#[from] io::Error as e) => ("bundle_io", UNAVAILABLE);
        #[error("{file} is no bundle of outlast")]
        NotOne { file: String } => ("bundle_unknown", REFUSED), "`outlast export RUN --bundle FILE` writes one";
        #[error("{file} is torn, or was changed: its digest is not that of what it holds")]
        Damaged { file: String } => ("bundle_damaged", REFUSED),
            "copy it again from where it was written; nothing was changed here";
        #[error("{file} was written by a later outlast ({by}): its format is {found}, and this program reads up to {known}")]
        Newer { file: String, by: String, found: u32, known: u32 } => ("bundle_newer", REFUSED),
            "import it with that version, or a later one";
        #[error("{file} {}", if *.by_another { "has a signature, and not that of this key" } else { "has no signature" })]
        Unsigned { file: String, by_another: bool } => ("bundle_unsigned", REFUSED),
            "have it written again with `outlast export RUN --bundle FILE --sign KEYFILE`; nothing was changed here";
        #[error("{file} has no {kind} key to read: {why}")]
        Key { file: String, kind: &'static str, why: String } => ("bundle_key", USAGE), match *kind {
            "private" => "`openssl genpkey -algorithm ed25519 -out KEYFILE` makes one",
            _ => "`openssl pkey -in KEYFILE -pubout -out PUBLIC` writes it",
        };
        #[error("{file} is there already")]
        Exists { file: String } => ("bundle_exists", REFUSED), "name another file";
        #[error("run {run} is a part of run {parent}, which it cannot leave")]
        Child { run: String, parent: String } => ("run_has_parent", REFUSED),
            format!("`outlast export {parent} --bundle FILE` takes all of it along");
        #[error("run {run} exists already{}", if *.moved { ", and was moved away from here" } else { "" })]
        Here { run: String, moved: bool } => ("run_exists", REFUSED), match moved {
            true => format!("`outlast rm {run}` deletes what stayed here; then it can come back"),
            false => format!("`outlast show {run}` tells of it; nothing was changed"),
        };
        #[error("run {run} was not moved to another store")]
        NotMoved { run: String } => ("run_not_moved", REFUSED), format!("leave --take-back out: `outlast resume {run}`");
        #[error("run {run} is halted here, and not known to be at {to}: {why}")]
        CutOff { run: String, to: String, why: String } => ("move_cut_off", UNAVAILABLE),
            format!("`outlast move {run} {to}` again goes on; only if it never came there: `outlast resume {run} --take-back`");
    }
}
