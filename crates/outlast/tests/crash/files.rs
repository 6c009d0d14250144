//! Stories of the files that are kept with a run: they come back as a tool, an entry or the run's beginning left them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
};

use crate::{
    agents::{script, shell},
    bad_input::with_mounts,
    bed::{Bed, text, until},
    hosts::Hosts,
};

/// Contents of a directory's files, by path; what a link says, for a link.
fn tree(at: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_symlink() {
            found.insert(name, fs::read_link(&path).unwrap().to_str().unwrap().to_owned());
        } else if path.is_dir() {
            found.extend(tree(&path).into_iter().map(|(below, text)| (format!("{name}/{below}"), text)));
        } else {
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// Asks, writes, asks again, and kills its supervisor in the middle of the next file. The second life only tells what
/// it found.
const HALF: &str = r#"
import json, os, signal, time, urllib.request
def ask(text):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
if os.path.exists("../first"):
    with open("../found", "w") as found: found.write(",".join(sorted(os.listdir("."))) + "\n")
else:
    open("../first", "w").close()
    ask("plan")
    with open("notes", "a") as notes: notes.write("two\n")
    ask("go on")
    open("../asked", "w").close()
    while not os.path.exists("../go"): time.sleep(0.01)
    with open("draft", "w") as draft: draft.write("half a dra")
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
"#;

#[test]
fn a_resumption_begins_with_the_files_of_the_last_finished_tool() {
    let bed = Bed::new();
    bed.write("work/notes", "one\n");
    let agent = bed.start(script(&bed, &["--run", "r", "--files"], HALF, &[]));
    bed.until_file("asked");
    let moments = || -> Vec<String> {
        let snapshots = bed.json(&["files", "r"])["snapshots"].as_array().unwrap().clone();
        snapshots.iter().map(|s| s["moment"].as_str().unwrap().to_owned()).collect()
    };
    until("the snapshot beside the second call", || (moments() == ["begin", "call"]).then_some(()));
    bed.write("go", "");
    agent.done().code(137);
    assert_eq!(bed.text("work/draft"), "half a dra");
    bed.does(&["resume", "r", "--files", "last-tool"]).code(0).tells(&["1 path restored"]);
    assert_eq!(bed.text("found"), "notes\n", "the half file is gone before the agent starts");
    assert_eq!(bed.text("work/notes"), "one\ntwo\n");
    assert_eq!(moments(), ["begin", "call", "begin", "restored"]);
    let half = bed.json(&["files", "r"])["snapshots"][2].clone();
    assert_eq!(half["changes"][0]["path"], "draft");
    let kept = format!("draft@{}", half["entry"]);
    bed.does(&["files", "show", "r", &kept]).code(0).tells(&["half a dra"]);
    bed.does(&["files", "diff", "r"]).code(0).tells(&["--- a/notes", "+++ b/notes", "+two"]);
    bed.does(&["show", "r"]).code(0).tells(&["changes of files", "→ outlast files r"]);
    // Bug: of the commands that are suggested, the one in the middle of a line named no store.
    let store = bed.store();
    let there = format!("→ outlast --store {} files r", text(&store));
    bed.does(&["--store", text(&store), "show", "r"]).code(0).tells(&[there.as_str()]);
    bed.does(&["verify"]).code(0);
}

#[test]
fn an_undo_brings_back_what_the_run_changed_and_is_taken_back() {
    let bed = Bed::without_mock();
    let work = bed.path("work");
    fs::create_dir(work.join("out")).unwrap();
    bed.write("work/.gitignore", "out/\n");
    bed.write("work/out/results", "1 GB of outputs");
    bed.write("work/.env", "SECRET=1");
    bed.write("work/kept", "as it was");
    symlink("kept", work.join("link")).unwrap();
    let before = tree(&work);
    let _socket = std::os::unix::net::UnixListener::bind(work.join("socket")).unwrap();
    let line =
        "rm socket link kept; mkdir kept new; echo x > kept/a; echo y > new/b; echo z >> .env; ln -s / link";
    bed.run(shell(&bed, &["--run", "r", "--files"], line))
        .code(0)
        .tells(&["1 file not kept, as secrets: .env", "1 file not kept, as no plain files: socket"]);
    let after = tree(&work);
    bed.does(&["undo", "r"]).code(0).tells(&["brought back", "new/b"]);
    let mut undone = before.clone();
    undone.insert(".env".into(), "SECRET=1z\n".into());
    assert_eq!(tree(&work), undone);
    assert!(!work.join("new").exists());
    bed.does(&["undo", "r", "--to", "saved"]).code(0);
    assert_eq!(tree(&work), after);
}

#[test]
fn what_a_person_has_changed_since_is_refused_by_name() {
    let bed = Bed::without_mock();
    bed.write("work/a", "1");
    bed.write("work/b", "1");
    bed.run(shell(&bed, &["--run", "r", "--files"], "echo 2 > a; echo 2 > b")).code(0);
    bed.write("work/b", "a person's");
    bed.does(&["undo", "r"]).code(1).tells(&["changed after the run's last snapshot: b", "--force b"]);
    assert_eq!((bed.text("work/a"), bed.text("work/b")), ("2\n".into(), "a person's".into()));
    bed.does(&["files", "restore", "r", "a"]).code(0);
    assert_eq!((bed.text("work/a"), bed.text("work/b")), ("1".into(), "a person's".into()));
    bed.does(&["undo", "r", "--force", "b"]).code(0);
    assert_eq!(bed.text("work/b"), "1");
    bed.does(&["undo", "r", "--to", "saved"]).code(0);
    assert_eq!(bed.text("work/b"), "a person's");
}

/// Bug: after a path of a run was restored, or its files were put into a fork's directory, an undo of the run was refused for
/// changes by others, or took the fork's files for those before the last undo. Cause: each was noted as a restoration of the
/// whole tree of the run, or not at all.
#[test]
fn what_outlast_itself_restored_or_put_elsewhere_is_no_change_by_others() {
    let bed = Bed::without_mock();
    bed.write("work/a", "1");
    bed.write("work/.env", "SECRET=1");
    bed.run(shell(&bed, &["--run", "r", "--files"], "echo 2 > a; echo 2 > 'b c'; mkdir -p d/e")).code(0);
    bed.does(&["files", "restore", "r", "a"]).code(0);
    bed.does(&["files", "restore", "r", "a", "--at", "2"]).code(0).tells(&["1 path brought back"]);
    bed.does(&["undo", "r"]).code(0);
    // Nothing is left to be done, and nothing of it is to be taken back.
    bed.does(&["undo", "r"]).code(0).tells(&["0 paths brought back"]);
    let fork = ["fork", "r", "--at", "2", "--into", "../forked"];
    bed.does(&fork).code(0).tells(&["4 paths as of entry 2"]);
    bed.does(&fork).code(0).tells(&["0 paths as of entry 2"]);
    assert_eq!((bed.text("forked/a"), bed.text("work/a")), ("2\n".into(), "1".into()));
    bed.does(&["undo", "r", "--to", "saved"]).code(0);
    assert_eq!((bed.text("work/a"), bed.text("work/b c")), ("2\n".into(), "2\n".into()));
    bed.write("work/a", "a person's");
    bed.write("work/b c", "a person's");
    let hint = "`--force a --force 'b c'` restores them all the same";
    bed.does(&["undo", "r"]).code(1).tells(&["changed after the run's last snapshot: a, b c", hint]);
    bed.does(&["undo", "r", "--force", "a", "--force", "b c"]).code(0);
}

/// Bug: files were not put into a new directory below a repository whose HEAD was not that of the snapshot, and nothing that
/// could be typed helped. Cause: HEAD was compared as of the run's own working tree.
#[test]
fn a_fork_in_a_repository_with_another_head_has_its_files() {
    let bed = Bed::without_mock();
    fs::create_dir_all(bed.path("work/.git/refs/heads")).unwrap();
    bed.write("work/.git/HEAD", "ref: refs/heads/main\n");
    bed.write("work/.git/refs/heads/main", "1111\n");
    bed.write("work/a", "1");
    let line = "echo 2 > a; echo 2222 > .git/refs/heads/main";
    bed.run(shell(&bed, &["--run", "r", "--files"], line)).code(0);
    bed.does(&["undo", "r"]).code(1).tells(&["HEAD has moved from 1111 to 2222", "git reset --soft 1111"]);
    bed.does(&["fork", "r", "--at", "1", "--into", "below"]).code(0);
    assert_eq!((bed.text("work/below/a"), bed.text("work/a")), ("1".into(), "2\n".into()));
}

/// A repository in which every program of git's would leave `../ran`, with a stash, a worktree, one nested, and no identity.
const REPOSITORY: &str = r#"
set -e
git init -q -b main .
git config filter.bad.clean 'touch ../ran; tr a-z A-Z'
git config filter.bad.smudge 'touch ../ran; tr A-Z a-z'
git config core.autocrlf true
printf 'one\r\ntwo\n' > kept.txt
echo x > gone.txt
git add .
git -c user.name=a -c user.email=a@b commit -qm a
echo y >> gone.txt
git -c user.name=a -c user.email=a@b stash -q
git worktree add -q ../tree
git init -q -b main nested
echo z > nested/file
echo '*.txt filter=bad' > .gitattributes
for hook in pre-commit post-checkout reference-transaction post-index-change; do
    printf '#!/bin/sh\ntouch ../ran\n' > .git/hooks/$hook
    chmod +x .git/hooks/$hook
done
rm -f ../ran
"#;

/// Disasters of others: no identity of git's, so that a checkpoint was empty, and a clean came next; one stash for all
/// worktrees.
#[test]
fn nothing_of_a_repository_is_changed_or_run_and_no_identity_is_needed() {
    let bed = Bed::without_mock();
    let says = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(bed.path("work")).env("HOME", bed.path("."));
        let out = command.env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    says(REPOSITORY);
    let of_git = || says("find .git nested/.git ../tree/.git -printf '%p %y %m %s %T@ %C@ %l\\n' | sort");
    let files = || (tree(&bed.path("work/nested")), says("cat kept.txt gone.txt .gitattributes; ls ../tree"));
    let (before, began) = (of_git(), files());
    let line =
        "printf 'three\\r\\n' >> kept.txt; rm gone.txt; echo new > nested/new; chmod 600 .gitattributes";
    bed.run(shell(&bed, &["--run", "r", "--files"], line)).code(0);
    let beside = format!("--files={}", text(&bed.path("tree")));
    bed.run(shell(&bed, &["--run", "other", &beside], "echo theirs > ../tree/kept.txt")).code(0);
    bed.does(&["undo", "r"]).code(0).tells(&["4 paths brought back"]);
    assert_eq!((of_git(), files()), (before, began));
    assert_eq!(bed.text("tree/kept.txt"), "theirs\n");
    assert!(!bed.path("ran").exists());
}

/// A disaster of others: one stash for all worktrees, so that one agent's undo took another's work.
#[test]
fn two_runs_side_by_side_have_files_of_their_own() {
    let bed = Bed::without_mock();
    for name in ["one", "two"] {
        fs::create_dir(bed.path(&format!("work/{name}"))).unwrap();
        bed.write(&format!("work/{name}/file"), "as it was");
        let directory = format!("--files={name}");
        let line = format!("echo {name} > {name}/file");
        bed.run(shell(&bed, &["--run", name, &directory], &line)).code(0);
    }
    bed.does(&["undo", "one"]).code(0);
    assert_eq!(bed.text("work/one/file"), "as it was");
    assert_eq!(bed.text("work/two/file"), "two\n");
}

#[test]
fn a_deleted_run_frees_its_files_and_leaves_those_of_others() {
    let bed = Bed::without_mock();
    for run in ["r", "s"] {
        let line = format!("head -c 100000 /dev/urandom | base64 > {run}");
        bed.run(shell(&bed, &["--run", run, "--files"], &line)).code(0);
    }
    bed.run(shell(&bed, &["--run", "newest"], "true")).code(0);
    let size = || -> u64 {
        let files = fs::read_dir(bed.path("state/runs.db.files")).unwrap();
        files.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let before = size();
    bed.does(&["rm", "s"]).code(0);
    assert!(size() + 90_000 < before, "{} of {before} bytes are left", size());
    bed.does(&["verify"]).code(0);
    assert_eq!(bed.does(&["files", "show", "r", "r"]).code(0).text, bed.text("work/r"));
}

/// Replaces what is in the working directory, as if it were another machine's.
fn another_disk(bed: &Bed, with: &[(&str, &str)]) {
    fs::remove_dir_all(bed.path("work")).unwrap();
    fs::create_dir(bed.path("work")).unwrap();
    with.iter().for_each(|(name, text)| drop(bed.write(&format!("work/{name}"), text)));
}

/// Each life tells what it finds in `log`, adds its number, and ends when it may.
const THREE_LIVES: &str = "cat log >> ../found; echo >> ../found; mkdir -p made; echo $OUTLAST_ATTEMPT >> log; \
    ln -sf log made/link; echo x >> ../lives; while [ ! -e ../go ]; do sleep 0.02; done";

#[test]
fn a_run_is_taken_over_with_its_files_by_hosts_that_have_none_of_them() {
    let hosts = Hosts::new();
    let bed = &hosts.bed;
    bed.write("work/log", "0\n");
    let stopped = |command: Command, lives: usize| {
        let run = bed.start(command);
        bed.until_lines("lives", lives);
        run.signal(2);
        run.done().code(130)
    };
    stopped(hosts.first(shell(bed, &["--run", "r", "--files"], THREE_LIVES)), 1);
    another_disk(bed, &[("strange", "a person's"), (".env", "theirs")]);
    stopped(hosts.second(bed.outlast(&["resume", "r"])), 2).tells(&["restored"]);
    assert_eq!(bed.text("found"), "0\n\n0\n1\n\n", "the second life finds what the first one left");
    assert_eq!(bed.text("work/.env"), "theirs", "what no snapshot holds stays");
    assert!(!bed.path("work/strange").exists());
    // And back, to a directory that has what the first life left there.
    another_disk(bed, &[("log", "0\n1\n")]);
    bed.write("go", "");
    bed.run(hosts.first(bed.outlast(&["resume", "r"]))).code(0).tells(&["restored"]);
    assert_eq!(bed.text("found"), "0\n\n0\n1\n\n0\n1\n2\n\n");
    let left = tree(&bed.path("work"));
    let wanted = [("log", "0\n1\n2\n3\n"), ("made/link", "log")];
    assert_eq!(left, wanted.map(|(path, text)| (path.to_owned(), text.to_owned())).into());
    let second = |args: &[&str]| bed.run(hosts.second(bed.outlast(args)));
    second(&["verify"]).code(0);
    second(&["files", "diff", "r"]).code(0).tells(&["+1", "+2", "+3"]);
    second(&["undo", "r", "--to", "saved"]).code(0);
    assert_eq!(bed.text("work/strange"), "a person's", "what the second host had was kept there");
    bed.run(hosts.second(shell(bed, &["--run", "newest"], "true"))).code(0);
    second(&["rm", "r"]).code(0);
    second(&["verify"]).code(0);
}

#[test]
fn a_run_that_stays_on_its_host_goes_on_with_its_files_as_they_fell() {
    let hosts = Hosts::new();
    let bed = &hosts.bed;
    let line = "[ -e half ] || { echo half > half; kill -9 $PPID; sleep 9; }";
    bed.run(hosts.first(shell(bed, &["--run", "r", "--files"], line))).code(137);
    bed.write("work/later", "a person's");
    bed.run(hosts.first(bed.outlast(&["resume", "r"]))).code(0);
    assert_eq!((bed.text("work/half").as_str(), bed.text("work/later").as_str()), ("half\n", "a person's"));
}

#[test]
fn a_disk_without_room_or_right_is_named_and_no_file_is_lost() {
    let bed = Bed::without_mock();
    let script = r#"
        mkdir $2/store $2/small
        mount -t tmpfs -o size=48m,mode=700 none $2/store
        mount -t tmpfs -o size=2m none $2/small
        export OUTLAST_STORE=$2/store/runs.db
        fails() { ! "$@" || exit 1; }
        is() { [ "$(cat $1)" = $2 ] || exit 1; }
        cd $2/work
        head -c 60000000 /dev/urandom > noise
        $1 run --run noise --files -- sh -c 'echo x > x'
        is x x
        rm noise
        cd $2/small
        head -c 1200000 /dev/urandom > big
        echo before > a
        $1 run --run r --files -- sh -c 'echo small > big; echo after > a'
        head -c 1500000 /dev/zero > .env
        fails $1 undo r
        is a after
        rm .env
        mount -o remount,ro .
        fails $1 undo r
        mount -o remount,rw .
        is a after
        $1 undo r
        is a before
        $1 verify"#;
    let told = bed.run(with_mounts(&bed, script)).code(0);
    told.tells(&[
        "a snapshot of the files could not be taken",
        "big: No space left on device",
        "Read-only file system",
    ]);
}

#[test]
fn a_run_without_files_has_nothing_to_undo() {
    let bed = Bed::without_mock();
    bed.run(shell(&bed, &["--run", "r"], "true")).code(0);
    bed.does(&["undo", "r"]).code(1).tells(&["no files are kept with run r", "outlast run --files"]);
}

#[test]
fn files_that_an_agent_leaves_as_it_dies_are_no_progress() {
    let bed = Bed::without_mock();
    let done = bed.run(shell(&bed, &["--run", "r", "--files"], "echo x >> lives; exit 3")).code(78);
    assert!(done.text.contains("crash loop"), "{}", done.text);
    assert_eq!(bed.text("work/lives").lines().count(), 5);
}

#[test]
fn files_are_kept_by_themselves_of_a_known_agent_in_a_small_tree_of_its_own() {
    let bed = Bed::without_mock();
    bed.write("work/notes", "one\n");
    let program = bed.write("claude", "#!/bin/sh\necho two >> notes\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let run = |id: &str, place: &str, program: &str| {
        let mut command = bed.outlast(&["run", "--run", id, "--files=auto", "--restarts", "0", "--"]);
        command.args([program, "-p", "x"]).current_dir(bed.path(place));
        bed.run(command)
    };
    run("small", "work", text(&program)).tells(&["files: kept at each tool, 1 file, 4 bytes; --files=off"]);
    bed.does(&["files", "diff", "small"]).code(0).tells(&["+two"]);
    run("home", ".", text(&program)).tells(&["files: not kept"]);
    assert!(!run("other", "work", "true").text.contains("files:"));
    for n in 0..5_000 {
        bed.write(&format!("work/{n}"), "");
    }
    run("large", "work", text(&program)).tells(&["files: not kept", "at most 5000 files"]);
    for id in ["home", "other", "large"] {
        bed.does(&["files", id]).code(1).tells(&["--files"]);
    }
}

#[test]
fn files_are_kept_without_a_flag_in_a_working_tree_of_git_only() {
    let bed = Bed::without_mock();
    bed.write("work/notes", "one\n");
    let program = bed.write("claude", "#!/bin/sh\necho two >> notes\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let run = |id: &str, flags: &[&str], program: &str| {
        let mut command = bed.outlast(&["run", "--run", id, "--restarts", "0"]);
        command.args(flags).args(["--", program, "-p", "x"]);
        bed.run(command).text
    };
    assert!(!run("plain", &[], text(&program)).contains("files:"));
    // A repository, as a snapshot sees it: nothing of it is read but its HEAD.
    fs::create_dir_all(bed.path("work/.git")).unwrap();
    bed.write("work/.git/HEAD", "ref: refs/heads/main\n");
    let first = run("kept", &[], text(&program));
    let said = first.lines().find(|line| line.starts_with("outlast")).unwrap();
    assert!(said.contains("files: kept at each tool, 1 file"), "{first}");
    bed.does(&["files", "diff", "kept"]).code(0).tells(&["+two"]);
    assert!(!run("other", &[], "true").contains("files:"));
    assert!(!run("off", &["--files=off"], text(&program)).contains("files:"));
    assert!(!run("full", &["--files-max", "1MiB"], text(&program)).contains("files:"));
    for n in 0..5_000 {
        bed.write(&format!("work/{n}"), "");
    }
    assert!(!run("large", &[], text(&program)).contains("files:"), "nobody asked");
    for id in ["plain", "other", "off", "full", "large"] {
        bed.does(&["files", id]).code(1).tells(&["--files"]);
    }
}
