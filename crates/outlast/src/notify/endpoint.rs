//! Endpoints that are told what happens: `[notify]` of the user's own `outlast.toml`.
//!
//! A directory's file may name none: whoever can change a checkout could have a command run, or read what happens.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use jiff::civil::Time;
use outlast_core::{
    events::{Event, Kind},
    named,
    words::{RunId, RunNo},
};
use outlast_process::reap::Helper;
use outlast_server::notify::{Secret, Target};
use serde::Deserialize;

use crate::{
    render::time,
    settings::{
        file::{self, Error},
        keys::{Readers, read_private},
        surroundings::Surroundings,
        values,
    },
};

/// Name of the table of endpoints in `outlast.toml`.
pub const TABLE: &str = "notify";

/// Name of the endpoint that `[notify] command` makes.
const COMMAND: &str = "command";

/// Default interval between two heartbeat messages, in milliseconds.
const HEARTBEAT_MS: i64 = 60_000;

/// Format of the messages that an endpoint gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// JSON, signed as Standard Webhooks specifies if there is a secret.
    #[default]
    Webhook,
    Ntfy,
    Slack,
    Discord,
}

/// Means by which an endpoint gets messages.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    Post {
        to: Target,
        shape: Shape,
        secret: Option<Secret>,
    },
    /// Program with its arguments, run without a shell. The program gets the message as JSON on its standard input.
    Command(Vec<String>),
}

/// Endpoint that gets messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub name: String,
    pub way: Way,
    /// Topics about which the endpoint gets messages.
    pub topics: Vec<Topic>,
    /// Run about which alone the endpoint gets messages, from the run's first event on; `None`: all runs.
    pub run: Option<RunNo>,
}

/// Beginning of the name of an endpoint that `--on-halt` makes; the run's id follows. No name in a file has a colon.
pub const ON_HALT: &str = "on-halt:";

impl Endpoint {
    /// Builds the endpoint of `--on-halt`: a command that is started when one run halts or fails.
    pub fn on_halt(no: RunNo, id: &RunId, argv: &[String]) -> Endpoint {
        Endpoint {
            name: format!("{ON_HALT}{id}"),
            way: Way::Command(argv.to_vec()),
            topics: vec![Topic::Halted, Topic::Failed],
            run: Some(no),
        }
    }
}

/// Contents of `[notify]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notify {
    pub endpoints: Vec<Endpoint>,
    /// Address that is requested regularly while a process of Outlast is alive, and the interval in milliseconds;
    /// `None`: no heartbeat.
    pub heartbeat: Option<(Target, i64)>,
    /// Local time of day at which a digest is sent; `None`: none is.
    pub digest: Option<Time>,
    /// Address of the page, for links in messages; `None`: messages have no link.
    pub link: Option<String>,
    /// Endpoints that are not told, because the variable of their secret is not set: their names, and the variables'.
    pub muted: Vec<(String, String)>,
}

/// Endpoint as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    url: Option<String>,
    #[serde(default)]
    shape: Shape,
    secret_env: Option<String>,
    secret_file: Option<PathBuf>,
    command: Option<Vec<String>>,
    events: Option<Vec<String>>,
}

/// Reads `[notify]` of the user's own `outlast.toml`. Errors name the file and the key in it.
pub fn load(around: &Surroundings) -> Result<Notify, Error> {
    let Some((path, table)) = file::own_tables(around, TABLE)? else { return Ok(Notify::default()) };
    let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
    let bad = |key: &str, why: String| Error::bad(&path, format!("{TABLE}.{key}"), why);
    let mut notify = Notify::default();
    let names: Option<Result<Vec<String>, _>> = table.get("events").map(|value| value.clone().try_into());
    let names = names.transpose().map_err(|_| bad("events", "wanted a list of names".into()))?;
    let all = topics(names.as_deref()).map_err(|why| bad("events", why))?;
    let all = all.unwrap_or_else(Topic::usual);
    let mut every = HEARTBEAT_MS;
    for (key, value) in table {
        match (key.as_str(), value) {
            ("events", _) => {}
            (COMMAND, value) => {
                let argv = argv(value).map_err(|why| bad(&key, why))?;
                let way = Way::Command(argv);
                let (name, topics) = (COMMAND.into(), all.clone());
                notify.endpoints.push(Endpoint { name, way, topics, run: None });
            }
            ("heartbeat", toml::Value::String(url)) => {
                let to = Target::parse(&url).map_err(|e| bad(&key, e.to_string()))?;
                notify.heartbeat = Some((to, every));
            }
            ("heartbeat_every", toml::Value::String(text)) => {
                every = values::ms(&text).map_err(|e| bad(&key, e.to_string()))?.max(1_000);
            }
            ("digest", toml::Value::String(text)) => {
                let clock = time::parse_clock(&text);
                notify.digest = Some(
                    clock.ok_or_else(|| bad(&key, format!("{text:?}: wanted a time of day, as in 08:00")))?,
                );
            }
            ("link", toml::Value::String(url)) => {
                notify.link = Some(page_address(&url).map_err(|why| bad(&key, why))?);
            }
            (_, toml::Value::Table(written)) => {
                let unset = written.get("secret_env").and_then(toml::Value::as_str);
                if let Some(name) = unset.filter(|name| around.var(name).is_none()) {
                    notify.muted.push((key.clone(), name.to_owned()));
                    continue;
                }
                let read = endpoint(&key, written, &all, &directory, around);
                notify.endpoints.push(read.map_err(|why| bad(&key, why))?);
            }
            (_, _) => {
                let why = "wanted command, digest, events, heartbeat, heartbeat_every, link, or a table [notify.NAME]";
                return Err(bad(&key, why.into()));
            }
        }
    }
    notify.heartbeat = notify.heartbeat.map(|(to, _)| (to, every));
    Ok(notify)
}

fn endpoint(
    name: &str,
    written: toml::Table,
    all: &[Topic],
    directory: &Path,
    around: &Surroundings,
) -> Result<Endpoint, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        return Err("its name: wanted 1 to 64 of A-Z a-z 0-9 . _ -".into());
    }
    let written: Written = file::read_as(toml::Value::Table(written))?;
    let events = topics(written.events.as_deref())?;
    let secret = secret(&written, directory, around)?;
    let way = match (&written.url, &written.command) {
        (Some(url), None) => {
            let to = Target::parse(url).map_err(|e| format!("url: {e}"))?;
            Way::Post { to, shape: written.shape, secret }
        }
        (None, Some(argv)) if !argv.is_empty() => Way::Command(argv.clone()),
        _ => return Err("wanted url or command, one of them".into()),
    };
    Ok(Endpoint { name: name.to_owned(), way, topics: events.unwrap_or_else(|| all.to_vec()), run: None })
}

/// Returns the address of the page of a server, with a slash at its end. Errors: it is none that a browser opens.
fn page_address(url: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    if !is_http || !url.chars().all(is_plain) {
        return Err(format!(
            "{url:?}: wanted the address of `outlast serve`, as in https://box.example:4600"
        ));
    }
    Ok(format!("{}/", url.trim_end_matches('/')))
}

/// Reads the secret from a variable or a file. It is never written into the settings themselves.
fn secret(written: &Written, directory: &Path, around: &Surroundings) -> Result<Option<Secret>, String> {
    let text = match (&written.secret_env, &written.secret_file) {
        (Some(name), _) => {
            let value = around.var(name).and_then(|value| value.to_str().map(str::to_owned));
            value.ok_or_else(|| format!("secret_env: the variable {name} is not set"))?
        }
        (None, Some(file)) => {
            let path = directory.join(file);
            let text = read_private(&path, Readers::OwnGroup).map_err(|e| format!("secret_file: {e}"))?;
            text.ok_or_else(|| format!("secret_file: {} is not there", path.display()))?
        }
        (None, None) => return Ok(None),
    };
    Secret::parse(&text).map(Some).map_err(|e| e.to_string())
}

fn argv(value: toml::Value) -> Result<Vec<String>, String> {
    let argv: Result<Vec<String>, _> = value.try_into();
    argv.ok()
        .filter(|argv| !argv.is_empty())
        .ok_or_else(|| "wanted a list: [\"program\", \"argument\"]".into())
}

fn topics(names: Option<&[String]>) -> Result<Option<Vec<Topic>>, String> {
    names.map(|names| names.iter().map(|name| topic_of(name)).collect()).transpose()
}

// --- Endpoints that are commands: the message as JSON on standard input, no shell, no keys in the environment.

/// Time in which a notification command has to end.
const LONGEST: Duration = Duration::from_secs(30);

/// Variables that a notification command is given: those that desktop programs or a mailer need.
const KEPT: [&str; 13] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Runs a command with `message` on its standard input, without a shell. Errors: it cannot be started, fails, or does
/// not end in time.
pub async fn run_command(argv: Vec<String>, message: String) -> Result<(), String> {
    let ran = tokio::task::spawn_blocking(move || run_here(&argv, &message)).await;
    ran.unwrap_or_else(|e| Err(e.to_string()))
}

fn run_here(argv: &[String], message: &str) -> Result<(), String> {
    let Some((program, arguments)) = argv.split_first() else { return Err("there is no command".into()) };
    let kept = KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(kept);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Helper::start(&mut command).map_err(|e| format!("{program}: {e}"))?;
    if let Some(mut stdin) = child.stdin() {
        // A command that reads nothing is no failure.
        let _ = stdin.write_all(message.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    match child.ends_within(LONGEST) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("{program} ended with {status}")),
        Ok(None) => Err(format!("{program} did not end within {} s", LONGEST.as_secs())),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

// --- Topics: kinds of news that a person may want to be told, by the events that they come from.

named! {
    /// Topic: a kind of news that a person may want to be told.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Topic {
        Halted "halted",
        Failed "failed",
        Completed "completed",
        Cancelled "cancelled",
        Interrupted "interrupted",
        Waiting "waiting",
        UsageLimit "usage_limit",
        Approval "approval",
        Budget50 "budget_50",
        Budget80 "budget_80",
        Budget100 "budget_100",
        Overrun "overrun",
        Doubt "doubt",
        Outage "outage",
        OutageEnded "outage_ended",
        Death "death",
        Diverged "diverged",
        /// Digest of what happened since the last one. No event has this topic: the time of day does.
        Digest "digest",
    }
}

impl Topic {
    /// Returns whether an endpoint that names no topic is told of this one, and the topic in words. A death is not usual,
    /// because a restart or a failure follows it.
    fn row(self) -> (bool, &'static str) {
        match self {
            Topic::Halted => (true, "halted at a limit"),
            Topic::Failed => (true, "failed"),
            Topic::Completed => (true, "completed"),
            Topic::Cancelled => (false, "cancelled"),
            Topic::Interrupted => (true, "interrupted: nobody drives it"),
            Topic::Waiting => (false, "waits for a budget"),
            Topic::UsageLimit => (true, "sleeps until its usage limit is over"),
            Topic::Approval => (true, "asks for an approval"),
            Topic::Budget50 => (false, "half of a limit is spent"),
            Topic::Budget80 => (true, "80 % of a limit is spent"),
            Topic::Budget100 => (true, "a limit is spent"),
            Topic::Overrun => (true, "more was billed than a call held"),
            Topic::Doubt => (true, "a call is in doubt"),
            Topic::Outage => (true, "its provider is out"),
            Topic::OutageEnded => (true, "its provider answers again"),
            Topic::Death => (false, "its agent died"),
            Topic::Diverged => (false, "the restarted agent asked something new"),
            Topic::Digest => (true, "what happened"),
        }
    }

    /// Returns the topics of an endpoint that names none.
    pub fn usual() -> Vec<Topic> {
        Topic::ALL.into_iter().filter(|topic| topic.row().0).collect()
    }

    pub fn words(self) -> &'static str {
        self.row().1
    }

    /// Returns the topic of an event; `None` for an event that no person needs to be told.
    pub fn of(event: &Event) -> Option<Topic> {
        let about = &event.about;
        Some(match event.kind {
            Kind::Status => match about["to"].as_str()? {
                "halted" => Topic::Halted,
                "failed" => Topic::Failed,
                "completed" => Topic::Completed,
                "cancelled" => Topic::Cancelled,
                // Who stops a run knows of it.
                "interrupted" if about["by_person"] == true => return None,
                "interrupted" => Topic::Interrupted,
                "sleeping" => Topic::UsageLimit,
                // An approval and an outage have events of their own.
                "waiting" if about["code"].as_str().is_some_and(|code| code.ends_with("_exceeded")) => {
                    Topic::Waiting
                }
                _ => return None,
            },
            Kind::ApprovalAsked => Topic::Approval,
            Kind::Budget => match about["percent"].as_i64()? {
                100.. => Topic::Budget100,
                80.. => Topic::Budget80,
                _ => Topic::Budget50,
            },
            Kind::Overrun => Topic::Overrun,
            Kind::Doubt => Topic::Doubt,
            Kind::OutageBegan => Topic::Outage,
            Kind::OutageEnded => Topic::OutageEnded,
            Kind::AttemptEnded if about["died"] == true => Topic::Death,
            Kind::Diverged => Topic::Diverged,
            Kind::AttemptEnded
            | Kind::AttemptBegan
            | Kind::RunCreated
            | Kind::RunRemoved
            | Kind::ApprovalDecided => return None,
        })
    }
}

/// Parses a topic's name. Errors: the message names all topics.
fn topic_of(name: &str) -> Result<Topic, String> {
    Topic::parse(name)
        .ok_or_else(|| format!("events: {name:?} is none of {}", Topic::ALL.map(Topic::name).join(", ")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read(text: &str) -> Result<Endpoint, String> {
        let around = Surroundings::default();
        endpoint("phone", text.parse().unwrap(), &Topic::usual(), Path::new("/nowhere"), &around)
    }

    #[test]
    fn the_pages_address_is_that_of_a_server() {
        for url in ["https://box:4600", "https://box:4600/"] {
            assert_eq!(page_address(url).as_deref(), Ok("https://box:4600/"));
        }
        assert!(page_address("javascript:alert(1)").is_err() && page_address("https://a b").is_err());
    }

    #[test]
    fn an_endpoint_is_read_as_it_is_written_or_refused_with_what_was_wanted() {
        let plain = read("url = \"https://ntfy.sh/mine\"\nshape = \"ntfy\"\nevents = [\"halted\"]").unwrap();
        assert_eq!(plain.topics, [Topic::Halted]);
        assert!(matches!(plain.way, Way::Post { shape: Shape::Ntfy, secret: None, .. }));
        let command = read("command = [\"mail\", \"me\"]").unwrap();
        assert_eq!(
            (command.topics.as_slice(), command.way),
            (&Topic::usual()[..], Way::Command(vec!["mail".into(), "me".into()]))
        );
        for (text, wanted) in [
            ("", "wanted url or command"),
            ("command = []", "wanted url or command"),
            ("url = \"https://x\"\ncommand = [\"y\"]", "one of them"),
            ("url = \"http://hooks.example/\"", "this machine only"),
            ("url = \"https://169.254.169.254/\"", "never posted to"),
            ("url = \"https://x\"\nsecret = \"whsec_x\"", "unknown field `secret`"),
            ("url = \"https://x\"\nsecret_env = \"NOT_SET\"", "NOT_SET is not set"),
            ("url = \"https://x\"\nevents = [\"halt\"]", "halt"),
            ("url = \"https://x\"\nshape = \"mail\"", "unknown variant"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    // Bug: a webhook's secret was read from a file that everybody could read. Consequence: anyone on the machine could sign
    // messages as Outlast. Cause: each place that reads a secret checked modes by itself, and this one did not.
    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
            let table = "url = \"https://x\"\nsecret_file = \"secret\"".parse().unwrap();
            endpoint("phone", table, &Topic::usual(), directory.path(), &Surroundings::default())
        };
        let error = read(0o644).unwrap_err();
        assert!(
            error.contains("secret_file: ") && error.contains("its mode is 0644, wanted 0600"),
            "{error}"
        );
        assert!(matches!(read(0o600).unwrap().way, Way::Post { secret: Some(_), .. }));
    }

    #[test]
    fn a_command_gets_the_message_and_no_key_and_its_failure_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("got");
        let script = format!("cat > {0}; env >> {0}", to.display());
        let argv = |script: &str| vec!["sh".to_owned(), "-c".into(), script.into()];
        run_here(&argv(&script), "{\"a\": 1}").unwrap();
        let got = std::fs::read_to_string(&to).unwrap();
        assert!(got.starts_with("{\"a\": 1}\n"), "{got}");
        // Of what cargo sets for every test, nothing is passed on.
        assert!(
            std::env::var_os("CARGO_MANIFEST_DIR").is_some() && !got.contains("CARGO_MANIFEST_DIR"),
            "{got}"
        );
        assert!(run_here(&argv("exit 3"), "").unwrap_err().contains("exit status: 3"));
        assert!(run_here(&["/no/such/program".into()], "").unwrap_err().contains("/no/such/program"));
    }
}
