//! Fills a store as months of work do: `growth PATH ENTRIES RUNS BIG`; and reads the steps of the long run as a program does
//! that resumes it: `growth PATH`. Prints the entries, or the seconds.
//!
//! Every fifth entry is a paid call and the rest are steps of 100 bytes, in runs of the same size that are named, tagged and
//! completed; the last one, `big`, has so many entries as BIG says. `benches/growth.py` then times what people type.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{collections::VecDeque, env, sync::Arc, time::Instant};

use outlast_bench::{begin_step, driver, open_at, register, result, start};
use outlast_core::{
    engine::{
        call::{
            admit::{Admission, Admit},
            settle::{Bill, Close, Settle},
        },
        op::{Actor, Op},
        run::tell::{Tell, Word},
    },
    envelope::unit::Unit,
    journal::{iteration_scope, payload::Payload},
    price::Bound,
    store::{Ask as _, Durability::Committed, Store, Ticket},
    words::{
        digest::{Digest, MatchKey},
        id::{AttemptNo, InstanceNo, RunId, Seq, Slot},
        usage::{ServiceTier, Usage},
    },
};

/// Entries whose ends are waited for together.
const GROUP: usize = 512;

/// Steps that a resume reads at once, as the Python package does.
const PAGE: usize = 4096;
const MODELS: [&str; 3] = ["gpt-5-mini", "claude-sonnet-5", "gemini-3-flash"];

/// Bound of a call that costs what it reserves: a thousand tokens each way.
const BOUND: Bound = Bound {
    input_tokens: 1000,
    input_pico: 1_000_000_000,
    output_pico_per_token: 4_000_000,
    fixed_pico: 0,
    choices: 1,
    cap: 1000,
    floor_cap: 1000,
};

struct Filler {
    store: Arc<dyn Store>,
    instance: InstanceNo,
    ends: VecDeque<Ticket>,
}

impl Filler {
    fn new(place: &str) -> Filler {
        let store = open_at(place);
        let instance = register(store.as_ref());
        Filler { store, instance, ends: VecDeque::new() }
    }

    fn run(&mut self, name: &str, number: usize, entries: usize) {
        let mut start = start(&format!("run-{}", name.replace(' ', "-")));
        start.limits[Unit::CostNanoUsd] = Some(1_000_000_000_000);
        start.spec.name = Some(name.to_owned());
        start.spec.tags = [("team".to_owned(), format!("team-{}", number % 7))].into();
        let actor = driver(self.store.as_ref(), start, self.instance);
        for n in 0..entries {
            let op = match n % 5 {
                0 => self.call(actor, number, n),
                _ => result(begin_step(self.store.as_ref(), actor, n), &[42; 100]).into(),
            };
            self.ends.push_back(self.store.submit(op, Committed));
            while self.ends.len() >= GROUP {
                self.ends.pop_front().unwrap().wait().unwrap();
            }
        }
        self.ends.drain(..).for_each(|end| {
            end.wait().unwrap();
        });
        self.store.run_verb(Tell { run: actor.run, word: Word::Complete }, Committed).unwrap();
    }

    /// Admits a call. Returns its settlement.
    fn call(&self, actor: Actor, number: usize, n: usize) -> Op {
        let digest = Digest::of(format!("prompt {n}").as_bytes());
        let scope = iteration_scope(1);
        let admit = Admit {
            actor,
            slot: Slot::DRIVER,
            match_key: MatchKey::new(&digest, &scope, None),
            scope,
            within: None,
            digest,
            upstream: "openai".into(),
            path: "/v1/chat/completions".into(),
            model: MODELS[number % MODELS.len()].into(),
            stream: false,
            idempotency_key: None,
            caller: None,
            bound: BOUND,
            priced: true,
            unknown_fee: None,
            usual_cap: None,
            taken: Vec::new(),
            connection: 0,
            retry_count: 0,
            answered_with_error: false,
            behind: false,
            active_ms: 0,
            waits: 0,
            request: Some(Payload::encode(&[42; 400])),
        };
        let Admission::Go { opening, .. } = self.store.run_verb(admit, Committed).unwrap() else {
            unreachable!()
        };
        let bill = Bill::Usage {
            usage: Usage { input: 900, output: 700, ..Usage::default() },
            tier: ServiceTier::Standard,
            cost_nano_usd: 3_700_000,
            price_hash: "bench".to_owned(),
        };
        Settle {
            opening,
            attempt: AttemptNo::default(),
            close: Close::Done(bill),
            active_ms: 0,
            http_status: Some(200),
            upstream_request_id: None,
            error: None,
            answer: Some(Payload::encode(&[42; 700])),
        }
        .into()
    }
}

/// Returns the seconds in which the store is opened and all steps of the long run are read.
fn resume(place: &str) -> f64 {
    let began = Instant::now();
    let store = open_at(place);
    let run = store.run_no(&RunId::new("run-big").unwrap()).unwrap().unwrap();
    let mut after = Seq(0);
    while let Some((last, _)) = store.steps(run, after, PAGE).unwrap().last() {
        after = last.seq;
    }
    began.elapsed().as_secs_f64()
}

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [place] = words.as_slice() {
        return println!("{}", resume(place));
    }
    let number = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
    let mut filler = Filler::new(&words[0]);
    let (entries, runs) = (number(1), number(2));
    for n in 0..runs {
        filler.run(&format!("night {n}"), n, entries / runs);
    }
    filler.run("big", 0, number(3));
    println!("{}", entries + number(3));
}
