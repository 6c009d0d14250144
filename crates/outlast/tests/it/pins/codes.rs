//! Every error code: none is lost, none is renamed, and a new one is recorded when it is made.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{directory, pin};

/// The texts of all source files of ours, without comments and without Rust's unit tests.
pub fn sources(kinds: &[&str]) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for of in fs::read_dir(crates).unwrap().map(|e| e.unwrap().path()).filter(|p| !p.ends_with("sim")) {
        ["src", "python", "proto"].iter().for_each(|below| walk(&of.join(below), &mut files));
    }
    let ours = files.into_iter().filter(|p| p.extension().is_some_and(|e| kinds.iter().any(|k| e == *k)));
    let texts = ours.map(|path| fs::read_to_string(path).unwrap());
    texts.map(|text| without_comments(text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text))).collect()
}

fn walk(below: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(below) else { return };
    for path in entries.map(|e| e.unwrap().path()) {
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

fn without_comments(text: &str) -> String {
    let is_code = |l: &&str| !l.trim_start().starts_with("//");
    text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

fn is_code(text: &str) -> bool {
    let word = |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.bytes().next().is_some_and(|b| b.is_ascii_lowercase()) && text.split('_').all(word)
}

/// The text of the first string literal in `text`, where one begins it but for blanks and a number.
fn literal(text: &str) -> Option<&str> {
    let at = text.find('"')?;
    let before = &text[..at];
    if before.len() > 40 || !before.bytes().all(|b| b.is_ascii_digit() || b" ,\n(".contains(&b)) {
        return None;
    }
    text[at + 1..].split('"').next()
}

/// The body behind `at`, to its closing brace.
fn body(text: &str) -> &str {
    let begin = text.find('{').unwrap_or(0);
    let mut depth = 0;
    for (at, c) in text[begin..].char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return &text[begin..begin + at];
        }
    }
    &text[begin..]
}

/// Codes in the sources: in tables of facts, in functions named `code`, in fields `code`, beside a status.
fn coined() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in sources(&["rs"]) {
        for rest in text.split("fn code(").skip(1).filter(|r| r.lines().next().unwrap_or("").contains("str"))
        {
            found.extend(body(rest).split('"').skip(1).step_by(2).filter(|c| is_code(c)).map(str::to_owned));
        }
        for rows in text.split("error_facts!").skip(1).map(body) {
            found.extend(rows.split('"').skip(1).step_by(2).filter(|c| is_code(c)).map(str::to_owned));
        }
        for before in ["code: ", "Refusal::new(", "Failure::new("] {
            let codes = text.split(before).skip(1).filter_map(literal).filter(|c| is_code(c));
            found.extend(codes.map(str::to_owned));
        }
    }
    for text in sources(&["py"]) {
        for before in ["\n    code = ", " code=", "(code="] {
            for code in text.split(before).skip(1).filter_map(literal).filter(|c| is_code(c)) {
                found.insert(code.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_error_keeps_its_code() {
    let known = fs::read_to_string(directory().join("codes.txt")).unwrap_or_default();
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    // A code may be written where the scan does not look, so it is known for good once it is recorded.
    let texts = sources(&["rs", "py"]);
    let quoted: BTreeSet<&str> = texts.iter().flat_map(|text| text.split('"')).collect();
    let mut found = coined();
    assert!(found.len() > 120, "the scan finds few: {found:?}");
    found.extend(known.into_iter().filter(|code| quoted.contains(code.as_str())));
    pin("codes", &found.into_iter().map(|code| code + "\n").collect::<String>());
}

/// The wire of the state's gRPC: packages, services, methods, fields and their numbers.
#[test]
fn the_protocol_of_grpc_keeps_its_names_and_numbers() {
    let mut lines: Vec<String> = Vec::new();
    for text in sources(&["proto"]) {
        lines.extend(text.lines().map(|l| l.split("//").next().unwrap_or("").trim().to_owned()));
    }
    lines.retain(|line| !line.is_empty());
    pin("grpc", &(lines.join("\n") + "\n"));
}
