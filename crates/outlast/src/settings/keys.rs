//! Keys of the providers: from the environment, or from one private file. Never a flag, never stored, never
//! shown.

use std::{
    fmt,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use outlast_server::dialect::Upstream;

use crate::{
    disk::present,
    settings::{env_file::assignments, surroundings::Surroundings},
};

/// Keys of the providers, by their places in [`Upstream::ALL`]; `None` for a provider without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys([Option<Key>; Upstream::ALL.len()]);

/// Returns whether a variable is one of a provider's key, under any name that SDKs read.
pub fn is_keys(variable: &str) -> bool {
    provider_of(variable).is_some()
}

/// Returns the usual variables of the providers' keys, with `last` between the last two.
pub fn listed(last: &str) -> String {
    let [others @ .., end] = Upstream::ALL.map(variable);
    format!("{}{last}{end}", others.join(", "))
}

/// Returns the usual variable of a provider's key.
pub fn variable(upstream: Upstream) -> &'static str {
    upstream.row().key_variables[0]
}

fn provider_of(variable: &str) -> Option<Upstream> {
    Upstream::ALL.into_iter().find(|upstream| upstream.row().key_variables.contains(&variable))
}

/// Key of a provider. `Debug` does not print its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    pub value: String,
    pub origin: Origin,
}

/// Source of a key: a variable, or the file of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Environment,
    File(PathBuf),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// Error of a key, or of the file of keys, that is not accepted. No variant holds a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{} holds a secret and others can read it: its mode is {mode:04o}, wanted {}", path.display(), readers.wanted())]
    Readable { path: PathBuf, mode: u32, readers: Readers },
    #[error("{} holds a secret and belongs to user {owner}, not to user {user}", path.display())]
    Foreign { path: PathBuf, owner: u32, user: u32 },
    #[error("cannot read {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("{}, line {line}: {what}", path.display())]
    Line { path: PathBuf, line: usize, what: String },
    #[error("{name} is not valid UTF-8")]
    NotText { name: &'static str },
}

impl Error {
    pub fn code(&self) -> &'static str {
        match self {
            Error::Readable { .. } => "keys_readable",
            Error::Foreign { .. } => "keys_foreign",
            Error::Unreadable { .. } => "keys_unreadable",
            Error::Line { .. } | Error::NotText { .. } => "keys_malformed",
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Readable { path, .. } => Some(format!("chmod 600 {}", path.display())),
            Error::Line { .. } => Some(format!("wanted lines NAME=KEY, with a NAME of {}", listed(", "))),
            _ => None,
        }
    }
}

impl Keys {
    /// Loads keys from the environment variables, and missing ones from `~/.config/outlast/env`, if that file exists.
    pub fn load(around: &Surroundings) -> Result<Keys, Error> {
        let variable = |name: &'static str| -> Result<Option<Key>, Error> {
            let Some(value) = around.var(name) else { return Ok(None) };
            let value = value.to_str().ok_or(Error::NotText { name })?.to_owned();
            Ok(Some(Key { value, origin: Origin::Environment }))
        };
        let mut keys = Keys::default();
        for upstream in Upstream::ALL {
            for name in upstream.row().key_variables.iter().copied() {
                let key = variable(name)?;
                let slot = keys.of_mut(upstream);
                *slot = key.or(slot.take());
            }
        }
        if keys.0.iter().any(Option::is_none)
            && let Some(path) = around.config_directory().map(|d| d.join("env"))
            && let Some(text) = read_private(&path, Readers::Owner)?
        {
            let kept = parse(&text, &path)?;
            keys.0.iter_mut().zip(kept.0).for_each(|(key, kept)| *key = key.take().or(kept));
        }
        Ok(keys)
    }

    pub fn of(&self, upstream: Upstream) -> Option<&Key> {
        self.0[upstream as usize].as_ref()
    }

    pub fn of_mut(&mut self, upstream: Upstream) -> &mut Option<Key> {
        &mut self.0[upstream as usize]
    }

    /// Returns the usual names of the environment variables whose keys are present.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        Upstream::ALL.into_iter().filter(move |upstream| self.of(*upstream).is_some()).map(variable)
    }
}

/// Users who may read a file of secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Owner,
    /// The file's group too, if this process is in it. A secret that is mounted into a container belongs to root, and is
    /// read by its group.
    OwnGroup,
}

impl Readers {
    fn wanted(self) -> &'static str {
        match self {
            Readers::Owner => "0600",
            Readers::OwnGroup => "0600, or 0440 with a group of this process",
        }
    }

    /// Returns whether a file of this mode is kept from everybody else.
    fn are_all(self, mode: u32, is_own_group: bool) -> bool {
        let others = if self == Readers::OwnGroup && is_own_group { 0o037 } else { 0o077 };
        mode & others == 0
    }
}

/// Returns the text of a file that holds a secret; `None` if there is no file. Every such file is read here.
///
/// Errors: others than `readers` can read it; with [`Readers::Owner`], the file is another user's.
pub fn read_private(path: &Path, readers: Readers) -> Result<Option<String>, Error> {
    let unreadable = |e: std::io::Error| Error::Unreadable { path: path.to_owned(), why: e.to_string() };
    let Some(mut file) = present(std::fs::File::open(path)).map_err(unreadable)? else { return Ok(None) };
    // Metadata of the open file, so that the file that is checked is the one that is read.
    let meta = file.metadata().map_err(unreadable)?;
    let (mode, user) = (meta.mode() & 0o7777, rustix::process::geteuid().as_raw());
    let groups = rustix::process::getgroups().map_err(|e| unreadable(e.into()))?;
    let mut groups = groups.into_iter().chain([rustix::process::getegid()]);
    if !readers.are_all(mode, groups.any(|group| group.as_raw() == meta.gid())) {
        return Err(Error::Readable { path: path.to_owned(), mode, readers });
    }
    if readers == Readers::Owner && meta.uid() != user {
        return Err(Error::Foreign { path: path.to_owned(), owner: meta.uid(), user });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

/// Parses `NAME=VALUE` lines. `export` and quotes are allowed, `#` begins a comment line.
fn parse(text: &str, path: &std::path::Path) -> Result<Keys, Error> {
    let mut keys = Keys::default();
    for (line, pair) in assignments(text) {
        let bad = |what: String| Error::Line { path: path.into(), line, what };
        let (name, value) = pair.ok_or_else(|| bad("not NAME=VALUE".into()))?;
        let upstream = provider_of(name);
        let slot = keys.of_mut(upstream.ok_or_else(|| bad("none of the names that are read here".into()))?);
        if slot.is_some() {
            return Err(bad(format!("{name} is given twice")));
        }
        if !value.is_empty() {
            *slot = Some(Key { value: value.to_owned(), origin: Origin::File(path.into()) });
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(variables: &[(&str, &str)], file: Option<(&str, u32)>) -> Result<Keys, Error> {
        let home = tempfile::tempdir().unwrap();
        if let Some((text, mode)) = file {
            let path = home.path().join(".config/outlast/env");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut all = vec![("HOME", home.path().to_str().unwrap())];
        all.extend(variables);
        Keys::load(&Surroundings::new(&all, home.path()))
    }

    #[test]
    fn a_variable_comes_before_the_file() {
        let file = Some(("# mine\nexport OPENAI_API_KEY=\"file-o\"\nANTHROPIC_API_KEY=file-a\n", 0o600));
        let keys = load(&[("OPENAI_API_KEY", "env-o")], file).unwrap();
        let openai = keys.of(Upstream::OpenAi).unwrap();
        assert_eq!((openai.value.as_str(), &openai.origin), ("env-o", &Origin::Environment));
        let anthropic = keys.of(Upstream::Anthropic).unwrap();
        assert_eq!(anthropic.value, "file-a");
        assert!(matches!(anthropic.origin, Origin::File(_)));
        assert_eq!(load(&[("OPENAI_API_KEY", "")], None), Ok(Keys::default()));
    }

    #[test]
    fn of_a_keys_names_the_one_that_its_sdks_prefer_counts() {
        let keys = load(&[("GOOGLE_API_KEY", "google"), ("GEMINI_API_KEY", "gemini")], None).unwrap();
        assert_eq!(keys.of(Upstream::Gemini).unwrap().value, "google");
        assert!(is_keys("GOOGLE_API_KEY") && !is_keys("GROQ_API_KEY"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_by_name() {
        for mode in [0o644, 0o640, 0o602] {
            let error = load(&[], Some(("OPENAI_API_KEY=x", mode))).unwrap_err();
            assert_eq!(error.code(), "keys_readable");
            assert!(error.to_string().contains(&format!("{mode:04o}, wanted 0600")), "{error}");
            assert!(error.hint().unwrap().ends_with("/.config/outlast/env"));
        }
        assert!(load(&[], Some(("OPENAI_API_KEY=x", 0o400))).is_ok());
    }

    #[test]
    fn a_secret_is_read_by_its_owner_and_at_most_by_the_processs_own_group() {
        for (mode, is_own_group, wanted) in [
            (0o600, false, true),
            (0o400, false, true),
            (0o440, true, true),
            (0o640, true, true),
            (0o440, false, false),
            (0o660, true, false),
            (0o444, true, false),
            (0o604, true, false),
        ] {
            assert_eq!(Readers::OwnGroup.are_all(mode, is_own_group), wanted, "{mode:o}, {is_own_group}");
            assert_eq!(Readers::Owner.are_all(mode, is_own_group), mode & 0o077 == 0, "{mode:o}");
        }
    }

    #[test]
    fn a_bad_line_is_named_and_its_text_is_not_repeated() {
        for (text, line) in [
            ("sk-s3cret", "line 1: not NAME=VALUE"),
            ("\nsk-s3cret=1", "line 2: none of the names"),
            ("OPENAI_API_KEY=s3cret\nOPENAI_API_KEY=s3cret", "line 2: OPENAI_API_KEY is given twice"),
        ] {
            let error = load(&[], Some((text, 0o600))).unwrap_err().to_string();
            assert!(error.contains(line) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let keys = load(&[("OPENAI_API_KEY", "s3cret")], None).unwrap();
        assert!(!format!("{keys:?}").contains("s3cret"));
    }
}
