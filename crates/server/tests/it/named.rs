//! Upstreams by name: where calls go, at which price, and that a client chooses among names only.

use std::sync::Arc;

use outlast_core::{
    envelope::unit::{Limits, Unit},
    journal::State,
    price::PriceTable,
};
use outlast_mock as mock;
use outlast_server::door::{AuthHeader, Config, Named};
use serde_json::json;

use crate::{
    client::{Api, Ask, with},
    rig::{HOUSE_KEY, Rig, Server, house, limit},
};

/// A server with upstreams in the manners that the fake provider knows: `router`, `local`, and another `house`.
///
/// `router` takes calls for `llama-*` from OpenAI's own path, `keyless` those for `qwen*`.
async fn serve(rig: &Rig, limits: Limits) -> Server {
    let base = rig.mock.base_url();
    let at = |name: &str, path: &str| {
        let named = house(&format!("{base}{path}"));
        Named { name: Named::name(name).unwrap(), ..named }
    };
    let router = Named {
        auth: AuthHeader::Bearer,
        cost_field: Some("usage.cost".parse().unwrap()),
        models_match: vec!["llama-*".parse().unwrap()],
        ..at("router", "/api/v1")
    };
    let mut local = Named {
        auth: AuthHeader::Bearer,
        wants_key: None,
        asks_usage: false,
        models: [("llama".to_owned(), "gpt-4o-mini".to_owned())].into(),
        ..at("local", "/ollama/v1/")
    };
    local.provider.key = None;
    let table = r#"{"house-model": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}"#;
    let table = PriceTable::with_overrides(table).unwrap();
    let hash = Arc::from(table.hash());
    let priced = Named { prices: Some((table, hash)), ..at("priced", "/openai/v1") };
    let no_key = at("keyless", "/openai/v1");
    let mut keyless = no_key;
    keyless.provider.key = None;
    keyless.models_match = vec!["qwen*".parse().unwrap()];
    let mut config = Config { default_limits: limits, ..rig.config() };
    config.providers.named.extend([router, local, priced, keyless].map(Arc::new));
    rig.serve_with(config).await
}

fn at(name: &str, ask: Ask) -> Ask {
    let target = ask.target.replacen("/v1", &format!("/u/{name}/v1"), 1);
    ask.target(&target)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_to_two_names_is_two_calls_and_each_is_replayed() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, Limits::default()).await;
    let ask = Api::Chat.says("mock: usage 100,10");
    let all = [at("house", ask.clone()), at("router", ask.clone()), ask.clone()];
    let mut first = Vec::new();
    for ask in &all {
        first.push(ask.clone().label("one").to(&server).await.ok());
    }
    // Each gets its own back, whichever is asked first.
    for (ask, answer) in all.iter().zip(&first).rev() {
        let again = ask.clone().label("two").to(&server).await;
        assert!(again.is_replayed(), "{}", ask.target);
        assert_eq!(again.ok(), *answer, "{}", ask.target);
    }
    assert_eq!(rig.mock.paid(), 3);
    let upstreams: Vec<_> =
        server.entries("r").iter().map(|e| e.call.as_ref().unwrap().upstream.to_string()).collect();
    assert_eq!(upstreams, ["house", "router", "openai"]);
    let sent: Vec<String> = rig.mock.requests().iter().map(|r| r.target.clone()).collect();
    assert_eq!(sent, ["/openai/v1/chat/completions", "/api/v1/chat/completions", "/v1/chat/completions"]);
    // Without `/v1` it is the same request.
    let short = ask.target("/u/house/chat/completions").label("three").to(&server).await;
    assert!(short.is_replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_upstream_says_that_it_bills_is_what_is_settled() {
    for stream in [false, true] {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = serve(&rig, limit(Unit::CostNanoUsd, 1_000_000_000)).await;
        let text = "mock: usage 400,32";
        let ask = if stream { Api::Chat.streams(text) } else { Api::Chat.says(text) };
        let answer = at("router", ask).to(&server).await.ok();
        let entry = server.closed("r", 1).await;
        // 432 tokens at a millionth of a dollar.
        assert_eq!(entry.spent.cost(), 432_000, "{stream}");
        assert_eq!(entry.state, State::Done);
        if stream {
            assert!(!String::from_utf8_lossy(&answer).contains("\"cost\""), "nobody had asked for the usage");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_never_tells_its_usage_is_charged_at_its_reservation() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, limit(Unit::CostNanoUsd, 1_000_000_000)).await;
    let body = with(Api::Chat.body("hello"), json!({"model": "llama", "stream": true}));
    let ask = at("local", Api::Chat.sends(&body));
    let first = ask.clone().label("one").to(&server).await.ok();
    let sent = rig.mock.requests().pop().unwrap();
    assert_eq!(sent.body, ask.body, "the option that it does not know is not put in");
    assert!(sent.headers.get("authorization").is_none());
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.state, State::Done);
    assert!(entry.spent.cost() > 0 && entry.call.unwrap().estimated);
    assert_eq!(ask.label("two").to(&server).await.ok(), first);
    assert_eq!(rig.mock.paid(), 1);
    // An answer that is no stream tells it.
    let body = with(Api::Chat.body("mock: usage 100,10"), json!({"model": "llama"}));
    at("local", Api::Chat.sends(&body)).to(&server).await.ok();
    // As gpt-4o-mini, which the name stands for: 100 × 150 + 10 × 600.
    assert_eq!(server.closed("r", 2).await.spent.cost(), 21_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstreams_own_prices_count_and_a_model_without_one_is_refused_by_name() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, limit(Unit::CostNanoUsd, 1_000_000_000)).await;
    let body = with(Api::Chat.body("mock: usage 100,10"), json!({"model": "house-model"}));
    at("priced", Api::Chat.sends(&body)).to(&server).await.ok();
    assert_eq!(server.closed("r", 1).await.spent.cost(), 120_000);
    let refused = at("house", Api::Chat.sends(&body)).run("s").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "price_unknown".into()));
    assert_eq!(rig.mock.paid(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_chooses_among_names_and_nothing_else() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, Limits::default()).await;
    for (target, status, code) in [
        ("/u/evil.example/v1/chat/completions", 404, "unknown_upstream"),
        ("/u/nobody/v1/chat/completions", 404, "unknown_upstream"),
        ("/u//v1/chat/completions", 404, "unknown_upstream"),
        ("/u/openai/v1/chat/completions", 404, "unknown_upstream"),
        ("/u/house/../nobody/v1/chat/completions", 400, "bad_target"),
        ("/u/house/v1//chat/completions", 400, "bad_target"),
        ("/u/house/u/router/v1/chat/completions", 403, "unknown_path"),
        ("/u/house/v1/messages", 403, "not_metered"),
        ("/u/house/v1/images/generations", 403, "not_metered"),
        ("/u/house/v1/admin", 403, "unknown_path"),
        ("/u/house", 403, "unknown_path"),
        ("/u/keyless/v1/chat/completions", 401, "no_provider_key"),
    ] {
        let answer = Api::Chat.says("x").target(target).to(&server).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{target}");
    }
    assert_eq!(rig.mock.requests().len(), 0);
    let models = Ask::new("GET", "/u/house/v1/models").run("r").header("x-api-key", "").to(&server).await;
    assert_eq!(models.status, 200, "{}", models.text());
    let own = Api::Named.says("x").header("authorization", "Bearer sk-mine").header("api-key", "sk-mine");
    own.to(&server).await.ok();
    assert_eq!(rig.mock.requests().pop().unwrap().headers["api-key"], "sk-mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_goes_to_the_upstream_whose_pattern_its_model_matches() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, Limits::default()).await;
    let chat = |model: &str| Api::Chat.says_to(model, "mock: usage 400,32");
    let answer = chat("llama-3").label("one").to(&server).await.ok();
    chat("gpt-4o-mini").to(&server).await.ok();
    Api::Embeddings.says_to("llama-embed", "x").to(&server).await.ok();
    let sent: Vec<String> = rig.mock.requests().iter().map(|r| r.target.clone()).collect();
    assert_eq!(sent, ["/api/v1/chat/completions", "/v1/chat/completions", "/api/v1/embeddings"]);
    // With its key, its bill and its name; and as the same call that its path would make.
    let entry = server.entries("r").remove(0);
    assert_eq!((entry.spent.cost(), entry.call.unwrap().upstream.as_str()), (432_000, "router"));
    assert!(rig.mock.requests()[0].headers["authorization"].to_str().unwrap().contains(HOUSE_KEY));
    let by_path = at("router", chat("llama-3")).label("two").to(&server).await;
    assert!(by_path.is_replayed());
    assert_eq!(by_path.ok(), answer);
    // Without a key for it nothing is sent, and not to OpenAI either.
    let refused = chat("qwen3").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (401, "no_provider_key".into()));
    assert!(refused.text().contains("keyless"), "{}", refused.text());
    // A path that names its upstream is not led elsewhere, and neither is Anthropic's API.
    at("house", chat("llama-3")).to(&server).await.ok();
    Api::Messages.says_to("llama-3", "x").to(&server).await.ok();
    let last: Vec<String> = rig.mock.requests().iter().skip(3).map(|r| r.target.clone()).collect();
    assert_eq!(last, ["/openai/v1/chat/completions", "/v1/messages"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_ones_own_goes_nowhere_but_where_it_was_sent() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, Limits::default()).await;
    let own = Api::Chat.says_to("llama-3", "x").header("authorization", "Bearer sk-my-own");
    own.to(&server).await.ok();
    let sent = rig.mock.requests().pop().unwrap();
    assert_eq!(
        (sent.target.as_str(), sent.headers["authorization"].to_str().unwrap()),
        ("/v1/chat/completions", "Bearer sk-my-own")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_that_a_client_says_chooses_its_upstream() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = serve(&rig, Limits::default()).await;
    let evil = "http://127.0.0.1:9/v1";
    let asks = [
        Api::Chat.says("a").header("x-outlast-upstream", "router"),
        Api::Chat.says("b").header("x-upstream", evil).header("x-forwarded-host", "router"),
        Api::Chat.says("c").header("host", "127.0.0.1:9"),
        Api::Chat.says("d").header("forwarded", "host=router").header("x-original-url", "/u/router/v1"),
        Api::Chat.says("e").header("openai-base-url", evil).header("proxy-authorization", "Basic eDp5"),
        Api::Chat.says("f").target("/v1/chat/completions?base_url=http://127.0.0.1:9&upstream=router"),
        Api::Chat.sends(&with(Api::Chat.body("g"), json!({"base_url": evil, "api_base": evil}))),
        Api::Chat.sends(&with(Api::Chat.body("h"), json!({"metadata": {"model": "llama-3"}}))),
    ];
    for ask in &asks {
        ask.to(&server).await.ok();
        let sent = rig.mock.requests().pop().unwrap();
        assert!(sent.target.starts_with("/v1/chat/completions"), "{ask:?} went to {}", sent.target);
    }
    assert!(server.entries("r").iter().all(|e| e.call.as_ref().unwrap().upstream == "openai"));
    for (target, code) in
        [(format!("{evil}/chat/completions"), "absolute_target"), ("*".into(), "bad_target")]
    {
        assert_eq!(Api::Chat.says("x").target(&target).to(&server).await.status, 400, "{code}");
    }
    assert_eq!(rig.mock.requests().len(), asks.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn azures_deployment_counts_as_the_model_whatever_the_body_names() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let mut config = rig.config();
    let models = [("my-gpt".to_owned(), "gpt-4o".to_owned())].into();
    let base = format!("{}/openai/v1", rig.mock.base_url());
    config.providers.named =
        vec![Arc::new(Named { name: Named::name("azure").unwrap(), models, ..house(&base) })];
    config.default_limits = limit(Unit::CostNanoUsd, 1_000_000_000);
    let server = rig.serve_with(config).await;
    let target = |name: &str| format!("/u/azure/openai/deployments/{name}/chat/completions?api-version=1");
    Api::Chat.says("hello").target(&target("my-gpt")).to(&server).await;
    let sent = rig.mock.requests().pop().unwrap();
    assert_eq!(sent.target, "/openai/deployments/my-gpt/chat/completions?api-version=1");
    assert_eq!(server.entries("r")[0].call.as_ref().unwrap().model, "my-gpt");
    let refused = Api::Chat.says("hello").target(&target("other")).to(&server).await;
    assert_eq!(refused.code(), "price_unknown");
}
