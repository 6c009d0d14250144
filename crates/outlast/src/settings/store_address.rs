//! Address of the store: a file of this machine, or a PostgreSQL database.

use std::{
    fmt,
    path::{Path, PathBuf},
};

pub use outlast_store::Durability;

use crate::{disk::beside, settings::surroundings::Surroundings};

/// Returns the path of the store that holds the record of a file of results: the file's path with `.outlast.db`.
pub fn record(results: &Path) -> PathBuf {
    beside(results, ".outlast.db")
}

/// Address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// Absolute path of an SQLite file.
    File(PathBuf),
    /// `postgres://` URL. May hold a password, which is never shown.
    Postgres(String),
}

/// Error of an address that names no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not a store: {scheme}:// (wanted a file, or postgres://USER@HOST/DATABASE)")]
    Scheme { scheme: String },
    #[error("not a store: {place:?} is a directory's name (wanted a file)")]
    Directory { place: String },
    #[error("no place for the store: none of --store, OUTLAST_STORE, XDG_STATE_HOME and HOME is set")]
    Nowhere,
}

impl StoreAddress {
    /// Decides the store's address: `asked`, else `$XDG_STATE_HOME/outlast/outlast.db`, else
    /// `~/.local/state/outlast/outlast.db`.
    ///
    /// `asked` comes from `--store`, `OUTLAST_STORE` or `outlast.toml`. A relative path is below the current
    /// directory. A JSONL file of results stands for the record beside it.
    pub fn decide(asked: Option<&str>, around: &Surroundings) -> Result<StoreAddress, Error> {
        let Some(asked) = asked.filter(|s| !s.is_empty()) else {
            let state = around.state_directory().ok_or(Error::Nowhere)?;
            return Ok(StoreAddress::File(state.join("outlast.db")));
        };
        match asked.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Ok(StoreAddress::Postgres(asked.to_owned())),
            Some((scheme, _)) => Err(Error::Scheme { scheme: scheme.chars().take(40).collect() }),
            None if asked.ends_with('/') => Err(Error::Directory { place: asked.to_owned() }),
            None => {
                let below_home = asked.strip_prefix("~/").and_then(|rest| Some(around.home()?.join(rest)));
                let path = below_home.unwrap_or_else(|| around.directory().join(asked));
                Ok(StoreAddress::File(if asked.ends_with(".jsonl") { record(&path) } else { path }))
            }
        }
    }

    /// Returns the address as the store's `open` takes it, including a password.
    pub fn address(&self) -> String {
        match self {
            StoreAddress::File(path) => path.to_string_lossy().into_owned(),
            StoreAddress::Postgres(url) => url.clone(),
        }
    }

    /// Returns the address; `None` if it contains a password.
    pub fn without_secret(&self) -> Option<String> {
        let address = self.address();
        (address == self.to_string()).then_some(address)
    }

    /// Returns the environment variables that hold secrets for PostgreSQL's clients; none for a store in a file.
    pub fn secrets(&self) -> &'static [&'static str] {
        match self {
            StoreAddress::File(_) => &[],
            StoreAddress::Postgres(_) => &["PGPASSWORD", "PGPASSFILE", "PGSSLKEY"],
        }
    }
}

/// Shows the address without a password.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::File(path) => path.display().fmt(f),
            StoreAddress::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    // A password may hold an `@`: the last one ends it.
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or_default()),
        None => authority.to_owned(),
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let kept: Vec<&str> = query
        .split('&')
        .filter(|p| !p.is_empty() && !p.to_ascii_lowercase().starts_with("password"))
        .collect();
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    format!("{scheme}://{authority}{path}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_asked_one_else_the_state_directory() {
        let check = |asked: Option<&str>, variables: &[(&str, &str)], wanted: Result<&str, Error>| {
            let around = Surroundings::new(variables, Path::new("/work"));
            assert_eq!(StoreAddress::decide(asked, &around).map(|p| p.address()), wanted.map(str::to_owned));
        };
        let home = ("HOME", "/home/ann");
        check(None, &[home], Ok("/home/ann/.local/state/outlast/outlast.db"));
        check(None, &[home, ("XDG_STATE_HOME", "/var/ann")], Ok("/var/ann/outlast/outlast.db"));
        check(None, &[home, ("XDG_STATE_HOME", "relative")], Ok("/home/ann/.local/state/outlast/outlast.db"));
        check(Some(""), &[home], Ok("/home/ann/.local/state/outlast/outlast.db"));
        check(Some("runs.db"), &[home], Ok("/work/runs.db"));
        check(Some("runs/x.jsonl"), &[home], Ok("/work/runs/x.jsonl.outlast.db"));
        check(Some("~/runs.db"), &[home], Ok("/home/ann/runs.db"));
        check(Some("/a/runs.db"), &[], Ok("/a/runs.db"));
        check(Some("postgres://ann:pw@db/x"), &[], Ok("postgres://ann:pw@db/x"));
        check(None, &[], Err(Error::Nowhere));
        check(Some("mysql://x"), &[], Err(Error::Scheme { scheme: "mysql".into() }));
        check(Some("runs/"), &[], Err(Error::Directory { place: "runs/".into() }));
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://ann:s3cret@db:5432/x", "postgres://ann@db:5432/x"),
            ("postgres://ann:s3@cret@db/x", "postgres://ann@db/x"),
            (
                "postgres://db/x?user=ann&password=s3cret&sslmode=require",
                "postgres://db/x?user=ann&sslmode=require",
            ),
            ("postgres://db?password=s3cret", "postgres://db"),
            ("postgresql://ann@db", "postgresql://ann@db"),
        ] {
            assert_eq!(StoreAddress::Postgres(url.into()).to_string(), shown);
        }
    }
}
