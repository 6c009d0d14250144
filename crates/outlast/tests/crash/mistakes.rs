//! Mistakes of the first hour: a program that cannot be loaded, and calls that pass the proxy by.

use crate::{
    agents::{Calls, script, shell},
    bed::{Bed, each},
};

/// Bug: a misspelt import was restarted five times and ended as a crash loop. Consequence: a newcomer's first run printed
/// the same traceback for half a minute. Cause: an exit with 1 says no more than "failed".
#[test]
fn program_that_cannot_be_loaded_fails_at_once_with_one_traceback() {
    let cases = [
        ("import openia", "ModuleNotFoundError: No module named 'openia'"),
        ("from os import nothing", "ImportError: cannot import name 'nothing'"),
        ("x = (", "SyntaxError: '(' was never closed"),
    ];
    each(cases.to_vec(), |(program, error)| {
        let bed = Bed::new();
        let done = bed.run(script(&bed, &["--run", "r"], program, &[]));
        assert_eq!(done.text.matches("agent.py\", line").count(), 1, "{}", done.text);
        done.code(76).tells(&["not restarted: the program cannot be loaded: ", error]);
        assert_eq!((bed.status("r").as_str(), bed.spent("r", "restarts")), ("failed", 0));
        // Corrected, it goes on by name.
        bed.write("agent.py", "");
        bed.does(&["resume", "r"]).code(0);
    });
}

#[test]
fn program_that_did_something_before_it_could_not_load_is_restarted() {
    let bed = Bed::new();
    let late = r#"
import http.client, os, urllib.parse
if os.environ["OUTLAST_ATTEMPT"] == "1":
    base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = '{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello"}]}'
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", body, headers)
    connection.getresponse().read()
    import not_yet_there
"#;
    bed.run(script(&bed, &["--run", "r"], late, &[])).code(0);
    assert_eq!(bed.spent("r", "restarts"), 1);
}

#[test]
fn flag_behind_the_command_is_told() {
    let bed = Bed::without_mock();
    let strayed = bed.run(bed.outlast(&["run", "sh", "-c", "true", "sh", "--usd", "1"])).code(0);
    strayed.tells(&["note: --usd stands behind the command and goes to it"]);
    let meant = bed.run(bed.outlast(&["run", "--new", "--", "sh", "-c", "true", "sh", "--usd", "1"])).code(0);
    assert!(!meant.text.contains("note:"), "{}", meant.text);
}

/// Bug: a program with a base URL of its own completed under a limit that held nothing. Consequence: its owner learned of
/// it from the provider's bill. Cause: only CLI agents were asked whether they had made a call.
#[test]
fn run_that_ends_without_a_call_says_that_nothing_was_metered() {
    let bed = Bed::new();
    let said = ["NOTHING METERED: sh asked the proxy for nothing", "base_url"];
    bed.run(shell(&bed, &["--run", "none"], "true")).code(0).tells(&said);
    // Whoever looks later is told as well.
    bed.does(&["show", "none"]).tells(&["NOTHING METERED: no call came through the proxy"]);
    bed.does(&["ls"]).tells(&["NOTHING METERED"]);
    let metered = bed.run(Calls::new(1).under(&bed, &["--run", "one"])).code(0);
    assert!(!metered.text.contains("NOTHING METERED"), "{}", metered.text);
    // Nobody expects a call of what is no agent.
    let quiet = bed.run(bed.outlast(&["run", "--run", "quiet", "--", "true"])).code(0);
    assert!(!quiet.text.contains("NOTHING METERED"), "{}", quiet.text);
    let told = bed.does(&["show", "quiet"]).tells(&["nothing: it is done"]);
    assert!(!told.text.contains("NOTHING METERED"), "{}", told.text);
    // Without a key most programs end before their first call.
    let mut without = shell(&bed, &["--run", "without"], "true");
    for key in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"] {
        without.env_remove(key);
    }
    bed.run(without).tells(&["no provider's key is in the environment"]);
    // Recorded answers were metered once.
    let bed = Bed::new();
    let again = "test $OUTLAST_ATTEMPT = 1 || exit 0; exec \"$@\"";
    let mut run = bed.outlast(&["run", "--run", "r", "--", "sh", "-c", again, "sh"]);
    let words = Calls::new(1).words(&bed);
    run.args(["sh", "-c", "\"$@\" && kill -9 $$", "sh"]).args(words);
    let done = bed.run(run).code(0);
    assert!(!done.text.contains("NOTHING METERED"), "{}", done.text);
}

// Bug: what `show` told was cut for a screen of 80 columns in a pipe as well, where a program or a file takes it.
#[test]
fn what_goes_into_a_pipe_is_not_cut() {
    let bed = Bed::without_mock();
    let name = "a-name-that-is-longer-than-a-screen-has-room-for-beside-what-else-is-told";
    bed.run(bed.outlast(&["run", "--run", "r", "--name", name, "--", "true"])).code(0);
    bed.does(&["show", "r"]).code(0).tells(&[name]);
}

/// Makes one call without a key, prints the answer, and exits with its first argument.
const BARE: &str = r#"
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello\nmock: status 401"}]}
headers = {"Content-Type": "application/json", **json.loads(sys.argv[2])}
connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
answer = connection.getresponse()
print(answer.status, answer.read().decode())
sys.exit(int(sys.argv[1]))
"#;

/// `outlast run` of [`BARE`] where no provider's key is known.
fn without_key(bed: &Bed, code: &str, headers: &str) -> std::process::Command {
    let mut run = script(bed, &["--run", "r"], BARE, &[code, headers]);
    run.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    run
}

// Bug: a program with a key in its code was refused by the proxy, and told that it had asked the proxy for nothing.
// Consequence: its owner looked for a wrong base URL. Cause: a refusal for want of the run token was told to nobody.
#[test]
fn agent_that_sends_a_key_of_its_own_fails_at_once_and_is_told_where_the_run_token_is() {
    let bed = Bed::new();
    let own_key = script(&bed, &["--run", "r"], BARE, &["1", r#"{"Authorization": "Bearer sk-own"}"#]);
    let done = bed.run(own_key).code(76);
    let done = done.tells(&[
        "a call was refused (run_token_wanted)",
        "hint: let the program read its API key from the environment",
        "not restarted: this proxy serves one run",
    ]);
    assert!(!done.text.contains("NOTHING METERED"), "{}", done.text);
    // Claude Code asks so whether the address is there.
    let probe = "curl -sI ${OPENAI_BASE_URL%/v1}/ > /dev/null; exit 1";
    let done = bed.run(shell(&bed, &["--run", "p", "--restarts", "0"], probe));
    assert!(!done.text.contains("refused"), "{}", done.text);
}

// Bug: an agent without a key was refused by the proxy itself, restarted five times, and shown as NOTHING METERED.
// Consequence: its owner looked for a wrong base URL. Cause: refusals before a call was admitted were told to nobody.
#[test]
fn agent_whose_calls_the_proxy_refuses_for_want_of_a_key_fails_at_once_with_that_reason() {
    let bed = Bed::new();
    let done = bed.run(without_key(&bed, "1", "{}")).code(76);
    let done = done
        .tells(&["a call was refused (no_provider_key)", "not restarted: no key for OpenAI is known here"]);
    assert!(!done.text.contains("NOTHING METERED"), "{}", done.text);
    let shown = bed.show("r");
    assert_eq!((shown["status"].as_str(), shown["restarts"].as_i64()), (Some("failed"), Some(0)));
    let refused = shown["attempts"][0]["exit"]["refused"].as_str().unwrap();
    assert!(refused.starts_with("no_provider_key: "), "{shown}");
    let told =
        bed.does(&["show", "r"]).tells(&["no key for OpenAI is known here", "no call was let through"]);
    assert!(!told.text.contains("NOTHING METERED"), "{}", told.text);
}

#[test]
fn agent_that_exits_with_0_although_each_call_was_refused_is_told_so() {
    let bed = Bed::new();
    bed.run(without_key(&bed, "0", "{}")).code(0);
    bed.does(&["ls"]).tells(&["every call refused"]);
    bed.does(&["show", "r"]).tells(&["no call was let through", "each call was refused: no_provider_key"]);
}

#[test]
fn agent_whose_own_key_its_provider_refuses_twice_is_not_started_a_third_time() {
    let bed = Bed::new();
    let done = bed.run(without_key(&bed, "1", r#"{"Authorization": "Bearer sk-mine"}"#)).code(76);
    done.tells(&["not restarted: its provider refused its key twice: 401"]);
    assert_eq!((bed.status("r").as_str(), bed.spent("r", "restarts")), ("failed", 1));
}

#[test]
fn agent_that_ends_twice_in_the_same_way_before_any_call_is_not_started_again() {
    let bed = Bed::without_mock();
    let done = bed.run(shell(&bed, &["--run", "r"], "echo unknown option --x >&2; exit 1")).code(76);
    done.tells(&["ended twice in the same way, with exit 1 and without a call: unknown option --x"]);
    // Bug: it was to be resumed, which starts the same command again.
    bed.does(&["show", "r"]).tells(&["if its command is wrong", "→ outlast logs r", "→ outlast resume r"]);
    assert_eq!((bed.status("r").as_str(), bed.spent("r", "restarts")), ("failed", 1));
    // What it prints may tell that it got further.
    let further = "echo life $OUTLAST_ATTEMPT; [ $OUTLAST_ATTEMPT = 3 ] || exit 1";
    bed.run(shell(&bed, &["--run", "further"], further)).code(0);
    assert_eq!(bed.spent("further", "restarts"), 2);
}

// Bug: `outlast run -- CMD | head` restarted the agent five times. Consequence: each life paid for what nobody read.
// Cause: an end by SIGPIPE is a death like others, and nobody looked whether the reader is there.
#[test]
fn agent_that_ends_because_nobody_reads_its_output_is_not_started_again() {
    let bed = Bed::without_mock();
    let mut run = shell(&bed, &["--run", "r"], "while echo line; do :; done; kill -PIPE $$");
    let (reader, writer) = std::io::pipe().unwrap();
    run.stdout(writer);
    let mut run = run.stderr(std::process::Stdio::null()).spawn().unwrap();
    drop(reader);
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!(
        (bed.status("r").as_str(), bed.show("r")["attempts"].as_array().unwrap().len()),
        ("interrupted", 1)
    );
}

// Bug: a command that was never found was told as a death, with its own resumption as the way on. Consequence: a digest of
// deaths that were none, and a hint that fails in the same way. Cause: every exit code but 0 counted as a death.
#[test]
fn command_that_was_never_found_did_not_die() {
    let bed = Bed::without_mock();
    for (name, words) in [("a", &["no-such-command"][..]), ("b", &["sh", "-c", "no-such-command"])] {
        let mut run = bed.outlast(&["run", "--name", name, "--"]);
        run.args(words);
        bed.run(run).code(127);
        assert_eq!(bed.show(name)["attempts"][0]["died"], false, "{name}");
    }
    let told =
        bed.does(&["show", "a"]).code(0).tells(&["1 attempt, no death", "correct it and type it again"]);
    assert!(!told.text.contains("outlast resume"), "{}", told.text);
}

#[test]
fn next_attempt_is_told_only_where_there_is_one() {
    let bed = Bed::without_mock();
    let done = bed.run(shell(&bed, &["--run", "r", "--restarts", "0"], "kill -9 $$")).code(75);
    assert!(!done.text.contains("attempt 2"), "{}", done.text);
    done.tells(&["attempt 1 died (", "restart_budget_exceeded"]);
}
