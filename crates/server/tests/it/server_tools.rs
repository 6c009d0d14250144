//! Tools that Anthropic runs: bounded by their uses, settled at the uses that were billed.

use outlast_core::envelope::unit::Unit;
use outlast_mock as mock;
use serde_json::{Value, json};

use crate::{
    client::{Api, Ask, with},
    rig::{Rig, limit},
};

fn searches(text: &str, max_uses: Option<u64>, stream: bool) -> Ask {
    let mut tool = json!({"type": "web_search_20250305", "name": "web_search"});
    if let Some(uses) = max_uses {
        tool["max_uses"] = uses.into();
    }
    Api::Messages.sends(&with(Api::Messages.body(text), json!({"tools": [tool], "stream": stream})))
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_are_reserved_at_their_most_and_settled_at_what_was_billed() {
    for stream in [false, true] {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve_limited(limit(Unit::CostNanoUsd, 5_000_000_000)).await;
        let text = "mock: usage 100,10\nmock: search 2";
        let ask = searches(text, Some(3), stream);
        let first = ask.clone().label("one").to(&server).await.ok();
        let entry = server.closed("r", 1).await;
        let usage = entry.call.unwrap().usage.unwrap();
        assert_eq!((usage.input, usage.output, usage.web_searches), (100, 10, 2), "{stream}");
        // 100 × 1 + 10 × 5 usd per million, and two searches at a cent.
        assert_eq!(entry.spent.cost(), 100_000 + 50_000 + 2 * 10_000_000);
        let text = String::from_utf8(first.to_vec()).unwrap();
        assert!(text.contains("web_search_requests\":2"), "{text}");
        assert_eq!(ask.label("two").to(&server).await.ok(), first);
        assert_eq!(rig.mock.paid(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_searches_may_cost_has_to_fit_the_budget() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    // A dollar is less than 101 searches.
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 1_000_000_000)).await;
    let refused = searches("x", Some(101), false).to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "dollar_budget_exceeded".into()));
    assert_eq!(rig.mock.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_without_a_most_is_refused_by_name_under_a_limit_in_usd_only() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 5_000_000_000)).await;
    let refused = searches("x", None, false).to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "price_unknown".into()));
    let message: Value = refused.json();
    let message = message["error"]["message"].as_str().unwrap();
    assert!(message.contains("tools[0] web_search_20250305 without max_uses"), "{message}");
    assert_eq!(rig.mock.requests().len(), 0);
    let server = rig.serve_limited(limit(Unit::Calls, 5)).await;
    searches("x", None, false).run("s").to(&server).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_provider_searches_no_more_than_it_may() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for (max_uses, text) in [(1, "mock: search 2"), (3, "mock: search x")] {
        let refused = searches(text, Some(max_uses), false).label(text).to(&server).await;
        assert_eq!(refused.status, 400, "{text}");
    }
    let plain = Api::Messages.says("mock: search 1").to(&server).await;
    assert_eq!(plain.status, 400, "no tool for it was offered");
}
