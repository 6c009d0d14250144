//! Claude Code: `claude`. We choose its session id, and it is resumed by `--resume ID`.
//!
//! Measured with 2.1: a session is bound to its working directory; an unfinished tool call is dropped from
//! its history after kill -9; a run token in ANTHROPIC_API_KEY makes the interactive program ask for
//! permission.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    sync::LazyLock,
};

use outlast_server::dialect::conversation::Reader;
use serde_json::Value;

use super::{
    Adapter, KeptCalls, Names, Reading, With,
    line::{Line, Piece, has, value},
    row::{self, Row},
    servers::{self, Servers},
};

pub struct Claude;

/// Model for small tasks such as titles. Without this setting, Claude Code behind a base URL would use the session's
/// own model for them.
const SMALL_MODEL: &str = "claude-haiku-4-5";

/// Ending of a model's name that asks for its long context. Requests name the model without it.
const LONG_CONTEXT: &str = "[1m]";

static ROW: LazyLock<&Row> = LazyLock::new(|| row::named("claude"));

impl Adapter for Claude {
    fn row(&self) -> &Row {
        &ROW
    }

    fn read(&self, line: &Line, piped: bool) -> Reading {
        let pieces = ROW.pieces(line);
        let headless = piped || has(&pieces, &ROW.prompts);
        // Messages that come over standard input cannot be followed by a note.
        let is_fed = value(&pieces, &["--input-format"]).is_some_and(|format| format != "text");
        let is_unkept = is_fed || has(&pieces, &["--no-session-persistence"]);
        let names = if is_unkept { Names::Nothing } else { ROW.names(&pieces) };
        Reading { names, headless }
    }

    fn begin(&self, line: &Line, with: &With, session: Option<&str>) -> Vec<String> {
        let mut added = Vec::new();
        if let Some(id) = session.filter(|_| self.read(line, with.piped).names == Names::Ours) {
            added.extend(["--session-id".to_owned(), id.to_owned()]);
        }
        let pieces = ROW.pieces(line);
        if (with.settings.is_none() && with.servers.is_empty()) || !ROW.converses(&pieces) {
            return line.with(added.into_iter().chain(line.tail.iter().cloned()));
        }
        added.extend(settings(with));
        added.extend(mcp_config(with, &pieces));
        let kept = pieces.iter().filter(|p| !is_ours(p, with));
        line.with(added.into_iter().chain(written(kept, &[])))
    }

    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String> {
        let pieces = ROW.pieces(line);
        let mut added = vec!["--resume".to_owned(), session.to_owned()];
        added.extend(settings(with));
        added.extend(mcp_config(with, &pieces));
        added.extend(with.model.iter().flat_map(|model| ["--model".to_owned(), model.clone()]));
        let gone = [&ROW.begins, &ROW.resumes, &ROW.finds];
        let kept = pieces.iter().filter(|piece| match piece {
            Piece::Word(_) => false,
            option => !is_ours(option, with) && !gone.iter().any(|gone| option.is(gone)),
        });
        let prompt: &[String] = &[note.to_owned()];
        let prompt = if self.read(line, with.piped).headless { prompt } else { &[] };
        line.with(added.into_iter().chain(written(kept, prompt)))
    }

    fn environment(&self, _line: &Line, env: &mut BTreeMap<OsString, OsString>, with: &With) {
        // An interactive session would ask whether it may use the token as an API key.
        if with.has_anthropic_key
            && let Some(token) = env.remove(&OsString::from("ANTHROPIC_API_KEY"))
        {
            env.insert("ANTHROPIC_AUTH_TOKEN".into(), token);
        }
        if with.is_anthropic {
            // The program switches these off for any base URL that is not Anthropic's own.
            let mut unless_set = |name: &str, others: &[&str], value: &str| {
                if !others.iter().chain([&name]).any(|n| env.contains_key(&OsString::from(n))) {
                    env.insert(name.into(), value.into());
                }
            };
            // An intercepted session has no base URL. A token in a key's place alone makes it ask its own model for titles.
            if !with.is_intercepted {
                unless_set("ENABLE_TOOL_SEARCH", &[], "true");
            }
            if !with.is_intercepted || with.has_anthropic_key {
                unless_set("ANTHROPIC_DEFAULT_HAIKU_MODEL", &["ANTHROPIC_SMALL_FAST_MODEL"], SMALL_MODEL);
            }
        }
        if let Some(name) = &with.name {
            env.insert("ANTHROPIC_CUSTOM_HEADERS".into(), format!("X-Outlast-Agent: {name}").into());
        }
    }

    fn has_hooks(&self, line: &Line) -> bool {
        let pieces = ROW.pieces(line);
        ROW.converses(&pieces) && !has(&pieces, &["--bare", "--safe-mode"])
    }

    fn settings(&self, line: &Line) -> Option<String> {
        value(&ROW.pieces(line), &["--settings"])
    }

    fn servers(&self, line: &Line, place: servers::StartContext<'_>) -> Servers {
        let pieces = ROW.pieces(line);
        if !ROW.converses(&pieces) || has(&pieces, &["--safe-mode"]) {
            return Servers::default();
        }
        let asked = servers::claude::ServerOptions {
            given: given(&pieces),
            strict: has(&pieces, &["--strict-mcp-config", "--bare"]),
            sources: value(&pieces, &["--setting-sources"]),
            settings: value(&pieces, &["--settings"]),
        };
        servers::claude::servers(&asked, place)
    }

    fn kept_calls(&self, transcript: &str) -> Option<KeptCalls> {
        let (mut kept, mut reader) = (KeptCalls::default(), Reader::default());
        let rows = transcript.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        for row in loaded(rows) {
            kept.take(&reader.turn(&row["message"], ""));
        }
        Some(kept)
    }

    fn model(&self, line: &Line, request: &Value) -> Option<String> {
        let pieces = ROW.pieces(line);
        if has(&pieces, &["--model"]) {
            return None;
        }
        // A session file names the model as requests do: a resumption from it would lose the long context.
        let long = format!("{}{LONG_CONTEXT}", request["model"].as_str()?);
        let system = request["system"].as_array()?;
        let is_long = system.iter().any(|block| block["text"].as_str().is_some_and(|t| t.contains(&long)));
        is_long.then_some(long)
    }
}

/// Returns the option `--mcp-config` with all its values: first those of the command line, then the recorded servers.
/// The last definition of a server is the one that counts.
fn mcp_config(with: &With, pieces: &[Piece]) -> Vec<String> {
    if with.servers.is_empty() {
        return Vec::new();
    }
    let values = given(pieces).into_iter().chain(with.servers.iter().cloned());
    ["--mcp-config".to_owned()].into_iter().chain(values).collect()
}

/// Returns all values of `--mcp-config`.
fn given(pieces: &[Piece]) -> Vec<String> {
    let values = |piece: &Piece| match piece {
        Piece::Option { values, .. } if piece.is(&["--mcp-config"]) => values.clone(),
        _ => Vec::new(),
    };
    pieces.iter().flat_map(values).collect()
}

/// Returns whether Outlast writes this option itself. The values that the command line gave are part of the option that
/// Outlast writes.
fn is_ours(piece: &Piece, with: &With) -> bool {
    (with.settings.is_some() && piece.is(&["--settings"]))
        || (!with.servers.is_empty() && piece.is(&["--mcp-config"]))
}

fn settings(with: &With) -> Vec<String> {
    let path = with.settings.as_ref().map(|path| path.to_string_lossy().into_owned());
    path.into_iter().flat_map(|path| ["--settings".to_owned(), path]).collect()
}

/// Returns the options, then `--` and the other words. Behind `--` no option takes a word for its value.
fn written<'p>(pieces: impl Iterator<Item = &'p Piece>, more: &[String]) -> Vec<String> {
    let (words, options): (Vec<&Piece>, Vec<&Piece>) = pieces.partition(|p| matches!(p, Piece::Word(_)));
    let mut out: Vec<String> = options.into_iter().flat_map(Piece::words).collect();
    let mut words: Vec<String> = words.into_iter().flat_map(Piece::words).collect();
    words.extend_from_slice(more);
    if !words.is_empty() {
        out.push("--".into());
        out.extend(words);
    }
    out
}

/// Returns the rows of a session's file that its model gets when it goes on, in their order. Rows without names are a
/// file of another format: all of them.
pub fn loaded(rows: Vec<Value>) -> Vec<Value> {
    let name = |row: &Value, member: &str| row[member].as_str().map(str::to_owned);
    let named: HashMap<String, &Value> =
        rows.iter().filter_map(|row| Some((name(row, "uuid")?, row))).collect();
    let is_said =
        |row: &&Value| row["isSidechain"] != true && (row["type"] == "user" || row["type"] == "assistant");
    let mut next = rows.iter().rev().filter(is_said).find_map(|row| name(row, "uuid"));
    if next.is_none() {
        return rows;
    }
    let mut chain = HashSet::new();
    while let Some(row) = next.as_ref().and_then(|name| named.get(name)) {
        // Whoever compacts a conversation begins a chain, and says what it goes on from.
        let before = name(row, "parentUuid").or_else(|| name(row, "logicalParentUuid"));
        next = next.filter(|name| chain.insert(name.clone())).and(before);
    }
    // Calls of one answer are rows of their own, and a result's parent is its call: of several, one is on the chain.
    let answer = |row: &Value| name(&row["message"], "id").filter(|_| row["type"] == "assistant");
    let has = |names: &HashSet<String>, name: Option<String>| name.is_some_and(|name| names.contains(&name));
    let answers: HashSet<String> =
        rows.iter().filter(|row| has(&chain, name(row, "uuid"))).filter_map(answer).collect();
    let of_answers = rows.iter().filter(|row| has(&answers, answer(row))).filter_map(|row| name(row, "uuid"));
    let calls: HashSet<String> = of_answers.collect();
    let is_loaded = |row: &Value| {
        let own = name(row, "uuid");
        has(&chain, own.clone()) || has(&calls, own) || has(&calls, name(row, "parentUuid")) && is_result(row)
    };
    let is_loaded: Vec<bool> = rows.iter().map(is_loaded).collect();
    rows.into_iter().zip(is_loaded).filter(|(_, is_loaded)| *is_loaded).map(|(row, _)| row).collect()
}

fn is_result(row: &Value) -> bool {
    let pieces = row["message"]["content"].as_array();
    pieces.is_some_and(|pieces| pieces.iter().any(|piece| piece["type"] == "tool_result"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use outlast_server::dialect::conversation::ToolCall;

    use super::*;

    const ID: &str = "11111111-1111-4111-8111-111111111111";
    const OURS: &str = "22222222-2222-4222-8222-222222222222";

    fn line(text: &str) -> Line {
        let words: Vec<String> = text.split_whitespace().map(|w| w.replace("ID", ID)).collect();
        Line::read(&words).unwrap()
    }

    #[test]
    fn a_line_tells_who_chooses_its_session() {
        let resumed = || Names::Resumed(ID.into());
        for (text, names, headless) in [
            ("claude", Names::Ours, false),
            ("claude -p hello", Names::Ours, true),
            ("claude --print --model x hello", Names::Ours, true),
            ("claude -p --session-id ID hello", Names::Session(ID.into()), true),
            ("claude --resume ID -p hello", resumed(), true),
            ("claude -r=ID", resumed(), false),
            ("claude -pr ID go", resumed(), true),
            ("claude --resume", Names::Theirs, false),
            ("claude --resume deploy", Names::Theirs, false),
            ("claude -c -p hello", Names::Theirs, true),
            ("claude -pc hello", Names::Theirs, true),
            ("claude --resume ID --fork-session -p x", Names::Theirs, true),
            ("claude -p --no-session-persistence x", Names::Nothing, true),
            ("claude -p --input-format stream-json", Names::Nothing, true),
            ("claude mcp list", Names::Nothing, false),
            ("claude --version", Names::Nothing, false),
            ("claude -p --allowedTools mcp -- hello", Names::Ours, true),
        ] {
            assert_eq!(Claude.read(&line(text), false), Reading { names, headless }, "{text}");
        }
        assert!(Claude.read(&line("claude hello"), true).headless, "nobody could answer");
    }

    fn check(text: &str, settings: bool, begun: &str, resumed: &str) {
        let with = With { settings: settings.then(|| "/s.json".into()), ..With::default() };
        let clear = |words: Vec<String>| words.join(" ").replace(OURS, "OURS").replace(ID, "ID");
        assert_eq!(clear(Claude.begin(&line(text), &with, Some(OURS))), begun, "{text}");
        assert_eq!(clear(Claude.resume(&line(text), &with, OURS, "NOTE")), resumed, "{text}");
    }

    #[test]
    fn a_session_is_chosen_once_and_resumed_with_everything_else_the_person_said() {
        check(
            "claude -p hello --model m",
            false,
            "claude --session-id OURS -p hello --model m",
            "claude --resume OURS -p --model m -- NOTE",
        );
        check(
            "claude -p --session-id ID hello",
            false,
            "claude -p --session-id ID hello",
            "claude --resume OURS -p -- NOTE",
        );
        check("claude -c -p go", false, "claude -c -p go", "claude --resume OURS -p -- NOTE");
        check(
            "env A=1 claude --resume ID --fork-session",
            false,
            "env A=1 claude --resume ID --fork-session",
            "env A=1 claude --resume OURS",
        );
        check(
            "claude --allowedTools Bash Edit -p --add-dir /a -- do it",
            false,
            "claude --session-id OURS --allowedTools Bash Edit -p --add-dir /a -- do it",
            "claude --resume OURS --allowedTools Bash Edit -p --add-dir /a -- NOTE",
        );
        check("claude mcp list", false, "claude mcp list", "claude --resume OURS");
    }

    #[test]
    fn a_fork_begins_by_a_line_that_names_no_session() {
        for (text, wanted) in [
            ("claude -p hello", "claude -p hello"),
            ("claude --resume ID -p go", "claude -p go"),
            ("claude -c -p go", "claude -p go"),
            ("claude --allowedTools Bash --session-id ID -p go", "claude -p go --allowedTools Bash"),
            ("claude -p --allowedTools Bash -r ID -- do it", "claude -p --allowedTools Bash -- do it"),
        ] {
            assert_eq!(Claude.unbound(&line(text)).tail, line(wanted).tail, "{text}");
        }
    }

    #[test]
    fn settings_are_given_once() {
        check(
            "claude -p hello",
            true,
            "claude --session-id OURS --settings /s.json -p -- hello",
            "claude --resume OURS --settings /s.json -p -- NOTE",
        );
        check(
            "claude --settings {} hello --tools a b",
            true,
            "claude --session-id OURS --settings /s.json --tools a b -- hello",
            "claude --resume OURS --settings /s.json --tools a b",
        );
        check("claude mcp list", true, "claude mcp list", "claude --resume OURS --settings /s.json");
    }

    #[test]
    fn a_session_with_the_long_context_is_resumed_with_it() {
        let request = |text: &str| {
            let system = serde_json::json!([{"type": "text", "text": "x"}, {"type": "text", "text": text}]);
            serde_json::json!({"model": "claude-opus-4-8", "system": system})
        };
        let long = request("The exact model ID is claude-opus-4-8[1m].");
        let model = |text: &str, request: &Value| Claude.model(&line(text), request);
        assert_eq!(model("claude -p hello", &long).as_deref(), Some("claude-opus-4-8[1m]"));
        assert_eq!(model("claude -p hello", &request("The exact model ID is claude-opus-4-8.")), None);
        assert_eq!(model("claude -p --model opus hello", &long), None, "the person's own word stays");
        let with = With { model: Some("m[1m]".into()), ..With::default() };
        let resumed = Claude.resume(&line("claude -p hello"), &with, ID, "NOTE").join(" ");
        assert_eq!(resumed, format!("claude --resume {ID} --model m[1m] -p -- NOTE"));
    }

    #[test]
    fn what_a_base_url_switches_off_is_restored_before_anthropic_itself_only() {
        let of = |is_anthropic, set: &[&str]| {
            let mut env: BTreeMap<OsString, OsString> =
                set.iter().map(|name| (name.into(), "own".into())).collect();
            Claude.environment(&line("claude"), &mut env, &With { is_anthropic, ..With::default() });
            env.into_iter().map(|(n, v)| format!("{}={}", n.display(), v.display())).collect::<Vec<_>>()
        };
        assert_eq!(of(false, &[]), Vec::<String>::new());
        let small = format!("ANTHROPIC_DEFAULT_HAIKU_MODEL={SMALL_MODEL}");
        assert_eq!(of(true, &[]), [small.as_str(), "ENABLE_TOOL_SEARCH=true"]);
        assert_eq!(of(true, &["ENABLE_TOOL_SEARCH"]), [small.as_str(), "ENABLE_TOOL_SEARCH=own"]);
        let own = ["ANTHROPIC_SMALL_FAST_MODEL=own", "ENABLE_TOOL_SEARCH=true"];
        assert_eq!(of(true, &["ANTHROPIC_SMALL_FAST_MODEL"]), own);
    }

    #[test]
    fn recorded_servers_come_behind_those_of_the_line() {
        let with = With { servers: vec!["/ours.json".into()], ..With::default() };
        for (text, begun) in [
            ("claude -p x", "claude --session-id OURS --mcp-config /ours.json -p -- x"),
            (
                "claude --mcp-config a.json b.json --mcp-config=c.json -p x",
                "claude --session-id OURS --mcp-config a.json b.json c.json /ours.json -p -- x",
            ),
            ("claude mcp list", "claude mcp list"),
        ] {
            let session = Some(OURS).filter(|_| text != "claude mcp list");
            let words = Claude.begin(&line(text), &with, session).join(" ").replace(OURS, "OURS");
            assert_eq!(words, begun);
        }
        let resumed = Claude.resume(&line("claude --mcp-config a.json -p x"), &with, ID, "NOTE").join(" ");
        assert_eq!(resumed, format!("claude --resume {ID} --mcp-config a.json /ours.json -p -- NOTE"));
    }

    #[test]
    fn tool_calls_are_read_off_a_session_file() {
        let lines = [
            r#"{"type":"user","message":{"role":"user","content":"x"}}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]}}"#,
            r#"{"type":"user","message":{"content":[{"tool_use_id":"t0","type":"tool_result","content":"x"}]}}"#,
            r#"{"type":"user","message":{"content":[{"tool_use_id":"t2","type":"tool_re"#,
        ];
        let call = ToolCall { id: "t1".into(), name: "Bash".into(), input: r#"{"command":"ls"}"#.into() };
        let wanted = KeptCalls {
            calls: vec![call],
            results: HashSet::from(["t0".to_owned()]),
            aborted: HashSet::new(),
        };
        assert_eq!(Claude.kept_calls(&lines.join("\n")), Some(wanted));
    }

    #[test]
    fn a_session_that_only_has_a_file_has_not_begun() {
        assert!(!ROW.is_begun("{\"type\":\"queue-operation\"}\n{\"type\":"));
        assert!(ROW.is_begun("{\"type\":\"queue-operation\"}\n{\"type\":\"user\",\"message\":{}}\n"));
    }
}

#[cfg(test)]
mod tests_of_chains {
    use serde_json::json;

    use super::*;

    fn row(kind: &str, own: &str, before: Option<&str>, piece: &str) -> Value {
        let kind_of_piece = if kind == "user" { "tool_result" } else { "tool_use" };
        let message = json!({"id": piece, "content": [{"type": kind_of_piece, "id": own}]});
        json!({"type": kind, "uuid": own, "parentUuid": before, "message": message})
    }

    fn names(rows: Vec<Value>) -> Vec<String> {
        loaded(rows).iter().map(|row| row["uuid"].as_str().unwrap_or("-").to_owned()).collect()
    }

    /// Bug: a session whose rows are whole, and whose chain skips the newest, was taken for whole. Consequence: the
    /// resumed model made calls again whose results it had read, and nobody was told. Cause: a row in the file counted
    /// as one that the model gets.
    #[test]
    fn a_row_that_the_last_one_does_not_lead_to_is_lost() {
        let skipped = vec![
            row("user", "u1", None, ""),
            row("assistant", "a1", Some("u1"), "m1"),
            row("user", "r1", Some("a1"), ""),
            row("assistant", "a2", Some("gone"), "m2"),
            row("user", "r2", Some("a1"), ""),
        ];
        assert_eq!(names(skipped), ["u1", "a1", "r1", "r2"], "both are results of one answer; a2 is lost");
        let cut = vec![row("user", "r1", Some("a1"), ""), row("user", "u2", Some("gone"), "")];
        assert_eq!(names(cut), ["u2"]);
    }

    #[test]
    fn all_calls_of_an_answer_and_their_results_are_loaded() {
        let rows = vec![
            row("user", "u1", None, ""),
            row("assistant", "a1", Some("u1"), "m1"),
            row("assistant", "a2", Some("a1"), "m1"),
            row("user", "r1", Some("a1"), ""),
            row("user", "r2", Some("a2"), ""),
            row("assistant", "a3", Some("r2"), "m2"),
        ];
        assert_eq!(names(rows), ["u1", "a1", "a2", "r1", "r2", "a3"]);
    }

    #[test]
    fn a_compacted_conversation_goes_on_from_where_it_says() {
        let mut boundary = row("system", "b", None, "");
        boundary["logicalParentUuid"] = json!("u1");
        let rows = vec![row("user", "u1", None, ""), boundary, row("user", "u2", Some("b"), "")];
        assert_eq!(names(rows), ["u1", "b", "u2"]);
    }

    #[test]
    fn a_sub_agents_row_is_not_the_last_and_a_circle_ends() {
        let mut side = row("assistant", "s1", None, "m9");
        side["isSidechain"] = json!(true);
        assert_eq!(names(vec![row("user", "u1", Some("u1"), ""), side]), ["u1"]);
        assert_eq!(names(vec![json!({"type": "user"}), json!({})]), ["-", "-"], "rows without names");
    }
}
