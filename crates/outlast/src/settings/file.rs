//! Settings files: their paths, and errors in them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::{
    disk::present,
    settings::{
        surroundings::Surroundings,
        trust::{self, Trust},
    },
};

/// Name of the settings files.
pub const FILE: &str = "outlast.toml";

/// Longest settings file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Source of a setting: a variable, or a key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Variable(String),
    File { path: PathBuf, key: String },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Variable(name) => write!(f, "the variable {name}"),
            Origin::File { path, key } => write!(f, "`{key}` in {}", path.display()),
        }
    }
}

/// Error of settings that are not accepted. No command was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("{}, line {line}: {why}", path.display())]
    Syntax { path: PathBuf, line: usize, why: String },
    #[error("{}: unknown key `{key}`", path.display())]
    UnknownKey { path: PathBuf, key: String, nearest: Option<String> },
    #[error("{}: `{key}` would put a secret into a file of settings", path.display())]
    Secret { path: PathBuf, key: String },
    #[error("{}: `{key}` is given twice, with - and with _", path.display())]
    Twice { path: PathBuf, key: String },
    #[error("{}: `{key}` acts, and is typed: no file sets it", path.display())]
    Typed { path: PathBuf, key: String },
    #[error("{}: `{key}` is not taken from a directory's own settings", path.display())]
    NotHere { path: PathBuf, key: String },
    #[error("{}: `{key}` is not taken from a directory's settings that you do not trust{}", path.display(), if *outdated { ": they have changed since you did" } else { "" })]
    Untrusted { path: PathBuf, key: String, outdated: bool },
    #[error("{origin}: {why}")]
    BadValue { origin: Origin, why: String },
    #[error("{}: `agents.{agent}{key}`: {why}", path.display())]
    BadAgent { path: PathBuf, agent: String, key: String, why: BadDeclaration },
}

/// Error of a table `[agents.NAME]` that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDeclaration {
    #[error("unknown key (wanted match, new_args, resume_args, session_id_regex, limit_regex)")]
    UnknownKey,
    #[error("wanted {0}")]
    Wanted(&'static str),
    #[error("`{0}` is an adapter of its own already")]
    BuiltIn(String),
    #[error("resume_args without {{session}} would not go on with the session that new_args begin")]
    NoSession,
    #[error("cannot be read as a regular expression: {0}")]
    Regex(String),
    #[error("new_args with {{session}} choose the session: there is none to be read off what it prints")]
    TwoSessions,
}

impl Error {
    /// Refuses the value of a key in a file.
    pub fn bad(path: &Path, key: impl Into<String>, why: impl Into<String>) -> Error {
        let origin = Origin::File { path: path.to_owned(), key: key.into() };
        Error::BadValue { origin, why: why.into() }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::UnknownKey { nearest: Some(nearest), .. } => Some(format!("the nearest known key is `{nearest}`")),
            Error::UnknownKey { .. } => Some("keys are the long flags of `outlast --help`, or tables of a command's".into()),
            Error::Secret { .. } => Some(
                "keys are taken from OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY, or from ~/.config/outlast/env (mode 0600)"
                    .into(),
            ),
            Error::Typed { .. } => Some(
                "take it out of the file; if you did not write it, an agent may have".into(),
            ),
            Error::NotHere { .. } => Some("put it into ~/.config/outlast/outlast.toml".into()),
            Error::Untrusted { .. } => Some(
                "a checkout or an agent may have written it; if all of it is what you want: `outlast trust`"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// Settings file that exists.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    pub path: PathBuf,
    pub text: String,
    pub trust: Trust,
}

impl SettingsFile {
    /// Returns the table `name`; `None` if there is none. `why` is the error where the name has another value.
    fn table(&self, name: &str, why: &str) -> Result<Option<toml::Table>, Error> {
        match table(&self.text, &self.path)?.remove(name) {
            None => Ok(None),
            Some(toml::Value::Table(_)) if !self.trust.is_given() => Err(self.refuses(name)),
            Some(toml::Value::Table(found)) => Ok(Some(found)),
            Some(_) => Err(Error::bad(&self.path, name, why)),
        }
    }

    /// Returns the error of a key that would count if the user trusted the file.
    pub fn refuses(&self, key: &str) -> Error {
        let outdated = self.trust == Trust::Outdated;
        Error::Untrusted { path: self.path.clone(), key: key.to_owned(), outdated }
    }
}

/// Reads the settings files that exist, nearest first: the current directory's, then the user's own.
pub fn files(around: &Surroundings) -> Result<Vec<SettingsFile>, Error> {
    Ok(directorys_file(around)?.into_iter().chain(own_file(around)?).collect())
}

/// Reads the settings file of the current directory; `None` if there is none, or if it is the user's own.
pub fn directorys_file(around: &Surroundings) -> Result<Option<SettingsFile>, Error> {
    let path = around.directory().join(FILE);
    if around.config_directory().as_deref() == Some(around.directory()) {
        return Ok(None);
    }
    Ok(read(&path)?.map(|text| SettingsFile { trust: trust::of(around, &path, &text), path, text }))
}

/// Reads the user's own settings file; `None` if there is none.
pub fn own_file(around: &Surroundings) -> Result<Option<SettingsFile>, Error> {
    let Some(path) = around.config_directory().map(|d| d.join(FILE)) else { return Ok(None) };
    Ok(read(&path)?.map(|text| SettingsFile { path, text, trust: Trust::Own }))
}

/// Returns the table `name` of tables (`[name.KEY]`) in the user's own file, with the file's path; `None` if there is
/// no such file or table.
pub fn own_tables(around: &Surroundings, name: &str) -> Result<Option<(PathBuf, toml::Table)>, Error> {
    let Some(file) = own_file(around)? else { return Ok(None) };
    Ok(file.table(name, &format!("wanted tables [{name}.NAME]"))?.map(|tables| (file.path, tables)))
}

/// Returns the table `name` of the nearest settings file that has it, with the file's path; `None` if no file has it.
pub fn nearest_table(around: &Surroundings, name: &str) -> Result<Option<(PathBuf, toml::Table)>, Error> {
    for file in files(around)? {
        if let Some(table) = file.table(name, "wanted a table")? {
            return Ok(Some((file.path, table)));
        }
    }
    Ok(None)
}

/// Returns the table `name` of tables (`[name.KEY]`) from every settings file that has it, with the files' paths; the
/// current directory's file first.
pub fn tables(around: &Surroundings, name: &str) -> Result<Vec<(PathBuf, toml::Table)>, Error> {
    let mut found = Vec::new();
    for file in files(around)? {
        let tables = file.table(name, &format!("wanted tables [{name}.NAME]"))?;
        found.extend(tables.map(|tables| (file.path, tables)));
    }
    Ok(found)
}

/// Reads a value of a settings file as a type. The error says in one line why it is none.
pub fn read_as<T: serde::de::DeserializeOwned>(value: toml::Value) -> Result<T, String> {
    value.try_into().map_err(|e: toml::de::Error| e.message().trim().replace('\n', ", "))
}

/// Parses a settings file's text. `path` is named in errors.
pub fn table(text: &str, path: &Path) -> Result<toml::Table, Error> {
    text.parse().map_err(|e: toml::de::Error| {
        let at = e.span().map_or(0, |s| s.start).min(text.len());
        let line = 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        Error::Syntax { path: path.into(), line, why: e.message().trim().replace('\n', ", ") }
    })
}

/// Returns a file's text; `None` if there is no file. A pipe or a device is not opened: it might never end.
fn read(path: &Path) -> Result<Option<String>, Error> {
    let text = std::fs::metadata(path).and_then(|found| match found.is_file() && found.len() <= LONGEST {
        true => std::fs::read_to_string(path),
        false => Err(std::io::Error::other("it is no file of at most 1 MiB")),
    });
    present(text).map_err(|e| Error::Unreadable { path: path.into(), why: e.to_string() })
}
