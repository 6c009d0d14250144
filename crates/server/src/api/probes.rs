//! Probes and metrics of the server: `/livez`, `/readyz`, `/metrics`.

use http::{Response, StatusCode};
use outlast_core::reads::plans;

use super::{
    metrics,
    request::{Answered, ApiRequest},
};
use crate::{
    proxy::{host::Host, metrics::single},
    wire::body::{AnswerBody, response},
};

/// Answers that the process runs.
pub(super) async fn livez(_: ApiRequest) -> Answered {
    Ok(text(StatusCode::OK, "ok\n"))
}

/// Answers whether the server takes calls.
pub(super) async fn readyz(asked: ApiRequest) -> Answered {
    Ok(match unready(&asked.host) {
        None => text(StatusCode::OK, ready(&asked.host)),
        Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
    })
}

/// Returns the reason why the server takes no calls now; `None` when it takes calls.
fn unready(host: &Host) -> Option<&'static str> {
    if host.is_draining() {
        Some("draining: it is about to end\n")
    } else if host.registry.is_stuck() {
        Some("an answer could not be recorded yet\n")
    } else if host.store.check().is_err() {
        Some("the store vanished: it was removed, moved or replaced\n")
    } else if !host.node.is_writing() {
        Some("the store cannot be written\n")
    } else {
        None
    }
}

/// Returns the body of the answer of a server that takes calls. It also reports commits that the database was
/// found to have lost.
fn ready(host: &Host) -> String {
    let loss = host.store.losses().newest;
    format!("ready\n{}", loss.map_or_else(String::new, |loss| format!("{loss}\n")))
}

/// Answers with the counters of this server and of its store, for Prometheus.
pub(super) async fn metrics(asked: ApiRequest) -> Answered {
    let host = &asked.host;
    let (clients, in_flight) = host.registry.len();
    let mut text = host.metrics.text();
    // When the store cannot be read, the counters in memory are still shown; `/readyz` reports the store.
    if let (Ok(budgets), Ok(now)) = (host.store.budgets(), host.store.now()) {
        text.push_str(&metrics::budgets(&budgets, now));
        let plans = plans::list(&*host.store).unwrap_or_default();
        text.push_str(&metrics::plans(&plans, now));
        text.push_str(&metrics::runs(&*host.store, now).unwrap_or_default());
    }
    for (name, help, value) in [
        ("outlast_calls_in_flight", "Calls on their way upstream.", in_flight),
        ("outlast_clients", "Metered requests that have a client now.", clients),
        ("outlast_draining", "1 while the server ends.", usize::from(host.is_draining())),
    ] {
        single(&mut text, name, "gauge", help, value);
    }
    let help = "Commits of this server that its database had acknowledged and lost.";
    single(&mut text, "outlast_lost_commits_total", "counter", help, host.store.losses().commits);
    Ok(response(200, "text/plain; version=0.0.4; charset=utf-8", text))
}

fn text(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response<AnswerBody> {
    response(status.as_u16(), "text/plain; charset=utf-8", text)
}
