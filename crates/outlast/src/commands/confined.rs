//! `outlast confined`: the program by which a supervisor starts a confined agent.
//!
//! A program of its own: what it becomes has no secret of the supervisor in its memory, and the kernel lets a process
//! that nobody may look into map no user.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use outlast_process::confine::{self, User, Ways, confine};

use super::prelude::*;

/// Starter of a confined run's agent: hides directories, drops rights, and becomes the command
#[derive(Args, Clone, Debug)]
pub struct ConfinedArgs {
    /// A directory that is hidden; can be repeated
    #[arg(long, value_name = "DIRECTORY")]
    pub hide: Vec<PathBuf>,
    /// Leave the network, for a listener on loopback at this port; 0: any
    #[arg(long, value_name = "PORT")]
    pub net: Option<u16>,
    /// The name of who serves that listener
    #[arg(long, value_name = "NAME", requires = "net")]
    pub hand_over: Option<String>,
    /// A Unix socket outside that the command may reach; can be repeated
    #[arg(long, value_name = "PATH", requires = "net")]
    pub open: Vec<PathBuf>,
    /// The user that the command runs as
    #[arg(long = "as", value_name = "USER")]
    pub user: Option<String>,
    /// The command and its arguments; none only tries
    #[arg(value_name = "CMD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// Hides the directories, drops rights, and executes the command in place of this process. Without a command, only
/// tests whether that is possible and returns 0. Returns 127 if the program does not exist and 126 if it cannot be
/// executed, as shells do.
pub fn confined(args: &ConfinedArgs) -> Result<u8> {
    if let Some(port) = args.net {
        let failed = |why: String| CliError::from(RunError::NetNotConfined { why });
        // The name is of the network that this process leaves.
        let to =
            args.hand_over.as_deref().map(confine::server).transpose().map_err(|e| failed(e.to_string()))?;
        let ways = Ways { hidden: args.hide.clone(), open: args.open.clone() };
        let listener = confine::leave(port, &ways).map_err(|e| failed(e.to_string()))?;
        to.map_or(Ok(()), |to| confine::hand_over(listener, &to)).map_err(|e| failed(e.to_string()))?;
        return become_it(args, None);
    }
    let failed = |e: outlast_process::confine::Error| RunError::NotConfined { why: e.to_string() };
    let user = args.user.as_deref().map(User::find).transpose().map_err(failed)?;
    confine(&args.hide, user.as_ref()).map_err(failed)?;
    become_it(args, user.as_ref())
}

fn become_it(args: &ConfinedArgs, user: Option<&User>) -> Result<u8> {
    let [program, words @ ..] = args.command.as_slice() else { return Ok(exit_code::OK) };
    let mut command = Command::new(program);
    command.args(words);
    if let Some(user) = user {
        command.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
    }
    let why = command.exec();
    say(&format!("{}: {why}", program.to_string_lossy()));
    Ok(if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}
