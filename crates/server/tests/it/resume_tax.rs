//! REST and metrics of the resume tax and of the windows of plans.

use outlast_mock as mock;
use serde_json::{Value, json};

use crate::{
    client::{Api, Ask},
    rig::{Rig, Server},
};

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "text", "text": text}]})
}

/// A conversation's next call, under a system text, in the attempt of a label.
async fn asks(server: &Server, label: &str, system: &str, more: &[Value]) {
    let mut messages =
        vec![user("do it"), json!({"role": "assistant", "content": "yes"}), user(&"y".repeat(8000))];
    messages.extend_from_slice(more);
    let mark = json!({"type": "ephemeral"});
    messages.last_mut().unwrap()["content"][0]["cache_control"] = mark.clone();
    let body = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 10, "messages": messages,
        "system": [{"type": "text", "text": format!("{}{system}", "x".repeat(8000)), "cache_control": mark}],
    });
    Api::Messages.sends(&body).run("r").label(label).to(server).await.ok();
}

async fn get(server: &Server, target: &str) -> Value {
    Ask::new("GET", target).to(server).await.json()
}

/// The value of a metric without labels.
async fn metric(server: &Server, name: &str) -> f64 {
    let text = Ask::new("GET", "/metrics").to(server).await.text().to_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")))
        .unwrap_or_else(|| panic!("{name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restart_bought_again_is_told_by_rest_and_counted() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    asks(&server, "one", "clean", &[]).await;
    let more = [json!({"role": "assistant", "content": [{"type": "text", "text": "yes"}]}), user("go on")];
    asks(&server, "two", "dirty", &more).await;
    let told = get(&server, "/v1/runs/r/resume_tax").await;
    let one = &told["resumptions"][0];
    assert_eq!(
        (&one["before"], &one["after"], &one["expired"]),
        (&1.into(), &2.into(), &false.into()),
        "{told}"
    );
    assert_eq!(one["difference"]["part"], "system");
    let tokens = one["rebought_tokens"].as_f64().unwrap();
    assert!(tokens > 4000.0, "{told}");
    assert_eq!(
        (&told["total"]["restarts"], told["total"]["rebought_tokens"].as_f64()),
        (&1.into(), Some(tokens)),
        "{told}"
    );
    // The resume tax is counted after the answer.
    while metric(&server, "outlast_resume_tax_tokens_total").await == 0.0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(metric(&server, "outlast_resume_tax_tokens_total").await, tokens);
    let usd = metric(&server, "outlast_resume_tax_usd_total").await;
    assert_eq!((usd * 1e9).round(), told["total"]["rebought_nano_usd"].as_f64().unwrap());
    let none = Ask::new("GET", "/v1/runs/none/resume_tax").to(&server).await;
    assert_eq!((none.status.as_u16(), none.code()), (404, "unknown_run".into()));
}

/// A conversation's next call, with Claude Code's attribution block. The system text is marked for the cache, or is not.
async fn is_attributed(server: &Server, label: &str, number: u32, mark: Value, said: &str) {
    let header = format!("x-anthropic-billing-header: cc_version=2; cch={number};");
    let system = json!([
        {"type": "text", "text": header},
        {"type": "text", "text": "x".repeat(8000), "cache_control": mark},
    ]);
    let messages = json!([user("do it"), {"role": "assistant", "content": "yes"}, user(said)]);
    let body =
        json!({"model": "claude-sonnet-4-5", "max_tokens": 10, "system": system, "messages": messages});
    Api::Messages.sends(&body).run("r").label(label).to(server).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_attribution_block_is_told_only_of_a_provider_that_reads_it() {
    // Bug: a restart that kept all of the cache was told to differ in `system[0]`, and the place that did differ was not
    // named. Cause: a number in Claude Code's first block is another in each request; Anthropic takes the block out.
    for (mark, wanted) in
        [(json!({"type": "ephemeral"}), "messages[2].content[0]"), (Value::Null, "system[0]")]
    {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        is_attributed(&server, "one", 1, mark.clone(), "go").await;
        is_attributed(&server, "two", 2, mark, "stay").await;
        let told = get(&server, "/v1/runs/r/resume_tax").await;
        assert_eq!(told["resumptions"][0]["difference"]["place"], wanted, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_told_by_rest_and_as_metrics() {
    let windows = vec!["5h:1000000,used=40%".parse().unwrap()];
    let rig = Rig::in_memory(mock::Options { plan: windows, ..mock::Options::default() }).await;
    let server = rig.serve().await;
    assert_eq!(get(&server, "/v1/plans").await, json!({"plans": []}));
    let credential = ("authorization", "Bearer login-of-ann");
    let user = json!({"account_uuid": "account-of-ann"}).to_string();
    let body = json!({
        "model": "claude-haiku-4-5", "max_tokens": 10, "metadata": {"user_id": user},
        "messages": [{"role": "user", "content": "hello"}],
    });
    let ask = Api::Messages.sends(&body).without("x-api-key").header(credential.0, credential.1).run("r");
    ask.to(&server).await.ok();
    let window = loop {
        let told = get(&server, "/v1/plans").await;
        if let Some(plan) = told["plans"].as_array().and_then(|plans| plans.first()) {
            assert_eq!(plan["login"], "anthropic:account-of-ann", "{told}");
            break plan["windows"][0].clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (&window["window"], &window["minutes"], &window["is_over"]),
        (&"5h".into(), &300.into(), &false.into())
    );
    assert!(window["used_percent"].as_f64().unwrap() >= 40.0, "{window}");
    assert!(window["resets_at"].as_str() > window["told_at"].as_str(), "{window}");
    let of_run = &get(&server, "/v1/runs/r/summary").await["plans"][0];
    assert_eq!(
        (&of_run["login"], &of_run["windows"][0]["resets_at"]),
        (&"anthropic:account-of-ann".into(), &window["resets_at"])
    );
    let text = Ask::new("GET", "/metrics").to(&server).await.text().to_owned();
    assert!(
        text.contains("outlast_plan_used_ratio{login=\"anthropic:account-\",window=\"5h\"} 0.4"),
        "{text}"
    );
    assert!(
        text.contains("outlast_plan_turns_seconds{login=\"anthropic:account-\",window=\"5h\"} "),
        "{text}"
    );
}
