//! Settings: values for flags that the command line leaves open, from variables and from `outlast.toml`.
//!
//! `flags` says which long flags are settings. Order: flag, variable, `./outlast.toml`,
//! `~/.config/outlast/outlast.toml`, built-in. Settings become defaults in the command line's definition. Each is
//! checked alone first, so that an error names its variable or file.

use std::{
    cell::{LazyCell, RefCell},
    collections::BTreeMap,
    ffi::OsStr,
};

use clap::{Arg, ArgAction, builder::Resettable};

use crate::{
    agent::declaration,
    mcp::configured as mcp,
    notify::endpoint as notify,
    program::find::nearest,
    settings::{
        budgets,
        file::{self, Error, Origin, SettingsFile, table},
        flags::{SetBy, set_by},
        masks, policies,
        surroundings::Surroundings,
        trust::Trust,
        upstreams,
    },
};

/// Settings for one command line, as defaults of its flags.
pub struct Defaults {
    /// Subcommand of the command line; empty without one.
    word: String,
    /// Values in the form in which they are typed, by the flag's id.
    texts: BTreeMap<String, Vec<String>>,
    /// Reason for which the directory's file does not count, where the user does not trust it and the command goes on
    /// without it.
    pub ignored: Option<Error>,
}

/// Commands that begin to spend: a directory's file that cannot be read may have limits that were meant.
const BEGINNING: [&str; 3] = ["resume", "run", "serve"];

/// Commands that end runs: no file that an agent can write keeps a person from them.
const ENDING: [&str; 2] = ["cancel", "stop"];

/// Reads the settings that `word` (a subcommand) of `command` (the definition of the command line) takes for the flags
/// that were not typed.
///
/// Pure but for reading the two files. The whole of each file is checked, whichever command is typed. A directory's file
/// that the user does not trust and that has errors is ignored, unless the command begins to spend. Errors: also a
/// directory's file that would set what only a trusted one may.
pub fn defaults(
    command: &clap::Command,
    word: &str,
    is_typed: impl Fn(&Arg) -> bool,
    around: &Surroundings,
) -> Result<Defaults, Error> {
    // Most directories have no file, and need no list of all flags.
    let known = LazyCell::new(|| Known::of(command));
    let (mut files, ignored) = (Vec::new(), RefCell::new(None));
    // Whether the directory's file counts is what `trust` decides.
    let here = if word == "trust" { Ok(None) } else { file::directorys_file(around) };
    let is_trusted = here.as_ref().is_ok_and(|file| file.as_ref().is_some_and(|file| file.trust.is_given()));
    // What is wrong with a file that anybody may have written.
    let passes_over = |why: &Error| match why {
        Error::Untrusted { .. } => ENDING.contains(&word),
        _ => !BEGINNING.contains(&word),
    };
    match here.and_then(|file| file.map(|file| File::parse(file, &known)).transpose()) {
        Ok(file) => files.extend(file),
        Err(why) if !is_trusted && passes_over(&why) => _ = ignored.replace(Some(why)),
        Err(why) => return Err(why),
    }
    if let Some(file) = file::own_file(around)? {
        files.push(File::parse(file, &known)?);
    }
    let of_files = |arg: &Arg, long: &str, set_by: SetBy| {
        for file in &files {
            match file.find(long, word, set_by).map(|found| found.and_then(|setting| checked(arg, setting))) {
                None => {}
                Some(Err(why)) if !file.file.trust.is_given() && passes_over(&why) => {
                    ignored.replace(Some(why));
                }
                Some(found) => return found.map(Some),
            }
        }
        Ok(None)
    };
    let find = |arg: &Arg| -> Result<Option<Vec<String>>, Error> {
        let Some(long) = arg.get_long() else { return Ok(None) };
        let set_by = set_by(word, long);
        if set_by == SetBy::Typing || is_typed(arg) {
            return Ok(None);
        }
        match from_variables(long, word, arg, around)? {
            Some(found) => checked(arg, found).map(Some),
            None => of_files(arg, long, set_by),
        }
    };
    let mut texts = BTreeMap::new();
    let own = command.find_subcommand(word).into_iter().flat_map(|c| c.get_arguments());
    for arg in command.get_arguments().chain(own) {
        if let Some(found) = find(arg)? {
            texts.insert(arg.get_id().to_string(), found);
        }
    }
    Ok(Defaults { word: word.to_owned(), texts, ignored: ignored.into_inner() })
}

/// Checks the whole of a settings file, as [`defaults`] does.
pub fn check(file: SettingsFile) -> Result<(), Error> {
    File::parse(file, &Known::of(&super::command())).map(drop)
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

/// Values of a setting in the form in which they are typed, with their origin.
#[derive(Clone, Debug)]
struct Setting {
    origin: Origin,
    texts: Vec<String>,
    /// Kind of the file's value; `None` for a text.
    kind: Option<Kind>,
}

/// Kind of a value that a file has instead of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number or a time.
    Bare,
    Switch,
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
        return Ok(Some(Setting { origin, texts, kind: None }));
    }
    Ok(None)
}

/// Returns whether the variable is one that agents are given, or the log's filter. It is then no setting of
/// an `outlast` that they start.
fn is_told(name: &str) -> bool {
    name == "OUTLAST_LOG" || name.starts_with("OUTLAST_CTX_")
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
    match setting.kind {
        Some(Kind::Switch) if !is_switch(arg) => return Err(bad("wanted a value, had true or false".into())),
        Some(Kind::Bare) if is_switch(arg) => {
            return Err(bad(format!("not true or false: {:?}", setting.texts.join(","))));
        }
        // What takes any word is a name or a path.
        Some(Kind::Bare) if accepted(arg, &["word".to_owned()]).is_ok() => {
            return Err(bad(format!("wanted a text in quotes, had {}", setting.texts.join(","))));
        }
        _ => {}
    }
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
    accepted(arg, &setting.texts).map_err(|e| bad(reason(&e)))?;
    Ok(setting.texts)
}

/// Parses values as the flag `arg` would, alone.
fn accepted(arg: &Arg, texts: &[String]) -> Result<(), clap::Error> {
    let long = arg.get_long().unwrap_or_default();
    let alone = arg.clone().conflicts_with(Resettable::Reset).requires(Resettable::Reset).global(false);
    let line = std::iter::once("outlast".to_owned()).chain(texts.iter().map(|t| format!("--{long}={t}")));
    clap::Command::new("outlast").disable_help_flag(true).arg(alone).try_get_matches_from(line).map(drop)
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

/// Tables of names, each read by the code that needs it.
const TABLES: [&str; 6] =
    [budgets::TABLE, declaration::TABLE, masks::TABLE, notify::TABLE, policies::TABLE, upstreams::TABLE];

/// Long flags of each command, global ones included, and of all commands together.
struct Known {
    commands: BTreeMap<String, Vec<String>>,
    all: Vec<String>,
}

impl Known {
    fn of(command: &clap::Command) -> Known {
        let longs = |c: &clap::Command| -> Vec<String> {
            c.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
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

    /// Returns whether a file may set the flag in the table of `command`; at the top level (empty) for any command.
    fn is_setting(&self, command: &str, long: &str) -> bool {
        let has = |(name, longs): (&String, &Vec<String>)| {
            (command.is_empty() || command == name)
                && longs.iter().any(|l| l == long)
                && set_by(name, long) != SetBy::Typing
        };
        self.commands.iter().any(has)
    }
}

/// Settings of one file. Keys in a command's table count for that command only and take precedence.
struct File {
    file: SettingsFile,
    /// Settings, by table (empty: top level) and long flag.
    settings: BTreeMap<(String, String), Setting>,
}

impl File {
    fn parse(file: SettingsFile, known: &Known) -> Result<File, Error> {
        let table = table(&file.text, &file.path)?;
        let mut file = File { file, settings: BTreeMap::new() };
        for (key, value) in table {
            match (known.commands.get(&key), value) {
                (None, toml::Value::Table(agents)) if key == declaration::TABLE => {
                    declaration::read(&agents, &file.file.path)?;
                    file.is_own(&key)?;
                }
                // Tables of names are read by the code that needs them. A command of the same name has no settings.
                (_, toml::Value::Table(_))
                    if [upstreams::TABLE, budgets::TABLE, notify::TABLE].contains(&&*key) =>
                {
                    file.is_own(&key)?;
                }
                (_, toml::Value::Table(_)) if key == masks::TABLE => {}
                (None, toml::Value::Table(tables)) if key == policies::TABLE => {
                    policies::read(&tables, &file.file.path)?;
                }
                (Some(_), toml::Value::Table(inner)) => {
                    for (inner_key, value) in inner {
                        // A server, read by the code that needs it.
                        if key == mcp::TABLE && value.is_table() {
                            file.is_own(&key)?;
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
        let path = || self.file.path.clone();
        if !flags.contains(&long) {
            if long.contains("api-key") || long.contains("secret") || long.contains("password") {
                return Err(Error::Secret { path: path(), key: shown });
            }
            if table.is_empty() && (known.commands.contains_key(&shown) || TABLES.contains(&&*shown)) {
                let why = format!("wanted a table, `[{shown}]`, had {}", value.type_str());
                return Err(Error::bad(&path(), shown, why));
            }
            let tables = known.commands.keys().filter(|_| table.is_empty());
            let names = TABLES.iter().filter(|_| table.is_empty()).copied();
            let known = flags.iter().chain(tables).map(String::as_str).chain(names);
            let nearest = nearest(&long, known).map(|n| n.replace('-', "_"));
            return Err(Error::UnknownKey { path: path(), key: shown, nearest });
        }
        if !known.is_setting(table, &long) {
            return Err(Error::Typed { path: path(), key: shown });
        }
        let kind = kind(&value);
        let texts = texts(value, &long).map_err(|why| Error::bad(&path(), &shown, why))?;
        if self.settings.contains_key(&(table.to_owned(), long.clone())) {
            return Err(Error::Twice { path: path(), key: shown });
        }
        let origin = Origin::File { path: path(), key: shown };
        self.settings.insert((table.to_owned(), long), Setting { origin, texts, kind });
        Ok(())
    }

    /// Checks that the file is the user's own, the only one that may have the table `key`: where calls go, what is run,
    /// and what all runs may spend together.
    fn is_own(&self, key: &str) -> Result<(), Error> {
        match self.file.trust {
            Trust::Own => Ok(()),
            _ => Err(Error::NotHere { path: self.file.path.clone(), key: key.to_owned() }),
        }
    }

    /// Returns the setting of a flag that `set_by` may set. Errors: the file would set it and may not.
    fn find(&self, long: &str, word: &str, set_by: SetBy) -> Option<Result<Setting, Error>> {
        let of = |table: &str| self.settings.get(&(table.to_owned(), long.to_owned()));
        let setting = of(word).or_else(|| of(""))?;
        match &setting.origin {
            Origin::File { key, .. } if !self.file.trust.is_given() && set_by != SetBy::Anyone => {
                Some(Err(self.file.refuses(key)))
            }
            _ => Some(Ok(setting.clone())),
        }
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

/// Returns the kind of a value, or of a list's first one that is no text; `None` for texts and tables.
fn kind(value: &toml::Value) -> Option<Kind> {
    use toml::Value;
    match value {
        Value::Integer(_) | Value::Float(_) | Value::Datetime(_) => Some(Kind::Bare),
        Value::Boolean(_) => Some(Kind::Switch),
        Value::Array(values) => values.iter().find_map(kind),
        Value::String(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_with_the_fewest_edits() {
        let known = ["admit-wait", "settle-wait", "usd", "tokens"];
        for (typed, wanted) in [
            ("admit-wiat", Some("admit-wait")),
            ("token", Some("tokens")),
            ("usdd", Some("usd")),
            ("completely-different", None),
        ] {
            assert_eq!(nearest(typed, known.into_iter()), wanted, "{typed}");
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
