//! The architecture, held against the files: arrows point down, and the domain does no I/O.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Each crate with the crates of ours that it may depend on.
const ARROWS: [(&str, &[&str]); 11] = [
    ("crates/core", &[]),
    ("crates/view", &["outlast-core"]),
    ("crates/files", &["outlast-core"]),
    ("crates/store", &["outlast-core"]),
    ("crates/process", &["outlast-core"]),
    ("crates/mock", &["outlast-core"]),
    ("crates/server", &["outlast-core", "outlast-view"]),
    ("crates/sim", &["outlast-core", "outlast-store"]),
    (
        "crates/outlast",
        &[
            "outlast-core",
            "outlast-view",
            "outlast-files",
            "outlast-store",
            "outlast-server",
            "outlast-process",
            "outlast-mock",
        ],
    ),
    (
        "crates/python",
        &["outlast-core", "outlast-view", "outlast-store", "outlast-server", "outlast-process", "outlast"],
    ),
    ("benches", &["outlast-core", "outlast-store", "outlast-server", "outlast-mock", "outlast"]),
];

/// Names that the domain must not use: clocks, entropy, the environment, tasks, files, sockets.
const NOT_IN_CORE: [&str; 9] = [
    "tokio",
    "SystemTime",
    "Instant::now",
    "std::env",
    "std::fs",
    "std::net",
    "std::thread::spawn",
    "getrandom",
    "println!",
];

/// Where the domain may name a store: what it is, what reads it, and who drives it. Verbs and nouns are pure.
const READS_A_STORE: [&str; 4] = ["reads/", "store/", "memory", "call/"];

/// Columns that hold the number of an enum's value. `tables.rs` says which number that is.
const CODED: [&str; 5] = ["kind", "state", "life", "status", "role"];

/// Rooms of the product, the lowest first: each imports from rooms above it in this list alone.
const ROOMS: [&str; 17] = [
    "disk",
    "render",
    "settings",
    "program",
    "cli",
    "proxy_setup",
    "logs",
    "files",
    "loops",
    "agent",
    "mcp",
    "digest",
    "notify",
    "serve",
    "supervisor",
    "guard",
    "commands",
];

/// A file tells one noun or one verb; beyond this a second one has moved in.
const LONGEST: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn sources(of: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&root().join(of).join("src"), &mut found);
    found.into_iter().map(|p| (p.clone(), fs::read_to_string(p).unwrap())).collect()
}

/// A source without its tests and comments.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn arrows_point_down() {
    for (krate, allowed) in ARROWS {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
        let table: toml::Table = manifest.parse().unwrap();
        let dependencies = table["dependencies"].as_table().unwrap();
        for name in dependencies.keys().filter(|n| n.starts_with("outlast")) {
            assert!(allowed.contains(&name.as_str()), "{krate} must not depend on {name}");
        }
    }
}

/// Returns the rooms of a crate that a source names: `crate::room`, alone or among others in braces.
fn rooms_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        let rest = &code[at + path.len()..];
        let mut depth = 0;
        for (i, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ if c.is_alphabetic() && depth <= 1 => {
                    let before = rest[..i].trim_end();
                    if before.is_empty() || before.ends_with(['{', ',']) {
                        let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
                        named.insert(rest[i..].chars().take_while(is_word).collect());
                    }
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    named
}

#[test]
fn rooms_of_the_product_import_from_those_below_them() {
    assert_eq!(rooms_named("use crate::{a::{b, c}, d};"), ["a", "d"].map(str::to_owned).into());
    let home = root().join("crates/outlast/src");
    for (path, text) in sources("crates/outlast") {
        let name = path.strip_prefix(&home).unwrap().to_string_lossy().into_owned();
        let room = name.split(['/', '.']).next().unwrap();
        if ["lib", "main"].contains(&room) || name.ends_with("tests.rs") {
            continue;
        }
        let height = |room: &str| ROOMS.iter().position(|one| *one == room);
        let own = height(room).unwrap_or_else(|| panic!("{room} has no place among the rooms"));
        for named in rooms_named(&code(&text)) {
            assert!(height(&named).is_none_or(|other| other <= own), "{name} imports from {named}, above it");
        }
    }
}

#[test]
fn the_page_of_the_installs_says_which_stores_this_version_reads() {
    let page = fs::read_to_string(root().join("docs/install.md")).unwrap();
    let (version, format, oldest) = (env!("CARGO_PKG_VERSION"), outlast_store::FORMAT, outlast_store::OLDEST);
    let row = format!("| {version} | format {format} | formats {oldest} to {format} |");
    assert!(page.contains(&row), "docs/install.md lacks the row {row}");
}

#[test]
fn the_domain_does_no_io() {
    for (path, text) in sources("crates/core") {
        for word in NOT_IN_CORE {
            assert!(!code(&text).contains(word), "{} names {word}", path.display());
        }
    }
}

#[test]
fn verbs_and_nouns_read_no_store() {
    let home = root().join("crates/core/src");
    for (path, text) in sources("crates/core") {
        let name = path.strip_prefix(&home).unwrap().to_string_lossy().into_owned();
        // Tests of several verbs have a store to play on.
        let is_test = name.contains("/tests")
            || ["bench", "properties", "regressions"].iter().any(|t| name.contains(t));
        if is_test || READS_A_STORE.iter().any(|allowed| name.starts_with(allowed)) {
            continue;
        }
        let code = code(&text);
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        assert!(words.all(|word| word != "Store"), "{name} names a store: what reads goes to reads/");
    }
}

#[test]
fn no_query_names_a_stored_number() {
    for (path, text) in sources("crates/store") {
        for line in code(&text).lines().filter(|l| !l.trim_start().starts_with("let mut")) {
            let bare = CODED.iter().any(|column| {
                line.match_indices(column).any(|(at, _)| {
                    let rest = line[at + column.len()..].trim_start();
                    let rest =
                        rest.strip_prefix('=').or_else(|| rest.strip_prefix("IN (")).unwrap_or_default();
                    rest.trim_start().starts_with(|c: char| c.is_ascii_digit())
                })
            });
            assert!(!bare, "{} spells a stored number: {line}", path.display());
        }
    }
}

#[test]
fn a_file_tells_one_noun_or_one_verb() {
    for (krate, _) in ARROWS {
        for (path, text) in sources(krate) {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(name != "util" && name != "utils" && name != "helpers", "{}", path.display());
            let lines = text.lines().count();
            assert!(lines <= LONGEST, "{} has {lines} lines (at most {LONGEST})", path.display());
        }
    }
}

#[test]
fn heavy_dependencies_live_in_one_crate_each() {
    for (dependency, home) in [
        ("rusqlite", "crates/store"),
        ("tokio-postgres", "crates/store"),
        ("hyper-rustls", "crates/server"),
        ("clap", "crates/outlast"),
        ("ratatui", "crates/outlast"),
        ("pyo3", "crates/python"),
    ] {
        for (krate, _) in ARROWS {
            let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
            let table: toml::Table = manifest.parse().unwrap();
            let named = table["dependencies"].as_table().unwrap().contains_key(dependency);
            assert!(!named || krate == home, "{krate} depends on {dependency}, which belongs to {home}");
        }
    }
}

/// Bug: `cargo build` after the tests compiled all crates of ours again.
/// Consequence: more than a minute of `make test`, and of whoever goes on from there.
/// Cause: proptest asks for features of regex-syntax that no dependency of a build asked for.
#[test]
fn a_build_has_its_dependencies_features_from_the_tests() {
    // Build scripts have features of their own: their dependencies are compiled apart.
    let (build, tests) = (features("normal"), features("normal,dev"));
    assert!(build.len() > 100, "{build:?}");
    let other: Vec<_> = build.difference(&tests).collect();
    assert!(other.is_empty(), "tests ask for more of these; let crates/sim ask for it too: {other:?}");
}

/// Each package with its features, where those dependencies of the workspace are followed.
fn features(edges: &str) -> BTreeSet<String> {
    let arguments =
        ["tree", "--workspace", "--frozen", "--prefix", "none", "--format", "{p} {f}", "--edges", edges];
    let tree = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).unwrap();
    lines.lines().map(|l| l.trim_end_matches(" (*)").to_owned()).collect()
}
