//! `outlast run --intercept`: programs that obey no base URL, over deaths of theirs and of the supervisor.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    thread::JoinHandle,
};

use crate::bed::{Bed, is_root, text, until};

/// A shell function that asks the provider at its own address, and nothing that could lead it elsewhere.
const ASK: &str = r#"
unset OPENAI_BASE_URL
ask() {
    curl -sS --fail-with-body https://api.openai.com/v1/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" \
        -H 'Content-Type: application/json' \
        -d '{"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": "'"$1"'"}]}'
}
"#;

fn run(bed: &Bed, flags: &[&str], script: &str) -> Command {
    let mut command = bed.outlast(&["run", "--run", "r", "--intercept"]);
    command.args(flags).args(["--", "sh", "-c", &format!("{ASK}\n{script}")]);
    command
}

/// Everything below a directory.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

#[test]
fn what_was_paid_is_given_again_after_kill_9_of_the_program_and_of_the_supervisor() {
    let bed = Bed::new();
    bed.gate("gate");
    let script =
        "ask one > one.$OUTLAST_ATTEMPT && touch ../asked.$OUTLAST_ATTEMPT && cat ../gate && ask two > two";
    let mut first = bed.start(run(&bed, &[], script));
    bed.until_file("asked.1");
    first.kill();
    let second = bed.start(run(&bed, &[], script));
    bed.until_file("asked.2");
    // The program alone dies now.
    let agent = until("the program is found", || {
        crate::bed::marked("OUTLAST_ATTEMPT=2").into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let here = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == bed.path("work"));
            here && line.starts_with(b"sh\0")
        })
    });
    assert!(crate::bed::kill(agent, 9));
    bed.until_file("asked.3");
    fs::write(bed.path("gate"), "go\n").unwrap();
    second.done().code(0);
    assert_eq!(bed.paid(), 2);
    assert_eq!(bed.spent("r", "calls"), 2);
    let one = bed.text("work/one.1");
    assert!(one.contains("answer "), "{one}");
    assert_eq!((bed.text("work/one.2"), bed.text("work/one.3")), (one.clone(), one));
}

#[test]
fn the_run_has_certificates_for_its_own_eyes_and_no_key() {
    let bed = Bed::new();
    let script = "ask one > /dev/null && env > ../env && cp -r $(dirname $SSL_CERT_FILE) ../seen";
    bed.run(run(&bed, &[], script)).code(0);
    let directory = bed.path("state/runs.db.runs/r/authorities");
    for file in files(&directory) {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    let mut looked = 0;
    for file in files(&bed.path("state")).into_iter().chain(files(&bed.path("work"))) {
        let bytes = fs::read(&file).unwrap();
        let holds = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
        assert!(!holds("PRIVATE KEY"), "{}", file.display());
        looked += 1;
    }
    assert!(looked > 5);
    let ours = bed.text("seen/ours.pem");
    assert_eq!(ours.matches("BEGIN CERTIFICATE").count(), 1);
    let all = bed.text("seen/all.pem");
    assert!(all.ends_with(&ours) && all.matches("BEGIN CERTIFICATE").count() > 20, "the machine's and ours");
    let env = bed.text("env");
    let has = |name: &str| env.lines().any(|line| line.starts_with(&format!("{name}=")));
    for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"] {
        assert!(has(name), "{name}: {env}");
    }
    assert!(!has("ANTHROPIC_BASE_URL"), "{env}");
}

#[test]
fn a_host_that_is_not_opened_shows_its_own_certificate() {
    let bed = Bed::new();
    let (certificate, key) = (bed.path("own.pem"), bed.path("own.key"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            text(&key),
            "-out",
        ])
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut server = Command::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cert", text(&certificate), "-key", text(&key)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port =
        lines.find_map(|line| Some(line.ok()?.strip_prefix("ACCEPT ")?.rsplit_once(':')?.1.to_owned()));
    let port = port.unwrap();
    // Through the proxy, although it is on this machine.
    let script = format!(
        "curl -sS --noproxy '' --cacert {} https://localhost:{port}/ > page; echo $? > own
         curl -sS --noproxy '' --cacert $NODE_EXTRA_CA_CERTS https://localhost:{port}/ > page2; echo $? > ours",
        text(&certificate)
    );
    bed.run(run(&bed, &[], &script)).code(0);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!((bed.text("work/own"), bed.text("work/ours")), ("0\n".into(), "60\n".into()));
    assert!(bed.text("work/page").contains("TLS"), "{}", bed.text("work/page"));
}

/// A proxy of a company's that refuses the first tunnel, and returns what it was asked.
fn refusing_proxy() -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 403 Not from here\r\n\r\n").unwrap();
        String::from_utf8(head).unwrap()
    });
    (at, asked)
}

/// Bug: `HTTPS_PROXY` was obeyed under `--intercept` only. Consequence: behind a company's proxy no upstream was reached.
#[test]
fn an_upstream_is_asked_for_through_the_proxy_of_the_person() {
    let bed = Bed::new();
    let (at, asked) = refusing_proxy();
    let mut command =
        bed.outlast(&["run", "--restarts", "0", "--outage-wait", "0", "--upstream-retries", "0"]);
    command.args(["--openai-base-url", "https://llm.corp.invalid/v1", "--", "sh", "-c"]);
    let ask = r#"curl -s -d '{"model":"gpt-4o-mini","messages":[]}' -H "Authorization: Bearer $OPENAI_API_KEY" $OPENAI_BASE_URL/chat/completions"#;
    command.arg(ask).env("HTTPS_PROXY", format!("http://{at}")).stdin(Stdio::null());
    let done = bed.run(command);
    assert!(asked.join().unwrap().starts_with("CONNECT llm.corp.invalid:443 HTTP/1.1\r\n"));
    done.tells(&["the proxy before this machine answered: HTTP/1.1 403 Not from here"]);
}

#[test]
fn a_proxy_that_cannot_be_used_is_refused_before_a_run_is_made() {
    let bed = Bed::new();
    let mut command = bed.outlast(&["run", "--", "touch", "started"]);
    command.env("ALL_PROXY", "socks5://h:1080");
    let done = bed.run(command);
    assert_eq!(done.code, 2, "{}", done.text);
    done.tells(&["ALL_PROXY: not a proxy that can be chained", "had the scheme socks5"]);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().map_or(0, Vec::len), 0, "no run was made");
}

#[test]
fn a_proxy_that_was_there_before_is_asked_for_every_tunnel() {
    let bed = Bed::new();
    let (at, asked) = refusing_proxy();
    let mut command = run(&bed, &[], "curl -sS -i https://example.test/ > out; ask one > one");
    command.env("HTTPS_PROXY", format!("http://ann:s3cret@{at}")).env("no_proxy", "127.0.0.1,.corp");
    bed.run(command).code(0);
    let asked = asked.join().unwrap();
    assert!(asked.starts_with("CONNECT example.test:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic "), "{asked}");
    let out = bed.text("work/out");
    assert!(out.starts_with("HTTP/1.1 502"), "{out}");
    assert_eq!(bed.paid(), 1, "its own upstream is on this machine, to which the way is straight");
}

#[test]
fn the_end_of_a_run_tells_how_many_requests_passed_unread() {
    let bed = Bed::new();
    let (at, asked) = refusing_proxy();
    let mut command =
        run(&bed, &[], "curl -sS https://api.openai.com/v1/organization/costs > costs; ask one > one");
    command.env("HTTPS_PROXY", format!("http://{at}")).env("no_proxy", "127.0.0.1");
    bed.run(command).code(0).tells(&["1 call paid", " · 1 request passed unread"]);
    assert!(asked.join().unwrap().starts_with("CONNECT api.openai.com:443 HTTP/1.1\r\n"));
    bed.does(&["show", "r"]).tells(&["unread    1 request to providers' hosts"]);
}

#[test]
fn a_run_inside_is_metered_as_itself() {
    let bed = Bed::new();
    let outlast = crate::bed::OUTLAST;
    let inner = format!(
        "ask inside > inside && {outlast} run --run child -- sh -c '. ../ask.sh; ask within > within'"
    );
    bed.write("ask.sh", ASK);
    bed.run(run(&bed, &[], &inner)).code(0);
    assert_eq!(
        (bed.spent("child", "calls"), bed.spent("r", "calls")),
        (1, 2),
        "the parent's holds its child's"
    );
    assert_eq!(bed.journal("child").iter().filter(|e| e["kind"] == "call").count(), 1);
    assert_eq!(bed.journal("r").iter().filter(|e| e["kind"] == "call").count(), 1);
    // In a run that is not intercepted there is nobody who could.
    let inner = format!("{outlast} run --run child2 --intercept -- true");
    let mut command = bed.outlast(&["run", "--run", "plain", "--restarts", "0", "--", "sh", "-c", &inner]);
    command.stdin(Stdio::null());
    let done = bed.run(command);
    assert_ne!(done.code, 0);
    done.tells(&["the run around it is not intercepted"]);
}

#[test]
fn what_cannot_be_intercepted_is_not_started() {
    let bed = Bed::new();
    let check = |flags: &[&str], variable: (&str, &str), wanted: &str| {
        let mut command = bed.outlast(&["run", "--intercept"]);
        command.args(flags).args(["--new", "--", "touch", "started"]).env(variable.0, variable.1);
        let done = bed.run(command);
        assert_ne!(done.code, 0, "{}", done.text);
        done.tells(&["the run cannot be intercepted: ", wanted]);
        assert!(!bed.path("work/started").exists());
        assert_eq!(bed.json(&["ls"])["runs"].as_array().map_or(0, Vec::len), 0, "no run was made");
    };
    check(&[], ("REQUESTS_CA_BUNDLE", "/not/there.pem"), "REQUESTS_CA_BUNDLE names /not/there.pem");
    if !is_root() {
        check(&["--confine"], ("A", "b"), "a confined agent");
    }
}

#[test]
fn a_directory_does_not_switch_it_on() {
    let bed = Bed::new();
    bed.write("work/outlast.toml", "[run]\nintercept = true\n");
    bed.does(&["run", "--", "touch", "started"]).tells(&["run.intercept"]);
    assert!(!bed.path("work/started").exists());
}

/// Each reads its authorities by a variable of its own.
#[test]
fn pythons_clients_are_metered_and_send_what_they_would() {
    let python =
        std::env::var("OUTLAST_TEST_PYTHON").expect("OUTLAST_TEST_PYTHON names a Python: run `make test`");
    let bed = Bed::new();
    let program = r#"
import os, httpx, requests, openai
url = "https://api.openai.com/v1/chat/completions"
headers = {"Authorization": "Bearer " + os.environ.pop("OPENAI_API_KEY")}
os.environ.pop("OPENAI_BASE_URL")
for client in (requests, httpx):
    body = {"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": client.__name__}]}
    answer = client.post(url, json=body, headers=headers)
    answer.raise_for_status()
    print(client.__name__, len(answer.request.content if client is httpx else answer.request.body))
client = openai.OpenAI(base_url="https://api.openai.com/v1", api_key=headers["Authorization"].split()[1])
stream = client.chat.completions.create(model="gpt-4o-mini", max_tokens=20, stream=True,
    messages=[{"role": "user", "content": "a hard-coded address"}])
print("openai", "".join(chunk.choices[0].delta.content or "" for chunk in stream))
"#;
    let file = bed.write("ask.py", program);
    let done = bed.does(&["run", "--run", "r", "--intercept", "--", &python, text(&file)]);
    let done = done.code(0).tells(&["openai answer "]);
    let log = bed.text("paid.log");
    let paid: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((paid.len() as i64, bed.spent("r", "calls")), (3, 3));
    for (line, name) in paid.iter().zip(["requests", "httpx"]) {
        assert!(done.text.contains(&format!("{name} {}", line["bytes"])), "{name}: {line} {}", done.text);
    }
}
