//! A night of two Claude Codes, one Codex and a batch: what became of it, as the digest, `show`, `watch` and the page tell
//! it. Each fact has one wording: the digest's words are looked for on the three other faces.
//!
//! | fact | in the night |
//! |---|---|
//! | standing of each run | `parser` is completed, `tests` waits, `docs` is interrupted, `enrich` is halted |
//! | deaths, one count | 1, 0, 2, 0 |
//! | the kill | Claude Code of `parser`, by SIGKILL in its tool |
//! | the outage, from when and for how long | the provider of `parser` fails with 529 |
//! | the usage limit, from when and for how long | the plan of `tests`; a person wakes the run |
//! | the reboot | the machine of `docs`, in its first attempt |
//! | the lost supervisor, and the command that goes on | that of `docs`, in its second attempt |
//! | the halted budget, and the command that raises it | 3 calls of `enrich` |
//! | cost: billed, or a list price | that of `tests` is a list price, of the others billed |
//! | last words | of `parser` |
//! | what is asked of a person | `tests` asks for `deploy` |

use std::{io::Write as _, os::unix::fs::symlink, process::Stdio};

use super::{plan_windows::log_in, *};
use crate::{bed::OUTLAST, terminals::Desk};

/// Runs of the night.
const RUNS: [&str; 4] = ["parser", "tests", "docs", "enrich"];

/// Asks a person for a deployment, and waits.
const ASKS: &str = r#"
import json, os, urllib.request
body = json.dumps({"tool": "deploy", "arguments": {"to": "prod"}}).encode()
head = {"authorization": "Bearer " + os.environ["OUTLAST_TOKEN"], "content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OUTLAST_URL"] + "/v1/approvals", body, head))
open("../gate-tests").read()
"#;

const ENRICHES: &str = r#"
import openai, outlast
client = openai.OpenAI(**outlast.openai())
def enrich(item):
    ask = [{"role": "user", "content": f"enrich {item}\nmock: reply enriched"}]
    return client.chat.completions.create(model="gpt-4o-mini", max_tokens=9, messages=ask).choices[0].message.content
try:
    outlast.map(range(5), enrich, job="enrich", key=str, concurrency=1, budget=outlast.Budget(calls=3)).wait()
except outlast.BudgetExceeded as halted:
    print(halted.code)
"#;

/// Gives the process with this pid another boot of its machine.
const REBOOTS: &str = r#"
import sqlite3, sys
store = sqlite3.connect(sys.argv[1], timeout=60)
other = "UPDATE instances SET identity = json_set(identity, '$.boot_id', 'the boot before') WHERE json_extract(identity, '$.pid') = ?"
assert store.execute(other, [int(sys.argv[2])]).rowcount == 1
store.commit()
"#;

/// A command of the night, as its person types it.
fn typed(bed: &Bed, args: &[&str]) -> Command {
    let mut command = bed.outlast(args);
    command.env("TZ", "UTC").env("DISABLE_AUTOUPDATER", "1");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    command
}

/// The provider is named by a flag: with a variable of its own for that, Claude Code's calls would not count as its login's.
fn claude_for(bed: &Bed, provider: &Bed, name: &str, script: &str) -> Command {
    let program = cli("claude");
    let mut command = typed(bed, &["run", "--name", name, "--usd", "20", "--outage-pause=100ms"]);
    command.env_remove("ANTHROPIC_BASE_URL").arg("--anthropic-base-url").arg(provider.mock_url());
    command.args([
        "--",
        text(&program),
        "-p",
        "--model",
        "claude-sonnet-4-5",
        "--append-system-prompt",
        script,
    ]);
    command.args(["--allowedTools", "Bash", "--", "do it once"]);
    command
}

/// Killed in its tool; in its second life its provider has an outage, which it waits for.
fn parser(bed: &Bed) {
    let provider = Bed::with_mock(&["--usage", "1000,200", "--outage", "ok 2 calls, 529 4 calls"]);
    let script = model("Bash", "command", When::After.command(), 1) + "mock: reply The parser is mended.\n";
    let run = bed.start(claude_for(bed, &provider, "parser", &script));
    assert!(kill(claude_of(bed), 9));
    run.done().code(0).tells(&["goes on in its session", "anthropic answers again"]);
}

/// By a login: it comes to the plan's usage limit, is woken by a person, and asks for something. It waits until it is dropped.
fn tests(bed: &Bed) -> (Proc, Bed) {
    let provider = Bed::with_mock(&["--usage", "1000,200", "--outage", "ok 1 call, limit 1 call"]);
    let home = bed.path("ann");
    log_in(&home);
    bed.gate("gate-tests");
    bed.write("ask.py", ASKS);
    let ask = format!("mock: tool Bash {}\n", json!({"command": "python3 -SE ../ask.py"}));
    let script = format!("mock: tool Bash {}\n{}", json!({"command": "true"}), ask.repeat(3));
    let mut command = claude_for(bed, &provider, "tests", &script);
    command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY").env("HOME", home);
    let run = bed.start(command);
    until("it sleeps at its limit", || {
        let out = run.output();
        assert!(crate::bed::runs(run.pid()), "{out}");
        out.contains("sleeps until").then_some(())
    });
    bed.does(&["wake", "tests"]).code(0);
    until("it asks", || (bed.json(&["approvals"])["approvals"].as_array()?.len() == 1).then_some(()));
    (run, provider)
}

/// Its supervisor is killed twice; the first time the machine goes down with it.
fn docs(bed: &Bed) {
    let program = cli("codex");
    let waits = |life: &str| {
        bed.gate(&format!("gate-{life}"));
        let command = format!("(echo $PPID > ../{life}; cat ../gate-{life}; true)");
        format!("tool exec_command {}", json!({"cmd": command}))
    };
    let second = format!("mock: {}\n", waits("docs-2"));
    let script = format!("mock: unless \"check before repeating\" {}\n{}", waits("docs-1"), second.repeat(3));
    let mut command = typed(bed, &["run", "--name", "docs", "--usd", "20", "--", text(&program), "exec"]);
    command.args(["--skip-git-repo-check", "-m", "gpt-5", "-s", "danger-full-access", "-c"]);
    command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it once");
    let mut run = bed.start(command);
    bed.until_file("docs-1");
    let pid = run.supervisor().to_string();
    run.kill();
    bed.until_status("docs", "interrupted");
    let mut reboot = Command::new("python3");
    reboot.args(["-SE", "-c", REBOOTS]).arg(bed.store()).arg(pid);
    assert!(reboot.status().unwrap().success());
    let mut run = bed.start(typed(bed, &["resume", "docs"]));
    until("its second tool runs", || {
        assert!(crate::bed::runs(run.pid()), "{}", run.output());
        bed.path("docs-2").exists().then_some(())
    });
    run.kill();
    bed.until_status("docs", "interrupted");
}

/// A batch of Python, whose budget ends.
fn enrich(bed: &Bed) {
    let python = std::env::var("OUTLAST_TEST_PYTHON")
        .expect("OUTLAST_TEST_PYTHON names a Python with the package openai: run `make test-clients`");
    let native = Path::new(OUTLAST).with_file_name("lib_native.so");
    assert!(native.exists(), "{} is not there: run `cargo build --workspace`", native.display());
    // The package as it is built here.
    let package = bed.path("python/outlast");
    fs::create_dir_all(&package).unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/python/outlast")).unwrap()
    {
        let entry = entry.unwrap();
        if !text(Path::new(&entry.file_name())).starts_with("_native.") {
            symlink(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    symlink(native, package.join("_native.abi3.so")).unwrap();
    let program = bed.write("enrich.py", ENRICHES);
    let mut command = Command::new(python);
    command.arg(program).env_clear().envs(typed(bed, &[]).get_envs().filter_map(|(k, v)| Some((k, v?))));
    command.current_dir(bed.path("work")).env("PYTHONPATH", bed.path("python")).stdin(Stdio::null());
    bed.run(command).code(0).tells(&["call_budget_exceeded"]);
}

/// What a face says, on one line: a screen breaks lines where it is narrow.
fn plain(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Returns the text between two others, which has both.
#[track_caller]
fn between<'a>(text: &'a str, before: &str, behind: &str) -> &'a str {
    let found = text.split_once(before).and_then(|(_, rest)| rest.split_once(behind));
    found.unwrap_or_else(|| panic!("no {before:?} … {behind:?} in {text}")).0
}

/// A fact of one run: the words that each face has to say.
type Fact = (&'static str, Vec<String>);

/// Reads the facts of a run from the digest's text.
fn facts(name: &str, digest: &str) -> Vec<Fact> {
    let told = between(digest, &format!(" {name}: "), "\n\n");
    let (first, rest) = told.split_once('\n').unwrap();
    let mut facts: Vec<Fact> = vec![("standing", vec![first.split(',').next().unwrap().into()])];
    let lives = first.split_once(" death");
    let deaths = lives.map_or("no".to_owned(), |(before, _)| before.rsplit(' ').next().unwrap().to_owned());
    facts.push(("deaths", vec![format!("{deaths} death")]));
    if let Some((_, ends)) = lives {
        let ends = ends.split_once(": ").unwrap().1.split(", ");
        facts.push(("how it died", ends.map(str::to_owned).collect()));
    }
    let usd = first.split(", ").find_map(|part| part.strip_suffix(" usd")).expect("a cost");
    facts.push(("cost", vec![usd.trim_start_matches("list price ").into()]));
    if usd.starts_with("list price") {
        facts.push(("list price", vec!["list price".into(), "not billed".into()]));
    }
    for line in rest.lines().map(str::trim) {
        if let Some(wait) = line.strip_prefix("waited for ") {
            let (whom, at) = wait.split_once(" at ").unwrap();
            let words = at.split(", for ").flat_map(|part| part.split(": "));
            facts.push(("wait", [whom].into_iter().chain(words).map(str::to_owned).collect()));
        } else if line.starts_with("asks a person: ") {
            facts.push(("asks a person", vec![line.split(" {").next().unwrap().into()]));
        } else if line.starts_with("last words: ") {
            facts.push(("last words", vec![line.into()]));
        } else if let Some(command) = line.strip_prefix("→ ").filter(|c| !c.starts_with("outlast approv")) {
            facts.push(("command", vec![command.into()]));
        } else if line.contains("items done") || line.contains("budget") {
            facts.push(("why", line.split(',').take(1).map(str::to_owned).collect()));
        }
    }
    facts
}

/// A terminal's screen of 40 rows and 120 columns, after what a program has written on it.
fn screen(written: &str) -> String {
    let mut rows = vec![vec![' '; 120]; 40];
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.as_str().starts_with('[') => {
                let mut words = String::new();
                let end = rest.by_ref().skip(1).inspect(|c| words.push(*c)).find(char::is_ascii_alphabetic);
                let number =
                    |nth: usize| words.trim_end_matches('H').split(';').nth(nth)?.parse::<usize>().ok();
                match end {
                    Some('H') => (row, column) = (number(0).unwrap_or(1) - 1, number(1).unwrap_or(1) - 1),
                    Some('J') => rows = vec![vec![' '; 120]; 40],
                    _ => {}
                }
            }
            c if c.is_control() => {}
            c => {
                if let Some(cell) = rows.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = c;
                }
                column += 1;
            }
        }
    }
    rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
}

fn missing<'a>(said: &str, facts: &'a [Fact]) -> Vec<(&'a str, &'a str)> {
    let said = plain(said);
    let words = facts.iter().flat_map(|(fact, words)| words.iter().map(|word| (*fact, word.as_str())));
    words.filter(|(_, word)| !said.contains(&plain(word))).collect()
}

/// Checks what the page says of each run. Chromium is driven as the page's own tests drive it.
fn on_the_page(bed: &Bed, told: &[(&str, Vec<Fact>)]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let modules = std::env::var("OUTLAST_TEST_MODULES").unwrap_or_else(|_| {
        let target = Path::new(OUTLAST).ancestors().nth(2).unwrap().join("page");
        let made = Command::new(root.join("scripts/page-modules.sh")).arg(target).output().unwrap();
        assert!(made.status.success(), "puppeteer is not installed: run `make test-clients`");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    });
    let ui = bed.start(typed(bed, &["ui"]));
    let link = until("the page has an address", || {
        let said = ui.output();
        said.split_whitespace().find(|word| word.contains("#in=")).map(str::to_owned)
    });
    let views = told.iter().map(|(name, facts)| {
        let id = bed.show(name)["run"].as_str().unwrap().to_owned();
        let words: Vec<&String> = facts.iter().flat_map(|(_, words)| words).collect();
        json!([format!("run/{id}"), words])
    });
    let listed: Vec<&String> = told.iter().flat_map(|(_, facts)| &facts[0].1).collect();
    let views: Vec<Value> = std::iter::once(json!(["runs", listed])).chain(views).collect();
    let mut reads = Command::new("node");
    reads.arg(root.join("tests/page/reads.mjs")).env("TZ", "UTC").env("OUTLAST_BIN", OUTLAST);
    reads.env("OUTLAST_TEST_MODULES", modules).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reads =
        reads.stderr(Stdio::piped()).spawn().expect("node is not installed: run `make test-clients`");
    write!(reads.stdin.take().unwrap(), "{}", json!({"link": link, "views": views})).unwrap();
    let read = reads.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&read.stdout);
    assert!(read.status.success(), "{said}\n{}", String::from_utf8_lossy(&read.stderr));
    println!("{said}");
}

#[test]
fn the_digest_show_watch_and_the_page_tell_one_night_in_the_same_words() {
    let bed = bed();
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| tests(&bed));
        scope.spawn(|| docs(&bed));
        scope.spawn(|| enrich(&bed));
        parser(&bed);
        waiting.join().unwrap()
    });
    let digest = bed.run(typed(&bed, &["digest"])).code(0).text + "\n\n";
    println!("{digest}");
    assert!(digest.contains(": 1 waits for you, 2 stand still, 1 is done\n"), "{digest}");
    let mut told: Vec<(&str, Vec<Fact>)> = RUNS.map(|name| (name, facts(name, &digest))).into();
    let is_listed = |(_, facts): &(&str, Vec<Fact>)| facts.iter().any(|(fact, _)| *fact == "list price");
    assert_eq!(told.iter().map(is_listed).collect::<Vec<_>>(), [false, true, false, false], "{digest}");
    let outage = between(&digest, "anthropic fails with 529 at ", "; 1 run waited");
    let outage = ["its provider", "anthropic fails with 529"].into_iter().chain(outage.split(", for "));
    told[0].1.push(("outage", outage.map(str::to_owned).collect()));
    for (name, facts) in told.iter().map(|(name, facts)| (*name, facts)) {
        println!("{name}: {facts:?}");
        let show = bed.run(typed(&bed, &["show", name])).code(0).text;
        println!("{show}");
        assert_eq!(missing(&show, facts), [], "{show}");
        let mut command = typed(&bed, &["watch", name]);
        command.env("TERM", "xterm-256color");
        let mut watch = Desk::start(command);
        let mut before = String::new();
        until(&format!("watch of {name} tells all of it"), || {
            let shown = screen(&watch.shown());
            let missing = missing(&shown, facts);
            if shown != before {
                println!("{shown}missing: {missing:?}");
                before = shown;
            }
            missing.is_empty().then_some(())
        });
        watch.types("q");
        watch.ends(0, &[]);
    }
    on_the_page(&bed, &told);
    drop(waiting);
}
