//! Ceilings on a login's plan while the store fails: no call waits for one that is over.

use outlast_core::{
    engine::run::start::Start,
    run::Spec,
    store::{Ask as _, Durability},
    words::id::RunId,
};
use outlast_mock as mock;
use outlast_server::{dialect::Upstream, door::Provider};

use crate::{
    client::{Answer, Api},
    failing::{Failing, Fate},
    rig::{Rig, Server},
};

/// A server whose run is under ceilings, and whose clients bring a login of their own.
async fn serve(rig: &Rig) -> Server {
    let anthropic = Provider::new(&rig.mock.base_url(), None).unwrap();
    let mut config = rig.config();
    *config.providers.of_mut(Upstream::Anthropic) = anthropic;
    let server = rig.serve_with(config).await;
    let spec = Spec { plan: Some("5h=40%".parse().unwrap()), ..Spec::default() };
    let start = Start { spec, ..Start::new(RunId::new("r").unwrap()) };
    server.store.ask(start, Durability::Synced).await.unwrap();
    server
}

async fn ask(server: &Server, text: &str) -> Answer {
    Api::Messages.says(text).header("authorization", "Bearer a-login").to(server).await
}

// Bug: a call whose plan was written, and whose server did not hear of it, stayed in flight in the plan.
// Consequence: all calls of the login waited for its answer, and were refused, for an hour. Cause: only a call that was
// let go had a ticket, and what the store did not take was noted once (found by the simulator's world of plans).
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_place_in_the_plan_is_in_doubt_holds_nobody_back() {
    let options = mock::Options { plan: vec!["5h:1000000".parse().unwrap()], ..mock::Options::default() };
    let (rig, store) = Rig::on_mock(options, Failing::new).await;
    let server = serve(&rig).await;
    store.let_fail("PutRow", Fate::InDoubt);
    let refused = ask(&server, "one").await;
    assert_eq!((refused.status.as_u16(), refused.code()), (503, "commit_unknown".into()));
    store.mend();
    ask(&server, "two").await.ok();
    ask(&server, "three").await.ok();
}
