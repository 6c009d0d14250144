//! Jobs: their workers, their counts, and how they are read.

use outlast_core::{
    engine::{item::ItemEnd, run::end_attempt::Then},
    journal::{
        job::{ItemClaim, Standing},
        payload::Payload,
    },
    run::status::Status,
    store::RunFilter,
    words::id::Slot,
};

use crate::{
    agent::*,
    concurrency::together,
    items::{check_counts, ended, next, worker},
    stage::Stage,
};

pub fn items_count_as_progress_and_their_counts_are_kept(s: &Stage) {
    let a = worker(s);
    for i in 0..6 {
        let seq = a.item(&format!("{i}")).opening.seq;
        match i % 3 {
            0 => drop(a.item_done(seq, "x")),
            1 => drop(a.item_failed(seq)),
            _ => drop(a.ask(a.ending_item(seq, ItemEnd::Skipped { reason: "no".into() }))),
        }
    }
    a.item("open");
    assert_eq!(s.row(a.run).closed, 4);
    let counts = s.row(a.run).job.unwrap().counts;
    assert_eq!((counts.open, counts.done, counts.failed, counts.skipped, counts.dead), (1, 2, 2, 2, 0));
    check_counts(s, a.run);
}

pub fn jobs_are_listed_without_other_runs(s: &Stage) {
    s.run("plain").create();
    let job = s.run("r").job().create();
    s.run("another").create();
    let listed = s.store().runs(&RunFilter { jobs: true, limit: 10, ..RunFilter::default() }).unwrap();
    assert_eq!(listed.iter().map(|v| v.run.no).collect::<Vec<_>>(), [job]);
    assert_eq!(listed[0].run.job.as_ref().unwrap().name, "job");
}

pub fn workers_take_the_lowest_free_slots(s: &Stage) {
    let one = worker(s);
    let two = one.process.works(one.run);
    let three = next(s, &one);
    assert_eq!([one.slot, two.slot, three.slot], [Slot(1), Slot(2), Slot(3)]);
    two.ends(Then::Restart);
    assert_eq!(next(s, &one).slot, Slot(4), "its process may go on with it");
    assert_eq!(two.process.works(one.run).slot, Slot(2));
    three.process.dies();
    assert_eq!(next(s, &one).slot, Slot(3));
    assert!(s.store().attempts(one.run).unwrap().iter().filter(|a| a.is_open()).count() == 4);
}

pub fn a_job_goes_on_while_one_of_its_workers_does(s: &Stage) {
    let one = worker(s);
    let two = next(s, &one);
    assert_eq!(one.ends(Then::Complete), Status::Running);
    let seq = two.item("a").opening.seq;
    two.item_done(seq, "x");
    assert_eq!(two.ends(Then::Complete), Status::Completed);
}

pub fn a_completed_job_takes_more_items(s: &Stage) {
    let a = worker(s);
    let seq = a.item("a").opening.seq;
    a.item_done(seq, "x");
    assert_eq!(a.ends(Then::Complete), Status::Completed);
    let new = next(s, &a);
    assert_eq!(s.status(a.run), Status::Running);
    assert_eq!(new.ask(new.claiming_item("a")).unwrap(), ended(seq, Standing::Done));
    new.item("b");
}

pub fn sixty_four_threads_run_each_item_once(s: &Stage) {
    let a = worker(s);
    const ITEMS: usize = 40;
    let ran: Vec<Vec<usize>> = together(|thread| {
        let mut ran = Vec::new();
        for i in 0..ITEMS {
            let i = (i + thread) % ITEMS;
            if let ItemClaim::Run(item) = a.ask(a.claiming_item(&format!("{i}"))).unwrap() {
                a.item_done(item.opening.seq, "x");
                ran.push(i);
            }
        }
        ran
    });
    let mut ran: Vec<usize> = ran.into_iter().flatten().collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..ITEMS).collect::<Vec<_>>());
    check_counts(s, a.run);
}

/// Half of the workers' processes are declared dead while they work. No two claims of an item are told to
/// run it in one process's life, each result is recorded once, and at the end every item is done.
pub fn sixty_four_workers_lose_their_process_and_no_item_is_lost_or_run_twice(s: &Stage) {
    let run = s.run("r").job().create();
    let workers: Vec<Agent> = (0..8).map(|i| s.process(&format!("p{i}")).works(run)).collect();
    const ITEMS: usize = 40;
    let recorded: usize = together(|thread| {
        let a = &workers[thread % 8];
        let mut recorded = 0;
        for i in 0..ITEMS {
            if thread == 3 && i == 10 || thread == 6 && i == 20 {
                a.process.dies();
            }
            let key = format!("{}", (i + thread * 5) % ITEMS);
            match a.ask(a.claiming_item(&key)) {
                Ok(ItemClaim::Run(item)) => {
                    let end = ItemEnd::Done(Payload::encode(b"x"));
                    recorded += usize::from(a.ask(a.ending_item(item.opening.seq, end)).is_ok());
                }
                Ok(_) => {}
                Err(e) => assert_eq!(e.code(), "instance_dead"),
            }
        }
        recorded
    })
    .into_iter()
    .sum();
    let last = s.process("last").works(run);
    let mut finished = 0;
    for i in 0..ITEMS {
        if let ItemClaim::Run(item) = last.ask(last.claiming_item(&format!("{i}"))).unwrap() {
            last.item_done(item.opening.seq, "x");
            finished += 1;
        }
    }
    assert_eq!(recorded + finished, ITEMS, "each item has one result");
    assert_eq!(s.row(run).job.unwrap().counts.done, ITEMS as i64);
    assert_eq!(s.journal(run).len(), ITEMS, "a death appends nothing");
    check_counts(s, run);
}
