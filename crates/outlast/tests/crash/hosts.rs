//! Runs on a store in PostgreSQL, which several hosts reach, each over a network of its own.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use outlast::program::host::{OsEntropy, SystemClock};
use outlast_core::store::Store;
use outlast_store::Options;

use crate::{
    bed::{Bed, Proc},
    stopped::unseen,
};

/// A network between one supervisor and the database, which can lose everything that is sent.
pub struct Network {
    directory: tempfile::TempDir,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: Mutex<bool>,
    mended: Condvar,
}

impl Network {
    pub fn to(server: &Path) -> Network {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let (state, server) = (Arc::<State>::default(), server.join(".s.PGSQL.5432"));
        let ours = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, ours) = (from.try_clone().unwrap(), to.try_clone().unwrap(), ours.clone());
                    thread::spawn(move || ours.pass(from, to));
                }
            }
        });
        Network { directory, state }
    }

    pub fn cut(&self, is_cut: bool) {
        *self.state.is_cut.lock().unwrap() = is_cut;
        self.state.mended.notify_all();
    }
}

impl State {
    /// Copies one direction; while the network is cut, nothing arrives.
    fn pass(&self, mut from: UnixStream, mut to: UnixStream) {
        let mut buffer = [0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            drop(self.mended.wait_while(self.is_cut.lock().unwrap(), |is_cut| *is_cut).unwrap());
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        for end in [from, to] {
            // The other direction's thread may have shut it down before.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// A run on a store in PostgreSQL, reached over a network of its own.
pub struct Hosts {
    pub bed: Bed,
    pub network: Network,
    schema: String,
    server: PathBuf,
}

impl Hosts {
    pub fn new() -> Hosts {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let url = std::env::var("OUTLAST_TEST_POSTGRES").expect(
            "OUTLAST_TEST_POSTGRES is not set: this test needs the private PostgreSQL server of `make test` \
             (or set it to what `scripts/private-postgres.sh start DIR` prints)",
        );
        // The script encodes what is no letter, digit, or one of `._~/-`: directories of tests have none of it.
        let server = PathBuf::from(url.split_once("?host=").unwrap().1);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let schema = format!("cut_off_{}_{started}_{n}", std::process::id());
        let bed = Bed::without_mock();
        std::fs::create_dir(bed.path("other-home")).unwrap();
        Hosts { bed, network: Network::to(&server), schema, server }
    }

    /// Address of the store, as one host reaches it.
    fn address(&self, socket: &Path) -> String {
        format!("postgres://postgres@/postgres?host={}&schema={}", socket.display(), self.schema)
    }

    /// Opens the store beside the processes of the test.
    pub fn store(&self) -> Arc<dyn Store> {
        let options = Options {
            durability: Default::default(),
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(OsEntropy),
            create: false,
            store_wait: outlast_store::STORE_WAIT,
        };
        outlast_store::open(&self.address(&self.server), options).unwrap()
    }

    /// The command with the store's address, as one host reaches it.
    fn on(&self, socket: &Path, mut command: Command) -> Command {
        command.env("OUTLAST_STORE", self.address(socket));
        command
    }

    /// The command on the first host, whose network can be cut.
    pub fn first(&self, command: Command) -> Command {
        self.on(self.network.directory.path(), command)
    }

    /// The command on another host: with its own home, and a network that is never cut.
    pub fn second(&self, mut command: Command) -> Command {
        command.env("HOME", self.bed.path("other-home"));
        self.on(&self.server, command)
    }

    /// Starts its successor on a host that sees none of the first one's processes.
    pub fn succeed(&self) -> Proc {
        self.bed.start(unseen(&self.second(self.bed.outlast(&["resume", "r"]))))
    }
}
