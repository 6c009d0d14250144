//! Access to the proxy: which callers are admitted, for which run, and that no credential of Outlast's goes upstream.

use outlast_core::{
    envelope::unit::Limits,
    run::{
        Policy,
        token::{self, Claims, TokenKey},
    },
    words::id::{AttemptNo, Fence, RunId, RunNo, Slot},
};
use outlast_mock as mock;
use outlast_server::{
    dialect::Upstream,
    door::{Access, Config},
};

use crate::{
    client::{ALL, Api, Ask, every},
    rig::Rig,
};

/// Nothing of ours went upstream.
fn nothing_of_ours_left(rig: &Rig) {
    for sent in rig.mock.requests() {
        assert!(!sent.target.contains("ol_"), "{}", sent.target);
        for (name, value) in &sent.headers {
            assert!(!value.to_str().unwrap().contains("ol_"), "{name}: {value:?}");
            assert!(!name.as_str().starts_with("x-outlast"), "{name}");
        }
    }
}

// Bug: a run token behind a scheme written otherwise was taken for the caller's own key.
// Consequence: it was sent to the provider.
// Cause: only `Bearer` and `bearer` were known; schemes are not case-sensitive.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_token_is_taken_wherever_a_client_puts_its_key_and_goes_no_further() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let token = server.driven("r", Limits::default(), Policy::default()).await;
        let bare = |text: &str| api.says(text).without("x-outlast-run");
        let asks = [
            bare("a").header("authorization", &format!("Bearer {token}")),
            bare("b").header("authorization", &format!("bearer {token}")),
            bare("c").header("authorization", &format!("BEARER  {token}")),
            bare("d").header("authorization", &token),
            bare("e").header("x-api-key", &token),
            bare("f").header("api-key", &token),
            bare("g").header("x-goog-api-key", &token),
            bare("h").target(&format!("{}?key={token}", api.path())),
            bare("i").target(&format!("{}?beta=true&key={token}&x=1", api.path())),
            bare("j").target(&format!("/run/{token}{}", api.path())),
            bare("k").header("authorization", &format!("Bearer {token}")).header("x-api-key", &token),
            bare("l").header("authorization", &format!("Token {token}")),
            bare("m").target(&format!("{}?api_key={token}", api.path())),
            bare("n").header("x-api-key", &token).header("x-my-key", &token),
        ];
        for ask in &asks {
            ask.to(&server).await.ok();
            let sent = rig.mock.requests().pop().unwrap();
            let keys: Vec<&str> = ["authorization", "x-api-key", "api-key", "x-goog-api-key"]
                .iter()
                .filter_map(|n| sent.headers.get(*n))
                .map(|v| v.to_str().unwrap())
                .collect();
            assert_eq!(keys, [api.credential().1], "{ask:?}");
        }
        assert_eq!(server.entries("r").len(), asks.len());
        nothing_of_ours_left(&rig);
        let targets: Vec<String> = rig.mock.requests().iter().map(|r| r.target.clone()).collect();
        assert!(
            targets.contains(&api.upstream_target(&format!("{}?beta=true&x=1", api.path()))),
            "{targets:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_token_in_the_path_an_agent_sends_its_own_key() {
    for api in ALL {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let token = server.driven("r", Limits::default(), Policy::default()).await;
        let ask = api.says("x").without("x-outlast-run").header("authorization", "Bearer sk-login");
        ask.target(&format!("/run/{token}{}", api.path())).to(&server).await.ok();
        let sent = rig.mock.requests().pop().unwrap();
        assert_eq!(
            (sent.target.as_str(), &sent.headers["authorization"]),
            (&*api.upstream_target(api.path()), &http::HeaderValue::from_static("Bearer sk-login"))
        );
        assert!(!sent.headers.contains_key("x-api-key"));
        nothing_of_ours_left(&rig);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_forged_or_ended_token_gets_nothing() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let good = server.driven("r", Limits::default(), Policy::default()).await;
    let claims = token::verify(&good, &server.store.token_keys().unwrap()).unwrap();
    let (id, secret) = (server.store.token_keys().unwrap()[0].id, [9; 32]);
    let forged = token::mint(&TokenKey { id, secret }, &claims);
    let foreign = token::mint(&TokenKey { id: 77, secret }, &claims);
    let altered = format!("{}A", &good[..good.len() - 1]);
    let nobody = server.token(&Claims { run: RunNo(99), ..claims });
    let never = server.token(&Claims { attempt: AttemptNo(99), ..claims });
    let fence = server.token(&Claims { fence: Some(Fence(99)), ..claims });
    let slot = server.token(&Claims { slot: Slot(5), ..claims });
    let ended = good.clone();
    let next = server.claim("r").await;
    for (what, token, status, code) in [
        ("forged", forged, 401, "bad_token"),
        ("of another store", foreign, 401, "bad_token"),
        ("altered", altered, 401, "bad_token"),
        ("cut", good[..30].to_owned(), 401, "bad_token"),
        ("of no run", nobody, 403, "unknown_run"),
        ("of no attempt", never, 403, "unknown_run"),
        ("of another fence", fence, 403, "lease_lost"),
        ("of another slot", slot, 403, "lease_lost"),
        ("of an ended attempt", ended, 403, "lease_lost"),
    ] {
        for api in ALL {
            let refused = api.says("x").token(&token).to(&server).await;
            assert_eq!((refused.status.as_u16(), refused.code().as_str()), (status, code), "{what}");
            assert_eq!(refused.header("x-should-retry"), Some("false"));
            assert!(!refused.text().contains(&token[3..]), "{what}: {}", refused.text());
            let path = api.says("x").without("x-outlast-run").target(&format!("/run/{token}{}", api.path()));
            assert_eq!(path.to(&server).await.code(), code, "{what}");
        }
    }
    assert_eq!(rig.mock.requests().len(), 0);
    Api::Chat.says("x").token(&next).to(&server).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_disagree_are_refused() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let (one, two) = (
        server.driven("one", Limits::default(), Policy::default()).await,
        server.driven("two", Limits::default(), Policy::default()).await,
    );
    let says = || Api::Chat.says("x").without("x-outlast-run");
    for ask in [
        says().header("authorization", &format!("Bearer {one}")).header("x-api-key", &two),
        says().header("x-api-key", &one).target(&format!("/run/{two}/v1/chat/completions")),
        says().header("x-api-key", &one).run("two"),
        says().header("x-api-key", &one).run("one"),
        says().run("r").header("x-riskkernel-run-id", "s"),
    ] {
        let refused = ask.to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "credentials_disagree".into()));
    }
    assert_eq!(rig.mock.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisors_proxy_serves_its_own_run_by_token_alone() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let setup = rig.serve().await;
    let (mine, other) = (
        setup.driven("mine", Limits::default(), Policy::default()).await,
        setup.driven("other", Limits::default(), Policy::default()).await,
    );
    let access = Access { only_run: Some(setup.run_no("mine")), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    let bare = || Api::Messages.says("x").without("x-outlast-run");
    for (ask, status, code) in [
        (bare().token(&other), 403, "foreign_run"),
        (bare().run("mine"), 401, "run_token_wanted"),
        (bare(), 401, "run_token_wanted"),
        (bare().header("x-api-key", "sk-mine"), 401, "run_token_wanted"),
    ] {
        let refused = ask.to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (status, code));
    }
    bare().token(&mine).to(&server).await.ok();
    assert_eq!(rig.mock.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_listener_wants_its_api_token_of_those_without_a_run_token() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    for loopback in [true, false] {
        let access = Access { api_token: Some("the-api-token".into()), loopback, ..Access::default() };
        let server = rig.serve_with(Config { access, ..rig.config() }).await;
        let says = |text: &str| Api::Chat.says(text);
        for ask in
            [says("x"), says("x").header("authorization", "Bearer wrong"), says("x").without("x-outlast-run")]
        {
            let refused = ask.to(&server).await;
            assert_eq!((refused.status.as_u16(), refused.code()), (401, "no_token".into()));
        }
        says("a").header("authorization", "Bearer the-api-token").to(&server).await.ok();
        // Beside a key of one's own.
        let both = says("b").header("authorization", "Bearer sk-own").header("x-api-key", "the-api-token");
        both.to(&server).await.ok();
        let sent = rig.mock.requests().pop().unwrap();
        assert_eq!(sent.headers["authorization"], "Bearer sk-own");
        assert!(!sent.headers.contains_key("x-api-key"));
        let nobody = says("c").without("x-outlast-run").header("authorization", "Bearer the-api-token");
        let nobody = nobody.to(&server).await;
        assert_eq!(nobody.status, if loopback { 200 } else { 403 }, "{}", nobody.text());
        let token = server.driven(&format!("r{loopback}"), Limits::default(), Policy::default()).await;
        says("d").token(&token).to(&server).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_no_run_shares_the_days_run_and_gets_no_replay() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let ask = Api::Chat.says("the same").without("x-outlast-run");
    let (first, second) = (ask.to(&server).await, ask.to(&server).await);
    let day = first.header("x-outlast-run").unwrap().to_owned();
    assert!(day.starts_with("day-20") && day.len() == "day-2026-11-20".len(), "{day}");
    assert_eq!(second.header("x-outlast-run"), Some(day.as_str()));
    assert_ne!(first.ok(), second.ok());
    // Not even a marked one: nobody knows whose it was.
    assert!(!ask.retry(1).to(&server).await.is_replayed());
    assert_eq!((rig.mock.paid(), server.entries(&day).len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_attempts_and_an_ended_one_is_refused() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let says = |label: &str| Api::Chat.says("x").label(label);
    says("one").to(&server).await.ok();
    says("two").to(&server).await.ok();
    for _ in 0..2 {
        let refused = says("one").to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "label_ended".into()));
    }
    says("three").to(&server).await.ok();
    // Bug: `outlast show` told of a death, "lost with its supervisor", for each new label. Cause: a header attempt, which
    // no process drives, was ended like one whose driver is gone.
    let attempts = server.store.attempts(server.run_no("r")).unwrap();
    assert!(attempts.iter().all(|a| !a.died()), "{attempts:?}");
    assert_eq!(attempts.iter().filter(|a| a.is_open()).count(), 1);
    assert_eq!(rig.mock.paid(), 1);
    let labels: Vec<Option<String>> =
        server.store.attempts(server.run_no("r")).unwrap().into_iter().map(|a| a.label).collect();
    assert_eq!(labels, ["one", "two", "three"].map(|l| Some(l.to_owned())));
    // The alias names the same run.
    let alias = Api::Chat.says("x").without("x-outlast-run").header("x-riskkernel-run-id", "r").label("four");
    assert!(alias.to(&server).await.is_replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_process_drives_is_not_for_header_callers() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    server.driven("r", Limits::default(), Policy::default()).await;
    for ask in [Api::Chat.says("x"), Api::Chat.says("x").label("mine")] {
        let refused = ask.to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "run_held".into()));
        assert!(refused.text().contains("outlast serve (pid"), "{}", refused.text());
    }
    assert_eq!(rig.mock.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_sites_page_gets_nothing() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for (name, value, code) in [
        ("host", "evil.example", "foreign_host"),
        ("host", "localhost.evil.example:80", "foreign_host"),
        ("origin", "https://evil.example", "foreign_origin"),
        ("origin", "null", "foreign_origin"),
        ("origin", "http://localhost.evil.example", "foreign_origin"),
    ] {
        for ask in [Api::Chat.says("x"), Ask::new("GET", "/v1/models")] {
            let refused = ask.header(name, value).to(&server).await;
            assert_eq!((refused.status.as_u16(), refused.code().as_str()), (403, code), "{name}: {value}");
        }
    }
    for (name, value) in [("host", "localhost:1"), ("host", "[::1]:80"), ("origin", "http://127.0.0.1:3000")]
    {
        Api::Chat.says(value).header(name, value).to(&server).await.ok();
    }
    assert_eq!(rig.mock.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_without_a_key_is_named_and_nothing_is_recorded() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let mut config = rig.config();
    Upstream::ALL.into_iter().for_each(|upstream| config.providers.of_mut(upstream).key = None);
    let server = rig.serve_with(config).await;
    for (api, variable) in [(Api::Chat, "OPENAI_API_KEY"), (Api::Messages, "ANTHROPIC_API_KEY")] {
        let refused = api.says("x").to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (401, "no_provider_key".into()));
        assert!(refused.text().contains(variable), "{}", refused.text());
        api.says("x").header("x-api-key", "sk-own").label(variable).to(&server).await.ok();
    }
    assert_eq!(server.entries("r").len(), 2);
    assert!(server.store.run_no(&RunId::new("r").unwrap()).unwrap().is_some());
}
