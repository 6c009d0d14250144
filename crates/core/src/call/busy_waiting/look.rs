//! Tool calls that can only look or wait: what is not known to be one is work. And the shapes of their inputs and results: the
//! text without times and ids, which differ although nothing has moved. Every other number counts: of a build that tells 41 %
//! and then 42 %, the second is news.

use serde_json::Value;

use super::ToolUse;

/// Owner of what a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A process or a sub-agent of the agent itself.
    Own,
    /// Anything: a file, a service, another machine.
    Elsewhere,
}

/// Names, in lower case, of the tools of Claude Code and Codex that wait for their own process or sub-agent.
const OWN: [&str; 7] =
    ["wait", "wait_agent", "list_agents", "exec_wait", "bashoutput", "taskoutput", "agentoutputtool"];

/// Words that show that a tool of this name only waits, or reads a state.
const WAITS: [&str; 7] = ["wait", "poll", "sleep", "status", "progress", "output", "read"];

/// Words that show that a tool of this name changes something, whatever its other words are.
const DOES: [&str; 12] =
    ["set", "update", "write", "create", "run", "start", "send", "put", "post", "edit", "add", "delete"];

/// Programs that change nothing, whatever their arguments are.
const LOOKERS: [&str; 44] = [
    "sleep", "wait", "cat", "head", "tail", "less", "more", "grep", "egrep", "fgrep", "zgrep", "rg", "wc",
    "ls", "stat", "file", "ps", "pgrep", "jobs", "uptime", "free", "df", "du", "date", "echo", "printf",
    "true", "false", ":", "test", "[", "[[", "cut", "tr", "sort", "uniq", "jq", "cd", "pwd", "squeue",
    "sacct", "exit", "break", "continue",
];

/// Shell words that may precede a command.
const KEYWORDS: [&str; 13] =
    ["while", "until", "if", "then", "elif", "else", "do", "!", "time", "{", "exec", "command", "nice"];

/// Shell words that close a block.
const ENDS: [&str; 4] = ["done", "fi", "}", "esac"];

/// Programs that only read if their first argument is one of these words; without words listed, always.
const VERBS: [(&str, &[&str]); 7] = [
    ("git", &["status", "log", "show", "diff", "fetch", "ls-remote", "rev-parse"]),
    ("kubectl", &["get", "describe", "logs", "wait", "top"]),
    ("docker", &["ps", "logs", "inspect", "wait", "stats", "top"]),
    ("systemctl", &["status", "is-active", "show", "is-failed"]),
    ("journalctl", &[]),
    ("nvidia-smi", &[]),
    ("tmux", &["capture-pane", "ls", "list-sessions", "list-panes", "has-session"]),
];

/// Options with which curl sends data or writes a file.
const SENDS: [&str; 9] = ["-X", "--request", "-d", "--data", "-F", "--form", "-T", "--upload-file", "-o"];

/// Returns what a call waits for; `None` for a call that may do something.
pub fn awaited(used: &ToolUse) -> Option<Awaited> {
    let name = last(&used.name).to_lowercase();
    let input: Value = serde_json::from_str(&used.input).unwrap_or(Value::Null);
    if name == "write_stdin" {
        // Without characters it only reads.
        return input["chars"].as_str().unwrap_or_default().is_empty().then_some(Awaited::Own);
    }
    if OWN.contains(&name.as_str()) {
        return Some(Awaited::Own);
    }
    if let Some(command) = command(&input) {
        let in_background = input["run_in_background"].as_bool().unwrap_or(false);
        return (!in_background && only_looks(&command)).then_some(Awaited::Elsewhere);
    }
    let words = words(last(&used.name));
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    (has(&WAITS) && !has(&DOES)).then_some(Awaited::Elsewhere)
}

/// Returns the name of a call for people: the tool, and the command that it runs.
pub fn name(used: &ToolUse, most: usize) -> String {
    let input: Value = serde_json::from_str(&used.input).unwrap_or(Value::Null);
    let text =
        command(&input).map_or_else(|| used.name.clone(), |command| format!("{} `{command}`", used.name));
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(most).collect()
}

/// Returns a tool's name without the name of its MCP server.
fn last(name: &str) -> &str {
    let name = name.rsplit_once("__").map_or(name, |(_, last)| last);
    name.rsplit_once(['.', '/']).map_or(name, |(_, last)| last)
}

/// Splits a name into words, in lower case: `BashOutput` and `bash_output` have the same words.
fn words(name: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && was_lower);
        if begins {
            out.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(word) = out.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
    }
    out
}

/// Returns the shell command that a tool's input holds.
fn command(input: &Value) -> Option<String> {
    match ["command", "cmd"].iter().find_map(|key| input.get(*key))? {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            // `bash -lc "…"`: the text is the command.
            match words.as_slice() {
                [shell, option, text] if shell.ends_with("sh") && option.ends_with('c') => {
                    Some((*text).to_owned())
                }
                words => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}

/// Returns whether each program of a shell command can only look or wait.
fn only_looks(command: &str) -> bool {
    let Some(commands) = split(command) else { return false };
    let mut some = false;
    for words in commands {
        let mut words: &[String] = &words;
        while let [first, rest @ ..] = words {
            let is_assignment = first.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            });
            match first.as_str() {
                "timeout" => words = rest.get(1..).unwrap_or_default(),
                word if is_assignment || KEYWORDS.contains(&word) => words = rest,
                _ => break,
            }
        }
        let Some((program, arguments)) = words.split_first() else { continue };
        // `for i in 1 2 3` does nothing by itself, nor does what is left behind a substitution.
        if ENDS.contains(&program.as_str()) || program == "for" || program.is_empty() {
            continue;
        }
        if !is_looker(program, arguments) {
            return false;
        }
        some = true;
    }
    some
}

fn is_looker(program: &str, arguments: &[String]) -> bool {
    let program = program.rsplit_once('/').map_or(program, |(_, name)| name);
    let has = |words: &[&str]| arguments.iter().any(|argument| words.contains(&argument.as_str()));
    let first = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    match program {
        "find" => !arguments.iter().any(|a| a.starts_with("-exec") || a == "-delete" || a.starts_with("-ok")),
        "sed" => !arguments.iter().any(|a| a.starts_with("-i") || a.starts_with("--in-place")),
        "kill" => arguments.first().is_some_and(|signal| signal == "-0"),
        "curl" => !has(&SENDS) && !arguments.iter().any(|a| a.starts_with("--data") || a.starts_with("-O")),
        "gh" => has(&["view", "list", "watch", "status", "checks"]),
        _ if LOOKERS.contains(&program) => true,
        _ => {
            VERBS.iter().any(|(name, verbs)| *name == program && (verbs.is_empty() || verbs.contains(&first)))
        }
    }
}

/// Splits a shell text into its simple commands, those of substitutions too; `None` if it writes a file, begins a job, or
/// is not understood.
fn split(text: &str) -> Option<Vec<Vec<String>>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    let mut in_double = false;
    while let Some(c) = chars.next() {
        let (ends_word, ends_command) = match c {
            '\'' if !in_double => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
                continue;
            }
            '"' => {
                in_double = !in_double;
                word.get_or_insert_default();
                continue;
            }
            '\\' => {
                word.get_or_insert_default().push(chars.next()?);
                continue;
            }
            // What a substitution runs counts like any other command.
            '$' if chars.peek() == Some(&'(') => {
                chars.next();
                (true, true)
            }
            '`' => (true, true),
            ')' if in_double => (true, true),
            _ if in_double => {
                word.get_or_insert_default().push(c);
                continue;
            }
            '>' => {
                let appends = chars.next_if_eq(&'>').is_some();
                let to_another = chars.next_if_eq(&'&').is_some();
                while chars.next_if_eq(&' ').is_some() {}
                let mut target = String::new();
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !";|&()".contains(*c)) {
                    target.push(c);
                }
                let nowhere = target == "/dev/null" || (to_another && !appends && target.len() == 1);
                if !nowhere {
                    return None;
                }
                // The number of a stream stands right before it: `2>&1`.
                word = word.filter(|word| !word.bytes().all(|b| b.is_ascii_digit()));
                (true, false)
            }
            '<' if chars.peek() == Some(&'<') => return None,
            '<' => (true, false),
            '&' => {
                // A single one begins a job.
                chars.next_if_eq(&'&')?;
                (true, true)
            }
            ';' | '|' | '\n' | '(' | ')' => (true, true),
            c if c.is_whitespace() => (true, false),
            c => {
                word.get_or_insert_default().push(c);
                continue;
            }
        };
        if ends_word && let (Some(word), Some(command)) = (word.take(), commands.last_mut()) {
            command.push(word);
        }
        if ends_command {
            commands.push(Vec::new());
        }
    }
    if in_double {
        return None;
    }
    if let (Some(word), Some(command)) = (word.take(), commands.last_mut()) {
        command.push(word);
    }
    Some(commands)
}

/// Units of time: a number with one of them is a time.
const UNITS: [&str; 21] = [
    "ns", "us", "µs", "ms", "s", "sec", "secs", "second", "seconds", "m", "min", "mins", "minute", "minutes",
    "h", "hr", "hrs", "hour", "hours", "d", "days",
];

/// Parts of words that announce a time, such as a JSON member's name: a number behind such a word is a time.
const TIMES: [&str; 9] =
    ["time", "elapsed", "waited", "duration", "seconds", "timeout", "uptime", "_ms", "date"];

/// Words that announce an id: a word with a digit behind one of them is an id.
const IDS: [&str; 2] = ["id", "pid"];

/// Returns the text of a result with its times and ids replaced by `#`.
pub fn of_result(text: &str) -> String {
    masked(text, |before| TIMES.iter().any(|part| before.contains(part)) || IDS.contains(&before))
}

/// Returns the text of a call's input with its times replaced by `#`, so that calls which only wait for different times
/// are equal.
pub fn of_input(text: &str) -> String {
    masked(text, |before| TIMES.iter().any(|part| before.contains(part)) || before == "sleep")
}

/// Replaces times by `#`, and also each word with a digit whose preceding word satisfies `hides`.
fn masked(text: &str, hides: impl Fn(&str) -> bool) -> String {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '+' | '-');
    let mut out = String::with_capacity(text.len());
    let mut before = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find(is_word).unwrap_or(rest.len());
        let (gap, from) = rest.split_at(end);
        out.push_str(gap);
        let (word, behind) = from.split_at(from.find(|c| !is_word(c)).unwrap_or(from.len()));
        rest = behind;
        if word.is_empty() {
            continue;
        }
        let has_digit = word.bytes().any(|b| b.is_ascii_digit());
        let next = behind.trim_start_matches(' ').split(|c: char| !c.is_alphabetic()).next().unwrap_or("");
        // Claude Code tells with each result how many tokens it may still use.
        let is_left = behind.starts_with(" tokens left");
        let is_time = is_number(word) && (UNITS.contains(&next) || is_left);
        match has_digit && (is_time || is_moment(word) || is_duration(word) || hides(&before)) {
            true => out.push('#'),
            false => out.push_str(word),
        }
        if word.chars().any(char::is_alphabetic) {
            before = word.trim_end_matches([':', '.']).to_lowercase();
        }
    }
    out
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b','))
}

/// Returns whether a word is a clock's time, a date, or both: `12:34:56.7`, `2026-11-20T08:00:00Z`.
fn is_moment(word: &str) -> bool {
    let parts =
        |by: char| word.split(by).filter(|part| part.starts_with(|c: char| c.is_ascii_digit())).count();
    let plain = word.bytes().all(|b| b.is_ascii_digit() || b"T:Z.+-".contains(&b));
    plain && (parts(':') >= 2 || parts('-') == 3)
}

/// Returns whether a word is a time with its units: `30s`, `1m20s`, `12.5ms`.
fn is_duration(word: &str) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let behind = unit.trim_start_matches(char::is_alphabetic);
        if unit.len() == rest.len() || !UNITS.contains(&&unit[..unit.len() - behind.len()]) {
            return false;
        }
        rest = behind;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, input: &str, wanted: Option<Awaited>) {
        let used = ToolUse { name: name.into(), input: input.into(), result: String::new() };
        assert_eq!(awaited(&used), wanted, "{name} {input}");
    }

    #[test]
    fn commands_that_only_look_or_wait_are_known() {
        for command in [
            "sleep 30",
            "sleep 30; gh run view 7",
            "sleep 60 && tail -n 20 build.log 2>&1 | grep -c ok",
            "while ! test -f done; do sleep 1; done; cat done",
            "until grep -q 'all done' \"log of it\" 2>/dev/null; do sleep 5; done",
            "for i in 1 2 3; do kubectl get pods; sleep 2; done",
            "timeout 60 tail -f out.log",
            "ps aux | grep cargo",
            "if pgrep -f make >/dev/null; then echo running; else echo done; fi",
            "X=1 curl -s http://127.0.0.1:8000/health",
            "echo $(git status --short) \"$(date)\"",
            "kill -0 4242 2>/dev/null && echo alive",
            "git log --oneline | head -3",
            "[ -f done ] && cat done",
        ] {
            check("Bash", &serde_json::json!({"command": command}).to_string(), Some(Awaited::Elsewhere));
        }
    }

    #[test]
    fn whatever_may_do_something_is_work() {
        for command in [
            "make",
            "cargo test",
            "npm run build; sleep 5",
            "sleep 5; cargo test --workspace",
            "for i in 1 2 3; do make test && break; sleep 5; done",
            "python3 wait.py",
            "./poll.sh",
            "sleep 30 > out",
            "echo x >> log",
            "sleep 100 &",
            "echo $(make)",
            "echo \"`make`\"",
            "cat <<EOF\nx\nEOF",
            "curl -X POST http://127.0.0.1/retry",
            "curl --data-binary @x http://127.0.0.1",
            "git commit -m x",
            "git pull",
            "sed -i s/a/b/ x",
            "find . -name x -delete",
            "find . -exec rm {} ;",
            "kill 4242",
            "gh run rerun 7",
            "docker run x",
            "cat 'unended",
            "\"",
            "",
        ] {
            check("Bash", &serde_json::json!({"command": command}).to_string(), None);
        }
        check("Bash", r#"{"command":"sleep 60","run_in_background":true}"#, None);
    }

    #[test]
    fn tools_are_known_by_their_names_and_inputs() {
        use Awaited::*;
        check("write_stdin", r#"{"session_id":42,"chars":"","yield_time_ms":30000}"#, Some(Own));
        check("write_stdin", r#"{"session_id":42,"chars":"y\n"}"#, None);
        check("wait_agent", r#"{"ids":["a"],"timeout_ms":30000}"#, Some(Own));
        check("wait", r#"{"cell_id":"4"}"#, Some(Own));
        check("BashOutput", r#"{"bash_id":"b1"}"#, Some(Own));
        check("TaskOutput", r#"{"task_id":"b1"}"#, Some(Own));
        check("exec_command", r#"{"cmd":"sleep 5; cat x"}"#, Some(Elsewhere));
        check("shell", r#"{"command":["bash","-lc","sleep 5 && cat x"]}"#, Some(Elsewhere));
        check("shell", r#"{"command":["cargo","test"]}"#, None);
        check("mcp__ci__get_build_status", "{}", Some(Elsewhere));
        check("status", "{}", Some(Elsewhere));
        check("Read", r#"{"file_path":"log"}"#, Some(Elsewhere));
        check("update_status", "{}", None);
        check("run_and_wait", "{}", None);
        check("Edit", "{}", None);
        check("search", "{}", None);
        check("spawn_agent", "{}", None);
    }
}

#[cfg(test)]
mod shape_tests {
    use super::*;

    fn same(before: &str, after: &str, wanted: bool) {
        assert_eq!(of_result(before) == of_result(after), wanted, "{before:?} {after:?}");
    }

    #[test]
    fn times_and_ids_are_nothing_new() {
        same("in progress, 30 s", "in progress, 60 s", true);
        same("still running after 1m20s", "still running after 2m40s", true);
        same("[12:30:01] waiting", "[12:30:31] waiting", true);
        same("at 2026-11-20T08:00:00Z queued", "at 2026-11-20T08:01:00Z queued", true);
        same(
            "Chunk ID: f800eb\nWall time: 30.0024 seconds\nProcess running with session ID 42\nOutput:\n",
            "Chunk ID: 1c\nWall time: 30.0011 seconds\nProcess running with session ID 42\nOutput:\n",
            true,
        );
        same(r#"{"status":"running","elapsed_ms":100}"#, r#"{"status":"running","elapsed_ms":200}"#, true);
        same(
            "x\n<total_tokens>149 tokens left</total_tokens>",
            "x\n<total_tokens>142 tokens left</total_tokens>",
            true,
        );
        same("", "\n", true);
    }

    #[test]
    fn every_other_number_and_word_is_new() {
        same("41 % done", "42 % done", false);
        same("3 failed, 97 passed in 3 s", "2 failed, 98 passed in 3 s", false);
        same("step 7 of 20", "step 8 of 20", false);
        same("epoch 3: loss 0.31", "epoch 4: loss 0.30", false);
        same("queued", "running", false);
        same("build-17", "build-18", false);
        same("1,024 bytes", "2,048 bytes", false);
        same("", "done", false);
    }

    #[test]
    fn how_long_a_call_waits_is_no_part_of_what_it_asks() {
        let same = |a: &str, b: &str| of_input(a) == of_input(b);
        assert!(same("sleep 30; gh run view 7", "sleep 60; gh run view 7"));
        assert!(same(
            r#"{"session_id":4,"yield_time_ms":30000}"#,
            r#"{"session_id":4,"yield_time_ms":60000}"#
        ));
        assert!(!same("gh run view 7", "gh run view 8"));
        assert!(!same(r#"{"session_id":4}"#, r#"{"session_id":5}"#));
    }
}
