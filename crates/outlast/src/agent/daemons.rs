//! Background servers of CLI agents. Each is one for its user, begun by whichever shell came first: work that a program
//! hands over to it leaves the run of that program, and its calls are made with another login.
//!
//! Measured with Codex 0.171 and Claude Code 2.1.332.

use std::{io, path::PathBuf};

use outlast_process::sockets;

use super::row::{self, Row};
use crate::settings::surroundings::Surroundings;

/// Variables by which the programs of a run begin no background server, and hand nothing over to one. Codex has none:
/// its adapter adds an option.
pub const OFF: [(&str, &str); 1] = [("CLAUDE_CODE_DISABLE_AGENT_VIEW", "1")];

/// Background server: what is known of its program, and the directory of its sockets.
pub type Daemon = (&'static Row, PathBuf);

/// Returns the background servers of the programs that are known, whether they live or not.
pub fn all(around: &Surroundings) -> Vec<Daemon> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let directory = |row: &Row| around.expand(&row.daemon.replace("{user}", &user));
    row::rows().iter().filter_map(|row| Some((row, directory(row)?))).collect()
}

/// Returns the background servers that live now. Errors: the kernel does not list its sockets.
pub fn alive(around: &Surroundings) -> io::Result<Vec<Daemon>> {
    let bound = sockets::bound()?;
    let lives = |(_, directory): &Daemon| bound.iter().any(|path| path.starts_with(directory));
    Ok(all(around).into_iter().filter(lives).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixListener};

    use super::*;

    #[test]
    fn a_server_lives_while_its_socket_is_bound() {
        let home = tempfile::tempdir().unwrap();
        let around = Surroundings::new(&[("CODEX_HOME", home.path().to_str().unwrap())], home.path());
        let is_seen = || alive(&around).unwrap().iter().any(|(row, _)| row.name == "codex");
        let directory = home.path().join("app-server-control");
        fs::create_dir(&directory).unwrap();
        assert!(!is_seen());
        let listener = UnixListener::bind(directory.join("app-server-control.sock")).unwrap();
        assert!(is_seen());
        drop(listener);
        assert!(!is_seen(), "its file is left, and nobody listens");
    }
}
