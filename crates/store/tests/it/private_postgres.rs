//! A database of one's own in the private PostgreSQL server of this test run.
//!
//! `make test` starts the server (`scripts/private-postgres.sh`) and names it in
//! `OUTLAST_TEST_POSTGRES`. A test claims one of its databases and has it empty and alone.

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage, config::Host};

/// An empty database, this test's alone while the value lives.
///
/// Databases are used again by later tests: dropping one makes the server write out everything it
/// holds, which takes longer than most tests.
pub struct Database {
    server: Config,
    name: String,
    /// Connection whose session holds the claim on the database: a test that dies gives the database back.
    claim: Client,
    runtime: Runtime,
}

impl Database {
    pub fn new() -> Database {
        Database::claimed("utf8", "ENCODING 'UTF8'")
    }

    /// One whose texts are not in UTF-8.
    pub fn in_latin1() -> Database {
        Database::claimed("latin1", "ENCODING 'LATIN1' LOCALE 'C'")
    }

    /// Claims the first free database of its kind, and makes it when there is none yet.
    fn claimed(kind: &str, options: &str) -> Database {
        let server = server();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let claim = runtime.block_on(connect(&server)).unwrap();
        let is_free = |name: &String| {
            let lock = format!("SELECT pg_try_advisory_lock(hashtext('{name}'))");
            runtime.block_on(value(&claim, &lock)).as_deref() == Some("t")
        };
        let name = (0..).map(|n| format!("test_{kind}_{n}")).find(is_free).unwrap();
        let database = Database { server, name, claim, runtime };
        let name = &database.name;
        match database.ask(&format!("SELECT 1 FROM pg_database WHERE datname = '{name}'")) {
            None => database.administer(&format!("CREATE DATABASE {name} TEMPLATE template0 {options}")),
            Some(_) => {
                // Whatever a test that failed left behind.
                database.administer(&format!("ALTER DATABASE {name} RESET ALL"));
                database.let_in(true);
                database.cut_connections();
                database.execute("DROP SCHEMA IF EXISTS outlast, outlast_away, team_a, \"user\" CASCADE");
            }
        }
        database
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL by which `outlast_store::open` finds the database.
    pub fn url(&self) -> String {
        url(&self.server, &self.name)
    }

    /// Returns the URL by which `outlast_store::open` finds a store in another schema.
    pub fn url_in(&self, schema: &str) -> String {
        format!("{}&schema={schema}", self.url())
    }

    /// The directory of the server's socket.
    pub fn socket_directory(&self) -> std::path::PathBuf {
        socket_directory(&self.server)
    }

    /// The same database behind another socket.
    pub fn url_at(&self, socket_directory: &std::path::Path) -> String {
        let mut server = Config::new();
        server.user(self.server.get_user().unwrap()).host_path(socket_directory);
        url(&server, &self.name)
    }

    /// Runs statements in it.
    pub fn execute(&self, sql: &str) {
        self.runtime
            .block_on(async { connect(&self.config()).await.unwrap().batch_execute(sql).await })
            .unwrap();
    }

    /// A transaction of another session that has run `sql` and has not ended.
    pub fn begun(&self, sql: &str) -> Begun<'_> {
        let client = self.runtime.block_on(async {
            let client = connect(&self.config()).await.unwrap();
            client.batch_execute(&format!("BEGIN; {sql}")).await.unwrap();
            client
        });
        Begun { database: self, client }
    }

    /// The first column of the first row, as text.
    pub fn value(&self, sql: &str) -> Option<String> {
        self.runtime.block_on(async { value(&connect(&self.config()).await.unwrap(), sql).await })
    }

    /// Runs statements in the server, outside this database.
    pub fn administer(&self, sql: &str) {
        self.runtime.block_on(self.claim.batch_execute(sql)).unwrap();
    }

    fn ask(&self, sql: &str) -> Option<String> {
        self.runtime.block_on(value(&self.claim, sql))
    }

    /// Whether anybody can connect to it.
    pub fn let_in(&self, allowed: bool) {
        self.administer(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allowed}", self.name));
    }

    /// Ends every session in it, and waits until they are gone. How many there were.
    pub fn cut_connections(&self) -> usize {
        let name = &self.name;
        let cut = format!(
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = '{name}') cut"
        );
        self.ask(&cut).unwrap().parse().unwrap()
    }

    /// Runs `act` while another server is in the middle of a group.
    pub fn while_locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let other = self.runtime.block_on(connect(&self.config())).unwrap();
        let begin = "BEGIN; SELECT pg_advisory_xact_lock(31372865309864820)";
        self.runtime.block_on(other.batch_execute(begin)).unwrap();
        let out = act();
        self.runtime.block_on(other.batch_execute("COMMIT")).unwrap();
        out
    }

    /// Waits until a server waits for another one's group.
    pub fn wait_for_a_waiting_server(&self) {
        self.wait_for_a_wait("advisory");
    }

    /// Waits until a session waits for a lock of this kind.
    pub fn wait_for_a_wait(&self, kind: &str) {
        self.wait_for_waits(kind, 1);
    }

    /// Waits until so many sessions wait for locks of this kind.
    pub fn wait_for_waits(&self, kind: &str, wanted: i64) {
        let waiting = format!(
            "SELECT count(*) >= {wanted} FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
             WHERE d.datname = '{}' AND l.locktype = '{kind}' AND NOT l.granted",
            self.name
        );
        while self.ask(&waiting).as_deref() != Some("t") {
            std::thread::yield_now();
        }
    }

    fn config(&self) -> Config {
        let mut config = self.server.clone();
        config.dbname(&self.name);
        config
    }
}

fn server() -> Config {
    let url = std::env::var("OUTLAST_TEST_POSTGRES").expect(
        "OUTLAST_TEST_POSTGRES is not set: this test needs the private PostgreSQL server of `make test` \
         (or set it to what `scripts/private-postgres.sh start DIR` prints)",
    );
    url.parse().unwrap()
}

fn socket_directory(server: &Config) -> std::path::PathBuf {
    match server.get_hosts() {
        [Host::Unix(directory)] => directory.clone(),
        hosts => panic!("wanted a server on one Unix socket, had {hosts:?}"),
    }
}

/// Percent-encodes every byte of the directory: whatever it holds, it is no part of the URL.
fn url(server: &Config, database: &str) -> String {
    let directory = socket_directory(server);
    let directory: String =
        directory.as_os_str().as_encoded_bytes().iter().map(|b| format!("%{b:02X}")).collect();
    format!("postgres://{}@/{database}?host={directory}", server.get_user().unwrap())
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn value(client: &Client, sql: &str) -> Option<String> {
    let messages = client.simple_query(sql).await.unwrap();
    messages.iter().find_map(|m| match m {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// A transaction that has not ended.
pub struct Begun<'a> {
    database: &'a Database,
    client: Client,
}

impl Begun<'_> {
    pub fn commit(self) {
        self.database.runtime.block_on(self.client.batch_execute("COMMIT")).unwrap();
    }
}
