//! An agent that tries to raise its limits, and to act on what is not its own.

use crate::bed::Bed;

/// Defines `try NAME COMMAND…`, which writes down the name, the exit code and the error's code, and the ways in which a
/// process of a run pretends to be none.
const ATTACKS: &str = r#"
try() {
    name=$1; shift
    out=$("$@" 2>&1 < /dev/null); code=$?
    echo "$name: $code $(printf %s "$out" | sed -n 's/.*"code": *"\([a-z_]*\)".*/\1/p' | head -n 1)"
}
bare() { env -i PATH="$PATH" HOME="$HOME" OUTLAST_STORE="$OUTLAST_STORE" "$@"; }
"#;

/// Runs `script` as the agent of the run `me`, with one dollar, beside the run `other`. Returns what it wrote down.
fn attack(bed: &Bed, script: &str) -> Vec<String> {
    let script = format!("{ATTACKS}o='{} --json'\n{script}", crate::bed::OUTLAST);
    let mut command = bed.outlast(&["run", "--run", "me", "--usd", "1", "--", "sh", "-c"]);
    command.arg(format!("{{ {script}\n}} > ../tried"));
    bed.run(command).code(0);
    let tried = bed.text("tried");
    println!("{tried}");
    tried.lines().map(str::to_owned).collect()
}

fn beside_another(bed: &Bed) {
    bed.does(&["run", "--run", "other", "--usd", "1", "--", "true"]).code(0);
}

/// Bug: `outlast budget`, `budgets set`, `cancel OTHER`, `resume`, `gc` and `serve` worked inside a run.
/// Consequence: an agent that met its limit raised it, or ended and raised other runs.
/// Cause: only `approve` looked at the environment, and nothing looked further.
#[test]
fn an_agent_raises_nothing_and_touches_no_other_run() {
    let bed = Bed::without_mock();
    beside_another(&bed);
    let tried = attack(
        &bed,
        r#"
        try raise $o budget me --add-usd 100
        try raise-other $o budget other --add-usd 100
        try budgets $o budgets set b --usd 999
        try cancel $o cancel other
        try stop $o stop other --wait 0s
        try resume $o resume other
        try run-other $o run --run other -- true
        try gc $o gc --older-than 0s
        try fork $o fork other --from-snapshot 1
        try approve $o approve apr_1_1
        try serve $o serve --listen 127.0.0.1:0
        try service $o service install
        try unset env -u OUTLAST_MARK -u OUTLAST_TOKEN -u OUTLAST_RUN_ID $o budget me --add-usd 100
        try new-run env -u OUTLAST_TOKEN $o run --usd 1000 -- true
        try emptied bare $o budget me --add-usd 100
        "#,
    );
    for line in &tried {
        assert!(line.ends_with(": 1 not_a_persons"), "{line}");
    }
    assert_eq!(tried.len(), 15);
    assert_eq!(bed.show("me")["budget"][0]["limit"], 1_000_000_000_i64);
    assert_eq!(bed.status("other"), "completed");
}

/// The orphan has no variable, and nobody above it but the supervisor that adopted it; where the kernel lets it, it sees
/// no control group either.
#[test]
fn a_process_that_left_its_session_and_its_variables_is_known_by_the_supervisor_above_it() {
    let bed = Bed::without_mock();
    let tried = attack(
        &bed,
        r#"
        unshare -UrC true 2> /dev/null && hide='unshare -UrC'
        export o
        bare o="$o" setsid $hide sh -c '
            me=$$
            sh -c "while [ -d /proc/$me ] && ! grep -q \"^State:.Z\" /proc/$me/status; do sleep 0.02; done
                out=\$($o budget me --add-usd 100 2>&1); echo \$? \$out > ../orphan.new
                mv ../orphan.new ../orphan" > /dev/null 2>&1 &'
        while [ ! -e ../orphan ]; do sleep 0.02; done
        cat ../orphan
        "#,
    );
    assert!(tried[0].starts_with("1 ") && tried[0].contains("not_a_persons"), "{tried:?}");
    assert_eq!(bed.show("me")["budget"][0]["limit"], 1_000_000_000_i64);
}

#[test]
fn a_run_stops_and_cancels_what_it_began_and_looks_at_everything() {
    let bed = Bed::without_mock();
    beside_another(&bed);
    let tried = attack(
        &bed,
        r#"
        try begin $o run --run child --usd 1000 -- sh -c "$o stop child --wait 0s; exec sleep 100"
        try again $o run --run child -- sh -c "$o stop child --wait 0s; exec sleep 100"
        try stop $o stop child --wait 0s
        try raise $o budget child --add-usd 5
        try cancel $o cancel child
        try look $o budget other
        try list $o ls
        try show $o show other
        "#,
    );
    assert_eq!(
        tried,
        [
            "begin: 130 ",
            "again: 130 ",
            "stop: 0 ",
            "raise: 1 not_a_persons",
            "cancel: 0 ",
            "look: 0 ",
            "list: 0 ",
            "show: 0 "
        ]
    );
    assert_eq!(bed.status("child"), "cancelled");
}

/// A token can be read off the environment of another run's process.
#[test]
fn another_runs_token_makes_nobody_its_parent() {
    let bed = Bed::without_mock();
    let other = bed.start(bed.outlast(&[
        "run",
        "--run",
        "other",
        "--",
        "sh",
        "-c",
        "echo $OUTLAST_TOKEN > ../token.new; mv ../token.new ../token; read line < ../gate",
    ]));
    bed.gate("gate");
    bed.until_file("token");
    let tried = attack(
        &bed,
        r#"
        OUTLAST_TOKEN=$(cat ../token) OUTLAST_RUN_ID=other try cancel $o cancel other
        OUTLAST_TOKEN=$(cat ../token) OUTLAST_RUN_ID=other try stop $o stop other --wait 0s
        "#,
    );
    assert_eq!(tried, ["cancel: 1 not_a_persons", "stop: 1 not_a_persons"]);
    std::fs::write(bed.path("gate"), "\n").unwrap();
    assert_eq!(other.done().code, 0);
}

/// Where the kernel lets nobody be confined, that is said, and nothing is started.
#[test]
fn a_confined_agent_sees_neither_the_store_nor_the_keys_and_reaches_its_proxy() {
    let bed = Bed::without_mock();
    bed.does(&["run", "--run", "first", "--", "true"]).code(0);
    let keys = bed.path(".config/outlast/env");
    std::fs::create_dir_all(keys.parent().unwrap()).unwrap();
    std::fs::write(&keys, "").unwrap();
    std::fs::set_permissions(&keys, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let confine = if is_root { "--confine=nobody" } else { "--confine" };
    let script = format!(
        r#"{ATTACKS}
        store=$(dirname "$OUTLAST_STORE")
        echo "store: [$(ls -A "$store" 2> /dev/null)]"
        echo "keys: [$(ls -A "{keys}" 2> /dev/null)]"
        try read cat "$OUTLAST_STORE"
        try write touch "$store/x"
        try unmount umount "$store"
        try nested unshare -Urm umount "$store"
        try outside ls "/proc/$PPID/root$store"
        try secrets cat "/proc/$PPID/environ"
        try raise {outlast} --json budget me --add-usd 100
        try begin {outlast} --json run -- true
        python3 -c '
import os, urllib.request as u
ask = u.Request(os.environ["OUTLAST_URL"] + "/v1/approvals", headers={{"Authorization": "Bearer " + os.environ["OUTLAST_TOKEN"]}})
print("api:", u.urlopen(ask).status)'
        "#,
        keys = keys.parent().unwrap().display(),
        outlast = crate::bed::OUTLAST,
    );
    let mut command = bed.outlast(&["run", "--run", "me", "--usd", "1", confine, "--", "sh", "-c"]);
    command.arg(script);
    let done = bed.run(command);
    println!("{}", done.text);
    let allows = std::process::Command::new("unshare").args(["-Urm", "true"]).output().unwrap();
    if !is_root && !allows.status.success() {
        done.code(69).tells(&["the agent cannot be confined: the kernel does not allow it", "hint: "]);
        return;
    }
    let done = done.code(0).tells(&["store: []", "keys: []", "api: 200"]);
    for name in ["read", "write", "unmount", "nested", "outside", "secrets", "raise", "begin"] {
        let line = done.text.lines().find(|line| line.starts_with(&format!("{name}: "))).expect(name);
        assert!(!line.starts_with(&format!("{name}: 0")), "{line}");
    }
    assert_eq!(bed.show("me")["budget"][0]["limit"], 1_000_000_000_i64);
}

#[test]
fn what_cannot_be_confined_is_refused_before_there_is_a_run() {
    let bed = Bed::without_mock();
    let check = |flag: &str, store: &str, why: &str| {
        let mut command = bed.outlast(&["run", flag, "--", "true"]);
        command.env("OUTLAST_STORE", bed.path(store));
        bed.run(command).code(69).tells(&["the agent cannot be confined", why, "hint: "]);
        assert_eq!(
            bed.json(&["--store", bed.path(store).to_str().unwrap(), "ls"])["runs"],
            serde_json::json!([])
        );
    };
    bed.write("work/notes", "");
    check("--confine", "work/runs.db", "holds other things than its store: notes");
    check("--confine=nobody at all", "state/runs.db", "no user of this machine is named");
    match rustix::process::geteuid().is_root() {
        true => check("--confine", "state/runs.db", "root is held by no namespace"),
        false => check("--confine=nobody", "state/runs.db", "only root becomes another user"),
    }
}
