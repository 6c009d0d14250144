//! What a process finds around it: variables and a directory, taken once, so that what is decided on
//! them is a pure function.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// The environment of one `outlast` process.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    variables: BTreeMap<OsString, OsString>,
    directory: PathBuf,
}

impl Surroundings {
    /// This process's own.
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            // A directory that was removed under us: relative paths then name nothing, and say so.
            directory: std::env::current_dir().unwrap_or_default(),
        }
    }

    pub fn new(variables: &[(&str, &str)], directory: &Path) -> Self {
        let variables = variables.iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self { variables, directory: directory.into() }
    }

    /// A variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// All of them.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> + '_ {
        self.variables.iter().map(|(k, v)| (k.clone(), v.clone()))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME")
    }

    /// `$XDG_CONFIG_HOME/outlast`, else `~/.config/outlast`.
    pub fn config_directory(&self) -> Option<PathBuf> {
        self.xdg("XDG_CONFIG_HOME", ".config")
    }

    /// `$XDG_STATE_HOME/outlast`, else `~/.local/state/outlast`.
    pub fn state_directory(&self) -> Option<PathBuf> {
        self.xdg("XDG_STATE_HOME", ".local/state")
    }

    fn xdg(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let base = self.absolute(variable).or_else(|| Some(self.home()?.join(below_home)))?;
        Some(base.join("outlast"))
    }

    /// The XDG specification has relative paths ignored: they would mean another place in each directory.
    fn absolute(&self, variable: &str) -> Option<PathBuf> {
        self.var(variable).map(PathBuf::from).filter(|p| p.is_absolute())
    }
}
