//! Endpoints that are told what happens: `[notify]` of the user's own `outlast.toml`.
//!
//! A directory's file may name none: whoever can change a checkout could have a command run, or read what happens.

use std::path::{Path, PathBuf};

use jiff::civil::Time;
use outlast_core::words::{RunId, RunNo};
use outlast_server::notify::{Secret, Target};
use serde::Deserialize;

use super::topic::{self, Topic};
use crate::{
    render::time,
    settings::{
        file::{self, Error},
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
            std::fs::read_to_string(&path).map_err(|e| format!("secret_file: {}: {e}", path.display()))?
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
    names.map(|names| names.iter().map(|name| topic::parse(name)).collect()).transpose()
}

#[cfg(test)]
mod tests {
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
}
