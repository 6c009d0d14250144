//! Stories of runs that leave their store in a bundle, and go on in another one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use outlast::program::host::{OsEntropy, SystemClock};
use outlast_core::{
    engine::Move,
    envelope::Moved,
    store::{Ask as _, Durability, RunFilter, Store},
    words::{Digest, RunId},
};
use outlast_store::Options;

use crate::{
    agents::{UP_UNTIL_GO, script, shell},
    bad_input::with_mounts,
    bed::{Bed, each, text, until},
    hosts::Hosts,
};

/// Asks, writes, waits for its end, and would ask again.
const TWO: &str = r#"
import json, os, time, urllib.request
def ask(text):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
ask("plan")
with open("notes", "a") as notes: notes.write("two\n")
open(os.environ["HOME"] + "/asked", "w").close()
while not os.path.exists(os.environ["HOME"] + "/go"): time.sleep(0.01)
ask("go on")
"#;

/// A command with the store of another machine, and the home of another person.
fn there(bed: &Bed, args: &[&str]) -> Command {
    fs::create_dir_all(bed.path("there")).unwrap();
    fs::create_dir_all(bed.path("other-home")).unwrap();
    let mut command = bed.outlast(args);
    command.env("OUTLAST_STORE", bed.path("there/runs.db")).env("HOME", bed.path("other-home"));
    command
}

fn open(place: &Path) -> Arc<dyn Store> {
    let options = Options {
        durability: Default::default(),
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(OsEntropy),
        create: false,
        store_wait: outlast_store::STORE_WAIT,
    };
    outlast_store::open(text(place), options).unwrap()
}

/// Halts the run as one that leaves in this bundle, of which no digest is noted: as a killed export, or a move `to` another
/// machine, leaves it.
fn cut_off(bed: &Bed, run: &str, bundle: &Path, to: Option<&str>) {
    let store = open(&bed.store());
    let no = store.run_no(&RunId::new(run).unwrap()).unwrap().unwrap();
    let seen = store.runs(&RunFilter { limit: 1, ..RunFilter::default() }).unwrap()[0].run.no;
    let to = Some(Moved::begun(text(bundle).into(), to.map(str::to_owned)));
    assert!(store.ask(Move { runs: vec![no], seen, to }, Durability::Synced).wait().unwrap());
}

/// A run that was stopped while it waited. Returns the path of the bundle to be.
fn stopped(bed: &Bed, id: &str) -> PathBuf {
    let run = bed.start(shell(bed, &["--run", id], UP_UNTIL_GO));
    bed.until_file("up");
    run.signal(2);
    run.done().code(130);
    bed.path(&format!("{id}.bundle"))
}

fn spent(mut show: Command) -> i64 {
    let out = show.arg("--json").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let shown: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let lines = shown["budget"].as_array().unwrap();
    lines.iter().find(|line| line["unit"] == "cost_nano_usd").unwrap()["spent"].as_i64().unwrap()
}

#[test]
fn a_run_leaves_with_its_files_and_its_money_and_buys_nothing_again() {
    let bed = Bed::new();
    bed.write("work/notes", "one\n");
    let agent = bed.start(script(&bed, &["--run", "r", "--usd", "1", "--files"], TWO, &[]));
    bed.until_file("asked");
    let bundle = bed.path("r.bundle");
    let export = ["export", "r", "--bundle", text(&bundle)];
    bed.does(&export).code(1).tells(&["outlast stop r"]);
    agent.signal(2);
    agent.done().code(130);
    let (paid, before) = (bed.paid(), bed.spent("r", "cost_nano_usd"));
    assert!(before > 0);
    bed.does(&export).code(0).tells(&["sha-256", "outlast import"]);
    assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);
    bed.does(&["budget", "r", "--add-usd", "1"]).code(0);
    bed.does(&["resume", "r"]).code(75).tells(&["moved", "--take-back", "outlast import"]);
    bed.does(&["export", "r", "--bundle", "another"]).code(75).tells(&["moved"]);
    assert_eq!(bed.status("r"), "halted");

    let import = ["import", text(&bundle), "--into", "../moved"];
    bed.run(there(&bed, &import)).code(0).tells(&["outlast resume r"]);
    assert_eq!(bed.text("moved/notes"), "one\ntwo\n");
    // Bug: it took the import back, and left an empty directory. Cause: the import was noted as a restoration by hand.
    bed.run(there(&bed, &["undo", "r", "--to", "saved"])).code(1).tells(&["no snapshot"]);
    assert_eq!(spent(there(&bed, &["show", "r"])), before);
    bed.run(there(&bed, &import)).code(0).tells(&["r  this bundle was imported before"]);
    bed.run(there(&bed, &["verify"])).code(0);
    bed.write("other-home/go", "");
    bed.run(there(&bed, &["resume", "r"])).code(0);
    assert_eq!(bed.paid(), paid + 1, "what was answered before is replayed");
    let after = spent(there(&bed, &["show", "r"]));
    assert!(after > before && after < 3 * before, "{before} {after}");
    bed.run(there(&bed, &["verify"])).code(0);
    bed.run(there(&bed, &["undo", "r"])).code(0);
    assert_eq!(bed.text("moved/notes"), "one\n", "the snapshots went along");

    // It ended there: copied, it comes back when what stayed here is gone.
    let back = bed.path("back.bundle");
    bed.run(there(&bed, &["export", "r", "--bundle", text(&back)])).code(0);
    bed.does(&["import", text(&back), "--into", "../back"]).code(1).tells(&["outlast rm r"]);
    bed.run(shell(&bed, &["--run", "newest"], "true")).code(0);
    bed.does(&["rm", "r"]).code(0);
    bed.does(&["import", text(&back), "--into", "../back"]).code(0);
    assert_eq!(bed.status("r"), "completed");
    // Bug: a bundle that was made after an undo brought back what had been undone. Cause: no entry tells of an undo, and a
    // bundle had the snapshots of the entries.
    assert_eq!(bed.text("back/notes"), "one\n", "as the undo left it");
    bed.does(&["verify"]).code(0);
}

#[test]
fn a_bundle_that_is_torn_changed_or_none_is_refused_and_nothing_is_written() {
    let bed = Bed::without_mock();
    let bundle = stopped(&bed, "r");
    bed.does(&["export", "r", "--bundle", text(&bundle)]).code(0);
    let whole = fs::read(&bundle).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    for (bytes, told) in [(&whole[..whole.len() / 2], "torn"), (&changed, "torn"), (b"a text", "no bundle")] {
        let other = bed.path("other.bundle");
        fs::write(&other, bytes).unwrap();
        bed.run(there(&bed, &["import", text(&other), "--into", "../new"])).code(1).tells(&[told]);
        assert!(!bed.path("new").exists());
        assert_eq!(fs::read_dir(bed.path("there")).unwrap().count(), 0, "no store is left behind");
    }
    bed.run(there(&bed, &["import", "nowhere"])).code(69);
    bed.write("work/a-file", "of somebody's");
    bed.does(&["export", "r", "--bundle", "a-file"]).code(75);
    assert_eq!(bed.text("work/a-file"), "of somebody's");
}

/// Keys of the examples of RFC 8410.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

#[test]
fn a_bundle_without_the_signature_that_is_wanted_is_refused_and_nothing_is_written() {
    let bed = Bed::without_mock();
    let bundle = stopped(&bed, "r");
    bed.write("key", PRIVATE);
    bed.write("public", PUBLIC);
    bed.write("another", &PUBLIC.replace("ZuE=", "ZuI="));
    let export = ["export", "r", "--bundle", text(&bundle), "--sign", "../key"];
    fs::set_permissions(bed.path("key"), fs::Permissions::from_mode(0o644)).unwrap();
    bed.does(&export).code(69).tells(&["others can read"]);
    assert_eq!(bed.status("r"), "interrupted", "it did not leave");
    fs::set_permissions(bed.path("key"), fs::Permissions::from_mode(0o600)).unwrap();
    bed.does(&export).code(0).tells(&[", signed"]);
    // Killed before its digest is noted: the same file, if it has the signature.
    cut_off(&bed, "r", &bundle, None);
    bed.does(&export).code(0).tells(&[", signed"]);

    let import =
        |key: &str, file: &Path| there(&bed, &["import", text(file), "--into", "../new", "--verify", key]);
    let unsigned = bed.path("unsigned.bundle");
    let whole = fs::read(&bundle).unwrap();
    // The end of one: a signature of 80 bytes and a digest of 48, in frames that zstd passes over.
    let content = &whole[..whole.len() - 128];
    let head = &whole[whole.len() - 48..][..16];
    fs::write(&unsigned, [content, head, &Digest::of(content).0].concat()).unwrap();
    for (key, file, code, told) in [
        ("../public", &unsigned, 1, "has no signature"),
        ("../another", &bundle, 1, "not that of this key"),
        ("../key", &bundle, 2, "no public key"),
        ("../nowhere", &bundle, 2, "no public key"),
    ] {
        bed.run(import(key, file)).code(code).tells(&[told]);
        assert!(!bed.path("new").exists());
        assert_eq!(fs::read_dir(bed.path("there")).unwrap().count(), 0, "no store is left behind");
    }
    // Bug: a torn bundle on standard input left a directory beside the store, and its refusal named a file in there.
    let mut piped = there(&bed, &["import", "-"]);
    piped.stdin(fs::File::open(bed.write("torn", "half")).unwrap());
    bed.run(piped).code(1).tells(&["standard input is no bundle"]);
    let mut restore = there(&bed, &["state", "restore"]);
    restore.stdin(fs::File::open(bed.path("torn")).unwrap());
    bed.run(restore).code(1).tells(&["the dump, line 1", "nothing was restored"]);
    assert_eq!(fs::read_dir(bed.path("there")).unwrap().count(), 0, "nothing is left behind");
    let mut nowhere = import("../public", &bundle);
    nowhere.env("OUTLAST_STORE", bed.path("nowhere/runs.db"));
    bed.run(nowhere).code(69).tells(&["cannot be made"]);
    assert!(!bed.path("nowhere").exists(), "a wrong name makes no directory");
    bed.run(import("../public", &bundle)).code(0);
    bed.run(there(&bed, &["show", "r"])).code(0);
    bed.run(there(&bed, &["import", text(&unsigned)])).code(1).tells(&["exists already"]);
}

#[test]
fn an_export_that_was_cut_off_goes_on_or_is_taken_back() {
    let bed = Bed::without_mock();
    let bundle = stopped(&bed, "r");
    let export = ["export", "r", "--bundle", text(&bundle)];
    // Killed before the file has its name; what it wrote by then is in the way of nothing.
    cut_off(&bed, "r", &bundle, None);
    fs::write(bed.path("r.bundle.unfinished"), "half").unwrap();
    bed.does(&["resume", "r"]).code(75).tells(&["cut off", "--bundle", "--take-back"]);
    bed.does(&export).code(0);
    assert!(!bed.path("r.bundle.unfinished").exists() && !bed.path("state/runs.db.bundles/work").exists());
    // Killed before its digest is noted.
    let whole = fs::read(&bundle).unwrap();
    cut_off(&bed, "r", &bundle, None);
    bed.does(&export).code(0);
    assert_eq!(fs::read(&bundle).unwrap(), whole);
    // Another's file in its place is none of its own.
    cut_off(&bed, "r", &bundle, None);
    fs::write(&bundle, "of somebody's").unwrap();
    bed.does(&export).code(1);
    bed.write("go", "");
    bed.does(&["resume", "r", "--take-back"]).code(0).tells(&["is taken back"]);
    bed.does(&["resume", "r", "--take-back"]).code(1);
}

#[test]
fn an_import_that_was_cut_off_goes_on() {
    let bed = Bed::without_mock();
    bed.write("work/kept", "as it was\n");
    // The snapshot names it, and has it not.
    bed.write("work/.env", "SECRET=1");
    let run = bed.start(shell(&bed, &["--run", "r", "--files"], UP_UNTIL_GO));
    bed.until_file("up");
    run.signal(2);
    run.done().code(130);
    let bundle = bed.path("r.bundle");
    bed.does(&["export", "r", "--bundle", text(&bundle)]).code(0);
    let import = ["import", text(&bundle), "--into", "../new"];
    fs::create_dir(bed.path("new")).unwrap();
    bed.write("new/strange", "a person's");
    bed.run(there(&bed, &import)).code(2).tells(&["is not empty"]);
    bed.run(there(&bed, &["show", "r"])).code(1);
    // Killed before its commit: the files are there, and the workplace is not cleared.
    fs::remove_file(bed.path("new/strange")).unwrap();
    bed.write("new/kept", "as it was\n");
    fs::create_dir_all(bed.path("there/runs.db.bundles/work/files")).unwrap();
    bed.write("there/runs.db.bundles/work/runs.db", "half");
    bed.run(there(&bed, &import)).code(0);
    bed.run(there(&bed, &["verify"])).code(0);
    assert!(!bed.path("there/runs.db.bundles/work").exists());
}

#[test]
fn a_place_without_room_or_right_is_named_and_nothing_is_lost() {
    let bed = Bed::without_mock();
    let noise: Vec<u8> =
        (0..2_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(bed.path("work/noise"), &noise).unwrap();
    for id in ["r", "stays"] {
        let run = bed.start(shell(&bed, &["--run", id, "--files"], UP_UNTIL_GO));
        until("it is up", || (bed.text("up").lines().count() == 1).then_some(()));
        run.signal(2);
        run.done().code(130);
        fs::remove_file(bed.path("up")).unwrap();
    }
    bed.does(&["export", "r", "--bundle", "../r.bundle"]).code(0);
    let script = r#"
        mkdir $2/small $2/fixed
        mount -t tmpfs -o size=1m,mode=700 none $2/small
        mount -t tmpfs none $2/fixed
        mount -o remount,ro $2/fixed
        fails() { ! "$@" || exit 1; }
        for place in small fixed; do fails $1 export stays --bundle $2/$place/b; done
        [ -z "$(ls $2/small $2/fixed | grep '^b')" ]
        export OUTLAST_STORE=$2/there.db
        fails $1 import $2/r.bundle --into $2/fixed/new
        [ ! -e $2/there.db ]
        for place in small fixed; do
            fails $1 import $2/r.bundle --into $2/$place/new
            fails $1 show r
        done
        for place in small fixed; do
            (export OUTLAST_STORE=$2/$place/runs.db; fails $1 import $2/r.bundle --into $2/new)
        done
        $1 import $2/r.bundle --into $2/new"#;
    let told = bed.run(with_mounts(&bed, script)).code(0).text;
    for place in ["small/b", "fixed/b", "fixed/new"] {
        assert!(
            told.lines().any(|line| line.starts_with("error: ") && line.contains(place)),
            "{place}: {told}"
        );
    }
    assert!(told.matches("No space left on device").count() >= 2, "{told}");
    assert!(told.matches("Read-only file system").count() >= 2, "{told}");
    assert_eq!(bed.status("stays"), "interrupted", "it did not leave");
    assert_eq!(fs::read(bed.path("new/noise")).unwrap(), noise);
}

#[test]
fn a_run_leaves_a_database_for_a_file() {
    let hosts = Hosts::new();
    let bed = &hosts.bed;
    bed.write("work/log", "0\n");
    let line = "echo $OUTLAST_ATTEMPT >> log; echo x >> ../lives; while [ ! -e ../go ]; do sleep 0.02; done";
    let run = bed.start(hosts.first(shell(bed, &["--run", "r", "--files"], line)));
    bed.until_lines("lives", 1);
    run.signal(2);
    run.done().code(130);
    let bundle = bed.path("r.bundle");
    bed.run(hosts.first(bed.outlast(&["export", "r", "--bundle", text(&bundle)]))).code(0);
    bed.run(hosts.first(bed.outlast(&["resume", "r"]))).code(75);
    bed.run(there(bed, &["import", text(&bundle), "--into", "../new"])).code(0);
    bed.write("go", "");
    bed.run(there(bed, &["resume", "r"])).code(0);
    assert_eq!(bed.text("new/log"), "0\n1\n2\n");
    bed.run(there(bed, &["verify"])).code(0);
    // And into a database again: it ended, so it is a copy.
    let back = bed.path("back.bundle");
    bed.run(there(bed, &["export", "r", "--bundle", text(&back)])).code(0);
    bed.run(hosts.second(shell(bed, &["--run", "newest"], "true"))).code(0);
    bed.run(hosts.second(bed.outlast(&["rm", "r"]))).code(0);
    bed.run(hosts.second(bed.outlast(&["import", text(&back), "--into", "../back"]))).code(0);
    bed.run(hosts.second(bed.outlast(&["verify"]))).code(0);
    assert_eq!(bed.text("back/log"), "0\n1\n2\n");
}

/// Dies once it has said something, and goes on with what its file holds.
const DIES: &str = r#"
if begins:
    say("user", "do it")
    say("assistant", "done")
    ask("do it")
    os.kill(os.getpid(), 9)
assert said() == ["do it", "done"], said()
ask("go on")
if os.path.exists("../die"): os.kill(os.getpid(), 9)
"#;

/// A run of the agent, which died.
fn died(bed: &Bed, name: &str, flags: &[&str]) {
    let program = bed.agent(name, DIES);
    let mut command = bed.outlast(&["run", "--run", "r", "--restarts", "0"]);
    command.args(flags).arg("--").arg(&program).args(["-p", "do it"]);
    bed.run(command).code(75);
}

/// Files of sessions below the home directory.
fn sessions(bed: &Bed) -> Vec<PathBuf> {
    let mut left = vec![bed.path(".claude"), bed.path(".copilot")];
    let mut files = Vec::new();
    while let Some(directory) = left.pop() {
        for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() { &mut left } else { &mut files }.push(path);
        }
    }
    files
}

fn a_session_is_where_the_run_works(name: &str) {
    let bed = Bed::new();
    bed.write("work/variables", "OF_A_FILE=1\n");
    died(&bed, name, &["--env-file", "variables"]);
    let resume = |flags: &[&str], place: &str| {
        let mut command = bed.outlast(&["resume", "r", "--add-restarts", "1"]);
        command.args(flags).current_dir(bed.path(place));
        bed.run(command).tells(&["goes on in its session"])
    };
    // The shorter name makes a shorter file than the copy that the store has of it.
    fs::rename(bed.path("work"), bed.path("w")).unwrap();
    bed.write("die", "");
    resume(&["--cd", "w"], ".").code(75);
    assert_eq!(sessions(&bed).len(), 1, "{name}: {:?}", sessions(&bed));
    for file in sessions(&bed) {
        fs::remove_file(file).unwrap();
    }
    fs::remove_file(bed.path("die")).unwrap();
    resume(&[], "w").code(0).tells(&["was gone, and is put back"]);
    assert_eq!(sessions(&bed).len(), 1, "{name}: {:?}", sessions(&bed));
}

// Bug: after `resume --cd` Claude Code began a new session, and an `--env-file` of the run was missing. Cause: only the
// directory itself was changed, not what is named by it.
#[test]
fn a_session_goes_along_when_its_run_works_in_another_directory() {
    a_session_is_where_the_run_works("claude");
    a_session_is_where_the_run_works("copilot");
}

#[test]
fn an_agents_session_goes_along_to_another_directory_and_home() {
    let bed = Bed::new();
    died(&bed, "claude", &[]);
    let bundle = bed.path("r.bundle");
    bed.does(&["export", "r", "--bundle", text(&bundle)]).code(0);
    let there_too = |args: &[&str]| {
        let mut command = bed.outlast(&["--store", text(&bed.path("there/runs.db"))]);
        command.args(args).env("HOME", bed.path("other-home"));
        command
    };
    there(&bed, &[]);
    let why = "restarts";
    bed.run(there_too(&["import", text(&bundle), "--into", "../new"]))
        .code(0)
        .tells(&[why, &format!("→ outlast --store {} ", text(&bed.path("there/runs.db")))]);
    let shown = bed.run(there_too(&["show", "r"])).code(0);
    shown.tells(&["halted", why]);
    let paid = bed.paid();
    let resume = there(&bed, &["resume", "r", "--add-restarts", "1"]);
    bed.run(resume).code(0).tells(&["goes on in its session"]);
    assert_eq!(bed.paid(), paid + 1);
}

/// Program in place of ssh: the other machine is another home and store. Its file `death` names what dies.
const SSH: &str = r#"#!/bin/sh
printf '%s\n' "$@" >> "$BED/ssh-words"
while [ "$1" != -- ]; do shift; done
shift 2
death=$(cat "$BED/death" 2> /dev/null)
there() {
    cd "$BED/other-home" && HOME="$PWD" OUTLAST_STORE="$BED/there/runs.db" PATH="$BED/bin:$PATH" sh -c "$*"
}
case $death in
line) exit 255 ;;
sender) kill -9 $PPID; exit 255 ;;
half) head -c 1000 | there "$@" ;;
answer) there "$@" > /dev/null; exit 255 ;;
sender-after) there "$@" > "$BED/answer"; kill -9 $PPID ;;
keys) unset OPENAI_API_KEY; there "$@" ;;
*) there "$@" ;;
esac
"#;

/// A run that waits in its second life's work, and `outlast move r ADDRESS` for it.
fn moving(bed: &Bed) -> impl Fn() -> Command {
    for name in ["bin", "ssh", "there", "other-home"] {
        fs::create_dir(bed.path(name)).unwrap();
    }
    bed.write("ssh/ssh", SSH);
    fs::set_permissions(bed.path("ssh/ssh"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outlast"), bed.path("bin/outlast")).unwrap();
    bed.write("work/notes", "one\n");
    let run = script(bed, &["--run", "r", "--usd", "1", "--files", "--detach"], TWO, &[]);
    bed.run(run).code(0);
    bed.until_file("asked");
    move || {
        let mut command = bed.outlast(&["move", "r", &address(bed)]);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", text(&bed.path("ssh")));
        command.env("PATH", path).env("BED", bed.path("."));
        command
    }
}

/// A directory that a shell would take apart.
fn address(bed: &Bed) -> String {
    format!("ssh://me@there:22{}", text(&bed.path("moved $(touch ../taken) 'x; y")))
}

/// Lets the moved run end there, and checks that it bought nothing twice.
fn ends_there(bed: &Bed, paid: usize) {
    bed.write("other-home/go", "");
    let status = |wanted: &str| {
        let out = there(bed, &["show", "r", "--json"]).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        (shown["status"] == wanted).then_some(())
    };
    until("it is completed there", || status("completed"));
    assert_eq!(bed.paid(), paid + 1);
    bed.run(there(bed, &["verify"])).code(0);
    bed.does(&["verify"]).code(0);
    assert_eq!(bed.text("moved $(touch ../taken) 'x; y/notes"), "one\ntwo\ntwo\n", "each life writes");
}

#[test]
fn a_run_moves_to_another_machine_and_goes_on_there() {
    let bed = Bed::new();
    let command = moving(&bed);
    let paid = bed.paid();
    bed.run(command()).code(0).tells(&["moved to ssh://me@there:22/", "it goes on there"]);
    let words = "-T\n-l\nme\n-p\n22\n--\nthere\noutlast --json import - --resume\n";
    assert_eq!(bed.text("ssh-words"), words);
    assert!(!bed.path("taken").exists() && !bed.path("state/runs.db.bundles/r.bundle").exists());
    for args in [&["resume", "r"][..], &["resume", "r", "--take-back"], &["move", "r", "ssh://other"]] {
        bed.does(args).code(75).tells(&["it goes on at ssh://me@there:22/"]);
    }
    bed.run(command()).code(75);
    ends_there(&bed, paid);
}

#[test]
fn a_move_that_was_cut_off_goes_on_and_is_in_one_place() {
    let deaths = vec!["line", "sender", "half", "answer", "sender-after", "fence"];
    each(deaths, |death| {
        let bed = Bed::new();
        let command = moving(&bed);
        let paid = bed.paid();
        match death {
            "fence" => {
                bed.does(&["stop", "r"]).code(0);
                cut_off(&bed, "r", &bed.path("state/runs.db.bundles/r.bundle"), Some(&address(&bed)));
            }
            death => {
                bed.write("death", death);
                assert_ne!(bed.run(command()).code, 0, "{death}");
                fs::remove_file(bed.path("death")).unwrap();
            }
        }
        bed.does(&["resume", "r"]).code(75).tells(&["cut off", "outlast move r ssh://", "--take-back"]);
        bed.run(command()).code(0).tells(&["it goes on there"]);
        ends_there(&bed, paid);
        assert_eq!(bed.status("r"), "halted", "{death}");
    });
}

#[test]
fn a_move_that_never_came_there_is_taken_back() {
    let bed = Bed::new();
    let command = moving(&bed);
    bed.write("death", "line");
    bed.run(command()).code(69).tells(&["not known to be at ssh://", "--take-back"]);
    bed.write("go", "");
    bed.does(&["resume", "r", "--take-back"]).code(0).tells(&["is taken back"]);
    assert!(!bed.path("state/runs.db.bundles/r.bundle").exists());
    bed.run(command()).code(1).tells(&["completed"]);
}

#[test]
fn a_run_that_cannot_go_on_there_is_there_all_the_same() {
    let bed = Bed::new();
    let command = moving(&bed);
    let paid = bed.paid();
    bed.write("death", "keys");
    assert_ne!(bed.run(command()).tells(&["it is there, and does not go on yet"]).code, 0);
    bed.does(&["resume", "r", "--take-back"]).code(75);
    bed.run(there(&bed, &["resume", "r", "--detach"])).code(0);
    ends_there(&bed, paid);
}
