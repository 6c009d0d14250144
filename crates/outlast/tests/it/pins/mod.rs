//! Pins of the interfaces that users build on: names, codes, exit statuses, JSON, metrics, routes and stored formats.
//!
//! Every pin asks the program from outside (its command line, its HTTP, its files), so that it passes unchanged
//! however the modules move. What was found stands in the text file beside the test. `OUTLAST_PINS=write` writes
//! those files anew: a difference there is a promise to users that changes, and is to be meant.

mod cli;
mod codes;
mod http;
pub mod json;
mod limits;
mod routes;
pub mod server;
mod shape;
mod store;

use std::{fmt::Write as _, fs, path::PathBuf};

/// The directory of the recorded files.
fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/pins"))
}

/// Compares `found` with the recorded file `name.txt`.
#[track_caller]
fn pin(name: &str, found: &str) {
    let path = directory().join(format!("{name}.txt"));
    if std::env::var("OUTLAST_PINS").is_ok_and(|v| v == "write") {
        fs::write(&path, found).unwrap();
        return;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut told = String::new();
    let (old, new): (Vec<&str>, Vec<&str>) = (wanted.lines().collect(), found.lines().collect());
    for (sign, lines, others) in [('-', &old, &new), ('+', &new, &old)] {
        for line in lines.iter().filter(|line| !others.contains(line)).take(30) {
            writeln!(told, "{sign} {line}").unwrap();
        }
    }
    assert!(wanted == found, "{} is not as it was (- recorded, + found):\n{told}", path.display());
}
