//! Settings: values for flags that the command line leaves open, from variables and from `outlast.toml`.
//!
//! Each long flag is a setting. Order: flag, variable, `./outlast.toml`, `~/.config/outlast/outlast.toml`,
//! built-in. Settings become defaults in the command line's definition. Each is checked alone first, so that
//! an error names its variable or file.

use std::{cell::LazyCell, collections::BTreeMap, ffi::OsStr, path::PathBuf};

use clap::{Arg, ArgAction, builder::Resettable};

use crate::settings::{
    budgets,
    declared::{self, Declared},
    file::{self, Error, Origin, read, table},
    masks, mcp, notify, policies,
    surroundings::Surroundings,
    upstreams,
};

/// Settings for one command line, as defaults of its flags.
pub struct Defaults {
    /// Subcommand of the command line; empty without one.
    word: String,
    /// Values in the form in which they are typed, by the flag's id.
    texts: BTreeMap<String, Vec<String>>,
}

/// Reads the settings that `word` (a subcommand) of `command` (the definition of the command line) takes.
///
/// Pure but for reading the two files. The whole of each file is checked, whichever command is typed.
pub fn defaults(command: &clap::Command, word: &str, around: &Surroundings) -> Result<Defaults, Error> {
    // Most directories have no file, and need no list of all flags.
    let known = LazyCell::new(|| Known::of(command));
    let mut files = Vec::new();
    for path in file::files(around) {
        if let Some(text) = read(&path)? {
            let own = path.parent() == around.config_directory().as_deref();
            let file = File::parse(&text, path, &known)?;
            if !own {
                file.opens_no_door()?;
            }
            files.push(file);
        }
    }
    let find = |arg: &Arg| -> Result<Option<Vec<String>>, Error> {
        let Some(long) = arg.get_long().filter(|l| is_setting(l)) else { return Ok(None) };
        let found = match from_variables(long, word, arg, around)? {
            Some(found) => Some(found),
            None => files.iter().find_map(|f| f.find(long, word)),
        };
        found.map(|setting| checked(arg, setting)).transpose()
    };
    let mut texts = BTreeMap::new();
    let own = command.find_subcommand(word).into_iter().flat_map(|c| c.get_arguments());
    for arg in command.get_arguments().chain(own) {
        if let Some(found) = find(arg)? {
            texts.insert(arg.get_id().to_string(), found);
        }
    }
    Ok(Defaults { word: word.to_owned(), texts })
}

impl Defaults {
    /// Returns whether no flag gets a default.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Adds the defaults to the definition of the command line from which they were read.
    pub fn apply(&self, command: clap::Command) -> clap::Command {
        let put = |arg: Arg| match self.texts.get(arg.get_id().as_str()) {
            Some(texts) => with_default(arg, texts),
            None => arg,
        };
        let command = command.mut_args(put);
        match self.word.as_str() {
            "" => command,
            word => command.mut_subcommand(word, |c| c.mut_args(put)),
        }
    }
}

/// Long flags that are no settings: those clap answers itself, and `attempt`, whose variable gives an agent
/// its own number.
const NO_SETTINGS: [&str; 6] = ["help", "version", "attempt", "url", "header", "header-env"];

/// Returns whether a long flag can be given as a setting too: every flag but `NO_SETTINGS`.
pub fn is_setting(long: &str) -> bool {
    !NO_SETTINGS.contains(&long)
}

/// Values of a setting in the form in which they are typed, with their origin.
#[derive(Clone, Debug)]
struct Setting {
    origin: Origin,
    texts: Vec<String>,
}

/// Reads a setting from its variables: `OUTLAST_SERVE_LISTEN` takes precedence over `OUTLAST_LISTEN`.
fn from_variables(
    long: &str,
    word: &str,
    arg: &Arg,
    around: &Surroundings,
) -> Result<Option<Setting>, Error> {
    let flag = long.to_uppercase().replace('-', "_");
    for name in [format!("OUTLAST_{}_{flag}", word.to_uppercase()), format!("OUTLAST_{flag}")] {
        if is_told(&name) {
            continue;
        }
        let Some(value) = around.var(&name) else { continue };
        let origin = Origin::Variable(name);
        let Some(text) = value.to_str() else {
            return Err(Error::BadValue { origin, why: "not valid UTF-8".into() });
        };
        let texts = match is_many(arg) {
            true => text.split(',').map(str::to_owned).collect(),
            false => vec![text.to_owned()],
        };
        return Ok(Some(Setting { origin, texts }));
    }
    Ok(None)
}

/// Returns whether the variable is one that agents are given, or the log's filter. It is then no setting of
/// an `outlast` that they start.
fn is_told(name: &str) -> bool {
    ["OUTLAST_STATE_FILE", "OUTLAST_ATTEMPT", "OUTLAST_LOG"].contains(&name)
        || name.starts_with("OUTLAST_CTX_")
}

fn is_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Checks the setting on its flag alone and returns its values.
fn checked(arg: &Arg, setting: Setting) -> Result<Vec<String>, Error> {
    let bad = |why: String| Error::BadValue { origin: setting.origin.clone(), why };
    if is_switch(arg) {
        return match setting.texts.as_slice() {
            [text] if is_yes(OsStr::new(text)) => Ok(vec!["true".into()]),
            [text] if is_no(text) => Ok(vec!["false".into()]),
            texts => Err(bad(format!("not true or false: {:?}", texts.join(",")))),
        };
    }
    if setting.texts.len() != 1 && !is_many(arg) {
        return Err(bad(format!("wanted one value, had {}", setting.texts.len())));
    }
    let long = arg.get_long().unwrap_or_default();
    let alone = arg.clone().conflicts_with(Resettable::Reset).requires(Resettable::Reset).global(false);
    let line =
        std::iter::once("outlast".to_owned()).chain(setting.texts.iter().map(|t| format!("--{long}={t}")));
    match clap::Command::new("outlast").disable_help_flag(true).arg(alone).try_get_matches_from(line) {
        Ok(_) => Ok(setting.texts),
        Err(e) => Err(bad(reason(&e))),
    }
}

/// Returns clap's reason for rejecting a value, without the flag, which nobody typed.
fn reason(e: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue};
    if let Some(source) = std::error::Error::source(e) {
        return source.to_string();
    }
    let value = e.get(ContextKind::InvalidValue).map(|v| format!("{:?}", v.to_string())).unwrap_or_default();
    match e.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => format!("not one of {}: {value}", valid.join(", ")),
        _ => format!("bad value {value}"),
    }
}

pub fn is_yes(text: &OsStr) -> bool {
    ["true", "1", "yes", "on"].iter().any(|yes| text.eq_ignore_ascii_case(yes))
}

fn is_no(text: &str) -> bool {
    ["false", "0", "no", "off"].iter().any(|no| text.eq_ignore_ascii_case(no))
}

fn with_default(arg: Arg, texts: &[String]) -> Arg {
    // clap keeps defaults as `&'static str`; a command line is read once or a few times per process.
    let leaked: Vec<&'static str> = texts.iter().map(|t| &*t.clone().leak()).collect();
    let switch = is_switch(&arg);
    let arg = arg.default_values(leaked);
    if switch { arg } else { arg.hide_default_value(true) }
}

/// Long flags of each command, global ones included, and of all commands together.
struct Known {
    commands: BTreeMap<String, Vec<String>>,
    all: Vec<String>,
}

impl Known {
    fn of(command: &clap::Command) -> Known {
        let longs = |c: &clap::Command| -> Vec<String> {
            let named = c.get_arguments().filter_map(Arg::get_long).filter(|l| is_setting(l));
            named.map(str::to_owned).collect()
        };
        let global = longs(command);
        let commands: BTreeMap<String, Vec<String>> = command
            .get_subcommands()
            // Added by clap once it has parsed a line; `help` is no table.
            .filter(|c| c.get_name() != "help")
            .map(|c| (c.get_name().to_owned(), [longs(c), global.clone()].concat()))
            .collect();
        let mut all: Vec<String> = commands.values().flatten().cloned().collect();
        all.sort();
        all.dedup();
        Known { commands, all }
    }
}

/// Settings of one file. Keys in a command's table count for that command only and take precedence.
struct File {
    path: PathBuf,
    /// Key as written and its values, by table (empty: top level) and long flag.
    settings: BTreeMap<(String, String), (String, Vec<String>)>,
    agents: Vec<Declared>,
    /// Whether the file names upstreams.
    upstreams: bool,
    /// Whether the file names budgets.
    budgets: bool,
    notify: bool,
    mcp: bool,
}

impl File {
    fn parse(text: &str, path: PathBuf, known: &Known) -> Result<File, Error> {
        let table = table(text, &path)?;
        let mut file = File {
            path,
            settings: BTreeMap::new(),
            agents: Vec::new(),
            upstreams: false,
            budgets: false,
            notify: false,
            mcp: false,
        };
        for (key, value) in table {
            match (known.commands.get(&key), value) {
                (None, toml::Value::Table(agents)) if key == declared::TABLE => {
                    file.agents = declared::read(&agents, &file.path)?;
                }
                (None, toml::Value::Table(_)) if key == upstreams::TABLE => file.upstreams = true,
                // The command of that name has no settings.
                (_, toml::Value::Table(_)) if key == budgets::TABLE => file.budgets = true,
                (_, toml::Value::Table(_)) if key == notify::TABLE => file.notify = true,
                // Read by the code that needs it.
                (None, toml::Value::Table(_)) if key == masks::TABLE => {}
                (None, toml::Value::Table(tables)) if key == policies::TABLE => {
                    policies::read(&tables).map_err(|(name, why)| Error::BadValue {
                        origin: Origin::File { path: file.path.clone(), key: format!("{key}.{name}") },
                        why,
                    })?;
                }
                (Some(_), toml::Value::Table(inner)) => {
                    for (inner_key, value) in inner {
                        // A server, read by the code that needs it.
                        if key == mcp::TABLE && value.is_table() {
                            file.mcp = true;
                            continue;
                        }
                        file.add(&key, inner_key, value, known)?;
                    }
                }
                (_, value) => file.add("", key, value, known)?,
            }
        }
        Ok(file)
    }

    fn add(&mut self, table: &str, key: String, value: toml::Value, known: &Known) -> Result<(), Error> {
        let flags = known.commands.get(table).unwrap_or(&known.all);
        let long = key.replace('_', "-");
        let shown = if table.is_empty() { key } else { format!("{table}.{key}") };
        let path = || self.path.clone();
        if !flags.contains(&long) {
            if long.contains("api-key") || long.contains("secret") || long.contains("password") {
                return Err(Error::Secret { path: path(), key: shown });
            }
            let tables = known.commands.keys().filter(|_| table.is_empty());
            let nearest = nearest(&long, flags.iter().chain(tables)).map(|n| n.replace('-', "_"));
            return Err(Error::UnknownKey { path: path(), key: shown, nearest });
        }
        let texts = texts(value, &long).map_err(|why| Error::BadValue {
            origin: Origin::File { path: path(), key: shown.clone() },
            why,
        })?;
        if self.settings.contains_key(&(table.to_owned(), long.clone())) {
            return Err(Error::Twice { path: path(), key: shown });
        }
        self.settings.insert((table.to_owned(), long), (shown, texts));
        Ok(())
    }

    /// Checks that a directory's file sets nothing dangerous. The directory in which a person happens to work
    /// must not decide where calls go, what is run in a shell, or what all runs may spend together.
    fn opens_no_door(&self) -> Result<(), Error> {
        if let Some(agent) = self.agents.first() {
            return Err(Error::NotHere {
                path: self.path.clone(),
                key: format!("{}.{}", declared::TABLE, agent.name),
            });
        }
        let is_door = |long: &str| {
            long.ends_with("-base-url")
                || matches!(
                    long,
                    "server"
                        | "on-halt"
                        | "allow-host"
                        | "allow-net"
                        | "intercept"
                        | "mcp"
                        | "until"
                        | "plan"
                        | "no-progress"
                        | "env-file"
                        | "trust"
                        | "reads"
                        | "idempotent"
                )
        };
        let door = self.settings.iter().find(|((_, long), _)| is_door(long)).map(|(_, (key, _))| key.clone());
        let table = |there: bool, name: &str| there.then(|| name.to_owned());
        let tables = table(self.upstreams, upstreams::TABLE)
            .or(table(self.budgets, budgets::TABLE))
            .or(table(self.notify, notify::TABLE))
            .or(table(self.mcp, mcp::TABLE));
        match door.or(tables) {
            None => Ok(()),
            Some(key) => Err(Error::NotHere { path: self.path.clone(), key }),
        }
    }

    fn find(&self, long: &str, word: &str) -> Option<Setting> {
        let of = |table: &str| self.settings.get(&(table.to_owned(), long.to_owned()));
        let (key, texts) = of(word).or_else(|| of(""))?;
        let origin = Origin::File { path: self.path.clone(), key: key.clone() };
        Some(Setting { origin, texts: texts.clone() })
    }
}

/// Returns a value as it would be typed at its flag; several for a list, and for the table of `tag`.
fn texts(value: toml::Value, long: &str) -> Result<Vec<String>, String> {
    use toml::Value;
    Ok(match value {
        Value::String(text) => vec![text],
        Value::Integer(number) => vec![number.to_string()],
        // The shortest text of this float is what was written, for every amount people write.
        Value::Float(number) => vec![number.to_string()],
        Value::Boolean(yes) => vec![yes.to_string()],
        Value::Datetime(moment) => vec![moment.to_string()],
        Value::Array(values) => {
            let each = values.into_iter().map(|v| match v {
                Value::Array(_) | Value::Table(_) => Err("wanted a list of single values".to_owned()),
                single => texts(single, long),
            });
            each.collect::<Result<Vec<_>, _>>()?.concat()
        }
        Value::Table(pairs) if long == "tag" => {
            let pair = |(key, value)| match texts(value, "")?.as_slice() {
                [one] => Ok(format!("{key}={one}")),
                _ => Err(format!("wanted one value for {key}")),
            };
            pairs.into_iter().map(pair).collect::<Result<Vec<_>, String>>()?
        }
        Value::Table(_) => return Err("wanted a value, had a table".into()),
    })
}

/// Returns the known key most similar to `key`, if any is similar enough.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a str> {
    let best = known.map(|k| (strsim::levenshtein(key, k), k)).min_by_key(|(edits, _)| *edits)?;
    (best.0 <= 1 + key.len() / 3).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_with_the_fewest_edits() {
        let known = ["admit-wait", "settle-wait", "usd", "tokens"].map(str::to_owned);
        for (typed, wanted) in [
            ("admit-wiat", Some("admit-wait")),
            ("token", Some("tokens")),
            ("usdd", Some("usd")),
            ("completely-different", None),
        ] {
            assert_eq!(nearest(typed, known.iter()), wanted, "{typed}");
        }
    }

    #[test]
    fn values_of_a_file_become_what_would_be_typed() {
        let check = |toml: &str, long: &str, wanted: Result<&[&str], &str>| {
            let table: toml::Table = format!("k = {toml}").parse().unwrap();
            let wanted = wanted.map(|t| t.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
            assert_eq!(texts(table["k"].clone(), long), wanted.map_err(str::to_owned), "{toml}");
        };
        check("5", "usd", Ok(&["5"]));
        check("0.25", "usd", Ok(&["0.25"]));
        check("0.000000001", "usd", Ok(&["0.000000001"]));
        check("true", "new", Ok(&["true"]));
        check("2026-11-20", "since", Ok(&["2026-11-20"]));
        check("[\"A\", \"B\"]", "env", Ok(&["A", "B"]));
        check("{ team = \"x\", n = 1 }", "tag", Ok(&["n=1", "team=x"]));
        check("{ team = \"x\" }", "usd", Err("wanted a value, had a table"));
        check("[[1]]", "env", Err("wanted a list of single values"));
    }
}
