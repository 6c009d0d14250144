//! Codex: `codex`. It chooses its session id, which its requests name, and is resumed by `exec resume ID`.
//!
//! Measured with 0.169: OPENAI_BASE_URL is not obeyed, so the proxy is put into its configuration by `-c`;
//! after kill -9 its history has the unfinished call with the result "aborted", whatever had become of it;
//! each process of a tool has the call's id in CODEX_TOOL_CALL_ID.

use std::sync::LazyLock;

use outlast_server::dialect::conversation::Reader;
use serde_json::Value;

use super::{
    Adapter, KeptCalls, Names, Reading, With,
    line::{self, Line, Piece, has},
    row::{self, Row},
    servers::{self, Servers},
};

pub struct Codex;

/// Name under which Outlast's proxy stands as a provider in Codex's configuration.
const PROVIDER: &str = "outlast";

/// Setting by which the full screen keeps its work in its own process. Any setting of a command line does that in 0.171
/// where a background server lives, and only `features.daemon_auto_start` makes it ask a person first.
const NO_DAEMON: &str = "check_for_update_on_startup=false";

/// Mode that a command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Interactive,
    Exec,
    /// Subcommands without a conversation: `login`, `mcp` and the like.
    Other,
}

static ROW: LazyLock<&Row> = LazyLock::new(|| row::named("codex"));

/// Returns whether a `-c KEY=…` option sets `key`.
fn configures(pieces: &[Piece], key: &str) -> bool {
    pieces.iter().any(|piece| match piece {
        Piece::Option { values, .. } if piece.is(&["-c", "--config"]) => {
            values.iter().any(|v| v.split_once('=').is_some_and(|(k, _)| k.trim() == key))
        }
        _ => false,
    })
}

/// Returns the mode, and the words that follow the subcommand.
fn mode(pieces: &[Piece]) -> (Mode, Vec<&str>) {
    let words = line::words(pieces);
    match words.split_first() {
        _ if has(pieces, &ROW.sessionless) => (Mode::Other, words),
        Some((&("exec" | "e"), rest)) if matches!(rest.first(), Some(&("review" | "help"))) => {
            (Mode::Other, rest.to_vec())
        }
        Some((&("exec" | "e"), rest)) => (Mode::Exec, rest.to_vec()),
        Some((&("resume" | "fork"), _)) => (Mode::Interactive, words),
        Some(_) if !ROW.converses(pieces) => (Mode::Other, words),
        _ => (Mode::Interactive, words),
    }
}

/// Returns the number of arguments before which settings of ours have to stand: behind `exec` where it is given settings of
/// its own, because versions up to 0.150 then forget those before it.
fn place(line: &Line, pieces: &[Piece]) -> usize {
    let word = pieces.iter().position(|piece| piece.word().is_some());
    let behind = word.and_then(|at| pieces.get(at..)).unwrap_or_default();
    if mode(pieces).0 != Mode::Exec || !has(behind, &["-c", "--config"]) {
        return 0;
    }
    let is_read = |n: &usize| {
        line::pieces(&line.tail[..*n], |name| ROW.options.takes(name)).iter().any(|p| p.word().is_some())
    };
    (1..=line.tail.len()).find(is_read).unwrap_or(0)
}

/// Returns whether the command line chooses a provider itself, which Outlast then leaves unchanged.
fn has_provider(pieces: &[Piece]) -> bool {
    configures(pieces, "model_provider") || has(pieces, &["--oss", "--local-provider"])
}

fn searches(pieces: &[Piece]) -> bool {
    configures(pieces, "web_search") || has(pieces, &["--search"])
}

impl Codex {
    fn configuration(&self, pieces: &[Piece], with: &With) -> Vec<String> {
        let mut set = Vec::new();
        // Its own provider is metered, too, when its connections are opened. That one can name no agent.
        let is_open = with.is_intercepted && !with.has_openai_key && with.name.is_none();
        if !has_provider(pieces) && !is_open {
            let key = match with.has_openai_key {
                true => "env_key=\"OPENAI_API_KEY\"",
                false => "requires_openai_auth=true",
            };
            let headers = match &with.name {
                Some(name) => format!(",http_headers={{\"X-Outlast-Agent\"={}}}", toml_text(name)),
                None => String::new(),
            };
            set.push(format!("model_provider=\"{PROVIDER}\""));
            set.push(format!(
                "model_providers.{PROVIDER}={{name=\"{PROVIDER}\",base_url={},wire_api=\"responses\",{key}{headers}}}",
                toml_text(&with.openai_url)
            ));
        }
        if mode(pieces).0 == Mode::Interactive {
            set.push(NO_DAEMON.into());
        }
        if with.has_usd_limit && !searches(pieces) {
            set.push("web_search=\"disabled\"".into());
        }
        set.extend(with.servers.iter().cloned());
        set.into_iter().flat_map(|value| ["-c".to_owned(), value]).collect()
    }
}

/// End of a result that Codex gives a tool call when it is told to end, even one whose tool has finished.
const ABORTED: &str = "aborted by user";

impl Adapter for Codex {
    fn row(&self) -> &Row {
        &ROW
    }

    fn read(&self, line: &Line, _piped: bool) -> Reading {
        let pieces = ROW.pieces(line);
        let (mode, words) = mode(&pieces);
        let resumes = words.first() == Some(&"resume") && !has(&pieces, &["--last"]);
        let names = match mode {
            Mode::Other => Names::Nothing,
            _ if has(&pieces, &["--ephemeral"]) => Names::Nothing,
            // A thread's name, or the picker, is resolved by Codex itself.
            _ => words
                .get(1)
                .filter(|id| resumes && id.len() == 36)
                .map_or(Names::Theirs, |id| Names::Resumed((*id).to_owned())),
        };
        Reading { names, headless: mode == Mode::Exec }
    }

    fn unbound(&self, line: &Line) -> Line {
        let pieces = ROW.pieces(line);
        let (mode, words) = mode(&pieces);
        // `resume` and `fork`, with the session's id unless an option finds it.
        let bound = match words.first() {
            Some(&("resume" | "fork")) if mode != Mode::Other => 1 + usize::from(!has(&pieces, &["--last"])),
            _ => return line.clone(),
        };
        let first = usize::from(mode == Mode::Exec);
        let (gone, mut word) = (first..first + bound, 0..);
        ROW.kept(line, |piece| match piece {
            Piece::Word(_) => word.next().is_some_and(|at| !gone.contains(&at)),
            option => !option.is(&["--last", "--all", "--include-non-interactive"]),
        })
    }

    fn begin(&self, line: &Line, with: &With, _session: Option<&str>) -> Vec<String> {
        let pieces = ROW.pieces(line);
        let (mode, words) = mode(&pieces);
        let calls_a_model = mode != Mode::Other || words.first() == Some(&"review");
        let set = if calls_a_model { self.configuration(&pieces, with) } else { Vec::new() };
        let (before, behind) = line.tail.split_at(place(line, &pieces));
        line.with(before.iter().cloned().chain(set).chain(behind.iter().cloned()))
    }

    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String> {
        let pieces = ROW.pieces(line);
        let (mode, _) = mode(&pieces);
        let set = self.configuration(&pieces, with);
        let is_inside = place(line, &pieces) > 0;
        let mut out = if is_inside { Vec::new() } else { set.clone() };
        // Images came with the first prompt.
        let gone = ["--last", "--all", "-i", "--image", "--include-non-interactive"];
        let mut is_open = mode == Mode::Exec;
        for piece in pieces.iter().filter(|p| !p.is(&gone)) {
            // The first word is `exec`. Options before it are the program's, options behind it its own.
            match piece {
                Piece::Word(_) if std::mem::take(&mut is_open) => {
                    out.push("exec".into());
                    if is_inside {
                        out.extend(set.iter().cloned());
                    }
                }
                Piece::Word(_) => {}
                option => out.extend(option.words()),
            }
        }
        out.extend(["resume".to_owned(), session.to_owned()]);
        if mode == Mode::Exec || !note.is_empty() {
            out.push(note.to_owned());
        }
        line.with(out)
    }

    fn servers(&self, line: &Line, place: servers::StartContext<'_>) -> Servers {
        let pieces = ROW.pieces(line);
        if mode(&pieces).0 == Mode::Other || has(&pieces, &["--ignore-user-config"]) {
            return Servers::default();
        }
        let mut asked = servers::codex::ServerOptions::default();
        for piece in &pieces {
            let Piece::Option { values, .. } = piece else { continue };
            if piece.is(&["-c", "--config"]) {
                asked.set.extend(values.iter().filter_map(|v| Some(v.split_once('=')?.0.trim().to_owned())));
            } else if piece.is(&["-p", "--profile"]) {
                asked.profile = values.first().cloned();
            }
        }
        servers::codex::servers(&asked, place)
    }

    fn kept_calls(&self, transcript: &str) -> Option<KeptCalls> {
        let mut kept = KeptCalls::default();
        for line in transcript.lines().filter(|line| line.contains("_call")) {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            if line["type"] == "response_item" {
                let item = &line["payload"];
                let turn = Reader::default().turn(item, "");
                if item["output"].as_str().is_some_and(|output| output.ends_with(ABORTED)) {
                    kept.aborted.extend(turn.results().flat_map(|result| result.ids.clone()));
                }
                kept.take(&turn);
            }
        }
        Some(kept)
    }

    fn remarks(&self, line: &Line, with: &With) -> Vec<String> {
        let pieces = ROW.pieces(line);
        let mut out = Vec::new();
        if mode(&pieces).0 == Mode::Other {
            return out;
        }
        if has_provider(&pieces) && !with.is_intercepted {
            out.push("codex is given a provider of its own: its calls do not pass the proxy".into());
        } else if with.has_usd_limit && !searches(&pieces) {
            out.push(
                "codex cannot search the web in this run: a search has no price, and the run has a limit in usd"
                    .into(),
            );
        }
        out
    }
}

/// Returns `text` as a TOML string. JSON's escapes are all valid in TOML.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use outlast_server::dialect::conversation::ToolCall;

    use super::*;

    const ID: &str = "01a1fcb4-fe35-7013-8486-8f7ee05e6a1f";

    fn line(text: &str) -> Line {
        let words: Vec<String> = text.split_whitespace().map(|w| w.replace("ID", ID)).collect();
        Line::read(&words).unwrap()
    }

    #[test]
    fn a_line_tells_who_chooses_its_session() {
        let session = || Names::Resumed(ID.into());
        for (text, names, headless) in [
            ("codex exec hello", Names::Theirs, true),
            ("codex -m gpt-5 e --json hello", Names::Theirs, true),
            ("codex hello", Names::Theirs, false),
            ("codex", Names::Theirs, false),
            ("codex exec resume ID go", session(), true),
            ("codex exec resume --last go", Names::Theirs, true),
            ("codex resume ID", session(), false),
            ("codex exec --ephemeral x", Names::Nothing, true),
            ("codex login", Names::Nothing, false),
            ("codex exec review", Names::Nothing, false),
            ("codex --version", Names::Nothing, false),
        ] {
            assert_eq!(Codex.read(&line(text), false), Reading { names, headless }, "{text}");
        }
    }

    #[test]
    fn a_fork_begins_by_a_line_that_names_no_session() {
        for (text, wanted) in [
            ("codex exec -m gpt-5 resume ID go", "codex exec -m gpt-5 go"),
            ("codex exec resume --last -- go", "codex exec -- go"),
            ("codex resume ID", "codex"),
            ("codex fork --last hello", "codex hello"),
            ("codex exec hello", "codex exec hello"),
            ("codex exec -i a.png b.png -- hello", "codex exec -i a.png b.png -- hello"),
        ] {
            assert_eq!(Codex.unbound(&line(text)).tail, line(wanted).tail, "{text}");
        }
    }

    fn check(text: &str, with: With, begun: &str, resumed: &str) {
        let with = With { openai_url: "http://p/v1".into(), ..with };
        let provider = "-c model_provider=\"outlast\" -c model_providers.outlast={name=\"outlast\",\
                        base_url=\"http://p/v1\",wire_api=\"responses\",requires_openai_auth=true}";
        let clear = |words: Vec<String>| words.join(" ").replace(provider, "PROVIDER").replace(ID, "ID");
        assert_eq!(clear(Codex.begin(&line(text), &with, None)), begun, "{text}");
        assert_eq!(clear(Codex.resume(&line(text), &with, ID, "NOTE")), resumed, "{text}");
    }

    #[test]
    fn the_proxy_is_put_into_its_configuration_and_its_session_resumed() {
        check(
            "codex exec --json -m gpt-5 hello",
            With::default(),
            "codex PROVIDER exec --json -m gpt-5 hello",
            "codex PROVIDER exec --json -m gpt-5 resume ID NOTE",
        );
        check(
            "codex exec -i a.png b.png -- hello",
            With::default(),
            "codex PROVIDER exec -i a.png b.png -- hello",
            "codex PROVIDER exec resume ID NOTE",
        );
        check(
            "codex exec resume --last go",
            With::default(),
            "codex PROVIDER exec resume --last go",
            "codex PROVIDER exec resume ID NOTE",
        );
        check(
            "codex -s read-only hello",
            With::default(),
            "codex PROVIDER -c check_for_update_on_startup=false -s read-only hello",
            "codex PROVIDER -c check_for_update_on_startup=false -s read-only resume ID NOTE",
        );
        check("codex login", With::default(), "codex login", "codex PROVIDER resume ID NOTE");
    }

    #[test]
    fn a_full_screen_hands_nothing_over_to_a_server_outside_of_its_run() {
        // Bug: an intercepted run was "completed, 0 calls paid". Consequence: its calls were made with another login, past
        // every limit. Cause: Codex with a login of its own got no setting, and found the background server of its user.
        let intercepted = || With { is_intercepted: true, ..With::default() };
        check(
            "codex hello",
            intercepted(),
            "codex -c check_for_update_on_startup=false hello",
            "codex -c check_for_update_on_startup=false resume ID NOTE",
        );
        check("codex exec hello", intercepted(), "codex exec hello", "codex exec resume ID NOTE");
    }

    #[test]
    fn settings_stand_behind_exec_where_it_has_some_of_its_own() {
        // Bug: `codex exec -c a=b` was not metered. Consequence: Codex 0.150 called its provider past the proxy, without
        // limits and journal. Cause: it forgets settings before a subcommand that has settings of its own.
        check(
            "codex -m gpt-5 exec --json -c a=b hello",
            With::default(),
            "codex -m gpt-5 exec PROVIDER --json -c a=b hello",
            "codex -m gpt-5 exec PROVIDER --json -c a=b resume ID NOTE",
        );
        check(
            "codex -c a=b exec hello",
            With::default(),
            "codex PROVIDER -c a=b exec hello",
            "codex PROVIDER -c a=b exec resume ID NOTE",
        );
    }

    #[test]
    fn a_search_is_refused_only_where_its_price_would_have_to_be_known() {
        let usd = || With { has_usd_limit: true, ..With::default() };
        let off = "-c web_search=\"disabled\"";
        check(
            "codex exec x",
            usd(),
            &format!("codex PROVIDER {off} exec x"),
            &format!("codex PROVIDER {off} exec resume ID NOTE"),
        );
        check(
            "codex exec -c web_search=live x",
            usd(),
            "codex exec PROVIDER -c web_search=live x",
            "codex exec PROVIDER -c web_search=live resume ID NOTE",
        );
        assert_eq!(Codex.remarks(&line("codex exec x"), &usd()).len(), 1);
        assert_eq!(Codex.remarks(&line("codex login"), &usd()), Vec::<String>::new());
    }

    #[test]
    fn a_provider_of_the_persons_own_is_kept() {
        for text in ["codex -c model_provider=mine exec x", "codex exec --oss x"] {
            assert_eq!(Codex.begin(&line(text), &With::default(), None).join(" "), text);
        }
    }

    #[test]
    fn recorded_servers_are_settings_of_each_session() {
        let with = || With { servers: vec!["mcp_servers.a.command=\"o\"".into()], ..With::default() };
        let set = "-c mcp_servers.a.command=\"o\"";
        check(
            "codex exec x",
            with(),
            &format!("codex PROVIDER {set} exec x"),
            &format!("codex PROVIDER {set} exec resume ID NOTE"),
        );
    }

    #[test]
    fn tool_calls_are_read_off_a_session_file() {
        let lines = [
            r#"{"type":"response_item","payload":{"type":"function_call","name":"sh","arguments":"{}","call_id":"c1"}}"#,
            r#"{"type":"response_item","payload":{"type":"function_call_output","call_id":"c0","output":"x"}}"#,
            r#"{"type":"response_item","payload":{"type":"custom_tool_call_output","call_id":"c2"}}"#,
            r#"{"type":"event_msg","payload":{"type":"function_call_output","call_id":"c3"}}"#,
        ];
        let call = ToolCall { id: "c1".into(), name: "sh".into(), input: "{}".into() };
        let results = HashSet::from(["c0".to_owned(), "c2".to_owned()]);
        let wanted = KeptCalls { calls: vec![call], results, aborted: HashSet::new() };
        assert_eq!(Codex.kept_calls(&lines.join("\n")), Some(wanted));
        let aborted = r#"{"type":"response_item","payload":{"type":"function_call_output","call_id":"c0","output":"Wall time: 0.1 seconds\naborted by user"}}"#;
        assert_eq!(Codex.kept_calls(aborted).unwrap().aborted, HashSet::from(["c0".to_owned()]));
    }

    #[test]
    fn our_own_key_is_named_and_the_agents_name_sent() {
        let with = With { has_openai_key: true, name: Some("a\"1".into()), ..With::default() };
        let begun = Codex.begin(&line("codex exec x"), &with, None).join(" ");
        assert!(begun.contains("env_key=\"OPENAI_API_KEY\""), "{begun}");
        assert!(begun.contains("http_headers={\"X-Outlast-Agent\"=\"a\\\"1\"}"), "{begun}");
    }
}
