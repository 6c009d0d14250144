//! Hints lead on: what a hint tells to type is typed, in the state in which it is printed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use crate::pins::{
    json::AGENT,
    server::{Provider, Running, outlast, until},
};

/// Words in hints that stand for something of the reader's own, and what is typed for them here.
const STAND_INS: [(&str, &str); 14] = [
    ("CMD", "true"),
    ("SCRIPT", "true"),
    ("FILE", "prices.json"),
    ("RUN", "r"),
    ("NAME", "r"),
    ("ID", "r"),
    ("AGENT", "a"),
    ("KEY", "k"),
    ("JOB", "r"),
    ("ADDRESS", "127.0.0.1:0"),
    ("TASK", "t"),
    ("STEP", "s"),
    ("MODEL", "gpt-4o"),
    ("PLACE", "runs.db"),
];

/// Ways that a hint names, each the commands to type one after the other.
fn ways(hint: &str) -> Vec<Vec<Vec<String>>> {
    let typed = |text: &str| -> Vec<Vec<String>> {
        let quoted = text.split('`').skip(1).step_by(2).filter_map(|words| words.strip_prefix("outlast "));
        quoted.map(|words| words.split_whitespace().map(stood_in).collect()).collect()
    };
    let mut ways = vec![hint.to_owned()];
    for cut in [", or ", "; or "] {
        ways = ways.iter().flat_map(|way| way.split(cut)).map(str::to_owned).collect();
    }
    ways.iter().map(|way| typed(way)).filter(|way| !way.is_empty()).collect()
}

fn stood_in(word: &str) -> String {
    let known = STAND_INS.iter().find(|(name, _)| *name == word);
    known.map_or_else(|| word.to_owned(), |(_, typed)| (*typed).to_owned())
}

/// A home with runs that a fake provider serves.
struct Bed {
    home: tempfile::TempDir,
    provider: Provider,
}

impl Bed {
    fn new() -> Bed {
        let home = tempfile::tempdir().unwrap();
        let prices = r#"{"house-model": {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6}}"#;
        fs::write(home.path().join("prices.json"), prices).unwrap();
        Bed { provider: Provider::start(home.path()), home }
    }

    fn does(&self, words: &[String], store: &Path) -> Output {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = outlast(self.home.path(), &words);
        command.envs(self.provider.variables()).env("OPENAI_API_KEY", "sk");
        command.env("OUTLAST_STORE", store.join("runs.db")).output().unwrap()
    }

    /// Types `line`, takes the hint off its standard error, and types each of its ways on a copy of the store.
    ///
    /// A way leads on when each of its commands is done as asked.
    #[track_caller]
    fn leads_on(&self, before: &[&[&str]], line: &[&str], wanted: &str) {
        let words = |line: &[&str]| line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let new = || tempfile::tempdir().unwrap();
        let state = new();
        for line in before {
            self.does(&words(line), state.path());
        }
        let output = self.does(&words(line), state.path());
        let told = String::from_utf8(output.stderr).unwrap();
        let hint = told.split("hint: ").nth(1).unwrap_or_else(|| panic!("{line:?} has no hint: {told}"));
        let hint = hint.lines().next().unwrap();
        assert!(hint.contains(wanted), "{line:?}: {hint}");
        let ways = ways(hint);
        assert!(!ways.is_empty(), "{line:?}: nothing to type in {hint:?}");
        for way in ways {
            let copy = new();
            for file in fs::read_dir(state.path()).unwrap().flatten().filter(|f| f.path().is_file()) {
                fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
            }
            for typed in &way {
                let output = self.does(typed, copy.path());
                let told = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{hint:?} of {line:?}: {typed:?}: {told}");
            }
        }
    }
}

fn asks(model: &str, calls: usize) -> String {
    // To its end, and with a status that tells whether it was an answer.
    let agent = AGENT
        .replace("gpt-4o-mini", model)
        .replace("head -n 1; cat >/dev/null", "grep -c '\"choices\"' >/dev/null")
        .replace("exec 3>&-", "got=$?; exec 3>&-; return $got");
    // Each call is a new one, and an agent that gets none fails.
    let calls: Vec<String> = (0..calls).map(|n| format!("ask q{n} || exit 7")).collect();
    format!("{agent}{}", calls.join("; "))
}

#[test]
fn a_halted_run_is_told_what_lets_it_go_on() {
    let bed = Bed::new();
    // Room for one call; the raise has room for the ones that follow, too.
    let script = asks("gpt-4o-mini", 5);
    let run = |limit: [&'static str; 2]| {
        ["run", "--run", "r", limit[0], limit[1], "--", "bash", "-c", &script].map(str::to_owned)
    };
    for limit in [["--usd", "0.00001"], ["--calls", "1"], ["--tokens", "60"], ["--loops", "1"]] {
        let line = run(limit);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        bed.leads_on(&[], &line, "outlast budget r --add-");
        bed.leads_on(&[&line], &["resume", "r"], "outlast resume r");
    }
}

#[test]
fn a_run_without_a_price_is_told_every_way_to_go_on() {
    let bed = Bed::new();
    let script = asks("house-model", 2);
    let state = tempfile::tempdir().unwrap();
    let line = ["run", "--run", "r", "--", "bash", "-c", &script].map(str::to_owned);
    let told = String::from_utf8(bed.does(&line, state.path()).stderr).unwrap();
    assert!(told.contains("\"house-model\" has no known price"), "{told}");
    // One of the ways takes newer prices for all runs that follow.
    bed.leads_on(&[], &["run", "--run", "r", "--", "bash", "-c", &script], "--unpriced free");
}

#[test]
fn other_errors_are_told_with_what_leads_on() {
    let bed = Bed::new();
    let died =
        ["run", "--run", "r", "--restarts", "0", "--", "sh", "-c", "test -e up || { touch up; kill -9 $$; }"];
    let lifted = ["budget", "r", "--lift", "restarts"];
    let done = ["run", "--run", "r", "--", "true"];
    for (before, line, wanted) in [
        (vec![], &["ls"][..], "outlast run -- CMD"),
        (vec![&done[..]], &["show", "nobody"], "outlast ls"),
        (vec![&done], &["resume", "r"], "outlast run --new -- CMD"),
        (vec![&done], &["cancel", "r"], "outlast show r"),
        (vec![&done], &["stop", "r"], "outlast show r"),
        (vec![&done], &["export", "r"], "outlast export r --transcript"),
        (vec![&done], &["fork", "r", "--from-snapshot", "5"], "outlast show r"),
        (vec![&done], &["journal", "r", "9"], "outlast journal r"),
        (vec![&died, &lifted], &["rm", "r"], "outlast cancel r"),
        (vec![&died, &lifted], &["run", "--run", "r", "--", "true"], "outlast resume r"),
        (vec![&died, &lifted], &["attach", "r"], "outlast logs r"),
        (vec![&done], &["budgets", "raise", "none", "--add-usd", "1"], "outlast budgets"),
    ] {
        fs::remove_file(bed.home.path().join("up")).ok();
        bed.leads_on(&before, line, wanted);
    }
    let other = ["run", "--new", "--restarts", "0", "--", "sh", "-c", "kill -9 $$"];
    let again = ["run", "--restarts", "0", "--", "sh", "-c", "kill -9 $$"];
    let state = tempfile::tempdir().unwrap();
    let words = |line: &[&str]| line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    bed.does(&words(&other), state.path());
    bed.does(&words(&other), state.path());
    let told = String::from_utf8(bed.does(&words(&again), state.path()).stderr).unwrap();
    assert!(told.contains("unfinished runs here") && told.contains("`outlast run --new -- CMD`"), "{told}");
}

/// A run that another process drives.
#[test]
fn a_held_run_is_told_how_to_end_it() {
    let bed = Bed::new();
    let state = tempfile::tempdir().unwrap();
    let mut command = outlast(bed.home.path(), &["run", "--run", "r", "--", "sleep", "600"]);
    command.env("OUTLAST_STORE", state.path().join("runs.db"));
    let driver = Running::start(&mut command, bed.home.path().join("driver.log"));
    let words = |line: &[&str]| line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    until("the run is driven", || {
        let told = bed.does(&words(&["show", "r"]), state.path());
        String::from_utf8(told.stdout).unwrap().contains("it is up").then_some(())
    });
    let told = String::from_utf8(bed.does(&words(&["resume", "r"]), state.path()).stderr).unwrap();
    let hint = told.split("hint: ").nth(1).unwrap_or_else(|| panic!("{told}"));
    let typed: Vec<Vec<String>> = ways(hint).concat();
    assert_eq!(
        typed[..3],
        [["logs", "r"], ["attach", "r"], ["stop", "r"]].map(|line| line.map(str::to_owned).to_vec())
    );
    assert!(bed.does(&typed[0], state.path()).status.success());
    assert!(bed.does(&typed[2], state.path()).status.success());
    drop(driver);
}

/// Every command that stands in backquotes in a message of the sources can be typed.
#[test]
fn every_command_in_a_message_is_one() {
    let mut found = 0;
    for path in sources(&PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))) {
        let text = fs::read_to_string(&path).unwrap();
        // Comments tell the reader of the code; a message's text may go on in the next line.
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join(" ").replace("\\ ", " ");
        for words in code.split("`outlast ").skip(1).filter_map(|rest| rest.split(['`', '>', '|']).next()) {
            if words.len() > 120
                || words.contains(['"', '…', '('])
                || words.contains(" {} ")
                || words.starts_with('{')
            {
                continue;
            }
            let filled = words.split_whitespace().map(|word| match word.contains('{') {
                true if word == "{newest}" => "7".to_owned(),
                true if word == "{to}" => "ssh://r".to_owned(),
                true => "r".to_owned(),
                false => stood_in(word.trim_start_matches('[').trim_end_matches(']')),
            });
            let mut line: Vec<String> = std::iter::once("outlast".to_owned()).chain(filled).collect();
            // A flag whose value is left to the reader.
            let is_flag = line.last().is_some_and(|word| word.starts_with("--"));
            let parse = |line: &[String]| outlast::commands::command().try_get_matches_from(line);
            if is_flag && parse(&line).is_err() {
                line.push("1".into());
            }
            if let Err(e) = parse(&line) {
                use clap::error::ErrorKind::{
                    DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, MissingRequiredArgument,
                };
                // The bare name of a command is no line to type.
                let is_name = line.len() <= 3
                    && matches!(e.kind(), MissingRequiredArgument | DisplayHelpOnMissingArgumentOrSubcommand);
                assert!(is_name || e.kind() == DisplayHelp, "{}: `outlast {words}`: {e}", path.display());
            }
            found += 1;
        }
    }
    assert!(found > 40, "{found}");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        let is_ours = path.file_name().is_some_and(|name| name != "tests" && name != "target");
        match path.is_dir() {
            true if is_ours => found.extend(sources(&path)),
            false if is_ours && path.extension().is_some_and(|e| e == "rs") => found.push(path),
            _ => {}
        }
    }
    found
}
