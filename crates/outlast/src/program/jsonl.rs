//! JSONL file of results, as the Python package and the library before it write it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::disk::beside;
pub use crate::settings::store_address::record;

/// Beginning of a result, by which a result that follows a torn line in the same line is found.
const BEGINS: &str = "{\"job_id\"";

/// Results of one job, as they were read from its JSONL file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// Number of the attempt that wrote the newest line, for each index in the job's input; `None` if it names none.
    pub by_index: BTreeMap<i64, Option<i64>>,
    pub lines: usize,
}

/// Line of a file of results that is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Line number, counted from 1.
    pub line: usize,
    /// Whether it is the last line and was cut off: the trace of a crash, and harmless.
    pub torn: bool,
}

/// Content of a file of results: the results of each job, and the damaged lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub jobs: BTreeMap<String, Results>,
    pub damage: Vec<Damage>,
    /// Number of results that follow a torn line without a line break.
    pub glued: usize,
}

/// Returns whether a word on the command line means a file of results instead of a job.
pub fn is_file(word: &str) -> bool {
    word.ends_with(".jsonl") || (word.contains('/') && Path::new(word).is_file())
}

/// Reads a file of results. Errors: the file system's.
pub fn scan(path: &Path) -> io::Result<Scan> {
    let mut scan = Scan::default();
    each_line(path, |number, raw, last| {
        match result(raw) {
            _ if raw.trim_ascii().is_empty() => {}
            Some((glued, job, index, attempt)) => {
                scan.glued += usize::from(glued);
                let of = scan.jobs.entry(job).or_default();
                of.lines += 1;
                of.by_index.insert(index, attempt);
            }
            None => scan.damage.push(Damage { line: number, torn: last && is_torn(raw) }),
        }
        Ok(())
    })?;
    Ok(scan)
}

/// Moves lines that are no result into `FILE.damaged`, and returns that file's path. `FILE` is replaced atomically.
pub fn repair(path: &Path) -> io::Result<PathBuf> {
    let (damaged, new) = (beside(path, ".damaged"), beside(path, ".new"));
    let mut out = File::create(&new)?;
    let mut bad = fs::OpenOptions::new().create(true).append(true).open(&damaged)?;
    each_line(path, |_, raw, _| {
        let whole = raw.trim_ascii().is_empty() || result(raw).is_some();
        let file = if whole { &mut out } else { &mut bad };
        file.write_all(raw)?;
        if raw.ends_with(b"\n") { Ok(()) } else { file.write_all(b"\n") }
    })?;
    // The moved lines are on disk before they are gone from the file.
    bad.sync_all()?;
    out.sync_all()?;
    fs::set_permissions(&new, fs::metadata(path)?.permissions())?;
    fs::rename(&new, path)?;
    Ok(damaged)
}

fn each_line(path: &Path, mut tell: impl FnMut(usize, &[u8], bool) -> io::Result<()>) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut raw, mut number) = (Vec::new(), 0);
    loop {
        raw.clear();
        if reader.read_until(b'\n', &mut raw)? == 0 {
            return Ok(());
        }
        number += 1;
        let last = reader.fill_buf()?.is_empty();
        tell(number, &raw, last)?;
    }
}

/// Returns whether a last line was cut off. A power cut can leave zeros in place of the last bytes.
fn is_torn(raw: &[u8]) -> bool {
    !raw.ends_with(b"\n") || raw.iter().all(|b| matches!(b, 0 | b'\n' | b'\r'))
}

/// Parses a result: whether a torn line stands before it, its job, index and attempt.
fn result(raw: &[u8]) -> Option<(bool, String, i64, Option<i64>)> {
    let text = std::str::from_utf8(raw).ok()?;
    let starts = std::iter::once(0).chain(text.match_indices(BEGINS).map(|(at, _)| at).filter(|at| *at > 0));
    starts.into_iter().find_map(|at| {
        let line: Value = serde_json::from_str(text.get(at..)?).ok()?;
        line.get("result")?;
        let index = line.get("index")?.as_i64().filter(|i| *i >= 0)?;
        let attempt = line.get("attempt").and_then(Value::as_i64);
        Some((at > 0, line.get("job_id")?.as_str()?.to_owned(), index, attempt))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"job_id": "a", "index": 0, "result": {"x": 1}}"#;

    fn scanned(text: &str) -> Scan {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        scan(file.path()).unwrap()
    }

    #[test]
    fn what_is_no_result_is_told_by_its_line() {
        let other = r#"{"job_id": "b", "index": 7, "result": null, "attempt": 2, "at": "x"}"#;
        let check = |text: String, jobs: usize, damage: &[(usize, bool)], glued: usize| {
            let scan = scanned(&text);
            let had: Vec<_> = scan.damage.iter().map(|d| (d.line, d.torn)).collect();
            assert_eq!((scan.jobs.len(), had.as_slice(), scan.glued), (jobs, damage, glued), "{text:?}");
        };
        check(String::new(), 0, &[], 0);
        check(format!("{LINE}\n{other}\n"), 2, &[], 0);
        check(format!("{LINE}\n{other}"), 2, &[], 0);
        check(format!("{LINE}\n{{\"job_id\": \"a\", \"ind"), 1, &[(2, true)], 0);
        check(format!("{LINE}\n\0\0\0"), 1, &[(2, true)], 0);
        check(format!("{LINE}\ngarbage\n{other}\n"), 2, &[(2, false)], 0);
        check(format!("{LINE}\n[1]\n"), 1, &[(2, false)], 0);
        check(format!("{{\"job_id\": \"a\", \"index\": 1, \"resu{LINE}\n{other}\n"), 2, &[], 1);
    }

    #[test]
    fn a_repair_moves_damaged_lines_and_keeps_the_others_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        fs::write(&path, format!("{LINE}\ngarbage\n{LINE}\n{{\"job_id\"")).unwrap();
        let damaged = repair(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{LINE}\n{LINE}\n"));
        assert_eq!(fs::read_to_string(damaged).unwrap(), "garbage\n{\"job_id\"\n");
        assert_eq!(scan(&path).unwrap().damage, []);
    }
}
