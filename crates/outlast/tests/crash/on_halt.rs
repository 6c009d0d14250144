//! `--on-halt`: a program of the person's is told when the run halts, whoever was killed meanwhile.

use std::fs;

use serde_json::Value;

use crate::{
    agents::shell,
    bed::{Bed, text},
};

/// Asks once more than its budget allows.
const ASKS: &str = r#"for i in 1 2 3; do curl -sf -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' -d "{\"model\":\"gpt-4o-mini\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"$i\"}]}" $OPENAI_BASE_URL/chat/completions > /dev/null || exit 3; done"#;

fn told(bed: &Bed) -> Vec<Value> {
    bed.text("told").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_program_is_told_of_the_halt_with_its_arguments_as_they_are() {
    let bed = Bed::new();
    let program = bed.write("tell", "#!/bin/sh\ncat >> \"$1\"; printf '%s' \"$2\" > \"$1.said\"\n");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let line = format!("{} {} 'a $HOME; b'", text(&program), text(&bed.path("told")));
    let run = shell(&bed, &["--run", "r", "--name", "nightly", "--calls", "2", "--on-halt", &line], ASKS);
    bed.run(run).code(75);
    let messages = told(&bed);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!((&messages[0]["type"], &messages[0]["data"]["run"]), (&"halted".into(), &"r".into()));
    assert_eq!(messages[0]["data"]["event"]["about"]["code"], "call_budget_exceeded");
    assert_eq!(bed.text("told.said"), "a $HOME; b");
    // The program stays with the run, and a message that was sent once is not sent again.
    bed.does(&["resume", "r", "--add-calls", "1"]).code(0);
    assert_eq!(told(&bed), messages);
    bed.does(&["notify"]).code(0).tells(&["no endpoint is told"]);
}

#[test]
fn a_halt_that_nobody_told_is_told_by_the_next_supervisor() {
    let bed = Bed::new();
    let (flag, file) = (bed.path("works"), bed.path("told"));
    let program =
        bed.write("tell", &format!("#!/bin/sh\n[ -e {} ] && cat >> {}\n", text(&flag), text(&file)));
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = shell(&bed, &["--run", "r", "--calls", "2", "--on-halt", text(&program)], ASKS);
    bed.run(run).code(75);
    bed.does(&["notify"]).code(0).tells(&["on-halt:r", "exit status: 1"]);
    assert!(told(&bed).is_empty());
    fs::write(&flag, "").unwrap();
    bed.does(&["notify", "retry"]).code(0);
    bed.does(&["resume", "r", "--add-calls", "1"]).code(0);
    let messages = told(&bed);
    assert_eq!((messages.len(), &messages[0]["type"]), (1, &"halted".into()), "{messages:?}");
}

#[test]
fn a_directorys_file_names_no_program() {
    let bed = Bed::new();
    fs::write(bed.path("work/outlast.toml"), "on_halt = \"touch ../owned\"").unwrap();
    bed.run(shell(&bed, &["--calls", "1"], ASKS))
        .code(2)
        .tells(&["`on_halt` is not taken from a directory's settings that you do not trust"]);
    fs::write(bed.path("work/outlast.toml"), "").unwrap();
    bed.run(shell(&bed, &["--on-halt", "say 'open"], ASKS)).code(2).tells(&["a quote that is not closed"]);
    assert!(!bed.path("owned").exists());
}
