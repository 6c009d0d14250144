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
    config_directory: Option<PathBuf>,
    state_directory: Option<PathBuf>,
}

impl Surroundings {
    /// Reads this process's own variables and working directory.
    pub fn of_process() -> Self {
        // The directory may have been removed: relative paths then name nothing, and errors say so.
        Self::from(std::env::vars_os().collect(), std::env::current_dir().unwrap_or_default())
    }

    pub fn new(variables: &[(&str, &str)], directory: &Path) -> Self {
        Self::from(variables.iter().map(|(k, v)| (k.into(), v.into())).collect(), directory.into())
    }

    fn from(variables: BTreeMap<OsString, OsString>, directory: PathBuf) -> Self {
        let mut around = Self { variables, directory, ..Self::default() };
        around.config_directory = around.xdg("XDG_CONFIG_HOME", ".config");
        around.state_directory = around.xdg("XDG_STATE_HOME", ".local/state");
        around
    }

    /// Returns a variable's value; `None` if it is not set or empty.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// Returns whether a variable is set, even to an empty value.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(OsStr::new(name))
    }

    /// Returns the same surroundings with a command's `variables` added; they replace variables of the same name.
    ///
    /// The directories of settings and state stay: an agent can often write the file that the variables are from.
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

    /// Returns the path that a text means: `~` is the home directory, `.` the working directory, and `${VARIABLE:-ELSE}/…`
    /// begins with the variable's value, or with `ELSE` where it is not set. `None` if a part of it is not known.
    pub fn expand(&self, path: &str) -> Option<PathBuf> {
        if let Some((inside, below)) = path.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
            let (variable, otherwise) = inside.split_once(":-").unwrap_or((inside, ""));
            let base = self.var(variable).map(PathBuf::from).or_else(|| self.expand(otherwise))?;
            return Some(if below.is_empty() { base } else { base.join(below.trim_start_matches('/')) });
        }
        match path.split_once('/').unwrap_or((path, "")) {
            ("", "") => None,
            ("~", below) => Some(self.home()?.join(below)),
            (".", below) => Some(self.directory.join(below)),
            _ => Some(path.into()),
        }
    }

    /// Returns the files of the name that the PATH has, in its order.
    pub fn on_path<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        let directories = self.var("PATH").map(std::env::split_paths).into_iter().flatten();
        directories.map(move |place| self.directory.join(place).join(name)).filter(|file| file.is_file())
    }

    /// Returns `$XDG_CONFIG_HOME/outlast`, else `~/.config/outlast`; `None` if neither variable is set.
    pub fn config_directory(&self) -> Option<PathBuf> {
        self.config_directory.clone()
    }

    /// Returns `$XDG_STATE_HOME/outlast`, else `~/.local/state/outlast`; `None` if neither variable is set.
    pub fn state_directory(&self) -> Option<PathBuf> {
        self.state_directory.clone()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_variable_the_home_directory_or_where_the_command_was_typed() {
        let around = Surroundings::new(&[("HOME", "/home/ann"), ("OWN", "/own")], Path::new("/here"));
        for (text, wanted) in [
            ("${OWN:-~/.own}/a/b", Some("/own/a/b")),
            ("${OTHER:-~/.own}/a/b", Some("/home/ann/.own/a/b")),
            ("${OTHER:-/etc/own.json}", Some("/etc/own.json")),
            ("${OWN}", Some("/own")),
            ("${OTHER}", None),
            ("./a", Some("/here/a")),
            ("", None),
        ] {
            assert_eq!(around.expand(text), wanted.map(PathBuf::from), "{text}");
        }
        assert_eq!(Surroundings::default().expand("~/a"), None);
    }

    /// Bug: a file of variables that set XDG_CONFIG_HOME moved the user's own settings, endpoints and upstreams with it.
    /// Consequence: an agent that could write the file of `--env-file` chose what was run, and where calls went.
    /// Cause: the directories were looked up in the command's variables.
    #[test]
    fn a_commands_variables_do_not_move_the_users_settings() {
        let around = Surroundings::new(&[("HOME", "/home/ann")], Path::new("/"));
        let evil = ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"].map(|name| (name.into(), "/evil".into()));
        let with = around.clone().with(evil.into());
        assert_eq!(with.config_directory(), around.config_directory());
        assert_eq!(with.state_directory(), Some("/home/ann/.local/state/outlast".into()));
        assert_eq!(with.home(), Some("/evil".into()), "the command's own files are found as it finds them");
    }
}
