//! A night in a store, and what its digest says.

use std::{fs, process::Command, sync::Arc};

use outlast_core::{
    engine::{
        AwaitProvider, Claim, Claimed, EndAttempt, ProviderAnswered, Register, Start, run::end_attempt::Then,
    },
    memory::MemoryStore,
    run::{self, Exit, Identity, Spec},
    store::{Ask as _, Durability},
    words::{Cause, Clock as _, ManualClock, Outage, Slot},
};

use super::*;
use crate::agent::session::uuid;

const NIGHT: Micros = Micros(1_700_000_000_000_000);

#[test]
fn a_night_is_told_with_what_died_what_waited_and_what_was_committed() {
    let clock = Arc::new(ManualClock::new(NIGHT));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()));
    let instance = store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
    let checkout = tempfile::tempdir().unwrap();
    let begin = |name: &str| {
        let command = run::Command {
            argv: vec!["true".into()],
            directory: checkout.path().display().to_string(),
            ..run::Command::default()
        };
        let spec = Spec { name: Some(name.into()), command: Some(command), ..Spec::default() };
        let id = RunId::new(&format!("run_{}", uuid([name.len() as u8; 16]))).unwrap();
        store.run_verb(Start { spec, ..Start::new(id) }, Durability::Synced).unwrap().run
    };
    let claim = |run| {
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        match store.run_verb(claim, Durability::Synced).unwrap() {
            Claimed::Attempt { attempt, .. } => attempt,
            Claimed::Refused(refusal) => panic!("{refusal:?}"),
        }
    };
    let end = |run, attempt, exit, then| {
        let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then };
        store.run_verb(end, Durability::Synced).unwrap();
    };
    // Something of the day before.
    let earlier = begin("yesterday's");
    end(earlier, claim(earlier), Exit { code: Some(0), ..Exit::default() }, Then::Complete);
    clock.advance_ms(10 * 3_600_000);
    let since = clock.now();
    let (done, stuck) = (begin("nightly"), begin("lint"));
    end(done, claim(done), Exit { signal: Some(9), ..Exit::default() }, Then::Restart);
    let second = claim(done);
    let outage = Outage { upstream: "anthropic".into(), cause: Cause::Failing(529) };
    store.run_verb(AwaitProvider { run: done, outage }, Durability::Synced).unwrap();
    clock.advance_ms(30 * 60_000);
    let answered = ProviderAnswered { run: done, upstream: "anthropic".into() };
    store.run_verb(answered, Durability::Synced).unwrap();
    end(done, second, Exit { code: Some(0), ..Exit::default() }, Then::Complete);
    end(stuck, claim(stuck), Exit::default(), Then::Interrupt { by_person: false });
    clock.advance_ms(60_000);

    let logs = tempfile::tempdir().unwrap();
    let (at, until) = (logs.path().to_owned(), clock.now());
    let ground = Ground {
        host: "box".into(),
        here: None,
        page: Some("https://box/".into()),
        logs: Box::new(move |_| Some(at.clone())),
    };
    let digest = gather(&*store, &ground, since, until).unwrap();
    assert_eq!(title(&digest), "box: 1 stands still, 1 is done");
    assert_eq!(digest.cost.deaths, 1);
    let told = text(&digest);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0] == "2023-11-15 08:13:20 +00:00 to 2023-11-15 08:44:20 +00:00", "{told}");
    assert_eq!(
        lines[1..4],
        [
            "0 calls, 0.00 usd billed",
            "1 death",
            "anthropic fails with 529 at 08:13:20, for 30 min; 1 run waited",
        ],
        "{told}"
    );
    let stands = lines.iter().position(|line| line.starts_with("■ lint: interrupted")).expect("it stands");
    assert!(lines[stands].starts_with("■ lint: interrupted, 0 s"), "it has stood still since: {told}");
    assert!(lines[stands + 1].starts_with("  → outlast resume "), "{told}");
    assert!(told.contains("✓ nightly: completed, 30 min, 1 death: killed by SIGKILL"), "{told}");
    assert!(!told.contains("yesterday"), "{told}");
    let nightly = digest.runs.iter().find(|run| run.run.name.as_deref() == Some("nightly")).unwrap();
    assert_eq!(nightly.link.as_deref(), Some(format!("https://box/#/run/{}", nightly.run.run).as_str()));
}

/// What an agent's repository may name is not run: git is asked with its settings, and they are the agent's.
#[test]
fn commits_are_told_and_a_repository_runs_no_program() {
    let place = tempfile::tempdir().unwrap();
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=work"]);
        assert!(
            command.args(words).current_dir(place.path()).output().unwrap().status.success(),
            "{words:?}"
        );
    };
    git(&["init", "--quiet"]);
    fs::write(place.path().join("a.rs"), "fn a() {}").unwrap();
    git(&["add", "a.rs"]);
    git(&["commit", "--quiet", "--no-gpg-sign", "-m", "a: begin"]);
    let mark = place.path().join("ran");
    for key in ["gpg.program", "core.fsmonitor", "core.pager", "diff.external", "core.sshCommand"] {
        git(&["config", key, &format!("touch {}; false", mark.display())]);
    }
    git(&["config", "log.showSignature", "true"]);
    let found = checkout::commits(place.path(), Micros(0), Micros(4_000_000_000_000_000));
    assert_eq!((found.commits.len(), found.files.as_slice()), (1, &["a.rs".to_owned()][..]));
    assert!(found.commits[0].ends_with(" a: begin"), "{found:?}");
    assert_eq!(checkout::branch(place.path()).unwrap().name, "work");
    assert!(!mark.exists());
}
