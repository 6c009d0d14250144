//! A PostgreSQL server that one test has alone, to kill it, and to put another in its place.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A running server in a directory of its own. It ends with this value.
pub struct Server {
    directory: tempfile::TempDir,
    /// Data of the server that answers at the socket.
    data: PathBuf,
    url: String,
}

impl Server {
    pub fn start() -> Server {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        // The server's account is another than the test's.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let home = directory.path().join("server");
        let url = done(script("start", &home)).trim().to_owned();
        Server { data: home.join("data"), directory, url }
    }

    /// Returns the URL by which `outlast_store::open` finds the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds settings, which hold from the next start on.
    pub fn set(&self, settings: &str) {
        let file = self.data.join("postgresql.conf");
        fs::write(&file, fs::read_to_string(&file).unwrap() + settings).unwrap();
    }

    /// Kills the server with all its processes.
    pub fn kill(&self) {
        let pid = fs::read_to_string(self.data.join("postmaster.pid")).unwrap();
        let pid = pid.lines().next().unwrap().to_owned();
        let signal = |signal: &str, all: &[String]| {
            Command::new("kill").arg(signal).args(all).stderr(Stdio::null()).status().unwrap();
        };
        // Stopped first, it starts no other process meanwhile.
        signal("-STOP", std::slice::from_ref(&pid));
        let mut all = children(&pid);
        all.push(pid);
        signal("-KILL", &all);
        // The server's shared memory is free once the last of its processes is gone.
        let is_there = |pid: &String| {
            Path::new("/proc").join(pid).join("fd").read_dir().is_ok_and(|fds| fds.count() > 0)
        };
        while all.iter().any(is_there) {
            std::thread::yield_now();
        }
        // Where nobody reaps the dead process, its number is taken for a server that runs.
        let socket = self.directory.path().join("server/.s.PGSQL.5432.lock");
        for lock in [self.data.join("postmaster.pid"), socket] {
            fs::remove_file(lock).unwrap();
        }
    }

    /// Starts a server that was killed, or one on a copy.
    pub fn go_on(&self) {
        let log = self.directory.path().join("server/server.log");
        self.control(&["--log", log.to_str().unwrap(), "--wait", "--timeout=60", "start"]);
    }

    /// Makes a standby, which has what is committed now and receives nothing more.
    pub fn standby(&self) -> Standby {
        let data = self.directory.path().join("server/standby");
        let socket = self.data.parent().unwrap().to_str().unwrap().to_owned();
        let arguments =
            ["--username=postgres", "--checkpoint=fast", "--no-sync", "--host", &socket, "--pgdata"];
        done(self.program("pg_basebackup", &arguments).arg(&data));
        Standby { data }
    }

    /// Puts the standby in the place of this server, which has ended, and promotes it.
    pub fn promote(&mut self, standby: Standby) {
        self.data = standby.data;
        let signal = self.data.join("standby.signal");
        fs::write(&signal, "").unwrap();
        let owner = fs::metadata(&self.data).unwrap();
        std::os::unix::fs::chown(&signal, Some(owner.uid()), Some(owner.gid())).unwrap();
        self.go_on();
        self.control(&["--wait", "promote"]);
    }

    /// Starts a standby that streams what this server commits. If `is_awaited`, each synced commit waits for it from now
    /// on.
    pub fn follower(&self, is_awaited: bool) -> Follower {
        let data = self.directory.path().join("server/standby");
        let copy =
            ["--username=postgres", "--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--host"];
        done(self.program("pg_basebackup", &copy).arg(self.home()).arg("--pgdata").arg(&data));
        let log = self.directory.path().join("server/standby.log");
        let start = ["--wait", "--timeout=60", "--options=-p 5433", "start", "--log"];
        done(self.program("pg_ctl", &["--silent", "--pgdata"]).arg(&data).args(start).arg(log));
        if is_awaited {
            self.ask("ALTER SYSTEM SET synchronous_standby_names = '*'");
            self.ask("SELECT pg_reload_conf()");
        }
        let is_there = if is_awaited { "sync" } else { "async" };
        let states = "SELECT string_agg(sync_state, ' ') FROM pg_stat_replication WHERE state = 'streaming'";
        while self.ask(states) != is_there {
            std::thread::yield_now();
        }
        Follower { data }
    }

    /// Ends the stream to the standby: it receives nothing more.
    pub fn lose(&self, follower: &Follower) {
        let socket = follower.data.parent().unwrap();
        self.psql(socket, "5433", "ALTER SYSTEM SET primary_conninfo = ''");
        self.psql(socket, "5433", "SELECT pg_reload_conf()");
        while self.ask("SELECT count(*) FROM pg_stat_replication") != "0" {
            std::thread::yield_now();
        }
    }

    /// Promotes a standby, in the place of this server, which was killed.
    pub fn fail_over(&mut self, follower: Follower) {
        self.data = follower.data;
        self.control(&["--wait", "promote"]);
        self.control(&["--wait", "--mode=fast", "stop"]);
        self.go_on();
    }

    fn ask(&self, sql: &str) -> String {
        self.psql(&self.home(), "5432", sql)
    }

    fn psql(&self, socket: &Path, port: &str, sql: &str) -> String {
        let arguments = ["--username=postgres", "--no-psqlrc", "-At", "--port", port, "--command", sql];
        done(self.program("psql", &arguments).arg("--host").arg(socket).arg("postgres")).trim().to_owned()
    }

    /// The directory of the sockets.
    fn home(&self) -> PathBuf {
        self.directory.path().join("server")
    }

    fn control(&self, arguments: &[&str]) {
        done(self.program("pg_ctl", &["--silent", "--pgdata"]).arg(&self.data).args(arguments));
    }

    /// A program of PostgreSQL's, to be run by the server's account.
    fn program(&self, name: &str, arguments: &[&str]) -> Command {
        // The programs are where the running server's own one is found, or was.
        let options = fs::read_to_string(self.directory.path().join("server/data/postmaster.opts")).unwrap();
        let server = options.split_whitespace().next().unwrap().trim_matches('"').to_owned();
        let path = Path::new(&server).with_file_name(name);
        let me = fs::metadata("/proc/self").unwrap().uid();
        let mut command = match me {
            0 => {
                let owner = fs::metadata(&self.data).unwrap().uid();
                let mut command = Command::new("setpriv");
                command.arg(format!("--reuid={owner}")).args(["--clear-groups"]).arg(path);
                command
            }
            _ => Command::new(path),
        };
        command.args(arguments).current_dir(self.directory.path());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let home = self.directory.path().join("server");
        // The script knows the first server's data only.
        let standby = home.join("standby");
        if standby.join("postmaster.pid").exists() {
            let stop = ["--silent", "--mode=immediate", "stop", "--pgdata"];
            let _ = self.program("pg_ctl", &stop).arg(standby).output();
        }
        let _ = script("stop", &home).output();
    }
}

/// A running standby, which ends with its server's value.
pub struct Follower {
    data: PathBuf,
}

/// A copy of a server's data.
pub struct Standby {
    data: PathBuf,
}

fn script(act: &str, home: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/private-postgres.sh");
    let mut command = Command::new(script);
    command.arg(act).arg(home);
    command
}

#[track_caller]
fn done(command: impl std::borrow::BorrowMut<Command>) -> String {
    let mut command = command;
    let out = command.borrow_mut().stdin(Stdio::null()).output().unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let why = || format!("{:?}: {} {}", command.borrow(), told(&out.stdout), told(&out.stderr));
    assert!(out.status.success(), "{}", why());
    told(&out.stdout)
}

/// Pids of the processes that this one started.
fn children(pid: &str) -> Vec<String> {
    let is_child = |dir: &fs::DirEntry| {
        let stat = fs::read_to_string(dir.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(1) == Some(pid)
    };
    let all = fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(is_child);
    all.map(|dir| dir.file_name().to_str().unwrap().to_owned()).collect()
}
