//! `outlast run` on a terminal: the supervisor runs in a session of its own behind this process, which lends
//! it the terminal. So the run can outlive the terminal: `Ctrl-\ d`, or at once with `-d`.
//!
//! Both are the same program with the same arguments. The one behind finds `OUTLAST_BEHIND` in its
//! environment.

use std::{
    io::{self, IsTerminal as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use outlast_core::run::Pty;
use rustix::{
    fs::{FileType, OFlags},
    io::FdFlags,
    process::Signal,
    termios::Winsize,
};
use serde_json::json;

use crate::{
    program::{
        context::Context,
        error::CliError,
        exit_code, find,
        say::{self, say},
        told,
    },
    render::short::called,
    supervisor::output::Onward,
};
use outlast_process::{
    attach::{
        client::{self, End, Who},
        stage::{Left, Stage},
    },
    terminal,
};

use super::strays;

const VARIABLE: &str = told::BEHIND;

/// Relation of a supervisor to the terminal that the user typed at.
pub enum Role {
    /// No front process: the supervisor uses the terminal itself, if there is one. `pty`: the agent gets one of its
    /// own.
    Alone { pty: bool },
    /// The supervisor runs behind a front process, which lends its terminal.
    Behind(Behind),
}

/// Terminal and streams that show an agent's output.
pub struct Show {
    pub stage: Arc<Stage>,
    /// Whether the agent gets a terminal of its own.
    pub pty: bool,
    /// Whether `--pty` was given at this start. The option then overrides what is stored with the run.
    pub pty_asked: bool,
    /// Whether the supervisor runs behind a front process, so that keys come through the stage.
    pub is_behind: bool,
    pub onward: Onward,
}

/// Options of the command line about the terminal and the logs.
#[derive(Clone, Copy, Debug)]
pub struct TerminalOptions {
    pub pty: Option<Pty>,
    pub detach: bool,
    pub no_logs: bool,
}

/// Front: the process that the user started, when the supervisor runs behind it.
pub struct Front {
    detach: bool,
    pty: bool,
}

/// Connection of a supervisor to the front process before it.
pub struct Behind {
    pub stage: Arc<Stage>,
    pub pty: bool,
    /// Standard error of the front, if that is no terminal: the agent's goes there too. `None` if it is a terminal.
    pub stderr: Option<OwnedFd>,
}

impl Role {
    /// Decides whether this process is the supervisor (`Ok`), or a front that starts the supervisor behind it (`Err`).
    /// A supervisor has a guardian when this returns.
    ///
    /// Errors: `OUTLAST_BEHIND` names no socket; no process can be made.
    pub fn of(asked: TerminalOptions, context: &Context) -> Result<Result<Role, Front>, CliError> {
        if let Some(value) = context.around.var(VARIABLE) {
            strays::stand(false)?;
            return Behind::of(&value.to_string_lossy(), asked.detach).map(|behind| Ok(Role::Behind(behind)));
        }
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        Ok(match decide(asked, terminal) {
            (true, pty) => Err(Front { detach: asked.detach, pty }),
            (false, pty) => {
                strays::stand(true)?;
                Ok(Role::Alone { pty })
            }
        })
    }
}

/// Returns whether there is a front, and whether the agent gets a terminal of its own.
fn decide(asked: TerminalOptions, on_terminal: bool) -> (bool, bool) {
    match asked.pty.unwrap_or_default() {
        Pty::Never => (asked.detach, false),
        Pty::Always => (asked.detach || on_terminal, true),
        // Without logs, a terminal of its own has to be asked for.
        Pty::Auto if asked.no_logs && !asked.detach => (false, false),
        Pty::Auto => (asked.detach || on_terminal, on_terminal),
    }
}

impl Role {
    /// Returns where the agent's output is shown. Errors: this process's own streams cannot be duplicated.
    pub fn show(self, asked: TerminalOptions) -> io::Result<Show> {
        let pty_asked = asked.pty.is_some();
        Ok(match self {
            Role::Behind(Behind { stage, pty, stderr }) => {
                let onward = Onward { stdout: None, stderr: stderr.map(Arc::new) };
                Show { stage, pty, pty_asked, is_behind: true, onward }
            }
            Role::Alone { pty } => {
                let stage = Arc::new(Stage::default());
                say::on_stage(stage.clone(), false);
                Show { stage, pty, pty_asked, is_behind: false, onward: Onward::ours()? }
            }
        })
    }
}

impl Front {
    /// Starts the supervisor behind this process, and lends it the terminal until either ends. Returns the exit code.
    pub fn run(self, context: &Context) -> Result<u8, CliError> {
        let (ours, theirs) = UnixStream::pair()?;
        let size = client::size().unwrap_or(terminal::USUAL);
        let theirs = OwnedFd::from(theirs);
        let words = [
            theirs.as_raw_fd().to_string(),
            u8::from(self.pty).to_string(),
            size.ws_row.to_string(),
            size.ws_col.to_string(),
        ];
        let mut command = std::process::Command::new(crate::program()?);
        command.args(context.typed.iter().skip(1)).env(VARIABLE, words.join(","));
        // Piped input is the agent's. A terminal must not be read by the process behind.
        command.stdin(if io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() });
        command.stdout(Stdio::null());
        let fd = theirs.as_raw_fd();
        // SAFETY: between fork and exec only async-signal-safe calls are made: two plain system calls, on a
        // descriptor that stays open in the child.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setsid()?;
                let theirs = std::os::fd::BorrowedFd::borrow_raw(fd);
                rustix::io::fcntl_setfd(theirs, FdFlags::empty())?;
                Ok(())
            });
        }
        let mut supervisor = command.spawn()?;
        drop(theirs);
        let who = if self.detach { Who::Starter } else { Who::Owner };
        match client::attend(ours, who)? {
            End::Begun { run, .. } => {
                if context.look.json {
                    println!("{}", json!({ "run": run }));
                } else {
                    println!("{run}");
                    let store = context.open(false, Default::default())?;
                    let word = called(&find::run(&*store, &run)?);
                    say(&format!(
                        "it goes on in the background: `outlast attach {word}`, `outlast logs {word} -f`"
                    ));
                }
                Ok(exit_code::OK)
            }
            End::Detached => {
                say(
                    "detached: the run goes on (`outlast ls` shows it, `outlast attach RUN` comes back to it)",
                );
                Ok(exit_code::OK)
            }
            End::Over(code) => {
                supervisor.wait()?;
                Ok(code)
            }
            End::Lost => Ok(lost(supervisor.wait()?)),
        }
    }
}

/// Returns the exit code for a supervisor that ended without a message: it was killed, or failed to start.
fn lost(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit_code::FAILED),
        (None, signal) => {
            let number = signal.unwrap_or_default();
            say(&format!("the supervisor was killed (signal {number}); type the same command to go on"));
            u8::try_from(128 + number).unwrap_or(exit_code::FAILED)
        }
    }
}

impl Behind {
    fn of(words: &str, detach: bool) -> Result<Behind, CliError> {
        let bad = || {
            CliError::usage(
                format!("the variable {VARIABLE} is not for people: {words:?}"),
                Some(&format!("unset {VARIABLE}")),
            )
        };
        let numbers: Vec<u16> = words.split(',').map_while(|word| word.parse().ok()).collect();
        let [fd, pty, rows, columns] = numbers[..] else { return Err(bad()) };
        if fd <= 2 || rustix::io::fcntl_getfd(unsafe { borrow(fd) }).is_err() {
            return Err(bad());
        }
        // SAFETY: the descriptor is open, is no standard stream, and was made for this process: nothing else
        // here owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(i32::from(fd)) };
        let is_socket = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_socket())
        };
        if !is_socket(&socket) {
            return Err(bad());
        }
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(io::Error::from)?;
        let stage = Arc::new(Stage::default());
        stage.resize(Winsize { ws_row: rows, ws_col: columns, ..terminal::USUAL });
        say::on_stage(stage.clone(), true);
        let stderr = io::stderr();
        let stderr = match detach || stderr.is_terminal() {
            true => None,
            false => Some(stderr.as_fd().try_clone_to_owned()?),
        };
        let served = stage.clone();
        let thread = std::thread::Builder::new().name("outlast-front".into()).stack_size(128 << 10);
        thread.spawn(move || {
            // The terminal was closed before anybody said that the run may go on without it.
            if let Ok(Left::Hangup) | Err(_) = served.serve(UnixStream::from(socket), true) {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::HUP);
            }
        })?;
        Ok(Behind { stage, pty: pty != 0, stderr })
    }

    /// Releases the front's streams: from now on this process's standard output and error go to the file `said`, or
    /// nowhere if that cannot be opened.
    pub fn let_go(said: Option<&std::path::Path>) -> io::Result<()> {
        use rustix::fs::Mode;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let file = said.map(|path| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR));
        let to = match file {
            Some(Ok(file)) => file,
            _ => rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?,
        };
        rustix::stdio::dup2_stdout(&to)?;
        rustix::stdio::dup2_stderr(&to)?;
        say::on_stderr();
        Ok(())
    }
}

/// Borrows a descriptor by its number.
///
/// # Safety
///
/// The result may be used only to ask whether the descriptor is open.
unsafe fn borrow(fd: u16) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the caller only asks whether it is open.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(i32::from(fd)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_lent_where_there_is_one_and_nothing_else_was_asked() {
        // Options, whether there is a terminal; expected front and terminal of the agent's own.
        for (pty, detach, no_logs, on_terminal, wanted) in [
            (None, false, false, true, (true, true)),
            (None, false, false, false, (false, false)),
            (None, false, true, true, (false, false)),
            (None, true, false, true, (true, true)),
            (None, true, false, false, (true, false)),
            (Some(Pty::Never), false, false, true, (false, false)),
            (Some(Pty::Never), true, false, true, (true, false)),
            (Some(Pty::Always), false, false, false, (false, true)),
            (Some(Pty::Always), true, false, false, (true, true)),
            (Some(Pty::Always), false, true, true, (true, true)),
        ] {
            let asked = TerminalOptions { pty, detach, no_logs };
            assert_eq!(decide(asked, on_terminal), wanted, "{asked:?} {on_terminal}");
        }
    }

    #[test]
    fn a_variable_that_names_no_socket_is_refused() {
        let file = tempfile::tempfile().unwrap();
        for words in
            ["", "x", "1,1,24,80", "9999,1,24,80", &format!("{},1,24,80", file.as_raw_fd()), "5,1,24"]
        {
            assert!(matches!(Behind::of(words, false), Err(CliError::Usage { .. })), "{words:?}");
        }
        // Its descriptor belongs to the result now.
        std::mem::forget(file);
    }
}
