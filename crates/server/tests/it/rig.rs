//! A provider, a store and the servers on it: a server can be killed, and another begin on the same store.

use std::{
    collections::HashSet,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicI64, AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outlast_core::{
    engine::{
        run::{
            claim::{Claim, Claimed},
            limits::Raise,
            start::Start,
        },
        state::transaction::Conflicts,
    },
    envelope::{
        Envelope,
        unit::{Limits, PerUnit, Unit},
    },
    journal::{Entry, State},
    memory::MemoryStore,
    price::PriceTable,
    run::{
        Policy,
        instance::Identity,
        status::Status,
        token::{self, Claims},
    },
    store::{Ask as _, Durability, RunView, Store},
    words::{
        clock::{Clock, Entropy, SeededEntropy},
        id::{Micros, RunId, RunNo, Seq, Slot},
    },
};
use outlast_mock as mock;
use outlast_server::{
    dialect::Upstream,
    door::{
        Access, AuthHeader, Config, Key, Named, Network, Provider, Providers, Proxy, Seen, Sessions, Shows,
    },
    intercept::Intercept,
    node::{Census, Node},
    state::{StateDesk, Writer},
};
use outlast_store::sqlite::SqliteStore;

/// The provider's own keys: nobody but the provider may ever see them.
pub const OPENAI_KEY: &str = "sk-proj-the-key-of-the-house";
pub const HOUSE_KEY: &str = "the-key-of-the-house-for-azure";
pub const GEMINI_KEY: &str = "AIza-the-key-of-the-house";
pub const ANTHROPIC_KEY: &str = "sk-ant-the-key-of-the-house";

/// Longest time that a test waits for anything, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for `future`, not for ever.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

/// Real time, which a test may move on, or stop.
pub struct TestClock {
    begun: Instant,
    /// Times at which it was stopped: of the wall, in microseconds, and since the beginning, in milliseconds.
    stopped: OnceLock<(i64, u64)>,
    moved_ms: AtomicI64,
    slept_ms: AtomicI64,
}

impl TestClock {
    pub fn advance_ms(&self, ms: i64) {
        self.moved_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// From now on only the test moves it.
    pub fn stop(&self) {
        let _ = self.stopped.set(self.real());
    }

    fn real(&self) -> (i64, u64) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let real = || (wall.as_micros() as i64, self.begun.elapsed().as_millis() as u64);
        self.stopped.get().copied().unwrap_or_else(real)
    }

    /// The machine sleeps for so long.
    pub fn suspend_ms(&self, ms: i64) {
        self.slept_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Micros {
        Micros(self.real().0)
            .plus_ms(self.moved_ms.load(Ordering::SeqCst) + self.slept_ms.load(Ordering::SeqCst))
    }

    fn monotonic_ms(&self) -> u64 {
        self.real().1 + self.moved_ms.load(Ordering::SeqCst) as u64
    }

    fn boottime_ms(&self) -> u64 {
        self.monotonic_ms() + self.slept_ms.load(Ordering::SeqCst) as u64
    }
}

/// Census of processes: those are dead that the tests have killed.
#[derive(Default)]
struct Killed(Mutex<HashSet<u32>>);

impl Census for Killed {
    fn is_gone(&self, identity: &Identity) -> Option<bool> {
        Some(self.0.lock().unwrap().contains(&identity.pid))
    }
}

enum Place {
    /// The directory goes with it.
    File(PathBuf, #[expect(dead_code)] tempfile::TempDir),
    /// Outlives its servers, as a file does.
    Shared(Arc<dyn Store>),
}

/// The world around the servers.
pub struct Rig {
    pub mock: mock::Handle,
    pub clock: Arc<TestClock>,
    place: Place,
    killed: Arc<Killed>,
    pids: AtomicU32,
}

/// One server: its own runtime, so that it can die at once.
pub struct Server {
    pub addr: SocketAddr,
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub proxy: Proxy,
    pub desk: Arc<StateDesk>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    life: Life,
    pid: u32,
    killed: Arc<Killed>,
}

/// A runtime that a test may drop.
struct Life(Option<tokio::runtime::Runtime>);

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Rig {
    /// On an SQLite file.
    pub async fn new(options: mock::Options) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        Rig::at(options, Place::File(dir.path().join("outlast.db"), dir)).await
    }

    /// On a store in memory, where what it survives is not the question.
    pub async fn in_memory(options: mock::Options) -> Rig {
        let rig = Rig::at(options, Place::Shared(Arc::new(MemoryStore::new(clock())))).await;
        let store = Arc::new(MemoryStore::new(rig.clock.clone()));
        Rig { place: Place::Shared(store), ..rig }
    }

    /// On the store that `wrap` makes of one in memory.
    pub async fn on<S: Store + 'static>(wrap: impl FnOnce(Arc<dyn Store>) -> Arc<S>) -> (Rig, Arc<S>) {
        Rig::on_mock(mock::Options::default(), wrap).await
    }

    /// As `on`, with a provider that is set up so.
    pub async fn on_mock<S: Store + 'static>(
        options: mock::Options,
        wrap: impl FnOnce(Arc<dyn Store>) -> Arc<S>,
    ) -> (Rig, Arc<S>) {
        let rig = Rig::in_memory(options).await;
        let Place::Shared(inner) = &rig.place else { unreachable!("it was made in memory") };
        let store = wrap(inner.clone());
        (Rig { place: Place::Shared(store.clone()), ..rig }, store)
    }

    async fn at(options: mock::Options, place: Place) -> Rig {
        Rig {
            mock: mock::start(options).await.unwrap(),
            clock: clock(),
            place,
            killed: Arc::default(),
            pids: AtomicU32::new(1),
        }
    }

    /// Returns the default configuration of a server: no limits, configured keys, the fake provider.
    pub fn config(&self) -> Config {
        let key = |text: &str| Some(Key::new(text.into()));
        let base = self.mock.base_url();
        Config {
            access: Access { loopback: true, ..Access::default() },
            providers: Providers::new(
                |upstream| match upstream {
                    Upstream::OpenAi => Provider::new(&format!("{base}/v1"), key(OPENAI_KEY)),
                    Upstream::Anthropic => Provider::new(&base, key(ANTHROPIC_KEY)),
                    Upstream::Gemini => Provider::new(&base, key(GEMINI_KEY)),
                },
                vec![Arc::new(house(&format!("{base}/openai/v1")))],
            )
            .unwrap(),
            foreign_responses: false,
            network: Network::of(&|_| None).unwrap(),
            prices: PriceTable::builtin(),
            price_hash: PriceTable::builtin().hash().into(),
            default_limits: Limits::default(),
            default_policy: Policy::default(),
            admit_wait: PATIENCE,
            settle_wait: PATIENCE,
            store_wait: PATIENCE,
            first_byte_timeout: PATIENCE,
            idle_timeout: PATIENCE,
            urged_idle_timeout: PATIENCE,
            max_body: 8 << 20,
            max_answer: 64 << 20,
            max_unrecorded: 64 << 20,
            silence_after_suspend: PATIENCE,
            upstream_concurrency: None,
            upstream_rate: Default::default(),
            upstream_retries: 0,
            outage_pause: None,
            masks: None,
            groups: None,
            files: None,
            look_pause: Duration::from_millis(1),
        }
    }

    pub async fn serve(&self) -> Server {
        self.serve_with(self.config()).await
    }

    /// A server whose runs have `limits` when a header names them first.
    pub async fn serve_limited(&self, limits: Limits) -> Server {
        self.serve_with(Config { default_limits: limits, ..self.config() }).await
    }

    pub async fn serve_with(&self, config: Config) -> Server {
        self.serve_state(config, Conflicts::Expected).await
    }

    /// A server whose transactions are decided by `conflicts`.
    pub async fn serve_state(&self, config: Config, conflicts: Conflicts) -> Server {
        self.serve_made(config, conflicts, |proxy| proxy).await
    }

    /// A server that shows the page, and the sessions of its visitors.
    pub async fn serve_page(&self, config: Config, shows: Shows, read_only: bool) -> (Server, Arc<Sessions>) {
        let entropy = Arc::new(SeededEntropy::new(4711));
        let sessions = Sessions::new(self.clock.clone(), entropy, read_only);
        let theirs = sessions.clone();
        let server = self.serve_made(config, Conflicts::Expected, move |p| p.with_page(shows, theirs)).await;
        (server, sessions)
    }

    /// A server that intercepts the connections of its runs, and calls upstreams through `network`.
    pub async fn serve_intercepting(&self, network: Network, intercept: Arc<Intercept>) -> Server {
        let config = Config { network, ..self.config() };
        self.serve_made(config, Conflicts::Expected, move |p| p.with_intercept(intercept)).await
    }

    async fn serve_made(
        &self,
        config: Config,
        conflicts: Conflicts,
        made_with: impl FnOnce(Proxy) -> Proxy + Send + 'static,
    ) -> Server {
        let pid = self.pids.fetch_add(1, Ordering::SeqCst);
        let store = self.store(pid);
        let (census, clock) = (self.killed.clone(), self.clock.clone());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let theirs = seen.clone();
        // Joining blocks on the store.
        let made = tokio::task::spawn_blocking(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let identity = Identity { pid, program: "outlast serve".into(), ..Identity::default() };
            let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(u64::from(pid)));
            let node = Node::join(store.clone(), clock, entropy.clone(), census, identity).unwrap();
            let observer = Arc::new(move |s: &Seen| theirs.lock().unwrap().push(s.clone()));
            let proxy = Proxy::new(node.clone(), &entropy, config, Some(observer)).unwrap();
            let desk = StateDesk::new(&node, entropy, conflicts, Writer::NoRun);
            (runtime, store, node, made_with(proxy), desk)
        });
        let (runtime, store, node, proxy, desk) = made.await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let serving = proxy.clone();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            serving.serve(listener, std::future::pending(), Duration::ZERO).await;
        });
        let killed = self.killed.clone();
        Server { addr, store, node, proxy, desk, seen, life: Life(Some(runtime)), pid, killed }
    }

    fn store(&self, pid: u32) -> Arc<dyn Store> {
        match &self.place {
            Place::Shared(store) => store.clone(),
            Place::File(path, _) => {
                let options = outlast_store::Options {
                    // No test here cuts the power, and fsync is what slows a loaded machine down.
                    durability: outlast_store::Durability::Process,
                    clock: self.clock.clone(),
                    entropy: Arc::new(SeededEntropy::new(u64::from(pid) << 32)),
                    create: true,
                    store_wait: outlast_store::STORE_WAIT,
                };
                Arc::new(SqliteStore::open(path, options).unwrap())
            }
        }
    }

    /// Returns the path of the store's file.
    pub fn path(&self) -> &std::path::Path {
        match &self.place {
            Place::File(path, _) => path,
            Place::Shared(_) => unreachable!("this test is on a file"),
        }
    }
}

/// An upstream by the name `house`, in Azure's manner.
pub fn house(base: &str) -> Named {
    Named {
        name: Named::name("house").unwrap(),
        provider: Named::provider(base, Some(Key::new(HOUSE_KEY.into()))).unwrap(),
        auth: AuthHeader::Header("api-key".parse().unwrap()),
        wants_key: Some("HOUSE_KEY".into()),
        models: Default::default(),
        models_match: Vec::new(),
        rate: None,
        prices: None,
        asks_usage: true,
        cost_field: None,
    }
}

fn clock() -> Arc<TestClock> {
    Arc::new(TestClock {
        begun: Instant::now(),
        stopped: OnceLock::new(),
        moved_ms: AtomicI64::new(0),
        slept_ms: AtomicI64::new(0),
    })
}

impl Server {
    /// Ends the server as kill -9 would: no part of it runs on, and others can know that it is gone.
    pub async fn kill(self) {
        let Server { store, node, proxy, mut life, pid, killed, .. } = self;
        let runtime = life.0.take().unwrap();
        let gone = tokio::task::spawn_blocking(move || {
            runtime.shutdown_timeout(PATIENCE);
            drop((store, node, proxy));
        });
        gone.await.unwrap();
        killed.0.lock().unwrap().insert(pid);
    }

    /// The instance is taken for dead although it lives: it was stopped for too long.
    pub async fn is_declared_dead_by(&self, other: &Server) {
        self.killed.0.lock().unwrap().insert(self.pid);
        other.sweep().await;
        self.killed.0.lock().unwrap().remove(&self.pid);
    }

    pub async fn sweep(&self) {
        let node = self.node.clone();
        tokio::task::spawn_blocking(move || node.sweep()).await.unwrap().unwrap();
    }

    pub fn run_no(&self, id: &str) -> RunNo {
        self.store.run_no(&RunId::new(id).unwrap()).unwrap().unwrap_or_else(|| panic!("no run {id}"))
    }

    pub fn run(&self, id: &str) -> RunView {
        self.store.run(self.run_no(id)).unwrap().unwrap()
    }

    pub fn status(&self, id: &str) -> Status {
        self.run(id).run.status
    }

    pub fn envelope(&self, id: &str) -> Envelope {
        self.run(id).envelope
    }

    pub fn entries(&self, id: &str) -> Vec<Entry> {
        self.store.entries(self.run_no(id), Seq(0), 10_000).unwrap()
    }

    pub fn states(&self, id: &str) -> Vec<State> {
        self.entries(id).iter().map(|e| e.state).collect()
    }

    /// Waits until entry `seq` of the run is closed.
    pub async fn closed(&self, id: &str, seq: i64) -> Entry {
        let find = || {
            let run = self.store.run_no(&RunId::new(id).unwrap()).unwrap()?;
            self.store.entry(run, Seq(seq)).unwrap()
        };
        until(&format!("entry {seq} of {id} is closed"), || find().is_some_and(|e| e.state != State::Open))
            .await;
        find().unwrap()
    }

    /// Waits until the run holds nothing in flight.
    pub async fn at_rest(&self, id: &str) -> Envelope {
        until("nothing is in flight", || self.entries(id).iter().all(|e| e.state != State::Open)).await;
        self.envelope(id)
    }

    /// A run that a supervisor on this server drives, and its token.
    pub async fn driven(&self, id: &str, limits: Limits, policy: Policy) -> String {
        self.start(id, limits, policy, None).await
    }

    /// A run without limits of its own below another.
    pub async fn child(&self, id: &str, parent: &str) -> String {
        self.start(id, Limits::default(), Policy::default(), Some(self.run_no(parent))).await
    }

    async fn start(&self, id: &str, limits: Limits, policy: Policy, parent: Option<RunNo>) -> String {
        let start = Start { limits, policy, parent, ..Start::new(RunId::new(id).unwrap()) };
        self.store.ask(start, Durability::Synced).await.unwrap();
        self.claim(id).await
    }

    /// The next attempt of a driven run: its token.
    pub async fn claim(&self, id: &str) -> String {
        let run = self.run_no(id);
        let instance = self.node.instance();
        let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        match self.store.ask(claim, Durability::Synced).await.unwrap() {
            Claimed::Attempt { attempt, fence, .. } => {
                self.token(&Claims { run, attempt, slot: Slot::DRIVER, fence: Some(fence) })
            }
            Claimed::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    pub fn token(&self, claims: &Claims) -> String {
        token::mint(&self.store.token_keys().unwrap()[0], claims)
    }

    /// A person raises a limit through this server.
    pub async fn raise(&self, id: &str, unit: Unit, by: i64) -> Status {
        let mut add = Limits::default();
        add[unit] = Some(by);
        let raise =
            Raise { run: self.run_no(id), add, set: Limits::default(), lift: PerUnit::<bool>::default() };
        let status = self.store.ask(raise, Durability::Synced).await.unwrap();
        self.proxy.wake();
        status
    }

    /// A person sets a limit.
    pub async fn raise_to(&self, id: &str, unit: Unit, value: i64) {
        let set = limit(unit, value);
        let raise =
            Raise { run: self.run_no(id), add: Limits::default(), set, lift: PerUnit::<bool>::default() };
        self.store.ask(raise, Durability::Synced).await.unwrap();
    }

    pub fn saw(&self, what: impl Fn(&Seen) -> bool) -> usize {
        self.seen.lock().unwrap().iter().filter(|s| what(s)).count()
    }
}

/// One limit.
pub fn limit(unit: Unit, value: i64) -> Limits {
    let mut limits = Limits::default();
    limits[unit] = Some(value);
    limits
}
