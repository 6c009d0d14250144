//! Secrets: a provider's key is in the supervisor's memory and upstream, and nowhere else.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    agents::{UP_UNTIL_GO, script, shell},
    bed::{ANTHROPIC_KEY, Bed, OPENAI_KEY, OUTLAST, is_root, text, until},
};

fn files(of: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(of).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] }).collect()
}

/// One good call of each dialect, one the provider refuses, one to a path that is not on the list.
const ALL_WAYS: &str = r#"
import http.client, json, os, urllib.parse
open("../environ", "w").write("\n".join(f"{k}={v}" for k, v in os.environ.items()))
def ask(variable, key, path, text):
    base = urllib.parse.urlsplit(os.environ[variable])
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    model = "claude-haiku-4-5" if "messages" in path else "gpt-4o-mini"
    body = {"model": model, "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
    if "messages" in path: headers = {"x-api-key": key, "anthropic-version": "2023-06-01"} | headers
    connection.request("POST", base.path + path, json.dumps(body), headers)
    answer = connection.getresponse()
    open("../answers", "a").write(f"{answer.status} {answer.read().decode()} {answer.getheaders()}\n")
openai, anthropic = os.environ["OPENAI_API_KEY"], os.environ["ANTHROPIC_API_KEY"]
ask("OPENAI_BASE_URL", openai, "/chat/completions", "hello")
ask("ANTHROPIC_BASE_URL", anthropic, "/v1/messages", "hello")
ask("OPENAI_BASE_URL", openai, "/chat/completions", "hello\nmock: status 401")
ask("OPENAI_BASE_URL", openai, "/images/generations", "hello")
open("../cmdline", "wb").write(open(f"/proc/{os.getppid()}/cmdline", "rb").read())
"#;

#[test]
fn no_key_comes_to_light_and_no_token_is_stored() {
    let bed = Bed::new();
    let mut run = script(&bed, &["--run", "r", "--name", "n", "--env", "LANG"], ALL_WAYS, &[]);
    run.env("OUTLAST_LOG", "trace").env("LANG", "C");
    bed.run(run).code(0);
    assert_eq!(bed.paid(), 2, "{}", bed.text("answers"));
    let environ = bed.text("environ");
    let of = |name: &str| {
        let found = environ.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name}: {environ}")).to_owned()
    };
    let token = of("OUTLAST_TOKEN");
    assert!(token.starts_with("ol_") && of("OPENAI_API_KEY") == token && of("ANTHROPIC_API_KEY") == token);
    bed.does(&["show", "r"]).code(0);
    bed.does(&["journal", "r", "--json"]).code(0);
    bed.does(&["doctor"]);
    let all = files(bed.path("").as_path());
    assert!(all.iter().any(|f| f.ends_with("cmdline")) && all.iter().any(|f| f.ends_with("runs.db")));
    for file in all {
        let bytes = fs::read(&file).unwrap();
        let has = |secret: &str| bytes.windows(secret.len()).any(|w| w == secret.as_bytes());
        for key in [OPENAI_KEY, ANTHROPIC_KEY] {
            assert!(!has(key), "a provider's key in {}", file.display());
        }
        // The agent's own file of its environment has it, of course.
        assert!(file.ends_with("environ") || !has(&token), "a run token in {}", file.display());
    }
}

#[test]
fn store_is_its_users_alone() {
    let bed = Bed::new();
    let mut run = Command::new("sh");
    run.args(["-c", "umask 000; exec \"$0\" run --run r -- sh -c 'echo up > ../up; while [ ! -e ../go ]; do sleep 0.02; done'", OUTLAST]);
    run.envs(bed.outlast(&[]).get_envs().filter_map(|(k, v)| Some((k, v?)))).stdin(Stdio::null());
    run.env_remove("OUTLAST_STORE").current_dir(bed.path("work"));
    let run = bed.start(run);
    bed.until_file("up");
    // Also the write-ahead log, which is there now.
    let state = bed.path(".local/state/outlast");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let all = files(&state);
    assert!(all.len() >= 2, "{all:?}");
    for file in all {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    bed.write("go", "");
    run.done().code(0);
}

#[test]
fn supervisors_environment_cannot_be_read_by_its_agent() {
    let bed = Bed::without_mock();
    let spies = format!(
        "for f in environ mem maps; do cat /proc/$PPID/$f > ../stolen-$f 2>> ../refused; done; {UP_UNTIL_GO}"
    );
    let mut run = shell(&bed, &["--run", "r"], &spies);
    if is_root() {
        // Root reads everything: as nobody, with a binary that nobody can reach.
        let nobody = 65534;
        let binary = bed.path("outlast");
        fs::copy(OUTLAST, &binary).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        for path in [bed.path(""), bed.path("work"), bed.path("state")] {
            chown(path, Some(nobody), Some(nobody)).unwrap();
        }
        let mut as_nobody = Command::new("setpriv");
        as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", text(&binary)]);
        as_nobody.args(run.get_args()).env_clear().current_dir(bed.path("work")).stdin(Stdio::null());
        as_nobody.envs(run.get_envs().filter_map(|(k, v)| Some((k, v?))));
        run = as_nobody;
    }
    let run = bed.start(run);
    until("the agent has tried", || {
        assert!(!run.output().contains("error"), "{}", run.output());
        bed.path("up").exists().then_some(())
    });
    for file in ["environ", "mem", "maps"] {
        assert_eq!(bed.text(&format!("stolen-{file}")), "");
    }
    assert_eq!(bed.text("refused").matches("Permission denied").count(), 3, "{}", bed.text("refused"));
    bed.write("go", "");
    run.done().code(0);
}

#[test]
fn provider_key_is_not_taken_as_a_variable_to_keep() {
    // Bug: `--env OPENAI_API_KEY` kept the key in the store. Consequence: a secret at rest, and in every copy of the
    // store. Cause: any name was taken.
    let bed = Bed::new();
    let mut run = bed.outlast(&["run", "--run", "r", "--env", "OPENAI_API_KEY", "--", "true"]);
    run.env("OUTLAST_LOG", "trace");
    bed.run(run).code(2).tells(&["--env OPENAI_API_KEY: a provider's key is never kept", "hint: "]);
    bed.does(&["show", "r"]).code(1);
    // Nor a credential in a base URL, which is kept.
    let mut run = bed.outlast(&["run", "--run", "r", "--", "true"]);
    run.env("OPENAI_BASE_URL", "http://me:s3cret-in-url@127.0.0.1:9/v1");
    let told = bed.run(run).code(2).tells(&["OPENAI_BASE_URL: a base URL must not hold a credential"]);
    assert!(!told.text.contains("s3cret"), "{}", told.text);
    for file in files(&bed.path("state")) {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(6).any(|w| w == b"s3cret"), "{}", file.display());
    }
}

// Bug: with HTTP_PROXY or ALL_PROXY in the environment, an agent's calls to its run's own address went to that proxy.
// Consequence: prompt and run token in clear at a stranger's. Cause: NO_PROXY was set under `--intercept` only.
#[test]
fn no_call_to_the_runs_own_address_goes_to_a_proxy_of_the_environment() {
    let bed = Bed::new();
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let at = format!("http://{}", proxy.local_addr().unwrap());
    for name in ["http_proxy", "all_proxy", "ALL_PROXY"] {
        let ask = r#"curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H 'Content-Type: application/json' \
            -H "Authorization: Bearer $OPENAI_API_KEY" \
            -d '{"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}'"#;
        let mut command = bed.outlast(&["run", "--new", "--", "sh", "-c", ask]);
        command.env(name, &at).env("NO_PROXY", ".corp");
        bed.run(command).code(0).tells(&["answer "]);
    }
    assert_eq!(bed.paid(), 3);
    assert!(proxy.accept().is_err(), "nothing came");
    let mut doctor = bed.outlast(&["doctor"]);
    doctor.env("HTTP_PROXY", &at);
    bed.run(doctor).tells(&["HTTP_PROXY is set", "export NO_PROXY=localhost,127.0.0.1,::1"]);
}
