//! An agent's session file is copied into the store as it grows, and put back where it is damaged or gone.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::bed::{Bed, each, kill, until};

/// Is told much, waits, and goes on with what its files hold.
const MUCH: &str = r#"
if begins:
    say("user", "do it")
    ask("do it")
    for n in range(20):
        say("assistant", "done %d" % n)
    say("assistant", "of a sub-agent", below)
    open("../pid", "w").write(str(os.getpid()))
    open("../gate").read()
assert said() == ["do it"] + ["done %d" % n for n in range(20)], said()
assert said(below) == ["of a sub-agent"]
ask("go on")
"#;

#[derive(Clone, Copy, Debug)]
enum Damage {
    Gone,
    Cut(usize),
    /// A byte in the middle is another.
    Flipped,
    None,
}

/// Whether all that the agent has said so far is in the store, its sub-agent's file included.
fn is_copied(bed: &Bed) -> bool {
    let copied = |name: &str| {
        bed.journal("r")
            .iter()
            .any(|e| e["key"].as_str().is_some_and(|key| key.contains("transcript:") && key.ends_with(name)))
    };
    copied("agent-a.jsonl")
}

fn is_damaged(damage: Damage) {
    let bed = Bed::new();
    bed.gate("gate");
    let program = bed.claude(MUCH);
    let mut command = bed.outlast(&["run", "--run", "r", "--"]);
    command.arg(&program).args(["-p", "do it"]);
    let run = bed.start(command);
    let pid: u32 = until("the agent waits", || bed.text("pid").parse().ok());
    until("its session is copied", || is_copied(&bed).then_some(()));
    let path = bed.sessions().pop().unwrap();
    let whole = fs::read(&path).unwrap();
    match damage {
        Damage::Gone => fs::remove_dir_all(bed.path(".claude/projects")).unwrap(),
        Damage::Cut(at) => fs::write(&path, &whole[..at.min(whole.len() - 1)]).unwrap(),
        Damage::Flipped => {
            let mut bytes = whole.clone();
            bytes[whole.len() / 2] = b'\n';
            fs::write(&path, bytes).unwrap();
        }
        Damage::None => {}
    }
    assert!(kill(pid, 9));
    let done = run.done().code(0).tells(&["goes on in its session"]);
    assert_eq!(fs::read(&path).unwrap(), whole, "{damage:?}");
    let beside = fs::exists(format!("{}.damaged", path.display())).unwrap();
    match damage {
        Damage::None => assert!(!beside && !done.text.contains("put back"), "{}", done.text),
        Damage::Gone => drop(done.tells(&["was gone, and is put back"])),
        _ => {
            assert!(beside, "{damage:?}");
            done.tells(&["was damaged, and is put back"]);
        }
    }
    if !matches!(damage, Damage::None) {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_session_whose_file_is_damaged_or_gone_is_gone_on_with() {
    let cuts = [0, 1, 17, 300, usize::MAX].map(Damage::Cut);
    each(cuts.into_iter().chain([Damage::Gone, Damage::Flipped, Damage::None]).collect(), is_damaged);
}

#[test]
fn a_run_that_keeps_no_prompts_keeps_no_session() {
    let bed = Bed::new();
    let program = bed.claude(&MUCH.replace("open(\"../gate\").read()", ""));
    for (id, record, kept) in [("r", "answers", false), ("s", "all", true)] {
        let mut command = bed.outlast(&["run", "--run", id, "--record", record, "--"]);
        command.arg(&program).args(["-p", "do it"]);
        bed.run(command).code(0);
        let has =
            bed.journal(id).iter().any(|e| e["key"].as_str().is_some_and(|key| key.contains("transcript")));
        assert_eq!(has, kept, "{record}");
    }
}

#[test]
fn conversations_are_exported_for_people_and_for_programs() {
    let bed = Bed::new();
    let program = bed.claude(&MUCH.replace("open(\"../gate\").read()", ""));
    let mut command = bed.outlast(&["run", "--run", "r", "--"]);
    command.arg(&program).args(["-p", "do it"]);
    bed.run(command).code(0);
    let told = bed.does(&["export", "r", "--transcript"]).code(0);
    let told = told.tells(&["# r", "### user\n\ndo it\n", "### user\n\ngo on\n", "### assistant\n\nanswer "]);
    assert!(told.text.find("do it").unwrap() < told.text.find("go on").unwrap(), "{}", told.text);
    let object = bed.json(&["export", "r", "--transcript"]);
    assert_eq!(object["conversations"].as_array().unwrap().len(), 2, "{object}");
    assert_eq!(object["conversations"][1]["turns"][0]["parts"][0]["text"], "go on");
}
