//! Servers on one database that share the limit of a provider. What is checked are counts at the provider and states,
//! whatever the machine's load.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use outlast_core::{
    call::shares::{Shares, TAKEN_US},
    engine,
    reads::rows,
    state::Table,
    store::{Ask as _, Durability, Error},
};
use serde_json::Value;

use crate::{
    bed::{Proc, until},
    hosts::Hosts,
    web::{Answer, ask, call, free_port, post, serve_by},
};

/// Place of the shares in the state.
const SHARES: &str = "/v1/state/outlast:shares/upstream/openai";

/// Provider that counts the calls that are with it at once, and answers them when it may.
#[derive(Clone)]
struct Provider {
    at: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    answers: bool,
    inside: usize,
    most: usize,
    /// Number of calls that ever came.
    came: usize,
}

impl Provider {
    fn new() -> Provider {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let provider = Provider { at: listener.local_addr().unwrap(), state: Arc::default() };
        let theirs = provider.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, theirs) = (client.unwrap(), theirs.clone());
                thread::spawn(move || theirs.answer(client));
            }
        });
        provider
    }

    fn answer(&self, mut client: TcpStream) {
        let mut asked = BufReader::new(client.try_clone().unwrap());
        let (mut line, mut len) = (String::new(), 0);
        while asked.read_line(&mut line).unwrap_or(0) > 2 {
            let length = line.to_ascii_lowercase();
            len = length.strip_prefix("content-length:").map_or(len, |n| n.trim().parse().unwrap());
            line.clear();
        }
        let mut body = vec![0; len];
        if len == 0 || asked.read_exact(&mut body).is_err() {
            return;
        }
        let mut state = self.lock();
        state.inside += 1;
        state.came += 1;
        state.most = state.most.max(state.inside);
        state = self.state.1.wait_while(state, |state| !state.answers).unwrap();
        state.inside -= 1;
        drop(state);
        let text = r#"{"id":"c","object":"chat.completion","model":"gpt-4o-mini","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#;
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
        // The server may have been killed.
        let _ = client.write_all(format!("{head}{}\r\n\r\n{text}", text.len()).as_bytes());
    }

    /// Lets the provider answer, what is with it and what comes, or keep it from now on.
    fn answers(&self, answers: bool) {
        self.lock().answers = answers;
        self.state.1.notify_all();
    }

    fn inside(&self) -> usize {
        self.lock().inside
    }

    fn until_inside(&self, calls: usize) {
        until(&format!("{calls} calls are with the provider"), || (self.inside() == calls).then_some(()));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }
}

/// Two servers on one database, and a provider that is to have four calls at once.
struct Servers {
    provider: Provider,
    at: [SocketAddr; 2],
    servers: [Proc; 2],
    hosts: Hosts,
}

impl Servers {
    fn start() -> Servers {
        let (hosts, provider) = (Hosts::new(), Provider::new());
        let at = [free_port(), free_port()];
        let servers = at.map(|at| {
            let flags = ["serve", "--upstream-concurrency", "4", "--listen", &at.to_string()];
            let mut command = hosts.first(hosts.bed.outlast(&flags));
            command.env("OPENAI_BASE_URL", format!("http://{}/v1", provider.at));
            serve_by(&hosts.bed, command)
        });
        let both = Servers { provider, at, servers, hosts };
        both.until_held("each has its part", |held| {
            held.iter().map(|h| h["hold"]["calls"].as_u64().unwrap()).eq([2, 2])
        });
        both
    }

    /// Sends the call of a run of its own.
    fn ask(&self, server: usize, run: impl Into<String>) -> JoinHandle<Option<Answer>> {
        let (at, run) = (self.at[server], run.into());
        thread::spawn(move || post(at, &[("x-outlast-run", &run)], &call(&run)))
    }

    /// Returns the number of calls that a server has admitted and not answered.
    fn admitted(&self, server: usize) -> usize {
        let metrics = ask("GET", self.at[server], "/metrics", &[], b"").unwrap().text;
        let line = metrics.lines().find_map(|line| line.strip_prefix("outlast_calls_in_flight "));
        line.unwrap().trim().parse().unwrap()
    }

    /// Returns what the servers hold, as the store has it and the first server tells it.
    fn held(&self) -> Vec<Value> {
        let told = ask("GET", self.at[0], SHARES, &[], b"").unwrap().text;
        let told: Value = serde_json::from_str(&told).unwrap();
        told["value"]["held"].as_array().cloned().unwrap_or_default()
    }

    fn until_held(&self, what: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        until(what, || Some(self.held()).filter(|held| is(held)))
    }
}

fn all_are_served(calls: Vec<JoinHandle<Option<Answer>>>) {
    let statuses: Vec<u16> = calls.into_iter().map(|call| call.join().unwrap().unwrap().status).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[test]
fn two_servers_have_no_more_calls_at_a_provider_than_it_is_to_have() {
    let both = Servers::start();
    let calls: Vec<_> = (0..40).map(|i| both.ask(i % 2, format!("r{i}"))).collect();
    until("all forty are admitted", || {
        ([0, 1].map(|server| both.admitted(server)) == [20, 20]).then_some(())
    });
    both.provider.until_inside(4);
    both.provider.answers(true);
    all_are_served(calls);
    assert_eq!(both.provider.lock().most, 4);
}

#[test]
fn the_share_of_a_killed_server_is_taken_over_when_its_calls_cannot_be_at_the_provider_any_more() {
    let mut both = Servers::start();
    let theirs: Vec<_> = (0..3).map(|i| both.ask(1, format!("theirs-{i}"))).collect();
    both.provider.until_inside(2);
    both.servers[1].kill();
    assert!(theirs.into_iter().all(|call| call.join().unwrap().is_none()));
    let ours: Vec<_> = (0..4).map(|i| both.ask(0, format!("ours-{i}"))).collect();
    // The provider works on what the killed server had sent.
    both.provider.until_inside(4);
    let is_gone = |held: &[Value]| held.iter().any(|h| h["gone_at"].is_i64());
    both.until_held("one is found gone", is_gone);
    both.provider.answers(true);
    all_are_served(ours);
    assert_eq!(both.provider.lock().most, 4);
    both.provider.answers(false);
    let calls: Vec<_> = (0..5).map(|i| both.ask(0, format!("more-{i}"))).collect();
    both.provider.until_inside(2);
    // As if the minute were over: nobody waits for one here. The server that is left may write between read and write.
    let store = both.hosts.store();
    until("the time is set back", || {
        let mut kept = rows::kept::<Shares>(&*store, Table::Shares, "openai").unwrap();
        for gone_at in kept.row.held.iter_mut().filter_map(|held| held.gone_at.as_mut()) {
            gone_at.0 -= TAKEN_US;
        }
        let put = rows::put(Table::Shares, "openai", &kept.row, kept.version).unwrap();
        match store.run_verb(put, Durability::Synced) {
            Ok(_) => Some(()),
            Err(Error::Engine(engine::Error::Conflict { .. })) => None,
            Err(other) => panic!("{other}"),
        }
    });
    both.provider.until_inside(4);
    both.provider.answers(true);
    all_are_served(calls);
    assert_eq!(both.provider.lock().most, 4);
}

#[test]
fn a_server_that_is_cut_off_from_the_database_sends_no_limited_call() {
    let both = Servers::start();
    let calls: Vec<_> = (0..3).map(|i| both.ask(0, format!("r{i}"))).collect();
    until("all three are admitted", || (both.admitted(0) == 3).then_some(()));
    both.provider.until_inside(2);
    both.hosts.network.cut(true);
    let readiness = || ask("GET", both.at[0], "/readyz", &[], b"").unwrap().status;
    until("it says that it is cut off", || (readiness() == 503).then_some(()));
    both.provider.answers(true);
    both.provider.until_inside(0);
    // A call that waits for a place would be sent at once.
    (0..50).for_each(|_| assert_eq!(readiness(), 503));
    assert_eq!(both.provider.lock().came, 2);
    both.hosts.network.cut(false);
    all_are_served(calls);
    assert_eq!(both.provider.lock().came, 3);
}
