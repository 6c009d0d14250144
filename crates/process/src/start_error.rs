//! Reasons why a command did not start, in words its user can act on.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::spawn::Command;

/// Error of a command that did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no command to run: wanted a program and its arguments")]
    NoCommand,
    #[error("command not found: {program} (looked in {looked_in})")]
    NotFound { program: String, looked_in: String },
    #[error("command is not executable: {} ({why})", path.display())]
    NotExecutable { path: PathBuf, why: String },
    #[error("no such directory to run in: {}", cwd.display())]
    NoDirectory { cwd: PathBuf },
    #[error("cannot open the standard input of {program}: {source}")]
    Stdin { program: String, source: io::Error },
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
}

impl Error {
    pub fn code(&self) -> &'static str {
        match self {
            Error::NoCommand => "no_command",
            Error::NotFound { .. } => "command_not_found",
            Error::NotExecutable { .. } => "command_not_executable",
            Error::NoDirectory { .. } => "no_directory",
            Error::Stdin { .. } => "stdin_unreadable",
            Error::Start { .. } => "start_failed",
        }
    }

    /// Returns whether the same command may start later: its directory or its input is away, or the machine was short of
    /// something.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::NoDirectory { .. } | Error::Stdin { .. } | Error::Start { .. } => true,
            Error::NoCommand | Error::NotFound { .. } | Error::NotExecutable { .. } => false,
        }
    }

    /// Returns the exit code that a shell would return: 127 for not found, 126 for not executable. `None`: the cause is
    /// not the command itself.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Error::NotFound { .. } => Some(127),
            Error::NotExecutable { .. } => Some(126),
            _ => None,
        }
    }
}

/// Returns whether a run's error text is [`Error::NotFound`] or [`Error::NotExecutable`], which no further
/// attempt can mend.
pub fn is_wrong_command(error: &str) -> bool {
    error.starts_with("command not found: ") || error.starts_with("command is not executable: ")
}

pub(super) fn program(argv: &[OsString]) -> String {
    argv.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Finds out what an error of exec means. `ENOENT` can mean a missing command, directory or interpreter; `EACCES` can
/// mean a missing command whose PATH has a directory that cannot be read.
pub(super) fn explain(command: &Command, source: io::Error) -> Error {
    let found = find(command);
    let not_found = || Error::NotFound { program: program(&command.argv), looked_in: looked_in(command) };
    match (source.raw_os_error().map(Errno::from_raw_os_error), found) {
        (Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS), None) => not_found(),
        (Some(Errno::NOENT), Some(path)) => {
            let why = match interpreter(&path) {
                Some(interpreter) => format!("its interpreter {interpreter} is missing"),
                None => "its loader or a directory on the way is missing".to_owned(),
            };
            Error::NotExecutable { path, why }
        }
        (Some(Errno::ACCESS), Some(path)) if path.is_dir() => {
            Error::NotExecutable { path, why: "it is a directory".into() }
        }
        (Some(Errno::ACCESS | Errno::PERM), Some(path)) => {
            let why = format!("permission denied; see its mode with `ls -l {}`", path.display());
            Error::NotExecutable { path, why }
        }
        (Some(Errno::NOEXEC | Errno::LIBBAD), Some(path)) => {
            Error::NotExecutable { path, why: "neither a script nor a program for this machine".into() }
        }
        _ => Error::Start { program: program(&command.argv), source },
    }
}

/// Returns the first file that the command's name can mean, executable or not.
fn find(command: &Command) -> Option<PathBuf> {
    let name = Path::new(command.argv.first()?);
    if name.as_os_str().is_empty() {
        return None;
    }
    if has_slash(name) {
        return Some(command.cwd.join(name)).filter(|path| path.exists());
    }
    let path = command.env.get(OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|dir| command.cwd.join(dir).join(name)).find(|path| path.exists())
}

fn looked_in(command: &Command) -> String {
    match command.argv.first() {
        Some(name) if has_slash(Path::new(name)) => command.cwd.display().to_string(),
        _ => match command.env.get(OsStr::new("PATH")) {
            Some(path) => format!("PATH {}", path.to_string_lossy()),
            None => "the system's default path; PATH is not set".to_owned(),
        },
    }
}

fn has_slash(name: &Path) -> bool {
    name.as_os_str().as_bytes().contains(&b'/')
}

/// Returns the interpreter that the `#!` line names.
fn interpreter(path: &Path) -> Option<String> {
    let mut head = [0u8; 256];
    let length = io::Read::read(&mut fs::File::open(path).ok()?, &mut head).ok()?;
    let line = head[..length].strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    String::from_utf8_lossy(line).split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{spawn::Spawner, testing::sh};

    #[track_caller]
    fn check(argv0: &str, dir: &Path, code: &str, exit_code: Option<i32>, says: &str) {
        let mut command = sh("");
        command.argv = vec![argv0.into()];
        command.cwd = dir.into();
        command.env.insert("PATH".into(), dir.join("bin").into());
        let error = Spawner::start().unwrap().spawn(command).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), (code, exit_code), "{argv0}: {error}");
        assert!(error.to_string().contains(says), "{argv0}: {error}");
        assert_eq!(is_wrong_command(&error.to_string()), exit_code.is_some(), "{argv0}: {error}");
    }

    #[test]
    fn error_says_whether_the_command_is_missing_or_not_executable() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("bin")).unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            fs::write(dir.join(name), text).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        file("bin/plain", "#!/bin/sh\n", 0o644);
        file("script", "#!/no/such/interpreter -x\n", 0o755);
        file("data", "\u{7f}ELF and then nonsense", 0o755);

        check("agnet", dir, "command_not_found", Some(127), "command not found: agnet (looked in PATH ");
        check("./agnet", dir, "command_not_found", Some(127), "command not found: ./agnet (looked in ");
        check("script/agent", dir, "command_not_found", Some(127), "command not found");
        check("", dir, "command_not_found", Some(127), "command not found");
        check("plain", dir, "command_not_executable", Some(126), "bin/plain (permission denied");
        check("./bin", dir, "command_not_executable", Some(126), "it is a directory");
        check(
            "./script",
            dir,
            "command_not_executable",
            Some(126),
            "its interpreter /no/such/interpreter is missing",
        );
        check("sh", &dir.join("gone"), "no_directory", None, "no such directory to run in");
    }

    #[test]
    fn empty_or_impossible_commands_are_refused() {
        let spawner = Spawner::start().unwrap();
        let mut command = sh("");
        command.argv.clear();
        assert_eq!(spawner.spawn(command).unwrap_err().code(), "no_command");
        let mut command = sh("");
        command.argv.push("a\0b".into());
        assert_eq!(spawner.spawn(command).unwrap_err().code(), "start_failed");
        assert_eq!(spawner.spawn(sh("exit 4")).unwrap().wait().unwrap().to_string(), "exited with 4");
    }
}
