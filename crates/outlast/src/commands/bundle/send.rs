//! `outlast move RUN ssh://HOST[/DIR]`: a bundle that is sent to another machine, and imported and resumed there.
//!
//! The bundle stands beside the store until it is known to have arrived. It is imported once, so that it can be sent again
//! after a death at any instant. The remote shell is given the same words each time, and nothing of the run or of what was
//! typed: the directory is in the bundle.

use std::process::{Command, Stdio};

use super::*;
use crate::commands::tell;

/// Words that the shell of the other machine reads.
const REMOTE: &str = "outlast --json import - --resume";

/// Longest time that the run has to stop.
const STOP: Duration = Duration::from_secs(60);

/// Move a run to another machine, where it goes on
///
/// The run is stopped here, and sent with its files, its journal and what is left of its budget by the ssh of this machine.
/// Outlast has to be installed there, and to have the keys. If the move is cut off, type it again: it goes on.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast move nightly ssh://build.example.com\n  outlast move nightly ssh://me@build:2222/srv/nightly"
)]
pub struct MoveArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// The machine, as ssh knows it, and the directory there, which is made or is empty; /~/DIR is below the home directory [default: the one of the same name]
    #[arg(value_name = "ssh://[USER@]HOST[:PORT][/DIR]", value_parser = Destination::read)]
    pub to: Destination,
}

/// Machine that a run moves to, and the directory there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    typed: String,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    directory: Option<String>,
}

impl Destination {
    /// Reads an address. A user's or a host's name has only letters, digits and `._-`, and begins as no option does.
    fn read(typed: &str) -> Result<Destination, String> {
        let wanted = || "wanted ssh://[USER@]HOST[:PORT][/DIR]".to_owned();
        let rest = typed.strip_prefix("ssh://").ok_or_else(wanted)?;
        let (place, directory) = match rest.split_once('/') {
            Some((place, "")) => (place, None),
            Some((place, below)) => {
                (place, Some(below.strip_prefix("~/").map_or(format!("/{below}"), str::to_owned)))
            }
            None => (rest, None),
        };
        let (user, place) = match place.split_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((host, port)) => (host, port),
            None => place.split_at(place.find(':').unwrap_or(place.len())),
        };
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or_else(wanted)?),
        };
        let is_name = |name: &str, more: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c) || more.contains(c);
            !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
        };
        let more = if place.starts_with('[') { ":%" } else { "" };
        if !is_name(host, more) || user.is_some_and(|user| !is_name(user, "")) {
            return Err(wanted());
        }
        let (user, host) = (user.map(str::to_owned), host.to_owned());
        Ok(Destination { typed: typed.to_owned(), user, host, port, directory })
    }

    fn ssh(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.arg("-T");
        if let Some(user) = &self.user {
            ssh.args(["-l", user]);
        }
        if let Some(port) = self.port {
            ssh.args(["-p", &port.to_string()]);
        }
        ssh.args(["--", &self.host, REMOTE]);
        ssh
    }
}

/// Moves a run. Returns the exit code of its resumption there.
///
/// Errors: as [`export`]; `run_ended`; `move_cut_off` while it is not known to have arrived: the run is halted here then, and
/// the same command goes on.
pub fn send(args: &MoveArgs, mut desk: Desk) -> Result<u8> {
    let store = desk.store;
    let mut view = find::run(store, &args.run)?;
    let to = &args.to;
    check_leaves_alone(store, &view)?;
    if matches!(view.run.status, Status::Running | Status::Waiting | Status::Sleeping) {
        view = tell::ask_to_stop(&mut desk, &view, STOP)?.0;
    }
    let Desk { context, page, .. } = desk;
    if let status @ (Status::Completed | Status::Cancelled) = view.run.status {
        return Err(RunError::Ended { run: called(&view), status, verb: "move" }.into());
    }
    let file = bundles(context)?.join(format!("{}.bundle", view.run.id));
    let begun = Moved::begun(file.to_string_lossy().into_owned(), Some(to.typed.clone()));
    let into = to.directory.clone().or_else(|| directory_of(&view));
    let (whole, manifest) = leave(store, context, &view, begun, (into.as_deref(), None))?;
    let mut ssh = to.ssh();
    ssh.stdin(File::open(&file)?).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let cut_off = |why: String| BundleError::CutOff { run: called(&view), to: to.typed.clone(), why };
    let out = ssh.spawn().and_then(std::process::Child::wait_with_output);
    let out = out.map_err(|e| cut_off(format!("ssh cannot be started: {e}")))?;
    // A shell there may greet first.
    let told = out.stdout.iter().position(|b| *b == b'{').map(|at| &out.stdout[at..]);
    let told =
        told.and_then(|told| serde_json::Deserializer::from_slice(told).into_iter::<Value>().next()?.ok());
    // With 255, or no code, the line to the machine broke: what it did after these words is not known.
    let is_whole = out.status.code().is_some_and(|code| code != 255);
    let there = told.filter(|told| is_whole && told["run"] == view.run.id.as_str());
    let there = there.ok_or_else(|| cut_off(format!("ssh ended with {}", out.status)))?;
    fence(store, &view, Some(&Moved { has_arrived: true, ..whole }))?;
    fs::remove_file(&file)?;
    let code = out.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit_code::FAILED);
    if page.look.json {
        let told = json!({ "run": view.run.id, "to": to.typed, "directory": there["directory"], "resumed": code == 0, "manifest": manifest });
        page.json(&told)?;
        return Ok(code);
    }
    let strong = page.look.paint(Paint::Strong, &called(&view));
    page.line(&format!("{strong}  {}, moved to {}", manifest.words(), look::clean(&to.typed)))?;
    page.line(match code {
        exit_code::OK => "  it goes on there",
        _ => "  it is there, and does not go on yet: `outlast resume` there tells why",
    })?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(typed: &str) -> Option<(Vec<String>, Option<String>)> {
        let to = Destination::read(typed).ok()?;
        let words = to.ssh().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        Some((words, to.directory))
    }

    #[test]
    fn an_address_becomes_words_of_ssh_and_no_options() {
        for (typed, options, directory) in [
            ("ssh://host", "-T -- host", None),
            ("ssh://host/", "-T -- host", None),
            ("ssh://a.b@host.example:22/srv/a b", "-T -l a.b -p 22 -- host.example", Some("/srv/a b")),
            ("ssh://host/~/work", "-T -- host", Some("work")),
            ("ssh://[fe80::1%eth0]:22/x", "-T -p 22 -- fe80::1%eth0", Some("/x")),
            ("ssh://h/$(touch x)'\"; -oProxyCommand=x", "-T -- h", Some("/$(touch x)'\"; -oProxyCommand=x")),
        ] {
            let (words, there) = words(typed).unwrap();
            let (remote, own) = words.split_last().unwrap();
            assert_eq!((own.join(" ").as_str(), remote.as_str()), (options, REMOTE), "{typed}");
            assert_eq!(there.as_deref(), directory, "{typed}");
        }
        for typed in [
            "",
            "host",
            "ssh://",
            "ssh:///x",
            "ssh://-oProxyCommand=x",
            "ssh://-l@host",
            "ssh://@host",
            "ssh://h;x",
            "ssh://h x",
            "ssh://a@b@c",
            "ssh://h:",
            "ssh://h:x",
            "ssh://h:70000",
            "ssh://$(x)",
            "ssh://[::1",
            "http://h",
        ] {
            assert_eq!(words(typed), None, "{typed}");
        }
    }
}
