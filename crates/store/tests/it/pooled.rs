//! A store behind PgBouncer in transaction mode, where each transaction may get another connection of the database's.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use outlast_core::{
    store::{Losses, Store},
    words::{clock::ManualClock, id::Seq},
};

use crate::{
    bed::Bed,
    beds::{Opened, open_at},
    private_postgres::Database,
    stage::Stage,
};

/// Connections to the database, fewer than the sessions of one store have.
const POOL: usize = 2;

/// A database of its own behind a pooler of its own.
pub struct Pooled {
    pooler: Child,
    directory: tempfile::TempDir,
    database: Database,
}

impl Pooled {
    pub fn new() -> Pooled {
        let database = Database::new();
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let (here, server) = (directory.path(), database.socket_directory());
        let settings = format!(
            "[databases]\n* = host='{}'\n[pgbouncer]\nlisten_addr =\nlisten_port = 5432\nunix_socket_dir = {here}\n\
             auth_type = trust\nauth_file = {here}/users\npool_mode = transaction\ndefault_pool_size = {POOL}\n\
             max_client_conn = 500\nlogfile = {here}/log\n",
            server.display(),
            here = here.display(),
        );
        fs::write(here.join("users"), "\"postgres\" \"\"\n").unwrap();
        fs::write(here.join("settings"), settings).unwrap();
        let program =
            ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|p| Path::new(p).exists());
        let program = program.expect("PgBouncer is missing: scripts/setup.sh pgbouncer");
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root, and the server's account may write beside its socket.
            let owner = fs::metadata(&server).unwrap().uid();
            std::os::unix::fs::chown(here, Some(owner), None).unwrap();
            command = Command::new("setpriv");
            command.arg(format!("--reuid={owner}")).args(["--clear-groups", program]);
        }
        fs::set_permissions(here, fs::Permissions::from_mode(0o755)).unwrap();
        let out = fs::File::create(here.join("out")).unwrap();
        command.arg("--quiet").arg(here.join("settings")).current_dir(here).stdin(Stdio::null());
        let mut pooler = command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap();
        while UnixStream::connect(here.join(".s.PGSQL.5432")).is_err() {
            let told = || fs::read_to_string(here.join("out")).unwrap();
            assert_eq!(pooler.try_wait().unwrap(), None, "PgBouncer does not run: {}", told());
            std::thread::yield_now();
        }
        Pooled { pooler, directory, database }
    }

    fn url(&self) -> String {
        self.database.url_at(self.directory.path())
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pooler.kill().unwrap();
        self.pooler.wait().unwrap();
    }
}

impl Bed for Pooled {
    fn open(&self) -> Arc<dyn Store> {
        open_at(&self.url(), true).unwrap()
    }

    fn reopen(&self, before: Arc<dyn Store>) -> Arc<dyn Store> {
        drop(before);
        open_at(&self.url(), false).unwrap()
    }

    fn clock(&self) -> Option<&ManualClock> {
        None
    }
}

/// Stories in which many act at once, one takes over from another, and long values and whole transactions pass.
mod stories {
    tests! { crate::pooled::Pooled::new();
        concurrency:
            sixty_four_threads_never_pass_a_runs_limit,
            sixty_four_runs_never_pass_a_named_budget,
            one_of_sixty_four_processes_gets_a_run,
            registering_at_once_gives_everyone_a_number,
            no_increment_is_lost,
            a_call_is_settled_by_one_of_many,
            no_increment_of_overlapping_transactions_is_lost,
            no_reader_sees_part_of_a_transaction,
        ;
        leases:
            a_live_lease_is_held_against_another_process,
            a_run_of_a_dead_process_can_be_claimed_under_a_higher_fence,
            a_stale_attempt_opens_nothing,
            a_dead_process_opens_nothing,
        ;
        steps:
            a_step_that_was_cut_off_is_begun_again_as_the_same_entry,
            a_long_result_is_kept_in_parts_before_it_is_recorded,
            a_result_and_the_state_it_changed_commit_together,
            five_mebibytes_are_kept_as_they_were,
        ;
    }
}

/// Two servers on one database, whose sessions use the same few connections in turn.
#[test]
fn two_servers_behind_a_pooler_count_as_one() {
    let bed = Pooled::new();
    let stages = [(); 2].map(|()| Stage::on(Opened(open_at(&bed.url(), true).unwrap())));
    let runs = ["a", "b"].map(|id| stages[0].run(id).create());
    let agents: Vec<_> = stages.iter().zip(&runs).map(|(s, run)| s.process("p").claim(*run)).collect();
    std::thread::scope(|scope| {
        for agent in &agents {
            scope.spawn(|| {
                for step in 0..100 {
                    let seq = agent.begins(&format!("step {step}"));
                    agent.ask(agent.record(seq, "done")).unwrap();
                }
            });
        }
    });
    for (s, run) in stages.iter().zip(&runs) {
        assert_eq!(s.store().steps(*run, Seq(0), 1000).unwrap().len(), 100);
        assert_eq!(s.store().losses(), Losses::default());
    }
}
