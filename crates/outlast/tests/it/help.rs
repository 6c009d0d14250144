//! Help and completions, as they are printed.

use crate::line::outlast;

#[test]
fn help_is_as_recorded() {
    for word in [
        "",
        "run",
        "agent",
        "mcp",
        "serve",
        "ls",
        "show",
        "journal",
        "logs",
        "attach",
        "service",
        "budget",
        "budgets",
        "stop",
        "wake",
        "resume",
        "cancel",
        "approvals",
        "approve",
        "resolve",
        "spend",
        "prices",
        "state",
        "ctx",
        "shell-init",
        "doctor",
        "init",
        "trust",
        "completions",
        "mock",
        "jobs",
        "inspect",
        "retry",
        "export",
        "snapshot",
        "fork",
        "gc",
        "verify",
        "repair",
        "migrate",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let words: Vec<&str> = [word, "--help"].into_iter().filter(|w| !w.is_empty()).collect();
        let done = outlast(dir.path()).args(words).assert().success();
        let text = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        let name = if word.is_empty() { "help".into() } else { format!("help_{word}") };
        insta::assert_snapshot!(name, text);
    }
}

/// The lines for the fake provider are documented as its sources have them.
#[test]
fn every_mock_line_is_documented() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
    let (source, page) = (read("crates/mock/src/script.rs"), read("docs/reference/mock.md"));
    let lines: Vec<&str> = source.lines().filter_map(|line| line.strip_prefix("//! |")).collect();
    assert!(lines.len() > 10);
    for line in lines {
        assert!(page.contains(&format!("|{line}\n")), "{line}");
    }
}

#[test]
fn every_command_stands_below_one_heading() {
    let help = outlast::commands::command().render_long_help().to_string();
    let found = |(heading, first)| help.find(&format!("\n{heading}:\n  {first} ")).expect(first);
    let places = outlast::commands::headings::HEADINGS.map(found);
    assert!(places.is_sorted());
    assert!(!help[..places[0]].contains("\n  "), "no command stands above all headings");
}

#[test]
fn every_flag_and_argument_has_a_help_text() {
    let mut command = outlast::commands::command();
    command.build();
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        for arg in sub.get_arguments() {
            assert!(arg.get_help().is_some(), "{} {}", sub.get_name(), arg.get_id());
        }
    }
}

#[test]
fn no_flag_takes_a_secret() {
    let mut command = outlast::commands::command();
    command.build();
    for sub in command.get_subcommands() {
        for long in sub.get_arguments().filter_map(|a| a.get_long()) {
            let secret = ["key", "secret", "password", "token"].iter().any(|s| long.contains(s));
            let known = ["tokens", "add-tokens", "set-tokens", "api-token-file", "key"].contains(&long);
            assert!(!secret || known, "{} --{long}", sub.get_name());
        }
    }
}

#[test]
fn the_words_are_well_formed() {
    outlast::commands::command().debug_assert();
}

#[test]
fn completions_are_made_for_each_shell_whatever_the_settings() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("outlast.toml"), "nonsense").unwrap();
        let done = outlast(dir.path()).args(["completions", shell]).assert().success();
        let script = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        assert!(script.contains("admit-wait"), "{shell}");
    }
}
