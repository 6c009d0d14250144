//! Rights of the bearer of a run token: an agent's own processes, which are no instances.

use outlast_core::{
    engine::{
        run::end_attempt::{Reopen, Then},
        state::put::PutByToken,
    },
    run::{status::Status, token::Claims},
    state::run_namespace,
    words::id::{AttemptNo, Fence, Slot},
};

use crate::{agent::Agent, stage::Stage, state::change};

fn claims(agent: &Agent) -> Claims {
    Claims { run: agent.run, attempt: agent.attempt, slot: agent.slot, fence: Some(agent.fence) }
}

/// Sets the key `k` as whoever bears these claims.
fn by(claims: Claims) -> PutByToken {
    PutByToken { claims, changes: vec![change("k", "v")], transaction: None, progress: false }
}

pub fn a_bearer_of_a_run_token_changes_the_runs_own_state(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let own = run_namespace(&s.row(agent.run).id);
    let changes =
        vec![crate::state::within(&own, change("k", "v")), crate::state::within(&own, change("l", "w"))];
    let committed = s.ask(PutByToken { changes, ..by(claims(&agent)) }).unwrap();
    assert_eq!((committed.commit, committed.versions), (1, vec![1, 1]));
    let item = s.store().state(&own, "agent", "k").unwrap().unwrap();
    assert_eq!((item.run, item.attempt, item.commit), (Some(agent.run), Some(agent.attempt), 1));
    let foreign = crate::state::within("run:other", change("k", "v"));
    s.refuses("read_only_namespace", PutByToken { changes: vec![foreign], ..by(claims(&agent)) });
}

pub fn a_bearer_of_a_stale_token_changes_nothing(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    s.ask(by(claims(&old))).unwrap();
    let new = process.claim(old.run);
    let mine = claims(&new);
    for stale in [
        claims(&old),
        Claims { fence: claims(&old).fence, ..mine },
        Claims { fence: Some(Fence(mine.fence.unwrap().0 + 1)), ..mine },
        Claims { fence: None, ..mine },
        Claims { slot: Slot(1), ..mine },
        Claims { attempt: AttemptNo(99), ..mine },
    ] {
        s.refuses("lease_lost", by(stale));
    }
    s.ask(by(mine)).unwrap();
    process.dies();
    s.refuses("lease_lost", by(mine));
    let item = s.store().state("ns", "agent", "k").unwrap().unwrap();
    assert_eq!((item.version, item.attempt), (2, Some(new.attempt)));
}

pub fn a_bearers_transaction_is_committed_once(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let once = || PutByToken { transaction: Some("t".into()), progress: true, ..by(claims(&agent)) };
    let first = s.ask(once()).unwrap();
    s.reopen();
    let again = s.ask(once()).unwrap();
    assert_eq!((again.commit, again.versions.len()), (first.commit, 0));
    assert_eq!(s.row(agent.run).closed, 1);
}

pub fn progress_that_a_bearer_tells_is_counted(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    s.ask(by(claims(&agent))).unwrap();
    assert_eq!(s.row(agent.run).closed, 0);
    s.ask(PutByToken { progress: true, ..by(claims(&agent)) }).unwrap();
    assert_eq!(s.row(agent.run).closed, 1);
    assert_eq!(s.store().state("ns", "agent", "k").unwrap().unwrap().version, 2);
    let refused =
        PutByToken { progress: true, changes: vec![change("k", "v").expecting(7)], ..by(claims(&agent)) };
    s.refuses("conflict", refused);
    assert_eq!(s.row(agent.run).closed, 1);
}

pub fn a_completed_run_that_is_reopened_can_be_claimed(s: &Stage) {
    let process = s.process("p");
    let agent = process.claim(s.run("r").create());
    let reopen = || Reopen { run: agent.run };
    assert_eq!(s.ask(reopen()).unwrap(), Status::Running);
    assert_eq!(agent.ends(Then::Complete), Status::Completed);
    s.refuses("run_ended", process.claiming(agent.run));
    assert_eq!(s.ask(reopen()).unwrap(), Status::Interrupted);
    assert_eq!(s.row(agent.run).ended_at, None);
    let next = process.claim(agent.run);
    assert_eq!(next.attempt, AttemptNo(2));
}
