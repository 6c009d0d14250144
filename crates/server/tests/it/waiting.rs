//! Busy waiting, replayed: the waits of Codex's issue 36396 (6,932 looks of 30 s at processes of its own, each a call that
//! sends the whole conversation) by a client that does what the fake provider's script says, through a proxy that holds.
//! Time is simulated: looks, tools and answers move the clock on.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use outlast_core::{
    engine::run::start::Start,
    run::{NoProgress, Policy},
    store::{Ask as _, Durability},
    words::{clock::Clock as _, id::RunId},
};
use outlast_mock as mock;
use outlast_server::{
    door::{Config, Seen},
    node::Node,
};
use serde_json::{Value, json};

use crate::{
    client::Api,
    rig::{Rig, Server, TestClock},
};

/// Looks for which each process is waited for: from an hour to a day and a half, 6,932 in all.
const WAITS: [i64; 4] = [250, 720, 1_498, 4_464];

/// Time of a look of the tool, in milliseconds; it returns earlier if its process ends.
const LOOK_MS: i64 = 30_000;

/// Time of a call at the provider, in milliseconds.
const CALL_MS: i64 = 3_000;

/// Process groups of the agent: a shell of its own, and the process that it waits for.
const SHELL: u32 = 7;
const AWAITED: u32 = 42;

/// Clock and fate of the awaited process, which the proxy's looks and the agent share.
struct World {
    clock: Arc<TestClock>,
    node: OnceLock<Arc<Node>>,
    /// Time at which the awaited process ends, by the monotonic clock.
    ends_ms: AtomicI64,
    looks: AtomicUsize,
}

impl World {
    fn now_ms(&self) -> i64 {
        self.clock.monotonic_ms() as i64
    }

    fn left_ms(&self) -> i64 {
        self.ends_ms.load(Ordering::SeqCst) - self.now_ms()
    }

    /// The proxy's look: some time passes between two of them, a second where it counts.
    fn groups(&self) -> BTreeSet<u32> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.clock.advance_ms(if self.left_ms() > 62_000 { 60_000 } else { 1_000 });
        if let Some(node) = self.node.get() {
            // No lease runs out by the jump.
            tokio::runtime::Handle::current().block_on(node.renew(Vec::new())).unwrap();
        }
        let awaited = (self.left_ms() > 0).then_some(AWAITED);
        [SHELL].into_iter().chain(awaited).collect()
    }

    /// Time passes for the agent.
    async fn pass(&self, ms: i64) {
        self.clock.advance_ms(ms);
        self.node.get().unwrap().renew(Vec::new()).await.unwrap();
    }
}

async fn serve(rig: &Rig, no_progress: NoProgress) -> (Server, Arc<World>) {
    rig.clock.stop();
    let (clock, ends_ms) = (rig.clock.clone(), AtomicI64::new(0));
    let world = Arc::new(World { clock, node: OnceLock::new(), ends_ms, looks: AtomicUsize::new(0) });
    let theirs = world.clone();
    let groups = Some(Arc::new(move || Ok(theirs.groups())) as _);
    let server = rig.serve_with(Config { groups, ..rig.config() }).await;
    world.node.set(server.node.clone()).ok().unwrap();
    let start =
        Start { policy: Policy { no_progress, ..Policy::default() }, ..Start::new(RunId::new("r").unwrap()) };
    server.store.ask(start, Durability::Synced).await.unwrap();
    (server, world)
}

/// Cost of one wait: its calls, and the time from the process's end to the answer that knows of it.
#[derive(Debug)]
struct Cost {
    calls: usize,
    late_ms: i64,
}

/// Waits for a process that ends in the middle of the last of so many looks, if each is a call.
///
/// `turns`: length of the script, which is enough for the calls that may be made.
async fn wait(rig: &Rig, server: &Server, world: &World, (looks, turns): (i64, i64)) -> Cost {
    let before = rig.mock.paid() as usize;
    world.ends_ms.store(world.now_ms() + looks * (CALL_MS + LOOK_MS) - LOOK_MS / 2, Ordering::SeqCst);
    let look = json!({"session_id": AWAITED, "chars": "", "yield_time_ms": LOOK_MS});
    let tools = json!([{"type": "function", "name": "write_stdin"}]);
    let script = format!("mock: tool write_stdin {look}\n").repeat(turns as usize);
    let mut input = vec![json!({"role": "user", "content": format!("wait for {looks} looks\n{script}")})];
    loop {
        let body = json!({"model": "gpt-4o-mini", "max_output_tokens": 64, "tools": tools, "input": input});
        let answer = Api::Responses.sends(&body).to(server).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        world.pass(CALL_MS).await;
        let is_told = input.last().is_some_and(is_the_end);
        if is_told {
            let late_ms = -world.left_ms();
            return Cost { calls: rig.mock.paid() as usize - before, late_ms };
        }
        let call = answer.json()["output"][0].clone();
        assert_eq!(call["name"], "write_stdin", "{call}");
        world.pass(world.left_ms().clamp(0, LOOK_MS)).await;
        let said = if world.left_ms() > 0 {
            "Process running with session ID 42"
        } else {
            "Process exited with code 0"
        };
        let output = format!("Wall time: 30.0 seconds\n{said}\nOutput:\n");
        let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": output});
        input.extend([call, result]);
    }
}

fn is_the_end(item: &Value) -> bool {
    item["output"].as_str().is_some_and(|text| text.contains("exited"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waits_of_codex_36396_are_a_tenth_and_no_later_when_they_are_held() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let (server, world) = serve(&rig, NoProgress::Hold).await;
    let (mut calls, mut looks) = (0, 0);
    for waits in WAITS {
        let cost = wait(&rig, &server, &world, (waits, 20 + waits / 10)).await;
        // Without a hold the call after the last look knows of it.
        let later_ms = cost.late_ms - CALL_MS;
        assert!(later_ms <= 5_000, "{waits} looks: {later_ms} ms later");
        (calls, looks) = (calls + cost.calls, looks + waits as usize);
    }
    assert_eq!(looks, 6_932);
    assert!(calls * 10 <= looks, "{calls} calls of {looks} are left");
    println!("{calls} of {looks} calls, {} looks of the proxy", world.looks.load(Ordering::SeqCst));
    assert_eq!(
        server.saw(|seen| matches!(seen, Seen::Waits { .. })),
        WAITS.len(),
        "each streak is told once"
    );
}

/// The same client and script where nothing is held: each look is a call, and so the test above counts what it says.
#[tokio::test(flavor = "multi_thread")]
async fn waits_that_are_not_held_are_a_call_each() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let (server, world) = serve(&rig, NoProgress::Warn).await;
    let waits = 40;
    let cost = wait(&rig, &server, &world, (waits, 1 + waits)).await;
    assert_eq!(cost.calls as i64, 1 + waits);
    assert_eq!(cost.late_ms, CALL_MS, "{cost:?}");
    assert_eq!(server.saw(|seen| matches!(seen, Seen::Held { .. })), 0);
}
