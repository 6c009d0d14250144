//! Reads show only committed data, page by page.

use std::collections::BTreeMap;

use outlast_core::{
    engine::{
        call::settle::{Bill, Close},
        run::{end_attempt::Then, process::Register, start::Start},
        state::transaction::Conflicts,
    },
    envelope::unit::{Limits, MOST_PER_CALL},
    journal::{Kind, Role, payload::Payload},
    run::{
        Command, Grpc, PriceFile, Prices, Spec, instance::Identity, masks::Masks, rules::Rules,
        status::Status,
    },
    store::{LedgerLine, RunFilter, Sought},
    words::{
        id::{EnvelopeNo, InstanceNo, RunNo, Seq},
        usage::{ServiceTier, Usage},
    },
};

use crate::{
    agent::*,
    stage::{FOREVER, Stage},
};

fn ids(s: &Stage, filter: RunFilter) -> Vec<String> {
    s.store().runs(&filter).unwrap().iter().map(|v| v.run.id.to_string()).collect()
}

fn page(limit: usize) -> RunFilter {
    RunFilter { limit, ..RunFilter::default() }
}

pub fn what_is_not_there_is_none(s: &Stage) {
    let store = s.store();
    assert!(store.run(RunNo(7)).unwrap().is_none());
    assert!(store.envelope(EnvelopeNo(7)).unwrap().is_none());
    assert!(store.instance(InstanceNo(7)).unwrap().is_none());
    assert!(store.entry(RunNo(7), Seq(1)).unwrap().is_none());
    assert!(store.newest(RunNo(7), &Sought::done(Kind::Step, "x")).unwrap().is_none());
    assert!(store.newest_request(RunNo(7)).unwrap().is_none());
    assert!(store.state("ns", "agent", "key").unwrap().is_none());
    assert_eq!(store.attempts(RunNo(7)).unwrap(), []);
    assert_eq!(store.entries(RunNo(7), Seq(0), 10).unwrap(), []);
    assert_eq!(store.payload(RunNo(7), Seq(1), Role::Answer).unwrap(), None);
    assert_eq!(store.runs(&page(10)).unwrap(), []);
    assert_eq!(store.live_instances().unwrap(), []);
    assert_eq!(store.ledger(outlast_core::words::id::Micros(0), FOREVER).unwrap(), []);
}

pub fn runs_are_listed_newest_first_and_by_page(s: &Stage) {
    for id in ["a", "b", "c", "d"] {
        s.run(id).create();
    }
    assert_eq!(ids(s, page(10)), ["d", "c", "b", "a"]);
    assert_eq!(ids(s, page(3)), ["d", "c", "b"]);
    let last = s.store().runs(&page(3)).unwrap()[2].run.no;
    assert_eq!(ids(s, RunFilter { before: Some(last), ..page(3) }), ["a"]);
    assert_eq!(ids(s, page(0)), [] as [&str; 0]);
}

pub fn runs_are_found_by_status_and_by_command(s: &Stage) {
    let process = s.process("p");
    for (id, key) in [("a", "k1"), ("b", "k2"), ("c", "k1")] {
        let mut new = s.run(id);
        new.start.command_key = Some(key.into());
        new.create();
    }
    let running = s.store().run_no(&outlast_core::words::id::RunId::new("c").unwrap()).unwrap().unwrap();
    process.claim(running);
    let by = |status, key: Option<&str>| {
        ids(s, RunFilter { status, command_key: key.map(str::to_owned), ..page(10) })
    };
    assert_eq!(by(None, Some("k1")), ["c", "a"]);
    assert_eq!(by(Some(Status::Running), None), ["c"]);
    assert_eq!(by(Some(Status::Interrupted), Some("k1")), ["a"]);
    assert_eq!(by(Some(Status::Failed), None), [] as [&str; 0]);
    assert_eq!(by(None, Some("k9")), [] as [&str; 0]);
    assert_eq!(s.store().statuses().unwrap(), [(Status::Running, 1), (Status::Interrupted, 2)]);
}

pub fn runs_are_found_by_a_word_that_may_mean_them(s: &Stage) {
    for (id, name) in [("run_1", "night 1"), ("run_2", "night 10"), ("run_3", "a \"night\""), ("night", "")] {
        let mut new = s.run(id);
        new.start.spec.name = Some(name.to_owned()).filter(|name| !name.is_empty());
        new.start.spec.tags = [("of".to_owned(), "night 10".to_owned())].into();
        new.create();
    }
    let check = |word: &str, wanted: &[&str]| {
        let found = ids(s, RunFilter { limit: 10, ..RunFilter::of_word(word) });
        assert_eq!(found, wanted, "{word}");
    };
    check("night 1", &["run_2", "run_1"]);
    check("night 10", &["run_2"]);
    check("night", &["night", "run_2", "run_1"]);
    check("a \"night\"", &["run_3"]);
    check("1", &["run_1"]);
    check("run_", &["run_3", "run_2", "run_1"]);
    check("%", &[]);
    let second = RunFilter { limit: 1, ..RunFilter::of_word("run_") };
    let first = s.store().runs(&second).unwrap()[0].run.no;
    assert_eq!(ids(s, RunFilter { before: Some(first), ..second }), ["run_2"]);
}

pub fn what_was_said_of_a_run_is_kept(s: &Stage) {
    let spec = Spec {
        masks: Some(Masks {
            leave_out: vec!["/seed".into()],
            masks: [("day".to_owned(), r"\d{4}".to_owned())].into(),
        }),
        name: Some("nightly research".into()),
        tags: BTreeMap::from([("team".into(), "search".into())]),
        command: Some(Command {
            argv: vec!["python".into(), "agent.py".into(), "".into()],
            directory: "/srv/agents".into(),
            umask: 0o022,
            env: BTreeMap::from([("PATH".into(), "/bin".into())]),
            stdin_kept: true,
            state_file: Some("/srv/state.json".into()),
            agent: None,
            ..Command::default()
        }),
        upstreams: BTreeMap::from([("openai".into(), "https://api.example".into())]),
        keys: vec!["OPENAI_API_KEY".into()],
        login: Some("claude.ai".into()),
        plan: "5h=40%,week=15%".parse().ok(),
        limits: Some(Limits::default()),
        prices: Some(Prices {
            hash: "abc".into(),
            file: Some(PriceFile { path: "/srv/prices.json".into(), text: "{}\n".into() }),
        }),
        job: None,
        grpc: Some(Grpc { address: "127.0.0.1:50051".into(), conflicts: Conflicts::FirstCommitter }),
        rules: Some(Rules {
            policy: "careful".into(),
            tools: Some(vec!["search".into()]),
            require: Vec::new(),
        }),
        directory: Some("/srv/agents".into()),
        files: None,
    };
    let stdin = Some(Payload::encode(b"the input\n"));
    let start = Start { spec: spec.clone(), stdin, ..s.run("r").start };
    let run = s.ask(start).unwrap().run;
    s.reopen();
    assert_eq!(s.view(run).spec, spec);
    let stdin = s.store().payload(run, Seq(0), Role::Stdin).unwrap();
    assert_eq!(stdin.unwrap().decode().unwrap(), b"the input\n".as_slice());
}

pub fn a_journal_is_read_in_order_and_by_page(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    for i in 0..5 {
        a.call(&format!("call {i}"));
    }
    let other = a.process.claim(s.run("other").create());
    other.call("x");
    let seqs = |after, limit| -> Vec<i64> {
        s.store().entries(a.run, Seq(after), limit).unwrap().iter().map(|e| e.seq.0).collect()
    };
    assert_eq!(seqs(0, 3), [1, 2, 3]);
    assert_eq!(seqs(3, 3), [4, 5]);
    assert_eq!(seqs(5, 3), [] as [i64; 0]);
    assert_eq!(s.store().entry(a.run, Seq(4)).unwrap().unwrap().seq, Seq(4));
}

pub fn attempts_are_read_oldest_first(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").create();
    for _ in 0..3 {
        process.claim(run).ends(Then::Restart);
    }
    let attempts: Vec<i64> = s.store().attempts(run).unwrap().iter().map(|a| a.no.0).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

pub fn the_newest_done_entry_of_a_key_is_found_in_any_scope(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    for scope in ["item:1:try:1", "item:2:try:1"] {
        let item = a.within(scope);
        let seq = item.begins("step");
        item.ask(item.record(seq, scope)).unwrap();
    }
    a.begins("step");
    let found = s.store().newest(a.run, &Sought::done(Kind::Step, "step")).unwrap().unwrap();
    assert_eq!((found.seq, &*found.scope), (Seq(2), "item:2:try:1"));
}

pub fn the_newest_request_is_the_newest_that_was_kept(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let ask = |text: &str, kept: bool| {
        let mut request = a.request(text);
        request.admit.request = kept.then(|| Payload::encode(text.as_bytes()));
        request.goes()
    };
    ask("one", true);
    let two = ask("two", true);
    ask("three", false);
    assert_eq!(s.store().newest_request(a.run).unwrap(), Some(two));
}

pub fn the_ledger_sums_calls_by_run_model_and_day(s: &Stage) {
    let process = s.process("p");
    let (a, b) = (process.claim(s.run("a").create()), process.claim(s.run("b").create()));
    a.buys("one", 10);
    a.buys("two", 20);
    let mut other = a.request("three");
    other.admit.model = "model-b".into();
    let seq = other.goes();
    a.done(seq, 40);
    let lost = b.call("lost");
    b.lost(lost);
    b.call("in flight");
    b.begins("no call");
    let fee = b.request("with a tool").with_fee("web_search").goes();
    b.done(fee, 5);
    let now = s.store().now().unwrap();
    let day = now.0.div_euclid(86_400_000_000);
    let mut lines = s.store().ledger(outlast_core::words::id::Micros(0), FOREVER).unwrap();
    lines.sort_by_key(|l| (l.run, l.model.clone()));
    let had: Vec<_> = lines
        .iter()
        .map(|l| (l.run, l.model.as_str(), l.calls, l.tokens, l.spent_nano_usd, l.doubt_nano_usd))
        .collect();
    let want = [
        (a.run, "model-a", 2, 30, 30, 0),
        (a.run, "model-b", 1, 40, 40, 0),
        (b.run, "model-a", 2, 5, 5, FULL),
    ];
    assert_eq!(had, want);
    assert_eq!(lines.iter().map(|l| l.unpriced_calls).collect::<Vec<_>>(), [0, 0, 1]);
    assert!(lines.iter().all(|l| l.day == day));
    // A run that goes takes its entries with it, and its lines are summed from them.
    let entries = [a.run, b.run].into_iter().flat_map(|run| s.store().entries(run, Seq(0), 100).unwrap());
    assert_eq!(LedgerLine::sum(entries.filter_map(|e| LedgerLine::of(&e))), lines);
}

/// Whatever became of the calls: what was paid, lost, found again, repeated, refunded or billed beyond its bound.
pub fn the_ledger_adds_up_to_what_budgets_say(s: &Stage) {
    crate::budgets::set(s, "team", outlast_core::envelope::unit::Unit::CostNanoUsd, 1_000 * FULL);
    let top = s.run("top").tag("team", "a").create();
    let child = s.run("child").under(top).create();
    let refund = s.run("refund").tag("team", "a").in_doubt(outlast_core::run::InDoubt::Refund).create();
    let runs = [top, child, refund];
    for run in runs {
        let agent = s.process("p").claim(run);
        agent.buys("paid", 70);
        let overrun = agent.call("overrun");
        agent.done(overrun, FULL + 7);
        let failed = agent.call("failed");
        agent.failed(failed);
        let void = agent.call("void");
        agent.void(void);
        let repeated = agent.call("repeated");
        agent.lost(repeated);
        let retry = agent.call("repeated");
        agent.done(retry, 30);
        let late = agent.call("late");
        agent.lost(late);
        agent.done(late, 11);
        let lost = agent.call("lost");
        agent.lost(lost);
    }
    let lines = s.store().ledger(outlast_core::words::id::Micros(0), FOREVER).unwrap();
    let sum = |of: &[RunNo]| -> (i64, i64, i64) {
        let mine = lines.iter().filter(|l| of.contains(&l.run));
        mine.fold((0, 0, 0), |sum, l| (sum.0 + l.spent_nano_usd, sum.1 + l.doubt_nano_usd, sum.2 + l.calls))
    };
    let said = |e: &outlast_core::envelope::Envelope| {
        (e.spent.cost(), e.doubt.cost(), e.spent[outlast_core::envelope::unit::Unit::Calls])
    };
    assert_eq!(sum(&[top, child]), said(&s.envelope(top)));
    assert_eq!(sum(&[child]), said(&s.envelope(child)));
    assert_eq!(sum(&[refund]), said(&s.envelope(refund)));
    assert_eq!(sum(&runs), said(&crate::budgets::window(s, "team")));
    assert!(lines.iter().all(|l| l.upstream == "openai"), "{lines:?}");
    for run in runs {
        let entries = s.store().entries(run, Seq(0), 100).unwrap();
        let unbacked: i64 = entries.iter().map(|e| e.unbacked().cost()).sum();
        assert_eq!(lines.iter().filter(|l| l.run == run).map(|l| l.unbacked_nano_usd).sum::<i64>(), unbacked);
        assert_eq!(unbacked > 0, run == refund, "only the refunded are held by nothing");
    }
}

/// Bug: a provider's reports of 2^63 tokens made `spend` fail for the whole store.
/// Consequence: no account of any run.
/// Cause: sums of 64 bits overflowed.
pub fn a_report_beyond_reason_breaks_no_sum(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    for text in ["one", "two", "three"] {
        let seq = a.call(text);
        let usage = Usage { output: u64::MAX, ..Usage::default() };
        let (tier, price_hash) = (ServiceTier::Standard, "test".into());
        let bill = Bill::Usage { usage, tier, cost_nano_usd: i64::MAX, price_hash };
        a.ask(a.settle(seq, Close::Done(bill))).unwrap();
    }
    let lines = s.store().ledger(outlast_core::words::id::Micros(0), FOREVER).unwrap();
    let most = 3 * MOST_PER_CALL;
    assert_eq!((lines[0].spent_nano_usd, lines[0].tokens), (most, most));
    assert_eq!(s.envelope(a.run).spent.cost(), most);
}

pub fn the_ledger_is_cut_by_time(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let first = s.store().now().unwrap();
    a.buys("one", 10);
    s.advance_ms(24 * 3600 * 1000);
    let second = s.store().now().unwrap();
    a.buys("two", 20);
    let spent = |since, until| -> Vec<(i64, i64)> {
        let mut lines = s.store().ledger(since, until).unwrap();
        lines.sort_by_key(|l| l.day);
        lines.iter().map(|l| (l.day, l.spent_nano_usd)).collect()
    };
    let day = first.0.div_euclid(86_400_000_000);
    assert_eq!(spent(first, FOREVER), [(day, 10), (day + 1, 20)]);
    assert_eq!(spent(first, second), [(day, 10)]);
    assert_eq!(spent(second, FOREVER), [(day + 1, 20)]);
}

pub fn instances_are_read_as_they_registered(s: &Stage) {
    let identity = Identity {
        host: "host".into(),
        boot_id: "boot".into(),
        pid_ns: u64::MAX,
        pid: 7,
        start_time: u64::MAX - 1,
        program: "outlast run".into(),
    };
    let no = s.ask(Register { identity: identity.clone() }).unwrap();
    s.reopen();
    let row = s.store().instance(no).unwrap().unwrap();
    assert_eq!((row.identity, row.heartbeat), (identity, 0));
    assert_eq!(s.store().live_instances().unwrap().len(), 1);
}

pub fn token_keys_outlive_the_process(s: &Stage) {
    let keys = s.store().token_keys().unwrap();
    assert!(!keys.is_empty());
    s.reopen();
    let again = s.store().token_keys().unwrap();
    assert!(keys.iter().zip(&again).all(|(a, b)| a.id == b.id && a.secret == b.secret));
    assert!(!s.store().place().is_empty());
}
