//! Memory references: names for the places of an agent's knowledge. A local file is also recorded by its digest.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Memory reference: the URI of a place where the agent keeps knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// URI as it was given.
    pub uri: String,
    /// Absolute path of the file or directory, if there was one when the reference was made; `None` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// SHA-256 of the file's bytes, in hex; `None` if there was no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// State of a referenced file now, compared with the time at which the reference was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Now {
    /// The file has the same bytes as when it was referenced, or the directory still exists.
    Same,
    Changed,
    Gone,
    /// The reference has no local file, so nothing was checked.
    Unchecked,
}

impl Now {
    pub fn name(self) -> &'static str {
        match self {
            Now::Same => "same",
            Now::Changed => "changed",
            Now::Gone => "gone",
            Now::Unchecked => "not checked",
        }
    }
}

const LONGEST: usize = 64;

/// Parses `NAME=URI`. The error is a message that says what was expected.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let shown: String = text.chars().take(LONGEST).collect();
    let bad = |what: &str| {
        format!("{what}: {shown:?} (wanted for example notes=notes.md or graph=mcp://memory/n42)")
    };
    let (name, uri) = text.split_once('=').ok_or_else(|| bad("not NAME=URI"))?;
    let is_name = (1..=LONGEST).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name.as_bytes()[0].is_ascii_alphanumeric();
    if !is_name {
        return Err(bad("not a reference's name"));
    }
    if uri.is_empty() {
        return Err(bad("a reference to nothing"));
    }
    Ok((name.to_owned(), uri.to_owned()))
}

impl Reference {
    /// Makes a reference to `uri`, relative to `directory`. Records path and digest if it is local and exists.
    ///
    /// Errors: the file exists and cannot be read.
    pub fn take(uri: &str, directory: &Path) -> io::Result<Reference> {
        let mut found = Reference { uri: uri.to_owned(), path: None, sha256: None };
        let Some(path) = local(uri, directory) else { return Ok(found) };
        match digest(&path) {
            Ok(sha256) => {
                found.path = path.to_str().map(str::to_owned);
                found.sha256 = sha256;
                Ok(found)
            }
            // Any reference may be stored: a word that names no file may mean something to another program.
            Err(e) if is_absent(&e) => Ok(found),
            Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
        }
    }

    /// Returns whether the URI looks like a local path, but no file was there when the reference was made.
    pub fn names_nothing_here(&self) -> bool {
        self.path.is_none() && !has_scheme(&self.uri) && self.uri.contains('/')
    }

    pub fn now(&self) -> Now {
        let Some(path) = &self.path else { return Now::Unchecked };
        match digest(Path::new(path)) {
            Ok(sha256) if sha256 == self.sha256 => Now::Same,
            Ok(_) => Now::Changed,
            Err(e) if is_absent(&e) => Now::Gone,
            // The file exists but cannot be read: without a digest it must not count as the same.
            Err(_) => Now::Changed,
        }
    }
}

fn is_absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename
    )
}

/// Returns whether the URI has a scheme, as in `mcp:…`, `https://…`. One letter is no scheme.
fn has_scheme(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.len() > 1
            && scheme.as_bytes()[0].is_ascii_alphabetic()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b))
    })
}

fn local(uri: &str, directory: &Path) -> Option<PathBuf> {
    // A file URL with escapes is not decoded: it is kept as given, without a path.
    let path = match uri.strip_prefix("file://") {
        Some(path) if path.starts_with('/') && !path.contains('%') => path,
        Some(_) => return None,
        None if has_scheme(uri) && !directory.join(uri).exists() => return None,
        None => uri,
    };
    Some(directory.join(path))
}

/// Returns the SHA-256 of a file's bytes in hex; `None` for anything but a regular file.
fn digest(path: &Path) -> io::Result<Option<String>> {
    // Checked before opening: opening a pipe waits for its other end.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => hash.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_reference_is_kept_as_given_and_a_file_also_by_its_digest() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("notes.md"), "abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let url = format!("file://{}/notes.md", dir.path().display());
        for (uri, sha256, now) in [
            ("mcp://memory/n42", None, Now::Unchecked),
            ("https://x.example/a?b#c", None, Now::Unchecked),
            ("urn:uuid:1", None, Now::Unchecked),
            ("1411", None, Now::Unchecked),
            ("no/such/file", None, Now::Unchecked),
            ("file:///a%20b", None, Now::Unchecked),
            ("notes.md", Some(abc), Now::Same),
            (&url, Some(abc), Now::Same),
            (".", None, Now::Same),
        ] {
            let found = Reference::take(uri, dir.path()).unwrap();
            assert_eq!(
                (found.uri.as_str(), found.sha256.as_deref(), found.now()),
                (uri, sha256, now),
                "{uri}"
            );
        }
    }

    #[test]
    fn a_file_that_changed_or_went_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.md");
        std::fs::write(&file, "abc").unwrap();
        let found = Reference::take("notes.md", dir.path()).unwrap();
        std::fs::write(&file, "abd").unwrap();
        assert_eq!(found.now(), Now::Changed);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found.now(), Now::Gone);
        std::fs::create_dir(&file).unwrap();
        assert_eq!(found.now(), Now::Changed);
    }

    #[test]
    fn a_pair_is_a_name_and_any_reference() {
        assert_eq!(pair("n.1=mcp://a=b"), Ok(("n.1".into(), "mcp://a=b".into())));
        for text in ["n", "=u", "n=", "a b=c", "-n=u", "é=u"] {
            assert!(pair(text).unwrap_err().contains("wanted"), "{text}");
        }
    }
}
