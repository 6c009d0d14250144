//! Surroundings of a process: its variables and directory, read once, so that decisions on them are pure
//! functions.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// Environment variables and working directory of one `outlast` process.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    variables: BTreeMap<OsString, OsString>,
    directory: PathBuf,
}

impl Surroundings {
    /// Reads this process's own variables and working directory.
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            // The directory may have been removed: relative paths then name nothing, and errors say so.
            directory: std::env::current_dir().unwrap_or_default(),
        }
    }

    pub fn new(variables: &[(&str, &str)], directory: &Path) -> Self {
        let variables = variables.iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self { variables, directory: directory.into() }
    }

    /// Returns a variable's value; `None` if it is not set or empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// Returns whether a variable is set, even to an empty value.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(OsStr::new(name))
    }

    /// Returns the same surroundings with `variables` added; they replace variables of the same name.
    pub fn with(mut self, variables: BTreeMap<String, String>) -> Self {
        self.variables.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Returns all environment variables, with their values.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> + '_ {
        self.variables.iter().map(|(k, v)| (k.clone(), v.clone()))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME")
    }

    /// Returns the directory that the variable names, else `below_home` in the home directory; `None` if neither is set.
    pub fn named_or_home(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        self.var(variable).map(PathBuf::from).or_else(|| Some(self.home()?.join(below_home)))
    }

    /// Returns `$XDG_CONFIG_HOME/outlast`, else `~/.config/outlast`; `None` if neither variable is set.
    pub fn config_directory(&self) -> Option<PathBuf> {
        self.xdg("XDG_CONFIG_HOME", ".config")
    }

    /// Returns `$XDG_STATE_HOME/outlast`, else `~/.local/state/outlast`; `None` if neither variable is set.
    pub fn state_directory(&self) -> Option<PathBuf> {
        self.xdg("XDG_STATE_HOME", ".local/state")
    }

    fn xdg(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let base = self.absolute(variable).or_else(|| Some(self.home()?.join(below_home)))?;
        Some(base.join("outlast"))
    }

    /// Returns a variable's path if it is absolute. The XDG specification ignores relative paths: they would
    /// mean another place in each directory.
    fn absolute(&self, variable: &str) -> Option<PathBuf> {
        self.var(variable).map(PathBuf::from).filter(|p| p.is_absolute())
    }
}
