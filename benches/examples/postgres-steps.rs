//! Durable steps of one run on PostgreSQL, beside a bare loop of INSERT and COMMIT over one connection.
//!
//! `cargo run --release -p outlast-bench --example postgres-steps -- postgres://... [STEPS] [TURNS]`, in an empty database whose
//! server syncs its log. Both loops take turns in one run; the figure is the ratio of their medians. A step is driven as the
//! Python package does it: opened ahead of its commit, then recorded.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{env, sync::Arc, time::Instant};

use outlast_bench::{begin_step, driver, open_at, register, result, start};
use outlast_core::{
    engine::op::Actor,
    store::{Ask as _, Durability::Synced, Store},
};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, Statement, types::Type};

/// Value of each step: a kilobyte that compresses to a half.
fn value(n: usize) -> String {
    (0..64).map(|i| format!("{:016x}", (n * 64 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

struct Steps {
    store: Arc<dyn Store>,
    actor: Actor,
    n: usize,
}

impl Steps {
    fn new(url: &str) -> Steps {
        let store = open_at(url);
        let start = start(&format!("steps-{}", std::process::id()));
        let actor = driver(store.as_ref(), start, register(store.as_ref()));
        Steps { store, actor, n: 0 }
    }

    fn step(&mut self) {
        self.n += 1;
        let opening = begin_step(self.store.as_ref(), self.actor, self.n);
        self.store.run_verb(result(opening, value(self.n).as_bytes()), Synced).unwrap();
    }
}

struct Bare {
    client: Client,
    insert: Statement,
    n: usize,
    runtime: Runtime,
}

impl Bare {
    fn new(url: &str) -> Bare {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (client, insert) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let table = "CREATE TABLE IF NOT EXISTS bare (no bigserial PRIMARY KEY, result text)";
            client.batch_execute(table).await.unwrap();
            let insert = "INSERT INTO bare (result) VALUES ($1)";
            let insert = client.prepare_typed(insert, &[Type::TEXT]).await.unwrap();
            (client, insert)
        });
        Bare { client, insert, n: 0, runtime }
    }

    fn step(&mut self) {
        self.n += 1;
        let value = value(self.n);
        self.runtime.block_on(async {
            // As psycopg does it, each on its own: BEGIN, the INSERT, COMMIT.
            self.client.batch_execute("BEGIN").await.unwrap();
            self.client.execute(&self.insert, &[&value]).await.unwrap();
            self.client.batch_execute("COMMIT").await.unwrap();
        });
    }
}

fn rate(count: usize, mut step: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| step());
    count as f64 / start.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |i: usize, usual: usize| args.get(i).map_or(usual, |text| text.parse().unwrap());
    let (count, turns) = (number(1, 2000), number(2, 5));
    let (mut steps, mut bare) = (Steps::new(&args[0]), Bare::new(&args[0]));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    rate(count / 4, || steps.step());
    for _ in 0..turns {
        ours.push(rate(count, || steps.step()));
        theirs.push(rate(count, || bare.step()));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("steps {ours:.0}/s, bare INSERT and COMMIT {theirs:.0}/s: {:.2}", ours / theirs);
}
