//! The product: the command line and the supervisor. The only place where the pieces meet.
//!
//! `main` parses the command line (`cli`, with `settings` for what it leaves open), makes a `Context`, and
//! calls one command. Commands that look at runs or change them are in `commands`, printed by `render`;
//! `supervisor`, `serve` and `serve::mock` run until they are done.
//!
//! Unsafe code: the fork that puts a supervisor behind the terminal of the process that was typed (`supervisor/front.rs`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod cli;
pub mod commands;
pub mod digest;
pub mod disk;
pub mod files;
pub mod guard;
pub mod logs;
pub mod loops;
pub mod mcp;
pub mod notify;
pub mod program;
pub mod proxy_setup;
pub mod render;
pub mod serve;
pub mod settings;
pub mod supervisor;

use std::{ffi::OsString, io, path::PathBuf, process::ExitCode, sync::OnceLock};

use crate::{
    commands::line,
    program::{exit_code, say},
    render::time,
    settings::surroundings::Surroundings,
};

/// Runs the command line and returns its exit code. See `exit_code`.
///
/// Blocks until the command is done. Prints to this process's stdout and stderr.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(exit_of(args))
}

/// Runs the command line as [`main`] does, and returns the exit code as a number, for callers outside Rust.
pub fn exit_of(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let around = Surroundings::of_process();
    time::set_zone(time::zone_of(around.var("TZ")));
    let (json, done) = match line::parse(&args, &around) {
        Ok(cli) => (cli.globals.json, commands::act(&cli, around, args.clone())),
        Err(e) => (line::wants_json(&args, &around), Err(e)),
    };
    let code = done.unwrap_or_else(|e| {
        let code = e.report(json);
        // Otherwise a shell that evaluates empty output would go on as if the command had succeeded.
        if code != exit_code::OK && args.iter().take_while(|a| *a != "--").any(|a| a == "shell-init") {
            println!("{}", loops::end_with(code));
        }
        code
    });
    say::over(code);
    code
}

/// Program that starts another `outlast`, if this process's own file cannot: an interpreter.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the program that starts another `outlast`. Later calls have no effect.
pub fn set_program(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Returns the program that starts another `outlast`: this process's own file, or what an upgrade has put into its place,
/// unless [`set_program`] named another.
pub fn program() -> io::Result<PathBuf> {
    PROGRAM.get().cloned().map_or_else(|| std::env::current_exe().map(in_its_place), Ok)
}

/// Returns the file that has the place of a program now. Linux tells of a file that was replaced that it is deleted.
fn in_its_place(program: PathBuf) -> PathBuf {
    match program.to_str().and_then(|path| path.strip_suffix(" (deleted)")) {
        Some(path) if !program.exists() => path.into(),
        _ => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Bug: a crash test ended with "No such file or directory" when `outlast` was upgraded meanwhile, and a supervisor gave
    // its agent hooks that name no file. Cause: Linux shows a replaced program with " (deleted)" behind its name.
    #[test]
    fn a_program_that_is_replaced_while_it_runs_is_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("odd (deleted)"), "").unwrap();
        for (shown, wanted) in
            [("outlast", "outlast"), ("outlast (deleted)", "outlast"), ("odd (deleted)", "odd (deleted)")]
        {
            assert_eq!(in_its_place(path(shown)), path(wanted), "{shown}");
        }
    }
}
