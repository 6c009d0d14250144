//! The store over the wire: what is asked, what is ordered, and what is neither.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
};

use outlast_core::{engine::op::Op, envelope::unit::Limits, run::Policy, store::Question};
use outlast_mock as mock;
use outlast_server::{
    api::rows::{PATH, SHAPES},
    door::Network,
    remote::{Address, Remote},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{client::Ask, rig::Rig};

fn post(what: &Value) -> Ask {
    Ask::new("POST", PATH).bytes(json!({ "shapes": SHAPES, "what": what }).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_and_what_has_no_text_is_neither_asked_nor_ordered() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let found = post(&json!({ "ask": { "run_no": { "id": "r" } } })).to(&server).await.json();
    let no = found["answer"]["run_no"].as_i64().unwrap();
    assert_eq!(
        post(&json!({ "ask": { "run": { "no": no } } })).token(&token).to(&server).await.code(),
        "foreign_run"
    );
    let check = async |what: Value, code: &str| {
        assert_eq!(post(&what).to(&server).await.code(), code, "{what}");
    };
    check(json!({ "ask": { "token_keys": {} } }), "bad_request").await;
    check(json!({ "order": { "begin_iteration": { "run": no } } }), "bad_request").await;
    check(json!({ "order": { "tell": { "run": no, "word": "Complete" } } }), "bad_request").await;
    // This listener has no API token: whoever is on the machine reads, and nobody orders.
    check(json!({ "order": { "tell": { "run": no, "word": "Stop" } } }), "only_the_command_decides").await;
    // What an older command compares with its own number.
    let about = Ask::new("GET", PATH).to(&server).await.json();
    assert_eq!((&about["shapes"], about["version"].is_string()), (&json!(SHAPES), true));
    let other = json!({ "shapes": SHAPES - 1, "what": { "ask": { "now": {} } } }).to_string();
    assert_eq!(Ask::new("POST", PATH).bytes(other).to(&server).await.code(), "bad_request");
}

/// Names under which a request can have a question or an order, by the type itself.
fn texts<T: DeserializeOwned>() -> Vec<String> {
    let refused = serde_json::from_value::<T>(json!({ "": {} })).err().unwrap().to_string();
    let (_, names) = refused.split_once("expected one of ").unwrap();
    names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_asks_or_orders_anything_and_what_others_may_is_listed() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let questions = "run_no run runs statuses approvals envelope budgets attempts entry entries items steps newest \
                     newest_request payload events newest_event deliveries live_instances instance ledger sums now state \
                     state_at state_history state_keys state_scan state_events resume_point state_position namespace \
                     namespaces agents transaction_outcome";
    let orders = "reset_item raise tell fork set_budget raise_budget remove_budget decide_approval \
                  forget";
    for (what, names, listed) in [("ask", texts::<Question>(), questions), ("order", texts::<Op>(), orders)] {
        assert_eq!(names.join(" "), listed);
        for name in names {
            let sent = post(&json!({ what: { name.as_str(): {} } })).token(&token).to(&server).await;
            assert_eq!(sent.code(), "foreign_run", "{name}");
        }
    }
}

#[test]
fn a_server_of_other_shapes_is_refused_with_its_version() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let older = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let request = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let head: Vec<String> = request.take_while(|line| !line.is_empty()).collect();
        assert_eq!(head[0], format!("GET {PATH} HTTP/1.1"));
        let about = json!({ "shapes": SHAPES - 1, "version": "outlast 0.0.1" }).to_string();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{about}", about.len()).unwrap();
    });
    let refused = Remote::reach(address, None, &Network::of(&|_| None).unwrap()).err().unwrap();
    assert_eq!(refused.code(), "server_differs");
    assert!(refused.to_string().contains("its version is outlast 0.0.1"), "{refused}");
    older.join().unwrap();
}
