//! Background servers of CLI agents. Each is one for its user, begun by whichever shell came first: work that a program
//! hands over to it leaves the run of that program, and its calls are made with another login.
//!
//! Measured with Codex 0.171 and Claude Code 2.1.332.

use std::{io, path::PathBuf};

use outlast_process::sockets;

use crate::settings::surroundings::Surroundings;

/// Variables by which the programs of a run begin no background server, and hand nothing over to one. Codex has none:
/// its adapter adds an option.
pub const OFF: [(&str, &str); 1] = [("CLAUDE_CODE_DISABLE_AGENT_VIEW", "1")];

/// Background server of one program.
pub struct Daemon {
    /// Name of the program's adapter.
    pub program: &'static str,
    /// Directory of the server's sockets.
    pub directory: PathBuf,
    /// Command that ends the server.
    pub ended_by: &'static str,
}

/// Returns the background servers of the programs that are known, whether they live or not.
pub fn all(around: &Surroundings) -> Vec<Daemon> {
    let user = rustix::process::geteuid().as_raw();
    let claude = Daemon {
        program: "claude",
        directory: format!("/tmp/cc-daemon-{user}").into(),
        ended_by: "claude daemon stop --any",
    };
    let codex = around.expand("${CODEX_HOME:-~/.codex}/app-server-control").map(|directory| Daemon {
        program: "codex",
        directory,
        ended_by: "codex app-server daemon stop",
    });
    [claude].into_iter().chain(codex).collect()
}

/// Returns the background servers that live now. Errors: the kernel does not list its sockets.
pub fn alive(around: &Surroundings) -> io::Result<Vec<Daemon>> {
    let bound = sockets::bound()?;
    let lives = |daemon: &Daemon| bound.iter().any(|path| path.starts_with(&daemon.directory));
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
        let is_seen = || alive(&around).unwrap().iter().any(|daemon| daemon.program == "codex");
        let directory = home.path().join("app-server-control");
        fs::create_dir(&directory).unwrap();
        assert!(!is_seen());
        let listener = UnixListener::bind(directory.join("app-server-control.sock")).unwrap();
        assert!(is_seen());
        drop(listener);
        assert!(!is_seen(), "its file is left, and nobody listens");
    }
}
