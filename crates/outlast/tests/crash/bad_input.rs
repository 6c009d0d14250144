//! Bad input: each a clear error and its exit code; nothing is lost and nothing goes unrecorded.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use crate::{
    agents::{Calls, UP_UNTIL_GO, shell},
    bed::{Bed, OUTLAST, each, is_root, text},
    web::{Answer, call, free_port, post, post_bytes, serve},
};

const EVERY_LOOK: [&[&str]; 5] = [
    &["ls"],
    &["show", "r"],
    &["resume", "r"],
    &["serve", "--listen", "127.0.0.1:0"],
    &["run", "--", "true"],
];

#[test]
fn store_that_cannot_be_read_is_refused_by_name_and_left_as_it_is() {
    let whole = Bed::without_mock();
    whole.does(&["run", "--run", "r", "--", "true"]).code(0);
    let whole = fs::read(whole.store()).unwrap();
    let junk: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let newer = [&whole[..60], &99u32.to_be_bytes(), &whole[64..]].concat();
    let cases = vec![
        ("junk", junk, "file is not a database"),
        ("cut", whole[..whole.len() / 3].to_vec(), "malformed"),
        ("text", b"this is a shopping list\n".repeat(100).to_vec(), "file is not a database"),
        ("newer", newer, "has format 99, and this outlast knows formats up to "),
    ];
    each(cases, |(what, bytes, told)| {
        let bed = Bed::without_mock();
        fs::write(bed.store(), &bytes).unwrap();
        for line in EVERY_LOOK {
            let done = bed.does(line).code(69);
            assert!(
                done.text.contains("error: the store") && done.text.contains("hint: "),
                "{what}: {}",
                done.text
            );
            assert!(done.text.contains(told), "{what}: {}", done.text);
            assert!(done.text.contains(text(&bed.store())), "{what} is not named: {}", done.text);
        }
        assert!(fs::read(bed.store()).unwrap() == bytes, "{what}: it was changed");
    });
}

#[test]
fn store_of_another_user_and_places_that_are_none_are_named() {
    let bed = Bed::without_mock();
    bed.does(&["run", "--run", "r", "--", "true"]).code(0);
    for (place, told) in [
        (bed.path("work"), "unable to open"),
        ("/proc/none/runs.db".into(), "there is no directory /proc/none; make it first"),
        ("/etc/passwd/runs.db".into(), "Not a directory"),
    ] {
        let mut run = bed.outlast(&["run", "--", "true"]);
        run.env("OUTLAST_STORE", &place);
        bed.run(run).code(69).tells(&[text(&place), told, "hint: "]);
    }
    // Bug: a store in a directory that is closed to us was said not to be there yet. Consequence: one was looked for
    // elsewhere, or made anew. Cause: "cannot be looked at" was taken for "is not there".
    // Root may read everything: as somebody else.
    let mut look = Command::new(OUTLAST);
    if is_root() {
        fs::copy(OUTLAST, bed.path("outlast")).unwrap();
        fs::set_permissions(bed.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        look = Command::new("setpriv");
        look.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(bed.path("outlast"));
    } else {
        fs::set_permissions(bed.path("state"), fs::Permissions::from_mode(0o000)).unwrap();
    }
    look.arg("ls").env_clear().env("OUTLAST_STORE", bed.store()).env("HOME", "/").stdin(Stdio::null());
    bed.run(look).code(69).tells(&["cannot open the store", text(&bed.store()), "Permission denied"]);
    fs::set_permissions(bed.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// `sh -c SCRIPT` where it may mount: `$1` is the binary, `$2` the bed.
pub fn with_mounts(bed: &Bed, script: &str) -> Command {
    let mut inside = Command::new("unshare");
    if !is_root() {
        inside.args(["--user", "--map-root-user"]);
    }
    inside.args(["--mount", "sh", "-ec", script, "sh", OUTLAST, text(&bed.path(""))]);
    let around = bed.outlast(&[]);
    inside.env_clear().envs(around.get_envs().filter_map(|(k, v)| Some((k, v?))));
    inside.current_dir(bed.path("work")).stdin(Stdio::null());
    inside
}

/// Bug: where few files may be open, or /proc is missing, a run failed in the middle, with words that named neither.
#[test]
fn what_the_machine_lacks_is_named_before_there_is_a_run() {
    let bed = Bed::new();
    let cases = [
        (
            "ulimit -n 24",
            "too few files may be open: wanted 64, had 24",
            "hint: allow more: `ulimit -n 1024`",
        ),
        ("mount -t tmpfs none /proc", "is /proc mounted?", "hint: mount it: `mount -t proc proc /proc`"),
    ];
    for (lacks, fact, hint) in cases {
        let script = format!("{lacks}; exec $1 run -- true");
        bed.run(with_mounts(&bed, &script)).code(69).tells(&[fact, hint]);
        assert!(!bed.store().exists(), "{lacks}");
    }
}

#[test]
fn read_only_directory_is_refused_and_named() {
    let bed = Bed::new();
    let script = r#"
        mount -t tmpfs -o size=30m,mode=700 none $2/state
        $1 run --run r -- true
        mount -o remount,ro $2/state
        for line in "ls" "run --run new -- touch $2/ran" "resume r" "budget r --add-usd 1"; do
            $1 $line && exit 1 || [ $? = 69 ]
        done"#;
    let done = bed.run(with_mounts(&bed, script)).code(0);
    assert_eq!(done.text.matches("Read-only file system").count(), 4, "{}", done.text);
    assert!(!bed.path("ran").exists());
}

/// Calls of 150 kB that nothing can compress, until one is refused.
const FILLS: &str = r#"
import http.client, json, os, random, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
chance = random.Random(7)
for i in range(100):
    text = f"call {i} " + chance.randbytes(75_000).hex()
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    told = answer.read().decode()
    if answer.status != 200:
        open(sys.argv[1], "a").write(f"{i} {answer.status} {told}\n")
        sys.exit(int(sys.argv[2]))
"#;

#[test]
fn full_disk_refuses_calls_and_loses_and_hides_nothing() {
    let bed = Bed::new();
    bed.write("fills.py", FILLS);
    let script = r#"
        mount -t tmpfs -o size=6m,mode=700 none $2/state
        $1 run --run r --usd none -- python3 -SE $2/fills.py $2/refused 2 || [ $? = 76 ]
        $1 journal r --json > $2/journal.json
        $1 show r --json > $2/show.json
        mount -o remount,size=100m $2/state
        $1 run --run again --usd none -- python3 -SE $2/fills.py $2/refused 2
        $1 spend --json > $2/spend.json"#;
    let done = bed.run(with_mounts(&bed, script)).code(0).tells(&["no space left for the store"]);
    let refused = bed.text("refused");
    assert_eq!(refused.lines().count(), 1, "{refused}{}", done.text);
    assert!(refused.contains(" 503 ") && refused.contains("store_full"), "{refused}");
    let before: usize = refused.split(' ').next().unwrap().parse().unwrap();
    assert!(before > 2, "{refused}");
    let json = |name: &str| serde_json::from_str::<serde_json::Value>(&bed.text(name)).unwrap();
    let journal = json("journal.json");
    let done = journal["entries"].as_array().unwrap().iter().filter(|e| e["state"] == "done").count();
    assert_eq!(done, before, "each that was paid is recorded");
    assert_eq!(json("show.json")["status"], "failed");
    // With room it goes on, and the ledger has them all.
    assert_eq!(bed.paid(), before + 100);
    assert_eq!(json("spend.json")["total"]["calls"], bed.paid());
}

#[test]
fn price_file_with_a_mistake_is_told_and_starts_and_makes_nothing() {
    // Bug: a mistake in `--prices` was found after the run had been made. Consequence: each try left a run behind,
    // and the corrected line went on with the first one's limits. Cause: the file was read when the proxy started.
    let bed = Bed::new();
    let entry = |text: &str| format!(r#"{{"m": {{{text}}}}}"#);
    for (text, told) in [
        ("{", "not a price file"),
        (
            &entry(r#""inptu_cost_per_token": 1e-6"#),
            "unknown field \"inptu_cost_per_token\" (nearest known: \"input_cost_per_token\")",
        ),
        (
            &entry(r#""input_cost_per_token": "much", "output_cost_per_token": 1"#),
            "\"m\": input_cost_per_token is",
        ),
        (&entry(r#""input_cost_per_token": -1, "output_cost_per_token": 1"#), "wanted zero or more"),
        (&entry(r#""input_cost_per_token": 1e-6"#), "no output_cost_per_token"),
    ] {
        let file = bed.write("prices.json", text);
        for verb in [&["run", "--run", "r"][..], &["serve", "--listen", "127.0.0.1:0"]] {
            let mut line = [verb, &["--prices", crate::bed::text(&file)]].concat();
            if verb[0] == "run" {
                line.extend(["--", "touch", "../ran"]);
            }
            bed.does(&line).code(2).tells(&[told, "prices.json"]);
        }
    }
    bed.does(&["run", "--run", "r", "--prices", "none.json", "--", "true"]).code(2).tells(&["No such file"]);
    assert!(!bed.path("ran").exists());
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 0);
}

#[test]
fn port_in_use_is_named_and_a_far_address_needs_a_token() {
    let bed = Bed::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    bed.does(&["serve", "--listen", &at]).code(69).tells(&[
        &format!("cannot listen on {at}"),
        "in use",
        "--listen",
    ]);
    bed.does(&["mock", "--listen", &at]).code(69).tells(&[&format!("cannot listen on {at}")]);
    bed.does(&["serve", "--listen", "0.0.0.0:0"])
        .code(2)
        .tells(&["not a loopback address", "--api-token-file"]);
    let open = bed.write("token", "0123456789abcdef0123\n");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let line = ["serve", "--listen", "0.0.0.0:0", "--api-token-file", text(&open)];
    bed.does(&line).code(69).tells(&["mode is 0644", "wanted 0600", "chmod 600"]);
}

#[test]
fn runs_that_are_not_there_are_told_as_such() {
    let bed = Bed::without_mock();
    bed.does(&["ls"]).code(69).tells(&["there is no store at", text(&bed.store())]);
    bed.does(&["run", "--run", "there", "--", "true"]).code(0);
    for verb in ["show", "journal", "budget", "stop", "resume", "cancel"] {
        bed.does(&[verb, "nobody"]).code(1).tells(&["no run has the id or name \"nobody\"", "`outlast ls`"]);
    }
    let long = "x".repeat(129);
    for id in ["a b", "", "a/b", "\u{e4}", "a\nb", &long] {
        bed.does(&["run", "--run", id, "--", "true"]).code(2).tells(&["not a run id"]);
    }
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 1);
}

/// The token of a run that waits in `bed`, which has to be let go by the file `go`.
fn token(bed: &Bed, run: &str) -> (crate::bed::Proc, String, std::net::SocketAddr) {
    let tells = format!("echo $OUTLAST_TOKEN ${{OUTLAST_URL#http://}} > ../token-{run}; {UP_UNTIL_GO}");
    let started = bed.start(shell(bed, &["--run", run], &tells));
    let line = bed.until_lines(&format!("token-{run}"), 1)[0].clone();
    let (token, url) = line.split_once(' ').unwrap();
    (started, token.to_owned(), url.parse().unwrap())
}

#[test]
fn strangers_tokens_and_malformed_requests_are_refused_and_cost_nothing() {
    let (bed, other) = (Bed::new(), Bed::new());
    let (mine, my_token, proxy) = token(&bed, "mine");
    let (also, also_token, _) = token(&bed, "also");
    let (theirs, their_token, _) = token(&other, "theirs");
    let at = free_port();
    let server = serve(&bed, at, &[]);
    let hello = call("hello");
    let forged =
        format!("{}{}", &my_token[..my_token.len() - 1], if my_token.ends_with('A') { 'B' } else { 'A' });
    let check = |answer: Option<Answer>, status: u16, code: &str| {
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text);
        for secret in [&my_token, &also_token, &their_token, &forged] {
            assert!(!answer.text.contains(secret.as_str()), "{}", answer.text);
        }
    };
    for to in [proxy, at] {
        check(post(to, &[("authorization", &format!("Bearer {their_token}"))], &hello), 401, "bad_token");
        check(post(to, &[("authorization", &format!("Bearer {forged}"))], &hello), 401, "bad_token");
        check(post(to, &[("authorization", "Bearer ol_nonsense")], &hello), 401, "bad_token");
        let two = [("authorization", format!("Bearer {my_token}")), ("x-api-key", also_token.clone())];
        let two: Vec<(&str, &str)> = two.iter().map(|(n, v)| (*n, v.as_str())).collect();
        check(post(to, &two, &hello), 403, "credentials_disagree");
    }
    check(post(proxy, &[("authorization", &format!("Bearer {also_token}"))], &hello), 403, "foreign_run");
    check(post(proxy, &[], &hello), 401, "run_token_wanted");
    check(post(proxy, &[("x-outlast-run", "mine")], &hello), 401, "run_token_wanted");
    check(post(at, &[("x-outlast-run", "a b")], &hello), 400, "bad_run_id");
    check(post(at, &[("x-outlast-run", &"x".repeat(129))], &hello), 400, "bad_run_id");
    check(
        post(at, &[("x-outlast-run", "r"), ("x-outlast-attempt", &"x".repeat(129))], &hello),
        400,
        "bad_header",
    );
    let held = post(at, &[("x-outlast-run", "mine")], &hello).unwrap();
    assert_eq!(held.status, 403, "{}", held.text);

    let path = "/v1/chat/completions";
    let run = [("x-outlast-run", "r")];
    for (body, status) in [
        (&b"{"[..], 400),
        (b"", 400),
        (b"[]", 400),
        (b"{\"model\": \"gpt-4o-mini\", \"model\": \"gpt-4o\", \"messages\": []}", 400),
        (b"\xff\xfe", 400),
        (b"{\"messages\": []}", 400),
    ] {
        let answer = post_bytes(at, path, &run, body).unwrap();
        assert_eq!(answer.status, status, "{body:?}: {}", answer.text);
    }
    let mut unknown = call("hello");
    unknown["model"] = "model-of-nobody".into();
    check(post(at, &run, &unknown), 402, "price_unknown");
    for (path, status) in [("/v1/images/generations", 403), ("/v1/../etc/passwd", 400), ("/nowhere", 403)] {
        let answer = post_bytes(at, path, &run, b"{}").unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
    }
    assert_eq!((bed.paid(), other.paid()), (0, 0));
    bed.write("go", "");
    other.write("go", "");
    for one in [mine, also, theirs] {
        one.done().code(0);
    }
    drop(server);
}

#[test]
fn whatever_the_provider_answers_is_recorded() {
    // Each case: behaviour of the provider, status that the client gets, state in which the entry closes, number of
    // paid calls.
    let cases = vec![
        ("status 429", 429, "failed", 0),
        ("status 500", 500, "failed", 0),
        ("garbage", 200, "failed", 1),
        ("truncate", 0, "failed", 1),
    ];
    each(cases, |(does, status, state, paid)| {
        let bed = Bed::new();
        let at = free_port();
        let server = serve(&bed, at, &[]);
        let answer = post(at, &[("x-outlast-run", "r")], &call(&format!("x\nmock: {does}")));
        let got = answer.as_ref().map_or(0, |a| a.status);
        assert!(status == 0 || got == status, "{does}: {answer:?}");
        let journal = bed.journal("r");
        assert_eq!(journal.len(), 1, "{does}");
        assert_eq!((&journal[0]["state"], bed.paid()), (&state.into(), paid), "{does}: {}", journal[0]);
        let cost = journal[0]["spent_nano_usd"].as_i64().unwrap();
        assert_eq!(cost > 0, paid > 0, "{does}: {}", journal[0]);
        drop(server);
    });
}

#[test]
fn provider_that_is_not_there_costs_nothing_and_is_told() {
    let bed = Bed::new();
    let mut run = Calls::new(1).under(&bed, &["--run", "r", "--restarts", "0", "--outage-wait", "0"]);
    run.env("OPENAI_BASE_URL", format!("http://{}/v1", free_port()));
    bed.run(run).code(75);
    assert!(
        bed.text("told").contains("refused 502") || bed.text("told").contains("refused 503"),
        "{}",
        bed.text("told")
    );
    assert_eq!(bed.journal("r")[0]["state"], "void");
    assert_eq!((bed.spent("r", "cost_nano_usd"), bed.spent("r", "calls")), (0, 0));
}
