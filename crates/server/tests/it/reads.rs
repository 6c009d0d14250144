//! The read API: runs, attempts, entries, iterations, jobs, for a person and for the bearer of a run token.

use std::{io, sync::Arc};

use outlast_core::{
    envelope::unit::Limits,
    journal::Entry,
    run::Policy,
    store::{RunView, Store},
    words::id::{AttemptNo, RunId},
};
use outlast_mock as mock;
use outlast_server::door::{Access, Config, RunFiles};
use outlast_view::FileChange;
use serde_json::{Value, json};

use crate::{
    client::{Api, Ask},
    rig::{Rig, Server},
};

/// Logs that tell what was asked of them.
struct Logs;

impl RunFiles for Logs {
    fn last_lines(&self, run: &RunId, attempt: AttemptNo, most: usize) -> io::Result<Vec<String>> {
        Ok(vec![format!("the last {most} of attempt {attempt} of {run}")])
    }

    fn changes(&self, _: &dyn Store, view: &RunView, entry: &Entry) -> io::Result<(Vec<FileChange>, usize)> {
        let path = format!("of {} at {}", view.run.id, entry.seq);
        let change =
            FileChange { path, what: "added", lines_added: Some(1), lines_removed: Some(0), diff: None };
        Ok((vec![change], 3))
    }

    fn forget(&self, _: &dyn Store, _: &RunId) -> io::Result<()> {
        Ok(())
    }
}

async fn get(server: &Server, target: &str) -> Value {
    let answer = Ask::new("GET", target).to(server).await;
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    answer.json()
}

async fn refuses(server: &Server, target: &str, want: (u16, &str)) {
    let answer = Ask::new("GET", target).to(server).await;
    let had = (answer.status.as_u16(), answer.code());
    assert_eq!(had, (want.0, want.1.to_owned()), "{target}: {}", answer.text());
}

fn seqs(told: &Value) -> Vec<i64> {
    told["entries"].as_array().unwrap().iter().map(|e| e["seq"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_found_by_status_name_tag_and_time() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for body in [
        json!({"name": "Nightly report", "metadata": {"team": "a"}}),
        json!({"name": "search", "metadata": {"team": "b", "night": "x"}}),
    ] {
        rig.clock.advance_ms(1_000);
        let created = Ask::new("POST", "/v1/runs").bytes(body.to_string()).to(&server).await;
        assert_eq!(created.status, 201, "{}", created.text());
    }
    rig.clock.advance_ms(1_000);
    Api::Chat.says("hello").run("by-header").to(&server).await.ok();
    let all = get(&server, "/v1/runs").await;
    let of = |told: Value| {
        let runs = told["runs"].as_array().unwrap().clone();
        runs.iter()
            .map(|r| r["name"].as_str().unwrap_or(r["run"].as_str().unwrap()).to_owned())
            .collect::<Vec<_>>()
    };
    let at = all["runs"][1]["created_at"].as_str().unwrap();
    let (since, until) = (format!("?since={at}"), format!("?until={at}"));
    for (query, wanted) in [
        ("?name=NIGHT", vec!["Nightly report"]),
        ("?name=by-h", vec!["by-header"]),
        ("?tag=team", vec!["search", "Nightly report"]),
        ("?tag=team=a", vec!["Nightly report"]),
        ("?tag=night=y", vec![]),
        ("?status=running,halted&tag=team=b", vec!["search"]),
        ("?status=halted", vec![]),
        (since.as_str(), vec!["by-header", "search"]),
        (until.as_str(), vec!["Nightly report"]),
    ] {
        assert_eq!(of(get(&server, &format!("/v1/runs{query}")).await), wanted, "{query}");
    }
    assert_eq!(get(&server, "/v1/jobs").await, json!({"jobs": [], "cursor": null}));
    for wrong in ["?status=running,done", "?until=soon", "?tags=x", "?name=a&name=b"] {
        refuses(&server, &format!("/v1/runs{wrong}"), (400, "bad_request")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_list_goes_on_from_its_cursor_and_names_each_run_once() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for n in 0..7 {
        let team = if n % 2 == 0 { "even" } else { "odd" };
        let body = json!({"name": format!("run {n}"), "metadata": {"team": team}}).to_string();
        assert_eq!(Ask::new("POST", "/v1/runs").bytes(body).to(&server).await.status, 201);
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&server, &format!("/v1/runs?tag=team=even&limit=2{cursor}")).await;
        let runs = page["runs"].as_array().unwrap();
        names.extend(runs.iter().map(|r| r["name"].as_str().unwrap().to_owned()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["run 6", "run 4", "run 2", "run 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_read_as_a_person_reads_it_and_as_it_went_over_the_line() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let sent = Api::Chat.says("what is the capital of France?");
    let answer = sent.run("r").to(&server).await;
    Api::Messages.streams("and of Spain?").run("r").to(&server).await.ok();
    let told = get(&server, "/v1/runs/r/entries/1").await;
    assert_eq!(
        (&told["kind"], &told["state"], &told["live"]),
        (&json!("call"), &json!("done"), &json!(false))
    );
    let turns = told["request"]["turns"].as_array().unwrap();
    let said = &turns.last().unwrap()["parts"][0];
    assert_eq!(said, &json!({"type": "text", "text": "what is the capital of France?"}));
    assert_eq!(told["answer"]["turns"][0]["role"], "assistant");
    assert_eq!(told["call_before"], Value::Null);
    let streamed = get(&server, "/v1/runs/r/entries/2").await;
    assert_eq!(streamed["answer"]["turns"][0]["role"], "assistant", "{streamed}");
    assert_eq!(streamed["call_before"], json!(1));
    let raw = Ask::new("GET", "/v1/runs/r/entries/1/raw").to(&server).await;
    assert_eq!(raw.text(), answer.text());
    // Nothing that a model or a page wrote is ever a document of this origin.
    let headers = ["content-type", "content-disposition", "x-content-type-options"];
    let wanted = [Some("application/octet-stream"), Some("attachment"), Some("nosniff")];
    assert_eq!(headers.map(|name| raw.header(name)), wanted);
    let asked = Ask::new("GET", "/v1/runs/r/entries/1/raw?side=request").to(&server).await;
    assert!(asked.text().contains("capital of France"), "{}", asked.text());
    for (target, want) in [
        ("/v1/runs/r/entries/3", (404, "unknown_entry")),
        ("/v1/runs/r/entries/0", (404, "unknown_entry")),
        ("/v1/runs/r/entries/x", (404, "unknown_entry")),
        ("/v1/runs/none/entries/1", (404, "unknown_run")),
        ("/v1/runs/r/entries/1?raw", (400, "bad_request")),
        ("/v1/runs/r/entries/1/raw?side=left", (400, "bad_request")),
    ] {
        refuses(&server, target, want).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_read_page_by_page_and_by_what_they_are() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for n in 0..5 {
        Api::Chat.says(&format!("call {n}")).run("r").to(&server).await.ok();
    }
    let saved = Ask::new("POST", "/v1/runs/r/checkpoints").bytes(r#"{"name": "cp", "payload": {"at": 1}}"#);
    assert_eq!(saved.to(&server).await.status, 201);
    let page = get(&server, "/v1/runs/r/entries?limit=4").await;
    assert_eq!((seqs(&page), &page["after"]), (vec![1, 2, 3, 4], &json!(4)));
    let rest = get(&server, "/v1/runs/r/entries?limit=4&after=4").await;
    assert_eq!((seqs(&rest), &rest["after"]), (vec![5, 6], &Value::Null));
    for (query, wanted) in [
        ("kind=checkpoint", vec![6]),
        ("kind=checkpoint,call&state=done&after=4", vec![5, 6]),
        ("state=open", vec![]),
        ("key=cp", vec![6]),
        ("attempt=9", vec![]),
    ] {
        assert_eq!(seqs(&get(&server, &format!("/v1/runs/r/entries?{query}")).await), wanted, "{query}");
    }
    let value = get(&server, "/v1/runs/r/entries/6").await;
    assert_eq!(value["answer"]["value"]["at"], json!(1), "{value}");
    for wrong in ["kind=calls", "state=closed", "limit=0", "limit=2001", "after=-1", "page=2"] {
        refuses(&server, &format!("/v1/runs/r/entries?{wrong}"), (400, "bad_request")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_tells_the_budget_and_its_attempts_tell_who_died() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(Config { files: Some(Arc::new(Logs)), ..rig.config() }).await;
    let limits = crate::rig::limit(outlast_core::envelope::unit::Unit::Calls, 3);
    let token = server.driven("r", limits, Policy::default()).await;
    Api::Chat.says("one").token(&token).to(&server).await.ok();
    let told = get(&server, "/v1/runs/r/summary").await;
    let calls = told["budget"].as_array().unwrap().iter().find(|u| u["unit"] == "calls").unwrap().clone();
    let wanted = json!({"unit": "calls", "limit": 3, "spent": 1, "reserved": 0, "in_doubt": 0, "left": 2});
    assert_eq!((calls, &told["status"]), (wanted, &json!("running")));
    let attempts = get(&server, "/v1/runs/r/attempts").await;
    assert_eq!(
        (&attempts["attempts"][0]["attempt"], &attempts["attempts"][0]["exit"]),
        (&json!(1), &json!(null))
    );
    assert_eq!(attempts["attempts"][0].get("last_lines"), None);
    let printed = get(&server, "/v1/runs/r/attempts?lines=2").await;
    assert_eq!(printed["attempts"][0]["last_lines"], json!(["the last 2 of attempt 1 of r"]));
    let changed = get(&server, "/v1/runs/r/entries/1/files").await;
    assert_eq!((&changed["changes"][0]["path"], &changed["more"]), (&json!("of r at 1"), &json!(3)));
    assert_eq!(get(&server, "/v1/runs/r/attempts?died=true").await["attempts"], json!([]));
    assert_eq!(get(&server, "/v1/runs/r/iterations").await["iterations"][0]["attempts"], json!([1]));
    assert_eq!(get(&server, "/v1/runs/r/items").await, json!({"run": "r", "items": [], "after": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bearer_of_a_run_token_reads_its_own_run_and_no_other() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let access = Access { api_token: Some("the-api-token".into()), loopback: true, ..Access::default() };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    let token = server.driven("mine", Limits::default(), Policy::default()).await;
    let other = server.driven("other", Limits::default(), Policy::default()).await;
    Api::Chat.says("a secret").token(&other).to(&server).await.ok();
    Api::Chat.says("mine").token(&token).to(&server).await.ok();
    let asks = |target: &str| {
        [Ask::new("GET", target).token(&token), Ask::new("GET", &format!("/run/{token}{target}"))]
    };
    for target in ["/v1/runs/mine/summary", "/v1/runs/mine/entries", "/v1/runs/mine/entries/1"] {
        for ask in asks(target) {
            assert_eq!(ask.to(&server).await.status, 200, "{target}");
        }
    }
    for target in ["/v1/runs", "/v1/runs?name=other"] {
        for ask in asks(target) {
            let listed = ask.to(&server).await.json();
            let ids: Vec<&Value> = listed["runs"].as_array().unwrap().iter().map(|r| &r["run"]).collect();
            assert_eq!(ids, ["mine"], "{target}");
        }
    }
    // Whether another run exists is not told either.
    for run in ["other", "none"] {
        for below in [
            "summary",
            "attempts",
            "iterations",
            "items",
            "entries",
            "entries/1",
            "entries/1/raw",
            "entries/1/files",
        ] {
            for ask in asks(&format!("/v1/runs/{run}/{below}")) {
                let refused = ask.to(&server).await;
                let had = (refused.status.as_u16(), refused.code());
                assert_eq!(had, (403, "foreign_run".into()), "{run} {below}: {}", refused.text());
            }
        }
    }
    let bare = Ask::new("GET", "/v1/runs/mine/summary").to(&server).await;
    assert_eq!((bare.status.as_u16(), bare.code()), (401, "no_token".into()));
    let elsewhere = Ask::new("GET", "/v1/runs").header("authorization", "Bearer the-api-token");
    let refused = elsewhere.header("origin", "https://elsewhere.example").to(&server).await;
    assert_eq!(refused.status, 403);
}

fn kinds(told: &Value) -> Vec<String> {
    told["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_given_once_from_a_cursor_on() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    Api::Chat.says("hello").run("r").to(&server).await.ok();
    let first = get(&server, "/v1/events").await;
    assert_eq!(kinds(&first), ["run_created", "status", "attempt_began"]);
    assert_eq!(first["events"][1]["about"]["to"], "running");
    let cursor = first["cursor"].as_str().unwrap().to_owned();
    assert_eq!(kinds(&get(&server, &format!("/v1/events?after={cursor}")).await), [""; 0]);
    Ask::new("POST", "/v1/runs/r/complete").to(&server).await.ok();
    let rest = get(&server, &format!("/v1/events?after={cursor}")).await;
    assert_eq!(kinds(&rest), ["status", "attempt_ended"], "{rest}");
    assert!(rest["events"].as_array().unwrap().iter().all(|e| e["run"] == "r"));
    let after_one = rest["events"][0]["cursor"].as_str().unwrap();
    assert_eq!(kinds(&get(&server, &format!("/v1/events?after={after_one}")).await), ["attempt_ended"]);
    assert_eq!(
        kinds(&get(&server, "/v1/events?kind=run_created,attempt_ended").await),
        ["run_created", "attempt_ended"]
    );
    assert_eq!(kinds(&get(&server, "/v1/events?after=now").await), [""; 0]);
    for wrong in ["after=x", "after=1", "kind=halts", "limit=0", "since=1"] {
        refuses(&server, &format!("/v1/events?{wrong}"), (400, "bad_request")).await;
    }
    refuses(&server, "/v1/events?run=none", (404, "unknown_run")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_opening_and_closing_of_a_runs_entries_is_given_once_whatever_the_page() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    Api::Chat.says("one").run("r").to(&server).await.ok();
    let slow = Api::Chat.streams("two\nmock: hang").run("r").open(server.addr).await;
    crate::rig::until("the call is on its way", || {
        let run = server.run("r").run.no;
        server.store.entries(run, outlast_core::words::id::Seq(1), 9).unwrap().len() == 1
    })
    .await;
    Api::Chat.says("three").run("r").to(&server).await.ok();
    for limit in [1, 2, 3, 200] {
        let (mut given, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = get(&server, &format!("/v1/events?run=r&limit={limit}{cursor}")).await;
            let events = page["events"].as_array().unwrap();
            if events.is_empty() {
                break;
            }
            let entry = |e: &&Value| e["kind"].as_str().unwrap().starts_with("entry_");
            given.extend(
                events.iter().filter(entry).map(|e| format!("{} {}", e["kind"].as_str().unwrap(), e["seq"])),
            );
            cursor = format!("&after={}", page["cursor"].as_str().unwrap());
        }
        given.sort();
        let wanted =
            ["entry_closed 1", "entry_closed 3", "entry_opened 1", "entry_opened 2", "entry_opened 3"];
        assert_eq!(given, wanted, "pages of {limit}");
    }
    // Every event's own cursor goes on after it.
    let all = get(&server, "/v1/events?run=r").await;
    let all = all["events"].as_array().unwrap();
    for (n, event) in all.iter().enumerate() {
        let rest =
            get(&server, &format!("/v1/events?run=r&after={}", event["cursor"].as_str().unwrap())).await;
        let place = |e: &Value| format!("{} {}", e["kind"], e["seq"]);
        let mut wanted: Vec<String> = all[n + 1..].iter().map(place).collect();
        let mut had: Vec<String> = rest["events"].as_array().unwrap().iter().map(place).collect();
        wanted.sort();
        had.sort();
        assert_eq!(had, wanted, "after {event}");
    }
    drop(slow);
}

/// Follower of the events, as a browser is one.
pub struct Follower {
    stream: tokio::net::TcpStream,
    had: String,
}

impl Follower {
    pub async fn start(server: &Server, target: &str, header: &str) -> Follower {
        use tokio::io::AsyncWriteExt as _;
        let mut stream = tokio::net::TcpStream::connect(server.addr).await.unwrap();
        let head =
            format!("GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n{header}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        Follower { stream, had: String::new() }
    }

    /// Reads on until `text` has come. Returns all that came.
    pub async fn until(&mut self, text: &str) -> String {
        use tokio::io::AsyncReadExt as _;
        while !self.had.contains(text) {
            let mut some = [0; 4096];
            let n = self.stream.read(&mut some).await.unwrap();
            assert!(n > 0, "the stream ended before {text}: {}", self.had);
            self.had.push_str(&String::from_utf8_lossy(&some[..n]));
        }
        self.had.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_running_runs_is_told_in_a_stream_beside_the_events() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    Api::Chat.says("one").run("r").to(&server).await.ok();
    Api::Chat.says("one").run("ended").to(&server).await.ok();
    Ask::new("POST", "/v1/runs/ended/complete").to(&server).await.ok();
    let mut all = Follower::start(&server, "/v1/events?after=now&progress=true", "").await;
    let mut own = Follower::start(&server, "/v1/events?after=now&progress=true&run=r", "").await;
    all.until("event: cursor").await;
    own.until("event: cursor").await;
    // Events after the cursor are sent, of a run that existed and of one that begins.
    Api::Chat.says("two").run("r").to(&server).await.ok();
    own.until("\"kind\":\"run_progress\"").await;
    let told = all.until("\"kind\":\"run_progress\"").await;
    Api::Chat.says("one").run("fresh").to(&server).await.ok();
    all.until("\"kind\":\"run_progress\",\"run\":\"fresh\"").await;
    let message = told.split("\n\n").find(|m| m.contains("event: run_progress")).unwrap();
    assert!(message.contains("\"run\":\"r\"") && !message.contains("id: "), "{message}");
    assert!(
        message.contains("\"spent_nano_usd\":") && !message.contains("\"spent_nano_usd\":0,"),
        "{message}"
    );
    refuses(&server, "/v1/events?progress=true", (400, "bad_request")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_the_state_is_told_in_a_stream_of_all_runs_and_kept_nowhere() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let mut all = Follower::start(&server, "/v1/events?after=now&progress=true", "").await;
    let mut without = Follower::start(&server, "/v1/events?after=now&progress=true&kind=status", "").await;
    all.until("event: cursor").await;
    without.until("event: cursor").await;
    Ask::new("PUT", "/v1/state/notes/ann/plan").bytes("1").to(&server).await.ok();
    let told = all.until("\"kind\":\"state_changed\"").await;
    let message = told.split("\n\n").find(|m| m.contains("event: state_changed")).unwrap();
    assert!(message.contains("\"position\":1") && !message.contains("id: "), "{message}");
    Api::Chat.says("one").run("r").to(&server).await.ok();
    assert!(!without.until("\"to\":\"running\"").await.contains("state_changed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_pushed_as_they_happen_and_resumed_after_the_last_id() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    Api::Chat.says("hello").run("r").to(&server).await.ok();
    let mut follower = Follower::start(&server, "/v1/events?kind=status", "").await;
    let begun = follower.until("\"to\":\"running\"").await;
    assert!(begun.contains("content-type: text/event-stream"), "{begun}");
    Ask::new("POST", "/v1/runs/r/complete").to(&server).await.ok();
    let all = follower.until("\"to\":\"completed\"").await;
    let id = |text: &str| {
        let before = &all[..all.find(text).unwrap()];
        before.rsplit("id: ").next().unwrap().lines().next().unwrap().to_owned()
    };
    let (running, completed) = (id("\"to\":\"running\""), id("\"to\":\"completed\""));
    drop(follower);
    let resumed = format!("last-event-id: {running}\r\n");
    let rest = Follower::start(&server, "/v1/events?kind=status", &resumed).await.until("\"to\":").await;
    assert!(rest.contains("\"to\":\"completed\"") && !rest.contains("\"to\":\"running\""), "{rest}");
    // After the last one nothing comes but the cursor, and what happens then.
    let resumed = format!("last-event-id: {completed}\r\n");
    let mut end = Follower::start(&server, "/v1/events?kind=status", &resumed).await;
    end.until("event: cursor").await;
    Api::Chat.says("hello").run("later").to(&server).await.ok();
    let rest = end.until("\"to\":").await;
    assert!(rest.contains("\"run\":\"later\"") && !rest.contains("\"run\":\"r\""), "{rest}");
}
