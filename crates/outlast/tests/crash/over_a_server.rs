//! Commands over a server: a fleet's runs, looked at and decided on from another machine.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::{Value, json};

use crate::{
    agents::script,
    bed::{Bed, Done, text, until},
    web::{call, free_port, post, post_bytes, serve},
};

const TOKEN: &str = "an-api-token-of-24-chars";

/// Kills itself once, after its second call, and then makes five; the budget lets four through.
const AGENT: &str = r#"
import http.client, json, os, signal, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for i in range(5):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 50, "messages": [{"role": "user", "content": f"call {i} of the fleet"}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200: raise SystemExit(3)
    if i == 1 and not os.path.exists("../died"):
        open("../died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"#;

struct Fleet {
    bed: Bed,
    at: SocketAddr,
    _server: crate::bed::Proc,
}

impl Fleet {
    /// A run that died once and is halted by its budget, and a server over its store.
    fn new() -> Fleet {
        let bed = Bed::new();
        let run = script(&bed, &["--run", "halted", "--name", "nightly", "--calls", "4"], AGENT, &[]);
        bed.run(run).code(75);
        let file = bed.write("token", TOKEN);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let at = free_port();
        let server = serve(&bed, at, &["--api-token-file", text(&file)]);
        Fleet { bed, at, _server: server }
    }

    /// `outlast ARGS` as on a machine that has neither store nor keys.
    fn afar(&self, args: &[&str]) -> Command {
        let mut command = self.bed.outlast(args);
        for name in ["OUTLAST_STORE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"] {
            command.env_remove(name);
        }
        command.env("HOME", self.bed.path("afar")).env("USER", "ann");
        command.env("OUTLAST_SERVER", format!("http://{}", self.at)).env("OUTLAST_API_TOKEN", TOKEN);
        command
    }

    fn does(&self, args: &[&str]) -> Done {
        self.bed.run(self.afar(args))
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.push("--json");
        serde_json::from_str(&self.does(&args).code(0).text).unwrap()
    }
}

/// Drops what depends on the moment at which it is asked, and the logs, which are files of their machine.
fn lasting(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| name != "last_lines");
            if members.get("unit") == Some(&json!("wall_ms")) {
                members.clear();
            }
            members.values_mut().for_each(lasting);
        }
        Value::Array(all) => all.iter_mut().for_each(lasting),
        _ => {}
    }
}

#[test]
fn the_commands_print_from_afar_what_they_print_beside_the_store() {
    let fleet = Fleet::new();
    for line in [
        "ls",
        "ls --status halted",
        "show nightly",
        "journal halted",
        "journal nightly 2",
        "approvals",
        "budget halted",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let (mut near, mut far) = (fleet.bed.json(&args), fleet.json(&args));
        lasting(&mut near);
        lasting(&mut far);
        assert_eq!(near, far, "{line}");
    }
    for line in [
        "journal halted",
        "journal halted 2 --diff",
        "journal halted 1 --raw",
        "journal halted --grep fleet",
        "journal halted --divergence",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        assert_eq!(fleet.bed.does(&args).code(0).text, fleet.does(&args).code(0).text, "{line}");
    }
    fleet.does(&["show", "nightly", "-v"]).code(0).tells(&["killed", "replayed", "needs 1 call"]);
    let lines = fleet.bed.start(fleet.afar(&["watch"]));
    until("it tells the runs", || lines.output().contains("halted").then_some(()));
    fleet.does(&["ls"]).code(0).tells(&["nightly"]);
}

#[test]
fn a_person_acts_from_afar_on_a_budget_an_order_and_an_approval() {
    let fleet = Fleet::new();
    fleet.does(&["budget", "halted", "--add-calls", "9"]).code(0).tells(&["interrupted"]);
    fleet.does(&["budget", "halted", "--set-calls", "20", "--lift", "usd"]).code(0);
    assert_eq!(fleet.bed.status("halted"), "interrupted");
    fleet.does(&["cancel", "halted", "--reason", "seen from afar"]).code(0).tells(&["cancelled"]);
    assert_eq!(fleet.bed.show("halted")["error"], "seen from afar");
    // The journal names who acted: the token that was shown, and the name that its bearer gave.
    let acts =
        fleet.bed.does(&["journal", "halted"]).code(0).tells(&["by api:token (cli:ann@", "seen from afar"]);
    let line = |what: &str| acts.text.lines().any(|line| line.contains("  act  ") && line.contains(what));
    assert!(line("limits") && line("calls +9") && line("calls 20") && line("cancel"), "{}", acts.text);
    fleet.bed.does(&["show", "halted", "-v"]).code(0).tells(&["by api:token (cli:ann@"]);

    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", bearer.as_str()), ("x-outlast-run", "by-header")];
    assert_eq!(post(fleet.at, &headers, &call("one")).unwrap().status, 200);
    let wanted = json!({"tool": "pay", "arguments": {"eur": 7}}).to_string();
    let asked = post_bytes(fleet.at, "/v1/approvals", &headers, wanted.as_bytes()).unwrap();
    assert_eq!(asked.status, 201, "{}", asked.text);
    let id = serde_json::from_str::<Value>(&asked.text).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(fleet.json(&["approvals"])["approvals"][0]["id"], id.as_str());
    fleet.does(&["approve", &id, "--deny", "--reason", "too much"]).code(0).tells(&["denied"]);
    fleet.bed.does(&["journal", "by-header"]).code(0).tells(&["by ann (api:token (cli:ann@"]);
    fleet.does(&["approve", &id]).code(1).tells(&["denied already"]);
    fleet.does(&["stop", "by-header"]).code(0).tells(&["interrupted"]);
    assert_eq!(fleet.bed.status("by-header"), "interrupted");
}

#[test]
fn a_named_budget_is_set_raised_and_removed_from_afar_and_tells_who_did() {
    let fleet = Fleet::new();
    fleet
        .does(&["budgets", "set", "all", "--usd", "5", "--per", "day"])
        .code(0)
        .tells(&["budget all is set", "5.00"]);
    fleet
        .does(&["budgets", "raise", "all", "--add-usd", "2"])
        .code(0)
        .tells(&["budget all is raised", "7.00"]);
    let (near, far) = (fleet.bed.json(&["budgets"]), fleet.json(&["budgets"]));
    assert_eq!(near, far);
    let acts: Vec<(&str, &str)> = near["budgets"][0]["acts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| (act["what"].as_str().unwrap(), act["by"].as_str().unwrap()))
        .collect();
    assert_eq!(acts.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["set", "raise"]);
    assert!(acts.iter().all(|(_, by)| by.starts_with("api:token (cli:ann@")), "{acts:?}");
    fleet
        .does(&["budgets", "raise", "nobody", "--add-usd", "2"])
        .code(1)
        .tells(&["nobody", "outlast budgets"]);
    fleet.does(&["budgets", "remove", "all"]).code(0).tells(&["budget all is removed", "no named budgets"]);
    assert_eq!(fleet.bed.json(&["budgets"])["budgets"], json!([]));
    let mut stranger = fleet.afar(&["budgets", "set", "all", "--usd", "500"]);
    stranger.env("OUTLAST_API_TOKEN", "another-token-of-24-chars");
    fleet.bed.run(stranger).code(69).tells(&["does not let this token in"]);
}

#[test]
fn a_run_is_removed_from_afar_with_its_files_and_what_it_has_cost_stays() {
    let fleet = Fleet::new();
    fleet.does(&["rm", "halted"]).code(1).tells(&["has not ended", "outlast cancel nightly"]);
    fleet.does(&["budget", "halted", "--add-calls", "9"]).code(0);
    fleet.does(&["cancel", "halted"]).code(0);
    fleet.does(&["rm", "halted"]).code(1).tells(&["the newest run of a store", "outlast run -- true"]);
    fleet.bed.does(&["run", "--run", "newer", "--", "true"]).code(0);
    let spent = |fleet: &Fleet| fleet.json(&["spend", "--by", "model"])["lines"].clone();
    let (before, files) = (spent(&fleet), fleet.bed.path("state/runs.db.runs/halted"));
    assert!(files.is_dir() && before[0]["calls"] == 4, "{before}");
    fleet.does(&["rm", "nightly"]).code(0).tells(&["halted  deleted"]);
    assert_eq!(spent(&fleet), before);
    assert!(!files.exists());
    fleet.does(&["rm", "halted"]).code(1).tells(&["no run has the id or name"]);
}

#[test]
fn what_a_server_cannot_do_is_said_and_done_nowhere() {
    let fleet = Fleet::new();
    fleet.does(&["resume", "halted"]).code(2).tells(&["does not work over a server", "no route starts"]);
    fleet.does(&["logs", "halted"]).code(2).tells(&["no route reads them", "--server ''"]);
    fleet.does(&["stop"]).code(2).tells(&["has to be named"]);
    fleet.does(&["show", "nobody"]).code(1).tells(&["no run has the id or name"]);
    // A command about this machine works although a server is set for all commands.
    fleet.does(&["prices", "gpt-4o-mini"]).code(0);
    fleet
        .does(&["--server", "http://127.0.0.1:1", "prices", "gpt-4o-mini"])
        .code(2)
        .tells(&["about this machine"]);
    fleet.does(&["--server", "http://fleet.example", "ls"]).code(2).tells(&["API token readable", "ssh -L"]);
    fleet
        .does(&["--server", "http://127.0.0.1:1", "ls"])
        .code(69)
        .tells(&["cannot be reached", "OUTLAST_SERVER"]);
    let with = |token: &str| {
        let mut command = fleet.afar(&["ls"]);
        command.env("OUTLAST_API_TOKEN", token);
        fleet.bed.run(command).code(69)
    };
    with("").tells(&["wants its API token", "OUTLAST_API_TOKEN_FILE"]);
    with("another-token-of-24-chars").tells(&["does not let this token in"]);
    // The token stands in a file, too; and is wanted for what changes a run.
    let mut by_file = fleet.afar(&["ls"]);
    by_file.env_remove("OUTLAST_API_TOKEN").env("OUTLAST_API_TOKEN_FILE", fleet.bed.path("token"));
    fleet.bed.run(by_file).code(0).tells(&["nightly"]);
    // The fake provider is no outlast server.
    let mut stranger = fleet.afar(&["ls"]);
    stranger.env("OUTLAST_SERVER", fleet.bed.mock_url());
    fleet.bed.run(stranger).code(69).tells(&["has no route /v1/rows/store", "older outlast"]);
    // A checkout sends the token nowhere.
    fs::write(fleet.bed.path("work/outlast.toml"), "server = \"http://127.0.0.1:1\"").unwrap();
    fleet
        .bed
        .does(&["ls"])
        .code(2)
        .tells(&["`server` is not taken from a directory's settings that you do not trust"]);
}
