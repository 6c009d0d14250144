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
