//! Keys of the providers: from the environment, or from one private file. Never a flag, never stored, never
//! shown.

use std::{fmt, io::Read, os::unix::fs::MetadataExt, path::PathBuf};

use crate::settings::{env_file::unquoted, surroundings::Surroundings};

/// Environment variable of OpenAI's key.
pub const OPENAI: &str = "OPENAI_API_KEY";
/// Environment variable of Anthropic's key.
pub const ANTHROPIC: &str = "ANTHROPIC_API_KEY";
/// Environment variable of Gemini's key.
pub const GEMINI: &str = "GEMINI_API_KEY";
/// Second environment variable of Gemini's key, which takes precedence, as in Google's SDKs.
pub const GOOGLE: &str = "GOOGLE_API_KEY";

/// Keys of the providers; `None` for a provider without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub openai: Option<Key>,
    pub anthropic: Option<Key>,
    pub gemini: Option<Key>,
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
    #[error("{} holds keys and others can read it: its mode is {mode:04o}, wanted 0600", path.display())]
    Readable { path: PathBuf, mode: u32 },
    #[error("{} holds keys and belongs to user {owner}, not to user {user}", path.display())]
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
            Error::Line { .. } => Some(format!("wanted lines {OPENAI}=…, {ANTHROPIC}=… and {GEMINI}=…")),
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
        let gemini = variable(GOOGLE)?.or(variable(GEMINI)?);
        let mut keys = Keys { openai: variable(OPENAI)?, anthropic: variable(ANTHROPIC)?, gemini };
        if (keys.openai.is_none() || keys.anthropic.is_none() || keys.gemini.is_none())
            && let Some(path) = around.config_directory().map(|d| d.join("env"))
            && let Some(text) = read_private(&path)?
        {
            let kept = parse(&text, &path)?;
            keys.openai = keys.openai.or(kept.openai);
            keys.anthropic = keys.anthropic.or(kept.anthropic);
            keys.gemini = keys.gemini.or(kept.gemini);
        }
        Ok(keys)
    }
}

impl Keys {
    /// Returns the names of the environment variables whose keys are present.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        [(OPENAI, &self.openai), (ANTHROPIC, &self.anthropic), (GEMINI, &self.gemini)]
            .into_iter()
            .filter_map(|(name, key)| key.as_ref().map(|_| name))
    }
}

/// Returns a private file's text; `None` if there is no file. Errors: the file is another user's, or others can read
/// it.
pub fn read_private(path: &PathBuf) -> Result<Option<String>, Error> {
    let unreadable = |e: std::io::Error| Error::Unreadable { path: path.clone(), why: e.to_string() };
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
    };
    // Metadata of the open file, so that the file that is checked is the one that is read.
    let meta = file.metadata().map_err(unreadable)?;
    let (mode, user) = (meta.mode() & 0o7777, rustix::process::geteuid().as_raw());
    if mode & 0o077 != 0 {
        return Err(Error::Readable { path: path.clone(), mode });
    }
    if meta.uid() != user {
        return Err(Error::Foreign { path: path.clone(), owner: meta.uid(), user });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

/// Parses `NAME=VALUE` lines. `export` and quotes are allowed, `#` begins a comment line.
fn parse(text: &str, path: &std::path::Path) -> Result<Keys, Error> {
    let mut keys = Keys::default();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |what: String| Error::Line { path: path.into(), line: i + 1, what };
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        // A line without a name may be a bare key, so the error does not repeat it.
        let (name, value) = line.split_once('=').ok_or_else(|| bad("not NAME=VALUE".into()))?;
        let value = unquoted(value.trim());
        let slot = match name.trim() {
            OPENAI => &mut keys.openai,
            ANTHROPIC => &mut keys.anthropic,
            GEMINI | GOOGLE => &mut keys.gemini,
            _ => return Err(bad("none of the names that are read here".into())),
        };
        if slot.is_some() {
            return Err(bad(format!("{} is given twice", name.trim())));
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
        let keys = load(&[(OPENAI, "env-o")], file).unwrap();
        assert_eq!(keys.openai.map(|k| (k.value, k.origin)), Some(("env-o".into(), Origin::Environment)));
        let anthropic = keys.anthropic.unwrap();
        assert_eq!(anthropic.value, "file-a");
        assert!(matches!(anthropic.origin, Origin::File(_)));
        assert_eq!(load(&[(OPENAI, "")], None), Ok(Keys::default()));
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
        let keys = load(&[(OPENAI, "s3cret")], None).unwrap();
        assert!(!format!("{keys:?}").contains("s3cret"));
    }
}
