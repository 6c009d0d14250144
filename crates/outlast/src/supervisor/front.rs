//! `outlast run` on a terminal: the supervisor runs behind it, in a session of its own, and this process lends
//! it the terminal. So the run can go on when the terminal goes: `Ctrl-\ d`, or at once with `-d`.
//!
//! Both are the same program with the same line; the one behind finds `OUTLAST_BEHIND` in its environment.

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
        exit_code,
        say::{self, say},
    },
    supervisor::output::Onward,
};
use outlast_process::{
    attach::{
        client::{self, End, Who},
        stage::{Left, Stage},
    },
    pty,
};

const VARIABLE: &str = "OUTLAST_BEHIND";

/// How a supervisor stands to a terminal.
pub enum Role {
    /// It has the terminal, if there is one, to itself. `pty`: the agent gets another.
    Alone { pty: bool },
    /// A front lends it its terminal.
    Behind(Behind),
}

/// Where an agent is shown.
pub struct Show {
    pub stage: Arc<Stage>,
    /// It gets a terminal of its own.
    pub pty: bool,
    /// That was asked of this very start: it counts more than what the run was begun with.
    pub pty_asked: bool,
    /// Its terminal is lent by a front, or nobody's: keys come by the stage.
    pub is_behind: bool,
    pub onward: Onward,
}

/// What the line says of it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub pty: Option<Pty>,
    pub detach: bool,
    pub no_logs: bool,
}

/// The process that a person started.
pub struct Front {
    detach: bool,
    pty: bool,
}

/// The supervisor behind a front.
pub struct Behind {
    pub stage: Arc<Stage>,
    pub pty: bool,
    /// The front's standard error, where it is no terminal: the agent's goes there.
    pub stderr: Option<OwnedFd>,
}

impl Role {
    /// What this process is; or the front that it is instead of a supervisor.
    ///
    /// Errors: the variable of a process behind names no socket.
    pub fn of(asked: Asked, context: &Context) -> Result<Result<Role, Front>, CliError> {
        if let Some(value) = context.around.var(VARIABLE) {
            return Behind::of(&value.to_string_lossy(), asked.detach).map(|behind| Ok(Role::Behind(behind)));
        }
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        Ok(match decide(asked, terminal) {
            (true, pty) => Err(Front { detach: asked.detach, pty }),
            (false, pty) => Ok(Role::Alone { pty }),
        })
    }
}

/// Whether there is to be a front, and whether the agent gets a terminal of its own.
fn decide(asked: Asked, on_terminal: bool) -> (bool, bool) {
    match asked.pty.unwrap_or_default() {
        Pty::Never => (asked.detach, false),
        Pty::Always => (asked.detach || on_terminal, true),
        // Without logs it is asked for the terminal itself.
        Pty::Auto if asked.no_logs && !asked.detach => (false, false),
        Pty::Auto => (asked.detach || on_terminal, on_terminal),
    }
}

impl Role {
    /// Errors: our own streams cannot be had twice.
    pub fn show(self, asked: Asked) -> io::Result<Show> {
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
    /// Starts the supervisor behind this process, and stays until either ends. Returns the exit code.
    pub fn run(self, context: &Context) -> Result<u8, CliError> {
        let (ours, theirs) = UnixStream::pair()?;
        let size = client::size().unwrap_or(pty::USUAL);
        let theirs = OwnedFd::from(theirs);
        let words = [
            theirs.as_raw_fd().to_string(),
            u8::from(self.pty).to_string(),
            size.ws_row.to_string(),
            size.ws_col.to_string(),
        ];
        let mut command = std::process::Command::new(crate::program()?);
        command.args(context.typed.iter().skip(1)).env(VARIABLE, words.join(","));
        // What was piped into us is the agent's; a terminal is not theirs to read.
        command.stdin(if io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() });
        command.stdout(Stdio::null());
        let fd = theirs.as_raw_fd();
        // SAFETY: between fork and exec only async-signal-safe calls: two plain system calls on a descriptor that is
        // open in the child until then.
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
                    say(&format!(
                        "it goes on in the background: `outlast attach {run}`, `outlast logs {run} -f`"
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

/// The supervisor is gone without a word: killed, or it never came to speak.
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
        let bad = || CliError::Usage {
            message: format!("the variable {VARIABLE} is not for people: {words:?}"),
            hint: Some(format!("unset {VARIABLE}")),
        };
        let numbers: Vec<u16> = words.split(',').map_while(|word| word.parse().ok()).collect();
        let [fd, pty, rows, columns] = numbers[..] else { return Err(bad()) };
        if fd <= 2 || rustix::io::fcntl_getfd(unsafe { borrow(fd) }).is_err() {
            return Err(bad());
        }
        // SAFETY: it is open, no standard stream, and nobody else here knows of it: it was made for us.
        let socket = unsafe { OwnedFd::from_raw_fd(i32::from(fd)) };
        let is_socket = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_socket())
        };
        if !is_socket(&socket) {
            return Err(bad());
        }
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(io::Error::from)?;
        let stage = Arc::new(Stage::default());
        stage.resize(Winsize { ws_row: rows, ws_col: columns, ..pty::USUAL });
        say::on_stage(stage.clone(), true);
        let stderr = io::stderr();
        let stderr = match detach || stderr.is_terminal() {
            true => None,
            false => Some(stderr.as_fd().try_clone_to_owned()?),
        };
        let served = stage.clone();
        let thread = std::thread::Builder::new().name("outlast-front".into()).stack_size(128 << 10);
        thread.spawn(move || {
            // Its terminal went before anybody said that the run may go on without.
            if let Ok(Left::Hangup) | Err(_) = served.serve(UnixStream::from(socket), true) {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::HUP);
            }
        })?;
        Ok(Behind { stage, pty: pty != 0, stderr })
    }

    /// Lets go of the front's own streams: from now on they are `said`, a file of what is said, or nowhere.
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

/// # Safety
///
/// Only to ask whether it is open.
unsafe fn borrow(fd: u16) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: as said above.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(i32::from(fd)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_lent_where_there_is_one_and_nothing_else_was_asked() {
        // Asked, whether there is a terminal; front, terminal of the agent's own.
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
            let asked = Asked { pty, detach, no_logs };
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
        // It took the file's descriptor.
        std::mem::forget(file);
    }
}
