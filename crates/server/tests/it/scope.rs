//! `X-Outlast-Scope`: a request that is made in an item or a step of its attempt.

use outlast_core::{
    engine::{
        item::{ClaimItem, ItemEnd, RecordItem},
        op::Actor,
        run::start::Start,
        step::{BeginStep, NextTry, Step},
    },
    envelope::unit::Unit,
    journal::{
        Opening, iteration_scope,
        job::{ItemClaim, ItemRun, OnChange},
        payload::Payload,
    },
    run::Spec,
    store::{Ask as _, Durability},
    words::id::{RunId, RunNo, Seq, Slot},
};
use outlast_mock as mock;

use crate::{
    client::{Api, Ask},
    rig::{Rig, Server},
};

/// A job's worker, as a Python process would be one.
struct Worker<'a> {
    server: &'a Server,
    token: String,
    actor: Actor,
}

impl Worker<'_> {
    async fn new<'a>(server: &'a Server, id: &str) -> Worker<'a> {
        let start = Start {
            spec: Spec { job: Some("enrich".into()), ..Spec::default() },
            ..Start::new(RunId::new(id).unwrap())
        };
        let run = server.store.ask(start, Durability::Synced).await.unwrap().run;
        Worker::again(server, id, run).await
    }

    /// The next attempt of the run.
    async fn again<'a>(server: &'a Server, id: &str, run: RunNo) -> Worker<'a> {
        let token = server.claim(id).await;
        let attempt = server.store.attempts(run).unwrap().last().unwrap().no;
        let actor = Actor { run, attempt, instance: server.node.instance() };
        Worker { server, token, actor }
    }

    async fn item(&self, key: &str) -> ItemRun {
        let claim = ClaimItem {
            actor: self.actor,
            slot: Slot::DRIVER,
            key: key.into(),
            index: 0,
            content: None,
            version: None,
            on_change: OnChange::Rerun,
            on_version: OnChange::Rerun,
            alone: false,
        };
        match self.server.store.ask(claim, Durability::Committed).await.unwrap() {
            ItemClaim::Run(item) => item,
            other => panic!("{other:?}"),
        }
    }

    async fn done(&self, seq: Seq) {
        let end = ItemEnd::Done(Payload::encode(b"x"));
        let entry = self.server.store.entry(self.actor.run, seq).unwrap().unwrap();
        let record = RecordItem { opening: Opening::of(&entry).unwrap(), end, changes: Vec::new() };
        self.server.store.ask(record, Durability::Synced).await.unwrap();
    }

    fn asks(&self, text: &str, within: Seq) -> Ask {
        self.plain(text).header("x-outlast-scope", &within.to_string())
    }

    fn plain(&self, text: &str) -> Ask {
        let bearer = format!("Bearer {}", self.token);
        Api::Chat.says(text).without("x-outlast-run").header("authorization", &bearer)
    }

    fn cost(&self, seq: Seq) -> i64 {
        self.server.store.entry(self.actor.run, seq).unwrap().unwrap().spent.cost()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_charged_to_the_item_it_is_made_in_and_the_header_goes_no_further() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let worker = Worker::new(&server, "r").await;
    let item = worker.item("a").await;
    worker.asks("one", item.opening.seq).to(&server).await.ok();
    worker.plain("two").to(&server).await.ok();
    let spent = server.store.run(worker.actor.run).unwrap().unwrap().envelope.spent;
    assert_eq!(spent[Unit::Calls], 2);
    assert!(worker.cost(item.opening.seq) > 0 && worker.cost(item.opening.seq) < spent.cost());
    for sent in rig.mock.requests() {
        assert!(sent.headers.keys().all(|name| !name.as_str().starts_with("x-outlast")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outside_an_open_item_of_its_attempt_is_refused() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let worker = Worker::new(&server, "r").await;
    let over = worker.item("over").await.opening.seq;
    worker.done(over).await;
    let old = worker.item("a").await.opening.seq;
    let next = Worker::again(&server, "r", worker.actor.run).await;
    for within in [over, old, Seq(99)] {
        let answer = next.asks("one", within).to(&server).await;
        assert_eq!(answer.status, 403, "{within}");
        assert_eq!(answer.headers["x-outlast-code"], "not_within");
    }
    let bad = next.plain("one").header("x-outlast-scope", "here").to(&server).await;
    assert_eq!((bad.status.as_u16(), &bad.headers["x-outlast-code"]), (400, &"bad_scope".parse().unwrap()));
    assert_eq!(next.item("a").await.opening.seq, old, "it moved to the new attempt");
    next.asks("one", old).to(&server).await.ok();
    assert_eq!(rig.mock.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_caller_names_no_scope() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let answer = Api::Chat.says("one").header("x-outlast-scope", "1").to(&server).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.headers["x-outlast-code"], "scope_without_token");
    assert_eq!(rig.mock.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_was_cut_off_replays_and_one_that_raised_pays_again() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let old = Worker::new(&server, "r").await;
    let (cut, of_raised) = (old.item("cut").await.opening.seq, old.item("raised").await.opening);
    let raised = of_raised.seq;
    for item in [cut, raised] {
        old.asks("the same", item).to(&server).await.ok();
    }
    assert_eq!(rig.mock.requests().len(), 2, "each item has its own");
    let next = NextTry { actor: old.actor, slot: Slot::DRIVER, opening: of_raised };
    server.store.ask(next, Durability::Committed).await.unwrap();
    let new = Worker::again(&server, "r", old.actor.run).await;
    for (key, item, requests) in [("cut", cut, 2), ("raised", raised, 3)] {
        new.item(key).await;
        new.asks("the same", item).to(&server).await.ok();
        assert_eq!(rig.mock.requests().len(), requests, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_step_shares_the_scope_of_its_iteration() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let old = Worker::new(&server, "r").await;
    let begin = |actor| BeginStep {
        actor,
        slot: Slot::DRIVER,
        scope: iteration_scope(0),
        key: "fetch".into(),
        within: None,
        retries: false,
        at_most_once: false,
    };
    let Step::Run { opening: Opening { seq, .. }, .. } =
        server.store.ask(begin(old.actor), Durability::Committed).await.unwrap()
    else {
        panic!("not begun")
    };
    old.asks("one", seq).to(&server).await.ok();
    let new = Worker::again(&server, "r", old.actor.run).await;
    new.plain("one").to(&server).await.ok();
    assert_eq!(rig.mock.requests().len(), 1, "it was replayed");
    assert!(old.cost(seq) > 0);
}
