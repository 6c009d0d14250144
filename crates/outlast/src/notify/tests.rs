//! Deliveries to an endpoint that is down half the time, by processes that are killed.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
};

use outlast_core::{
    engine::{
        AwaitProvider, Claim, DeclareDead, EndAttempt, ProviderAnswered, Register, Start, Tell, Word,
        run::end_attempt::Then,
    },
    events::Kind,
    memory::MemoryStore,
    run::{Exit, Identity},
    words::{Cause, Clock as _, ManualClock, Outage, RunId, Slot},
};
use outlast_server::notify::{Secret, Target};
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::notify::endpoint::Shape;

fn network() -> Network {
    Network::of(&|_| None).unwrap()
}

fn ground() -> Ground {
    Ground { host: "box".into(), here: None, page: Some("https://box/".into()), logs: Box::new(|_| None) }
}

/// Webhook of a test: it answers as `answers` says, and keeps what it took.
struct Hook {
    address: SocketAddr,
    taken: Arc<Mutex<Vec<(String, String)>>>,
}

impl Hook {
    fn start(mut answers: impl FnMut() -> u16 + Send + 'static) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, taken) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default());
        let keep = taken.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let (mut line, mut head) = (String::new(), BTreeMap::new());
                while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                    if let Some((name, value)) = line.trim_end().split_once(": ") {
                        head.insert(name.to_lowercase(), value.to_owned());
                    }
                    line.clear();
                }
                // A connection that was cut before its request was whole.
                let Some(id) = head.get("webhook-id").cloned() else { continue };
                let length = head.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_err() {
                    continue;
                }
                let status = answers();
                if status == 200 {
                    let body = String::from_utf8(body).unwrap();
                    keep.lock().push((id, body));
                }
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nlocation: http://{address}/else\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                let _ = reader.get_mut().write_all(answer.as_bytes());
            }
        });
        Hook { address, taken }
    }

    fn taken(&self) -> Vec<(String, String)> {
        self.taken.lock().clone()
    }

    fn notify(&self) -> Notify {
        let to = Target::parse(&format!("http://{}/hook", self.address)).unwrap();
        let secret = Some(Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let way = Way::Post { to, shape: Shape::Webhook, secret };
        let topics = vec![Topic::Cancelled, Topic::Outage, Topic::OutageEnded, Topic::Digest];
        let endpoint = Endpoint { name: "hook".into(), way, topics, run: None };
        Notify { endpoints: vec![endpoint], ..Notify::default() }
    }
}

struct Scene {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
}

impl Scene {
    fn new() -> Scene {
        let clock = Arc::new(ManualClock::new(Micros(1_700_000_000_000_000)));
        Scene { store: Arc::new(MemoryStore::new(clock.clone())), clock }
    }

    fn process(&self) -> InstanceNo {
        self.store.run_verb(Register { identity: Identity::default() }, Durability::Synced).unwrap()
    }

    fn dies(&self, instance: InstanceNo) {
        let heartbeat_seen = self.store.instance(instance).unwrap().unwrap().heartbeat;
        self.store
            .run_verb(DeclareDead { instance, heartbeat_seen, left: false, heir: None }, Durability::Synced)
            .unwrap();
    }

    /// A run is created and cancelled: one message.
    fn news(&self, id: &str) {
        let run = self.store.run_verb(Start::new(RunId::new(id).unwrap()), Durability::Synced).unwrap().run;
        self.store.run_verb(Tell { run, word: Word::Cancel { reason: None } }, Durability::Synced).unwrap();
    }

    /// A run is created, and driven by a process.
    fn running(&self, id: &str, instance: InstanceNo) -> RunNo {
        let run = self.store.run_verb(Start::new(RunId::new(id).unwrap()), Durability::Synced).unwrap().run;
        self.claims(run, instance);
        run
    }

    fn claims(&self, run: RunNo, instance: InstanceNo) {
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        self.store.run_verb(claim, Durability::Synced).unwrap();
    }

    /// The provider of a run answers no call.
    fn waits(&self, run: RunNo) {
        self.is_out(run, Cause::Failing(529));
    }

    fn is_out(&self, run: RunNo, cause: Cause) {
        let outage = Outage { upstream: "openai".into(), cause };
        self.store.run_verb(AwaitProvider { run, outage }, Durability::Synced).unwrap();
    }

    fn answers(&self, run: RunNo) {
        let answered = ProviderAnswered { run, upstream: "openai".into(), sent_ago_ms: 0 };
        self.store.run_verb(answered, Durability::Synced).unwrap();
    }

    /// Ids of the messages that have to arrive.
    fn wanted(&self) -> Vec<String> {
        let all = self.store.events(&EventQuery { limit: 100_000, ..EventQuery::default() }).unwrap();
        let cancelled = all.iter().filter(|e| e.kind == Kind::Status);
        cancelled.map(|e| format!("evt_0_{}_hook", e.mark.no)).collect()
    }

    fn standing(&self) -> Delivery {
        self.store.deliveries().unwrap().remove(0)
    }
}

#[tokio::test]
async fn nothing_is_lost_to_an_endpoint_that_fails_half_the_time_and_to_deliverers_that_are_killed() {
    let scene = Scene::new();
    let mut turn = 0_u32;
    let hook = Hook::start(move || {
        turn += 1;
        if turn.is_multiple_of(2) { 503 } else { 200 }
    });
    let first = scene.process();
    Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || first).round().await;
    // The endpoint is known from now on: nobody delivers while these happen.
    scene.dies(first);
    (0..200).for_each(|n| scene.news(&format!("run-{n}")));
    let wanted = scene.wanted();
    assert_eq!(wanted.len(), 200);
    let mut kills = 0;
    while wanted.iter().any(|id| !hook.taken().iter().any(|(had, _)| had == id)) {
        let me = scene.process();
        let deliverer = Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
        // Cut anywhere: between a message and the commit that records it, too. Later each time the span was gone through, so
        // that a slow machine comes to an end as well.
        let cut = Duration::from_millis(3 + kills % 40 * (1 + kills / 40));
        let _ = tokio::time::timeout(cut, async { while deliverer.round().await {} }).await;
        scene.dies(me);
        scene.clock.advance_ms(60_000);
        kills += 1;
    }
    let mut bodies: BTreeMap<String, String> = BTreeMap::new();
    for (id, body) in hook.taken() {
        assert!(wanted.contains(&id), "{id} was never to be sent");
        let before = bodies.insert(id, body.clone());
        assert!(before.is_none_or(|before| before == body), "one id is one message");
    }
    assert_eq!(scene.standing().dead, []);
}

#[tokio::test]
async fn a_living_deliverer_is_left_alone_and_a_dead_one_is_replaced() {
    let scene = Scene::new();
    let hook = Hook::start(|| 200);
    let (a, b) = (scene.process(), scene.process());
    let of = |me| Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
    of(a).round().await;
    scene.news("r");
    of(b).round().await;
    assert_eq!((hook.taken().len(), scene.standing().holder), (0, Some(a)));
    scene.dies(a);
    of(b).round().await;
    assert_eq!((hook.taken().len(), scene.standing().holder), (1, Some(b)));
    of(b).round().await;
    assert_eq!(hook.taken().len(), 1, "delivered once");
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_what_stays_refused_is_given_up_until_a_person_retries() {
    let scene = Scene::new();
    let hook = Hook::start(|| 302);
    let me = scene.process();
    let deliverer = Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
    deliverer.round().await;
    scene.news("r");
    for _ in 0..MOST_TRIES {
        deliverer.round().await;
        scene.clock.advance_ms(u64::try_from(LONGEST_PAUSE_MS).unwrap());
    }
    let mut standing = scene.standing();
    assert_eq!((standing.waiting.len(), standing.dead.len(), standing.delivered), (0, 1, 0));
    assert!(standing.dead[0].why.contains("redirects are not followed"), "{}", standing.dead[0].why);
    assert_eq!(hook.taken(), []);
    assert_eq!(standing.retry(scene.clock.now()), 1);
    assert!(scene.store.run_verb(PutDelivery { delivery: standing }, Durability::Synced).unwrap());
    deliverer.round().await;
    assert_eq!((scene.standing().waiting.len(), scene.standing().waiting[0].tries), (1, 1));
}

// Bug: `notify retry` in a loop kept messages from being told as delivered, and they were sent again and again. Cause: a
// standing that somebody else wrote while messages were sent made the deliverer drop what it had done.
#[tokio::test]
async fn a_person_who_retries_while_messages_are_sent_keeps_none_from_being_recorded() {
    let scene = Scene::new();
    let (store, now) = (scene.store.clone(), scene.clock.now());
    let hook = Hook::start(move || {
        let mut standing = store.deliveries().unwrap().remove(0);
        standing.retry(now);
        assert!(store.run_verb(PutDelivery { delivery: standing }, Durability::Synced).unwrap());
        200
    });
    let me = scene.process();
    let deliverer = Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
    deliverer.round().await;
    (0..30).for_each(|n| scene.news(&format!("run-{n}")));
    while deliverer.round().await {}
    deliverer.round().await;
    let mut ids: Vec<String> = hook.taken().into_iter().map(|(id, _)| id).collect();
    ids.sort();
    let mut wanted = scene.wanted();
    wanted.sort();
    assert_eq!(ids, wanted, "each once");
    assert_eq!((scene.standing().delivered, scene.standing().waiting.len()), (30, 0));
}

fn titles(hook: &Hook) -> Vec<String> {
    let bodies = hook.taken().into_iter().map(|(_, body)| serde_json::from_str::<Value>(&body).unwrap());
    bodies.map(|body| body["data"]["title"].as_str().unwrap().to_owned()).collect()
}

// Bug: one outage of a provider was as many messages as runs waited, and as many again when it answered.
#[tokio::test]
async fn one_outage_is_one_message_and_so_is_its_end_however_many_runs_wait() {
    let scene = Scene::new();
    let hook = Hook::start(|| 200);
    let me = scene.process();
    let deliverer = Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
    deliverer.round().await;
    let runs: Vec<RunNo> = ["a", "b", "c"].map(|id| scene.running(id, me)).to_vec();
    for run in &runs {
        scene.waits(*run);
        deliverer.round().await;
    }
    runs.iter().for_each(|run| scene.answers(*run));
    deliverer.round().await;
    assert_eq!(titles(&hook), ["a: its provider is out", "c: its provider answers again"]);
    // A run whose process died while it waited keeps nobody else's outage from being told.
    scene.waits(runs[0]);
    deliverer.round().await;
    scene
        .store
        .run_verb(Tell { run: runs[0], word: Word::Cancel { reason: None } }, Durability::Synced)
        .unwrap();
    scene.waits(runs[1]);
    deliverer.round().await;
    assert_eq!(titles(&hook)[2..], ["a: its provider is out", "a: cancelled", "b: its provider is out"]);
}

// Bug: an outage was told by its first cause alone, and its end was told by the supervisor alone that had met it.
// Consequence: nobody heard in the night that credit was missing, nor that a run went on which another process had taken up.
// Cause: only another provider was a new outage, and a run whose process died was forgotten.
#[tokio::test]
async fn a_cause_that_needs_a_person_is_told_once_when_it_comes_and_the_end_whoever_drives_the_run_then() {
    let scene = Scene::new();
    let hook = Hook::start(|| 200);
    let (me, first, second) = (scene.process(), scene.process(), scene.process());
    let deliverer = Deliverer::new(scene.store.clone(), hook.notify(), ground(), &network(), move || me);
    deliverer.round().await;
    let run = scene.running("a", first);
    let no_connection = Cause::NoConnection;
    for cause in
        [no_connection, Cause::Failing(529), Cause::QuotaEnded(429), no_connection, Cause::QuotaEnded(429)]
    {
        scene.is_out(run, cause);
        deliverer.round().await;
    }
    assert_eq!(titles(&hook), ["a: its provider is out", "a: its provider needs a person"]);
    let asked: Value = serde_json::from_str(&hook.taken()[1].1).unwrap();
    let text = asked["data"]["text"].as_str().unwrap();
    assert!(text.contains("the quota has ended (429)") && text.contains("add credit at openai"), "{text}");
    scene.dies(first);
    deliverer.round().await;
    scene.claims(run, second);
    deliverer.round().await;
    scene.is_out(run, Cause::QuotaEnded(429));
    scene.answers(run);
    deliverer.round().await;
    assert_eq!(titles(&hook)[2..], ["a: its provider answers again"]);
    assert_eq!(scene.standing().asked.len(), 0, "the next outage asks anew");
    // What a supervisor that is ended by its machine leaves is no answer of the provider.
    scene.waits(run);
    deliverer.round().await;
    let attempt = scene.store.attempts(run).unwrap().last().unwrap().no;
    let then = Then::Interrupt { by_person: false };
    let end = EndAttempt { run, attempt, instance: second, exit: Exit::default(), active_ms: 0, then };
    scene.store.run_verb(end, Durability::Synced).unwrap();
    deliverer.round().await;
    assert_eq!(titles(&hook)[3..], ["a: its provider is out"]);
}

#[tokio::test]
async fn a_digest_is_sent_once_a_day_by_whichever_process_delivers_and_tried_again_where_it_fails() {
    // 2023-11-14 22:13:20 UTC.
    let scene = Scene::new();
    let mut turn = 0;
    let hook = Hook::start(move || {
        turn += 1;
        if turn == 1 { 503 } else { 200 }
    });
    let notify = || Notify { digest: time::parse_clock("23:00"), ..hook.notify() };
    let (a, b) = (scene.process(), scene.process());
    let of = |me| Deliverer::new(scene.store.clone(), notify(), ground(), &network(), move || me);
    of(a).round().await;
    scene.running("nightly", b);
    assert_eq!(hook.taken(), [], "what was before is not told, and it is not time");
    scene.clock.advance_ms(3_600_000);
    of(a).round().await;
    assert_eq!((hook.taken().len(), scene.standing().digests.tries), (0, 1), "the endpoint was down");
    scene.dies(a);
    for _ in 0..3 {
        scene.clock.advance_ms(60_000);
        of(b).round().await;
    }
    let taken = hook.taken();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0].0, "digest_1700002800000000_hook");
    let body: Value = serde_json::from_str(&taken[0].1).unwrap();
    assert_eq!((&body["type"], &body["data"]["title"]), (&"digest".into(), &"box: 1 goes on".into()));
    assert_eq!(body["data"]["digest"]["runs"][0]["link"], "https://box/#/run/nightly");
    scene.clock.advance_ms(24 * 3_600_000);
    of(b).round().await;
    assert_eq!(hook.taken().len(), 2, "the next day has its own");
}
