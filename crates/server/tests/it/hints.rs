//! Waiters at one server for what is done at another. With a hint they go on without a look of their own; where every
//! hint is lost, they find it by looking.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    engine::{
        approval::{Asker, DecideApproval, RequestApproval},
        op::Actor,
    },
    journal::{
        approval::{EXPIRES_MS, Status},
        payload::Payload,
    },
    store::{Ask as _, Durability, News},
    words::id::Seq,
};
use outlast_server::api::approvals::decided;

use crate::{
    client::{Api, Ask},
    failing::Failing,
    reads::Follower,
    reattach::{ONE, STOP, USAGE, told, towards},
    rig::{Rig, Server, until, within},
};

const HOUR: Duration = Duration::from_secs(3600);

/// Two servers on one store: somebody waits at the first for what is done at the second.
struct Two {
    rig: Rig,
    store: Arc<Failing>,
    waits: Server,
    hinted: bool,
}

impl Two {
    async fn new(hinted: bool) -> Two {
        let (rig, store) = Rig::on(Failing::new).await;
        let waits = rig.serve().await;
        if hinted {
            waits.node.hints().pause_at_least(HOUR);
        }
        Two { rig, store, waits, hinted }
    }

    /// The second server has committed something: its hint comes, or is lost.
    fn committed(&self, news: News) {
        if self.hinted {
            self.store.hint(news);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_events_is_told_of_another_servers() {
    for hinted in [true, false] {
        let two = Two::new(hinted).await;
        let acts = two.rig.serve().await;
        let mut reader = Follower::start(&two.waits, "/v1/events?after=now", "").await;
        reader.until("event: cursor").await;
        // Several times: the reader may be looking anyway when one of them is done.
        for run in ["a", "b", "c", "d", "e"] {
            Api::Chat.says("one").run(run).to(&acts).await.ok();
            two.committed(News::EVENTS);
            within("the event", reader.until(&format!("\"run\":\"{run}\""))).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_progress_is_told_of_another_servers_write_of_the_state() {
    for hinted in [true, false] {
        let two = Two::new(hinted).await;
        let acts = two.rig.serve().await;
        let mut reader = Follower::start(&two.waits, "/v1/events?after=now&progress=true", "").await;
        reader.until("event: cursor").await;
        Ask::new("PUT", "/v1/state/notes/ann/plan").bytes("1").to(&acts).await.ok();
        two.committed(News::STATE);
        within("the change", reader.until("\"kind\":\"state_changed\"")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_follows_the_state_is_told_of_another_servers_commit() {
    for hinted in [true, false] {
        let two = Two::new(hinted).await;
        let acts = two.rig.serve().await;
        let write = Ask::new("PUT", "/v1/state/notes/ann/plan").bytes("1");
        write.to(&acts).await.ok();
        let follow = Ask::new("GET", "/v1/state/replay?namespace=notes&agent=ann&follow=true");
        let mut followed = follow.open(two.waits.addr).await;
        followed.read_until("\"commit\":1").await;
        write.to(&acts).await.ok();
        two.committed(News::STATE);
        within("the commit", followed.read_until("\"commit\":2")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_joins_another_servers_call_gets_the_answer_at_its_end() {
    for hinted in [true, false] {
        let two = Two::new(hinted).await;
        let (base, say) = told().await;
        let acts = two.rig.serve_with(towards(&two.rig, &base)).await;
        let ask = Api::Chat.streams("a question");
        say.send(ONE).unwrap();
        let first = ask.clone().label("one").open(acts.addr).await;
        let addr = two.waits.addr;
        let joins = tokio::spawn(async move { ask.label("two").open(addr).await.rest().await });
        let run = acts.run("r").run.no;
        let is_joined = || {
            let entry = two.waits.store.entry(run, Seq(1)).unwrap();
            entry.and_then(|e| e.call).is_some_and(|call| call.joined)
        };
        until("it has joined", is_joined).await;
        [STOP, USAGE].into_iter().for_each(|part| say.send(part).unwrap());
        drop(say);
        acts.closed("r", 1).await;
        two.committed(News::JOINED);
        let answer = within("the answer", joins).await.unwrap();
        assert!(answer.text().contains("one "), "{}", answer.text());
        drop(first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_person_goes_on_when_another_server_has_the_decision() {
    for hinted in [true, false] {
        let two = Two::new(hinted).await;
        let acts = two.rig.serve().await;
        Api::Chat.says("one").run("r").label("one").to(&two.waits).await.ok();
        let view = two.waits.run("r");
        let attempt = two.waits.store.attempts(view.run.no).unwrap().pop().unwrap();
        let instance = two.waits.node.instance();
        let request = RequestApproval {
            asker: Asker::Attempt {
                actor: Actor { run: view.run.no, attempt: attempt.no, instance },
                slot: attempt.slot,
            },
            key: None,
            tool: "deploy".into(),
            side_effect: None,
            arguments: Payload::encode(b"{}"),
            expires_ms: EXPIRES_MS,
        };
        let asked = two.waits.store.ask(request, Durability::Synced).await.unwrap();
        let (id, store, hints) = (asked.id.unwrap(), two.waits.store.clone(), two.waits.node.hints().clone());
        let until_then = tokio::time::Instant::now() + HOUR;
        let waiting = tokio::spawn(async move { decided(&*store, &hints, asked, until_then).await });
        if hinted {
            until("it listens", || two.store.hearers() == 1).await;
        }
        let by = "ann".to_owned();
        let decision = DecideApproval { id, digest: None, approve: true, reason: None, by };
        acts.store.ask(decision, Durability::Synced).await.unwrap();
        two.committed(News::EVENTS);
        let answer = within("the decision", waiting).await.unwrap().unwrap();
        assert_eq!(answer.status, Status::Approved);
    }
}
