//! A night in a store, and what its digest says.

use std::{fs, process::Command, sync::Arc};

use outlast_core::{
    engine::{
        AwaitProvider, Claim, Claimed, DeclareDead, EndAttempt, Import, ProviderAnswered, Register, Start,
        run::end_attempt::Then,
    },
    envelope::Limits,
    memory::MemoryStore,
    reads::{
        forks::{Point, prepare},
        rows, whole,
    },
    run::{self, Exit, Identity, Spec},
    state::Table,
    store::{Ask as _, Durability},
    words::{Cause, Clock as _, ManualClock, Outage, Seq, Slot},
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
    let answered = ProviderAnswered { run: done, upstream: "anthropic".into(), sent_ago_ms: 0 };
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

#[test]
fn an_outage_is_told_with_its_newest_cause_and_its_begin_while_it_lasts() {
    let clock = Arc::new(ManualClock::new(NIGHT));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock.clone()));
    let run = |id: &str| {
        let instance =
            store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
        let run = store.run_verb(Start::new(RunId::new(id).unwrap()), Durability::Synced).unwrap().run;
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        store.run_verb(claim, Durability::Synced).unwrap();
        (run, instance)
    };
    let is_out = |run, cause| {
        let outage = Outage { upstream: "openai".into(), cause };
        store.run_verb(AwaitProvider { run, outage }, Durability::Synced).unwrap();
    };
    let ((a, driver), (b, _)) = (run("a"), run("b"));
    is_out(a, Cause::NoConnection);
    is_out(b, Cause::NoConnection);
    clock.advance_ms(3_600_000);
    is_out(b, Cause::QuotaEnded(429));
    clock.advance_ms(60_000);
    let ground = Ground { host: "box".into(), here: None, page: None, logs: Box::new(|_| None) };
    let outage = || {
        let digest = gather(&*store, &ground, NIGHT, clock.now()).unwrap();
        text(&digest).lines().find(|line| line.starts_with("openai")).unwrap().to_owned()
    };
    let told = "openai says that the quota has ended (429) since 23:13:20, out since 22:13:20; 2 runs waited";
    assert_eq!(outage(), told);
    // A death of whoever waited ends no outage.
    let answered = ProviderAnswered { run: b, upstream: "openai".into(), sent_ago_ms: 0 };
    let dies = |instance| {
        let heartbeat_seen = store.instance(instance).unwrap().unwrap().heartbeat;
        let dead = DeclareDead { instance, heartbeat_seen, left: false, heir: None };
        store.run_verb(dead, Durability::Synced).unwrap();
    };
    dies(driver);
    assert_eq!(outage(), told);
    store.run_verb(answered, Durability::Synced).unwrap();
    assert_eq!(outage(), told, "a still waits, for all that is known");
}

// Bug: a run that was removed had cost nothing in the digest, and something in `spend`; then it was billed in each digest of its
// day, whatever its hours.
#[test]
fn what_removed_runs_have_cost_on_their_days_is_told_apart() {
    let clock = Arc::new(ManualClock::new(NIGHT));
    let store = MemoryStore::new(clock.clone());
    let kept = serde_json::json!([{
        "run": 77, "upstream": "openai", "model": "gpt-4o-mini", "day": NIGHT.0.div_euclid(86_400_000_000), "calls": 3,
        "tokens": 9, "spent_nano_usd": 2_000_000, "doubt_nano_usd": 0, "unbacked_nano_usd": 0, "unpaid_calls": 1,
    }]);
    let put = rows::put(Table::Spend, "77", &kept, None).unwrap();
    store.run_verb(put, Durability::Synced).unwrap();
    let ground = Ground { host: "box".into(), here: None, page: None, logs: Box::new(|_| None) };
    let until = clock.now().plus_ms(1_000);
    let digest = gather(&store, &ground, NIGHT, until).unwrap();
    let total = spend::spend(&store, &[], NIGHT, until).unwrap().total;
    assert_eq!((digest.calls, digest.cost.billed.nano()), (0, 0));
    let gone = digest.removed.as_ref().unwrap();
    assert_eq!((gone.calls, gone.billed.nano()), (total.calls - total.unpaid_calls, total.spent_nano_usd));
    let told = text(&digest);
    assert!(
        told.contains(
            "0 calls, 0.00 usd billed\nremoved runs, on these days as a whole: 2 calls, 0.002 usd billed"
        ),
        "{told}"
    );
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
    for key in [
        "gpg.program",
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "core.sshCommand",
        "filter.x.clean",
        "filter.y.process",
    ] {
        git(&["config", key, &format!("touch {}; false", mark.display())]);
    }
    git(&["config", "log.showSignature", "true"]);
    git(&["config", "filter.y.required", "true"]);
    let all = (Micros(0), Micros(4_000_000_000_000_000));
    let found = checkout::commits(place.path(), None, all.0, all.1);
    assert_eq!((found.commits.len(), found.files.as_slice()), (1, &["a.rs".to_owned()][..]));
    assert!(found.commits[0].ends_with(" a: begin"), "{found:?}");
    assert_eq!(checkout::branch(place.path()).unwrap().name, "work");
    // Bug: what had been committed just before a run began was told as the run's. Cause: commits were told by git's times alone,
    // which are whole seconds.
    let head = checkout::head(place.path()).unwrap();
    assert_eq!(checkout::commits(place.path(), Some(&head), all.0, all.1), Commits::default());
    let gone = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(checkout::commits(place.path(), Some(gone), all.0, all.1), found, "another checkout by now");
    // A file of the same size has to be read, through the filter of its attributes.
    fs::write(place.path().join("a.rs"), "fn b() {}").unwrap();
    for filter in ["x", "y"] {
        fs::write(place.path().join(".gitattributes"), format!("*.rs filter={filter}\n")).unwrap();
        let changed = checkout::status(place.path(), &["--short"]).unwrap();
        assert_eq!(String::from_utf8(changed).unwrap(), " M a.rs\n?? .gitattributes\n");
    }
    assert!(!mark.exists());
}

// Bug: an imported run had died twice in `show`, and never in the digest. Cause: deaths were counted by the events of the
// store, and those of an imported run are in the store that it is from.
#[test]
fn an_imported_run_is_told_with_its_deaths() {
    let clock = Arc::new(ManualClock::new(NIGHT));
    let (from, to) = (MemoryStore::new(clock.clone()), MemoryStore::new(clock.clone()));
    let instance = from.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
    let run = from.run_verb(Start::new(RunId::new("r").unwrap()), Durability::Synced).unwrap().run;
    for (hour, then) in [(0, Then::Restart), (1, Then::Interrupt { by_person: false })] {
        clock.advance_ms(hour * 3_600_000);
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        let Claimed::Attempt { attempt, .. } = from.run_verb(claim, Durability::Synced).unwrap() else {
            panic!("not claimed")
        };
        let exit = Exit { signal: Some(9), ..Exit::default() };
        from.run_verb(EndAttempt { run, attempt, instance, exit, active_ms: 0, then }, Durability::Synced)
            .unwrap();
    }
    let runs = vec![whole::read(&from, from.run(run).unwrap().unwrap()).unwrap()];
    let import = Import { runs, identity: Identity::default(), bundle: None };
    to.run_verb(import, Durability::Synced).unwrap();
    let ground = Ground { host: "box".into(), here: None, page: None, logs: Box::new(|_| None) };
    for store in [&from, &to] {
        for (since, deaths) in [(NIGHT, 2), (NIGHT.plus_ms(1), 1)] {
            let digest = gather(store, &ground, since, clock.now().plus_ms(1)).unwrap();
            assert_eq!((digest.cost.deaths, digest.runs[0].how_it_died.len()), (deaths, deaths as usize));
        }
    }
    // Bug: the time of the whole run stood beside what it had cost in the digest's span.
    let digest = gather(&to, &ground, clock.now().plus_ms(-60_000), clock.now().plus_ms(1)).unwrap();
    assert!(text(&digest).contains("r: interrupted, 1 min, 1 death"), "{}", text(&digest));
}

// Bug: a fork's night was in no digest. Cause: it was taken for a part of its origin.
#[test]
fn a_fork_is_a_run_of_its_own() {
    let clock = Arc::new(ManualClock::new(NIGHT));
    let store = MemoryStore::new(clock.clone());
    let spec = Spec { name: Some("nightly".into()), ..Spec::default() };
    let start = Start { spec, ..Start::new(RunId::new("r").unwrap()) };
    let run = store.run_verb(start, Durability::Synced).unwrap().run;
    clock.advance_ms(10 * 3_600_000);
    let since = clock.now();
    let (point, id) = (Point::Seq(Seq(0)), RunId::new("f").unwrap());
    let fork = prepare(&store, run, &point, id, Limits::default()).unwrap();
    let fork = store.run_verb(fork, Durability::Synced).unwrap().run;
    let instance = store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap();
    let claim = Claim { run: fork, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
    store.run_verb(claim, Durability::Synced).unwrap();
    let ground = Ground { host: "box".into(), here: None, page: None, logs: Box::new(|_| None) };
    let digest = gather(&store, &ground, since, clock.now().plus_ms(1)).unwrap();
    let names: Vec<_> = digest.runs.iter().filter_map(|run| run.run.name.as_deref()).collect();
    assert_eq!(names, ["nightly-fork"], "{}", text(&digest));
}

#[test]
fn ends_that_have_no_room_are_told_to_be_left_out() {
    let told = |ends: &[&str]| {
        let ends: Vec<String> = ends.iter().map(|end| (*end).to_owned()).collect();
        newest_ends(&ends)
    };
    assert_eq!(told(&["a", "b", "b", "c"]), "a, b, c");
    assert_eq!(told(&["a", "b", "c", "d", "d"]), "…, b, c, d");
}
