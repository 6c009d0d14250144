//! Stories of a store, told once and played on every store.
//!
//! A story is a function over a `Stage`; each noun has its file. `stories!` plays all of them on a
//! bed; `timed_stories!` those that move time, on beds whose clock is injected.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod stories;
#[macro_use]
mod timed_stories;

mod agent;
mod bed;
mod beds;
mod child;
mod own_server;
mod private_postgres;
mod relay;
mod stage;

mod ahead;
mod damaged;
mod encrypted;
mod full_disk;
mod hints;
mod killed;
mod log_damage;
mod log_mark;
mod lost_commits;
mod migration;
mod objects;
mod panics;
mod pooled;
mod postgres_database;
mod postgres_locks;
mod postgres_speed;
mod processes;
mod remembered;
mod round_trips;
mod shared;
mod sqlite_file;
mod sqlite_log;
mod vanished;

mod approvals;
mod budgets;
mod calls;
mod carry;
mod checkpoints;
mod concurrency;
mod doubt;
mod events;
mod forget;
mod forks;
mod history;
mod items;
mod jobs;
mod leases;
mod limits;
mod loops;
mod parents;
mod pinned_schema;
mod reads;
mod replay;
mod retention;
mod retries;
mod runs;
mod sleep;
mod state;
mod steps;
mod sweeps;
mod tokens;
mod tool_calls;
mod tools;
mod turns;
mod within;

mod memory {
    stories!(crate::bed::Memory::new());

    mod timed {
        timed_stories!(crate::bed::Memory::new());
    }
}

mod sqlite {
    stories!(crate::bed::Sqlite::new());

    mod timed {
        timed_stories!(crate::bed::Sqlite::new());
    }
}

mod postgres {
    stories!(crate::beds::Postgres::new());

    mod timed {
        timed_stories!(crate::beds::Postgres::under_a_clock());
    }
}
