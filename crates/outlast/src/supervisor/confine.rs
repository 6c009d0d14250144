//! Confinement of a run's agents: which directories are hidden from them, the run's proxy in their network namespaces, and
//! the program that starts them.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{fs::DirBuilderExt as _, net},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use outlast_core::{
    run::Confine,
    words::{Entropy, clock::random},
};
use outlast_process::confine::{Ways, receive};
use outlast_server::door::Proxy;
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinHandle,
};

use crate::{
    agent::daemons,
    program::{
        context::Context,
        error::{CliError, RunError},
    },
    settings::{store_address::StoreAddress, surroundings::Surroundings},
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
        let tried = try_out(&confined.before::<OsString>([])[1..], "error: the agent cannot be confined: ")?;
        tried.map(|()| confined).map_err(refused)
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

/// Time in which the starter of an agent has to hand its listener over.
const HAND_OVER: Duration = Duration::from_secs(10);

/// Confined network of a run's agents: receives the listeners that the agents' starters open in their
/// namespaces.
pub struct Net {
    words: Vec<OsString>,
    task: JoinHandle<()>,
}

impl Drop for Net {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tries whether this machine allows a confined network. Errors: `net_not_confined`.
pub fn check_net() -> Result<(), CliError> {
    let words = ["confined", "--net", "0"].map(OsString::from);
    let tried = try_out(&words, "error: the agent's network cannot be confined: ")?;
    tried.map_err(|why| RunError::NetNotConfined { why }.into())
}

/// Runs the starter of confined agents with nothing to start. The inner error is the reason for which this machine refuses
/// it: what the starter says after `before`.
fn try_out(words: &[OsString], before: &str) -> Result<Result<(), String>, CliError> {
    let tried = Command::new(crate::program()?).args(words).stdin(Stdio::null()).output()?;
    if tried.status.success() {
        return Ok(Ok(()));
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    let why = said.lines().find_map(|line| line.strip_prefix(before));
    Ok(Err(why.unwrap_or("the trial of it failed").to_owned()))
}

/// Returns the files that are closed to an agent in `directory`, and the sockets of `allowed`, which stay open.
///
/// Directories of sockets that are not there yet are made, so that a daemon that begins later is hidden, too.
/// Errors: `net_not_confined` if the agent's directory would be hidden.
pub fn ways(allowed: &[String], around: &Surroundings, directory: &Path) -> Result<Ways, CliError> {
    let user = rustix::process::geteuid().as_raw();
    let path = |name: &str| around.var(name).map(PathBuf::from);
    let runtime = path("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/run/user/{user}").into());
    let tmux = path("TMUX_TMPDIR").unwrap_or_else(|| "/tmp".into()).join(format!("tmux-{user}"));
    let daemons = daemons::all(around).into_iter().map(|(_, directory)| directory);
    let hidden: Vec<PathBuf> = [runtime, tmux].into_iter().chain(daemons).collect();
    if let Some(hidden) = hidden.iter().find(|hidden| directory.starts_with(hidden)) {
        let why = format!("it works in {}, where others have their sockets", hidden.display());
        return Err(RunError::NetNotConfined { why }.into());
    }
    for directory in &hidden {
        // Where nobody can make it, no daemon of this user can.
        let _ = DirBuilder::new().mode(0o700).create(directory);
    }
    let open = allowed.iter().filter(|name| name.starts_with('/')).map(PathBuf::from).collect();
    Ok(Ways { hidden, open })
}

impl Net {
    /// Begins to receive listeners of the agents' network namespaces, and to serve each by `proxy`. `port`:
    /// the proxy's port, which is the same inside the namespaces.
    /// `ways`: files that are closed to the agents, and sockets that stay open.
    pub fn begin(proxy: Proxy, port: u16, ways: Ways, entropy: &dyn Entropy) -> io::Result<Net> {
        let name = format!("outlast-{:032x}", u128::from_le_bytes(random(entropy)));
        let listener = net::UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let words = ["confined", "--net", &port.to_string(), "--hand-over", &name].map(OsString::from);
        let option = |name: &str, paths: Vec<PathBuf>| {
            let name = OsString::from(name);
            paths.into_iter().flat_map(move |path| [name.clone(), path.into()]).collect::<Vec<OsString>>()
        };
        let words = [crate::program()?.into()].into_iter().chain(words);
        let words = words.chain(option("--hide", ways.hidden)).chain(option("--open", ways.open)).collect();
        let task = tokio::spawn(async move {
            let mut served: Option<JoinHandle<()>> = None;
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let is_ours =
                    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw());
                let Some(stream) = stream.into_std().ok().filter(|_| is_ours) else { continue };
                let taken = tokio::task::spawn_blocking(move || {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(HAND_OVER))?;
                    let theirs = receive(&stream)?;
                    theirs.set_nonblocking(true)?;
                    io::Result::Ok(theirs)
                });
                let Ok(Ok(theirs)) = taken.await else { continue };
                let Ok(theirs) = TcpListener::from_std(theirs) else { continue };
                // The attempt before is over, and its namespace with it.
                if let Some(before) = served.replace(tokio::spawn(proxy.clone().serve_also(theirs))) {
                    before.abort();
                }
            }
        });
        Ok(Net { words, task })
    }

    /// Returns the words that have to stand before a command to confine its network.
    pub fn before<S: Into<OsString>>(&self, command: impl IntoIterator<Item = S>) -> Vec<OsString> {
        let command = command.into_iter().map(Into::into);
        self.words.iter().cloned().chain(["--".into()]).chain(command).collect()
    }
}
