//! Comparison of what a life left with what the clean run left.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::copy;
use crate::{
    program::error::CliError,
    render::{amount::some, text::exact_line},
};

/// Names that are never compared: Python's compiled files hold times, and a repository's own files do.
const NEVER: [&str; 2] = ["__pycache__", ".git"];

/// Most characters of a line that is shown.
const SHOWN: usize = 60;

/// Paths that are not compared.
pub struct Ignored(Vec<Regex>);

/// Way in which a path differs from the clean run's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub path: String,
    pub what: String,
    pub sort: Sort,
}

/// Sort of a difference, by which its cause is guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Lines of a file are there too often.
    More,
    /// A path is there that the clean run did not leave.
    New,
    /// Something is missing.
    Fewer,
    Other,
}

impl Ignored {
    /// Reads patterns: `**` is any path, `*` and `?` are parts of a name. One without a slash names files and directories
    /// anywhere; what is below a directory that is named is ignored with it.
    pub fn read(patterns: impl IntoIterator<Item = String>) -> Result<Ignored, CliError> {
        let read = |pattern: String| {
            let whole = regex::escape(pattern.trim_end_matches('/'));
            let whole = whole.replace(r"\*\*/", "(.*/)?").replace(r"\*\*", ".*");
            let whole = whole.replace(r"\*", "[^/]*").replace(r"\?", "[^/]");
            let start = if pattern.trim_end_matches('/').contains('/') { "^" } else { "^(.*/)?" };
            Regex::new(&format!("{start}{}(/|$)", whole.trim_start_matches('/')))
                .map_err(|e| CliError::usage(format!("--ignore {pattern}: {e}"), None))
        };
        NEVER.into_iter().map(str::to_owned).chain(patterns).map(read).collect::<Result<_, _>>().map(Ignored)
    }

    pub fn add(&mut self, path: &str) {
        self.0.extend(Regex::new(&format!("^{}$", regex::escape(path))));
    }

    fn has(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(path))
    }
}

/// Returns what differs between the clean run's directory and another, by kind, mode and content.
pub fn trees(clean: &Path, other: &Path, ignored: &Ignored) -> io::Result<Vec<Difference>> {
    let list = |root: &Path| -> io::Result<BTreeMap<String, PathBuf>> {
        let mut found = BTreeMap::new();
        list(root, "", ignored, &mut found)?;
        Ok(found)
    };
    let (before, after) = (list(clean)?, list(other)?);
    let mut differences = Vec::new();
    for path in before.keys().chain(after.keys().filter(|path| !before.contains_key(*path))) {
        let difference = match (before.get(path), after.get(path)) {
            (Some(_), None) => Some(("is missing".to_owned(), Sort::Fewer)),
            (None, _) => Some(("is there, and not after the clean run".to_owned(), Sort::New)),
            (Some(before), Some(after)) => files(before, after)?,
        };
        differences.extend(difference.map(|(what, sort)| Difference { path: path.clone(), what, sort }));
    }
    Ok(differences)
}

/// Returns how the lines of two texts differ, wherever they stand; `None`: each is as often in both.
pub fn lines(before: &str, after: &str) -> Option<(String, Sort)> {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    before.lines().for_each(|line| *counts.entry(line).or_default() -= 1);
    after.lines().for_each(|line| *counts.entry(line).or_default() += 1);
    let sum = |sign: i64| counts.values().map(|n| (n * sign).max(0)).sum::<i64>();
    let first = |sign: i64| counts.iter().find(|(_, n)| **n * sign > 0).map_or("", |(line, _)| line);
    let shown = |sign: i64| exact_line(first(sign), SHOWN);
    match (sum(1), sum(-1)) {
        (0, 0) => None,
        (more, 0) => Some((
            format!("has {} more than after the clean run: {:?}", some(more, "line"), shown(1)),
            Sort::More,
        )),
        (0, fewer) => Some((
            format!("has {} fewer than after the clean run: {:?}", some(fewer, "line"), shown(-1)),
            Sort::Fewer,
        )),
        _ => Some((format!("has {:?} where the clean run left {:?}", shown(1), shown(-1)), Sort::Other)),
    }
}

fn list(
    root: &Path,
    below: &str,
    ignored: &Ignored,
    found: &mut BTreeMap<String, PathBuf>,
) -> io::Result<()> {
    for name in copy::names(&root.join(below))? {
        let name = name.to_string_lossy();
        let path = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
        if ignored.has(&path) {
            continue;
        }
        let whole = root.join(&path);
        if fs::symlink_metadata(&whole)?.is_dir() {
            list(root, &path, ignored, found)?;
        }
        found.insert(path, whole);
    }
    Ok(())
}

/// Returns how one path differs; `None`: not at all.
fn files(before: &Path, after: &Path) -> io::Result<Option<(String, Sort)>> {
    let (old, new) = (fs::symlink_metadata(before)?, fs::symlink_metadata(after)?);
    if old.file_type() != new.file_type() {
        return Ok(Some(("is another kind of file than after the clean run".into(), Sort::Other)));
    }
    if old.is_symlink() {
        let is_same = fs::read_link(before)? == fs::read_link(after)?;
        return Ok((!is_same).then(|| ("leads elsewhere than after the clean run".into(), Sort::Other)));
    }
    if old.is_file() {
        let (old, new) = (fs::read(before)?, fs::read(after)?);
        if old != new {
            let in_lines = match (std::str::from_utf8(&old), std::str::from_utf8(&new)) {
                (Ok(old), Ok(new)) => lines(old, new),
                _ => None,
            };
            let otherwise = || ("has another content than after the clean run".to_owned(), Sort::Other);
            return Ok(Some(in_lines.unwrap_or_else(otherwise)));
        }
    }
    let mode = |meta: &fs::Metadata| meta.mode() & 0o7777;
    let differs = mode(&old) != mode(&new);
    let what = || format!("has mode {:o}, and {:o} after the clean run", mode(&new), mode(&old));
    Ok(differs.then(|| (what(), Sort::Other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_wherever_they_stand() {
        let check = |before: &str, after: &str, sort: Option<Sort>, part: &str| {
            let told = lines(before, after);
            assert_eq!(told.as_ref().map(|(_, sort)| *sort), sort, "{before:?} {after:?}");
            assert!(told.is_none_or(|(what, _)| what.contains(part)), "{part}");
        };
        check("a\nb\n", "b\na\n", None, "");
        check("a\nb\n", "a\nb\na\n", Some(Sort::More), "1 line more");
        check("a\nb\n", "a\n", Some(Sort::Fewer), "1 line fewer");
        check("a\n", "b\n", Some(Sort::Other), "\"b\" where");
    }

    #[test]
    fn a_pattern_names_a_file_anywhere_or_a_path() {
        let check = |pattern: &str, path: &str, wanted: bool| {
            let ignored = Ignored::read([pattern.to_owned()]).unwrap();
            assert_eq!(ignored.has(path), wanted, "{pattern} {path}");
        };
        check("*.log", "a/b.log", true);
        check("*.log", "a/b.login", false);
        check("out/", "out/a", true);
        check("/out", "a/out", false);
        check("a/*.txt", "a/b/c.txt", false);
        check("a/**/c.txt", "a/b/d/c.txt", true);
        check("**", "anything/at/all", true);
        check("none", "a/__pycache__/x.pyc", true);
    }
}
