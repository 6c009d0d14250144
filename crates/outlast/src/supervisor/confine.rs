//! Confinement of a run's agents: which directories are hidden from them, and the program that starts them.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use outlast_core::run::Confine;

use crate::{
    program::{
        context::Context,
        error::{CliError, RunError},
    },
    settings::store_address::StoreAddress,
};

/// Words that are put before the command of a confined agent; empty without confinement.
#[derive(Clone, Debug, Default)]
pub struct Confined(Vec<OsString>);

impl Confined {
    /// Decides which directories are hidden, and tests whether this machine can hide them. `directory`: the agent's
    /// working directory. Without `asked` nothing is hidden.
    ///
    /// Errors: `not_confined` if the agent's directory would be hidden, or if the kernel or the user does not allow
    /// confinement.
    pub fn of(asked: Option<&Confine>, context: &Context, directory: &Path) -> Result<Confined, CliError> {
        let Some(asked) = asked else { return Ok(Confined::default()) };
        let refused = |why: String| CliError::from(RunError::NotConfined { why });
        let mut words: Vec<OsString> = vec![crate::program()?.into(), "confined".into()];
        for hidden in hidden(context).map_err(refused)? {
            if directory.starts_with(&hidden) {
                return Err(refused(format!("it works in {}, which is hidden", hidden.display())));
            }
            words.extend(["--hide".into(), hidden.into_os_string()]);
        }
        if let Confine::User(name) = asked {
            words.extend(["--as".into(), name.into()]);
        }
        let confined = Confined(words);
        let tried = confined.before::<OsString>([]);
        let [program, words @ ..] = tried.as_slice() else { return Ok(confined) };
        let output = Command::new(program).args(words).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let said =
                said.lines().find_map(|line| line.strip_prefix("error: the agent cannot be confined: "));
            return Err(refused(said.unwrap_or("the trial of it failed").to_owned()));
        }
        Ok(confined)
    }

    /// Returns the command line that runs `command` confined; `command` itself without confinement.
    pub fn before<S: Into<OsString>>(&self, command: impl IntoIterator<Item = S>) -> Vec<OsString> {
        let end = (!self.0.is_empty()).then(|| "--".into());
        self.0.iter().cloned().chain(end).chain(command.into_iter().map(Into::into)).collect()
    }

    /// Returns whether the agent is confined.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Returns the directories that are hidden: the store's, and that of the settings with the providers' keys.
fn hidden(context: &Context) -> Result<Vec<PathBuf>, String> {
    let StoreAddress::File(store) = &context.place else {
        return Err("its store is a database, and only directories can be hidden".into());
    };
    let (Some(directory), Some(name)) = (store.parent(), store.file_name()) else {
        return Err("its store is in no directory".into());
    };
    let directory = directory.canonicalize().map_err(|e| format!("{}: {e}", directory.display()))?;
    let name = name.to_string_lossy().into_owned();
    // Whatever else is there would be gone for the agent.
    let entries = fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let other = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    if let Some(other) = other.into_iter().find(|entry| !entry.starts_with(&name) && entry != "runs") {
        return Err(format!("{} holds other things than its store: {other}", directory.display()));
    }
    let settings = context.around.config_directory().filter(|settings| settings.is_dir());
    Ok([directory].into_iter().chain(settings).collect())
}
