//! Masks: parts that do not count when a restarted agent's requests are compared with recorded ones.

use outlast_core::{
    envelope::unit::Limits,
    run::{Policy, masks::Masks},
};
use outlast_mock as mock;
use outlast_server::door::Config;
use serde_json::json;

use crate::{
    client::{Api, Ask, every, with},
    rig::{Rig, Server},
};

fn masks(leave_out: &[&str], day: &str) -> Option<Masks> {
    let leave_out = leave_out.iter().map(|p| (*p).to_owned()).collect();
    Some(Masks { leave_out, masks: [("day".to_owned(), day.to_owned())].into() })
}

const DAY: &str = r"\d{4}-\d{2}-\d{2}";

async fn serve(rig: &Rig, masks: Option<Masks>) -> Server {
    rig.serve_with(Config { masks, ..rig.config() }).await
}

/// Asked on two days, by two attempts: whether the second has the answer of the first.
async fn is_same(server: &Server, run: &str, first: Ask, second: Ask) -> bool {
    let first = first.run(run).label("one").to(server).await.ok();
    let second = second.run(run).label("two").to(server).await;
    let replayed = second.is_replayed();
    assert_eq!(second.ok() == first, replayed);
    replayed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_differs_in_what_is_masked_is_the_same_one() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let on = |day: &str| api.says(&format!("It is {day}.\nmock: usage 10,5"));
        let plain = serve(&rig, None).await;
        assert!(!is_same(&plain, "plain", on("2026-11-20"), on("2026-11-21")).await, "{api:?}");
        let server = serve(&rig, masks(&["/seed"], DAY)).await;
        assert!(is_same(&server, "masked", on("2026-11-20"), on("2026-11-21")).await, "{api:?}");
        assert!(!is_same(&server, "other", on("2026-11-20"), on("yesterday")).await, "{api:?}");
        // To the provider it goes as it is.
        let sent = rig.mock.requests();
        assert!(sent.iter().all(|r| !String::from_utf8_lossy(&r.body).contains("<day>")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pointer_names_is_left_out() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, masks(&["/seed", "/messages/0/content"], "never there")).await;
    let says = |seed: i64, text: &str| {
        let messages = json!([{"role": "system", "content": text}, {"role": "user", "content": "hello"}]);
        Api::Chat.sends(&with(Api::Chat.body("x"), json!({"seed": seed, "messages": messages})))
    };
    assert!(is_same(&server, "r", says(1, "one"), says(2, "two")).await);
    let warm = says(1, "one");
    let cold =
        Ask { body: String::from_utf8_lossy(&warm.body).replace("hello", "goodbye").into(), ..warm.clone() };
    assert!(!is_same(&server, "s", warm, cold).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_keeps_its_masks_whatever_is_configured_later() {
    let rig = Rig::new(mock::Options::default()).await;
    let on = |day: &str| Api::Chat.says(&format!("It is {day}."));
    let server = serve(&rig, masks(&[], DAY)).await;
    on("2026-11-20").run("masked").label("one").to(&server).await.ok();
    server.proxy.reconfigure(Config { masks: None, ..rig.config() });
    on("2026-11-20").run("plain").label("one").to(&server).await.ok();
    assert!(on("2026-11-21").run("masked").label("two").to(&server).await.is_replayed());
    server.kill().await;
    // The masks hold on another server, too, and the other way round.
    let server = serve(&rig, masks(&[], "something else")).await;
    assert!(on("2026-11-22").run("masked").label("three").to(&server).await.is_replayed());
    assert!(!on("2026-11-21").run("plain").label("three").to(&server).await.is_replayed());
    assert!(on("2026-11-20").run("plain").label("four").to(&server).await.is_replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_run_has_its_parents_masks() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, masks(&[], DAY)).await;
    let on = |day: &str| Api::Chat.says(&format!("It is {day}."));
    on("2026-11-20").run("parent").label("one").to(&server).await.ok();
    let first = server.child("child", "parent").await;
    on("2026-11-20").token(&first).to(&server).await.ok();
    let second = server.claim("child").await;
    assert!(on("2026-11-21").token(&second).to(&server).await.is_replayed());
    // And one of nobody's has none, for it was created without.
    let alone = server.driven("alone", Limits::default(), Policy::default()).await;
    on("2026-11-20").token(&alone).to(&server).await.ok();
    let again = server.claim("alone").await;
    assert!(!on("2026-11-21").token(&again).to(&server).await.is_replayed());
}
