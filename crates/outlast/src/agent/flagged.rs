//! Agents that take the id of a new session by one option and resume it by another: Gemini CLI, Qwen Code, Copilot CLI.
//! The facts about each stand in its file, `known/NAME.toml`.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use outlast_core::run::token::looks_like_token;
use outlast_server::dialect::Upstream;

use super::{
    Adapter, Names, Reading, With,
    line::{Line, Piece, has},
    row::Row,
};
use crate::settings::keys;

/// Adapter of a program that begins a session by `--session-id ID` and resumes it by `--resume=ID`.
pub struct Flagged {
    pub row: &'static Row,
    /// Points the program at the proxy by variables that are its own.
    pub environment: fn(&mut BTreeMap<OsString, OsString>),
}

impl Flagged {
    fn is_prompt(&self, piece: &Piece) -> bool {
        piece.word().is_some() || piece.is(&self.row.prompts) || piece.is(&self.row.talks)
    }

    /// Returns the arguments with `note` appended to the last prompt.
    fn noted(&self, mut pieces: Vec<Piece>, note: &str) -> Vec<String> {
        match pieces.iter_mut().rfind(|piece| self.is_prompt(piece)) {
            Some(Piece::Word(prompt)) => *prompt = format!("{prompt}\n\n{note}"),
            Some(Piece::Option { values, .. }) => {
                values.iter_mut().for_each(|prompt| *prompt = format!("{prompt}\n\n{note}"));
            }
            None => {}
        }
        pieces.iter().flat_map(Piece::words).collect()
    }

    /// Returns the option that chooses a way to authenticate, where nothing else has chosen one.
    fn login(&self, pieces: &[Piece], with: &With) -> Vec<String> {
        let choose = &self.row.login.choose;
        let is_chosen = !with.logins.is_empty() || has(pieces, choose) || !self.row.converses(pieces);
        if is_chosen { Vec::new() } else { choose.clone() }
    }
}

impl Adapter for Flagged {
    fn row(&self) -> &Row {
        self.row
    }

    fn read(&self, line: &Line, piped: bool) -> Reading {
        let pieces = self.row.pieces(line);
        let ends = has(&pieces, &self.row.prompts)
            || self.row.ends_after_words && pieces.iter().any(|piece| piece.word().is_some());
        let headless = (ends || piped) && !has(&pieces, &self.row.talks);
        Reading { names: self.row.names(&pieces), headless }
    }

    fn begin(&self, line: &Line, with: &With, session: Option<&str>) -> Vec<String> {
        let pieces = self.row.pieces(line);
        let mut added = self.login(&pieces, with);
        if let Some(id) = session.filter(|_| self.row.names(&pieces) == Names::Ours) {
            added.extend(["--session-id".to_owned(), id.to_owned()]);
        }
        match &with.note {
            Some(note) => line.with(added.into_iter().chain(self.noted(pieces, note))),
            None => line.with(added.into_iter().chain(line.tail.iter().cloned())),
        }
    }

    fn takes_note_anew(&self, line: &Line) -> bool {
        self.row.pieces(line).iter().any(|piece| self.is_prompt(piece))
    }

    fn resume(&self, line: &Line, with: &With, session: &str, note: &str) -> Vec<String> {
        let (row, pieces) = (self.row, self.row.pieces(line));
        let mut out = self.login(&pieces, with);
        out.push(format!("--resume={session}"));
        let gone = [&row.prompts, &row.talks, &row.finds, &row.starts, &row.begins, &row.resumes];
        let stays = |piece: &&Piece| piece.word().is_none() && !gone.iter().any(|gone| piece.is(gone));
        out.extend(pieces.iter().filter(stays).flat_map(Piece::words));
        let options = if self.read(line, with.piped).headless { &row.prompts } else { &row.talks };
        out.extend(options.first().cloned());
        out.push(note.to_owned());
        line.with(out)
    }

    fn environment(&self, _line: &Line, env: &mut BTreeMap<OsString, OsString>, with: &With) {
        if with.is_intercepted {
            self.row.unset_if_intercepted.iter().for_each(|name| drop(env.remove(OsStr::new(name))));
        }
        (self.environment)(env);
    }

    fn remarks(&self, line: &Line, with: &With) -> Vec<String> {
        let Row { name, login, .. } = self.row;
        if with.is_intercepted || login.metered.is_empty() || !self.row.converses(&self.row.pieces(line)) {
            return Vec::new();
        }
        match with.logins.first() {
            Some(chosen) if *chosen == login.metered => Vec::new(),
            None => vec![login.missing.clone()],
            Some(other) => vec![format!(
                "{name} authenticates by {other:?}, as its settings say: only with {:?} do its calls pass the proxy",
                login.metered
            )],
        }
    }
}

const URL: &str = "COPILOT_PROVIDER_BASE_URL";
const KIND: &str = "COPILOT_PROVIDER_TYPE";
const KEY: &str = "COPILOT_PROVIDER_API_KEY";

/// Variables with other credentials, each of which takes precedence over the key.
const OTHER_KEYS: [&str; 2] = ["COPILOT_PROVIDER_API_KEY_COMMAND", "COPILOT_PROVIDER_BEARER_TOKEN"];

/// Hosts whose calls the proxy can take instead.
const HOSTS: [&str; 2] = ["https://api.openai.com", "https://api.anthropic.com"];

/// Points a provider that the person has chosen at the proxy. Nobody's GitHub plan is exchanged for a key.
pub fn copilot_environment(env: &mut BTreeMap<OsString, OsString>) {
    let text = |name: &str| env.get(OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty());
    let url = text(URL);
    let is_chosen = url.is_some() || text(KIND).is_some() || text(KEY).is_some();
    // A provider elsewhere stays where it is.
    let is_elsewhere = url.is_some_and(|url| !HOSTS.iter().any(|host| is_at(url, host)));
    let upstream = match text(KIND) {
        None | Some("openai") => Upstream::OpenAi,
        Some("anthropic") => Upstream::Anthropic,
        Some(_) => return,
    };
    let (base, key) = (text(upstream.row().url_variable), text(keys::variable(upstream)));
    let Some(base) = base.filter(|_| is_chosen && !is_elsewhere) else { return };
    let (base, token) = (base.to_owned(), key.filter(|key| looks_like_token(key)).map(str::to_owned));
    env.insert(URL.into(), base.into());
    if let Some(token) = token {
        env.insert(KEY.into(), token.into());
        for other in OTHER_KEYS {
            env.remove(OsStr::new(other));
        }
    }
}

fn is_at(url: &str, host: &str) -> bool {
    url.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{agent::row, settings::surroundings::Surroundings};

    const ID: &str = "11111111-1111-4111-8111-111111111111";

    fn agent(name: &str) -> Flagged {
        let environment = if name == "copilot" { copilot_environment } else { |_: &mut _| () };
        Flagged { row: row::named(name), environment }
    }

    fn line(text: &str) -> Line {
        let words: Vec<String> = text.split_whitespace().map(|w| w.replace("ID", ID)).collect();
        Line::read(&words).unwrap()
    }

    /// Checks who chooses the session, whether the agent ends by itself, and both command lines.
    fn check(text: &str, names: Names, headless: bool, begun: &str, resumed: &str) {
        let (line, with) = (line(text), With::default());
        let agent = agent(&line.program);
        let had = agent.read(&line, false);
        assert_eq!(had, Reading { names, headless }, "{text}");
        let clear = |words: Vec<String>| words.join(" ").replace(ID, "ID");
        assert_eq!(clear(agent.begin(&line, &with, Some("OURS"))), begun, "{text}");
        let noted = agent.begin(&line, &With { note: Some("NOTE".into()), ..With::default() }, Some("OURS"));
        let is_noted = noted.iter().any(|word| word.ends_with("\n\nNOTE"));
        assert_eq!(is_noted, agent.takes_note_anew(&line), "{text}");
        assert_eq!(clear(agent.resume(&line, &with, "OURS", "NOTE")), resumed, "{text}");
    }

    #[test]
    fn a_session_is_chosen_once_and_resumed_with_everything_else_the_person_said() {
        check(
            "gemini --yolo -m gemini-3-pro -p hello",
            Names::Ours,
            true,
            "gemini --session-id OURS --yolo -m gemini-3-pro -p hello",
            "gemini --resume=OURS --yolo -m gemini-3-pro -p NOTE",
        );
        check(
            "npx @google/gemini-cli@0.61.0 hello",
            Names::Ours,
            false,
            "npx @google/gemini-cli@0.61.0 --session-id OURS hello",
            "npx @google/gemini-cli@0.61.0 --resume=OURS -i NOTE",
        );
        check(
            "gemini --session-id ID -p hello",
            Names::Session(ID.into()),
            true,
            "gemini --session-id ID -p hello",
            "gemini --resume=OURS -p NOTE",
        );
        check(
            "gemini -r ID -i hello",
            Names::Resumed(ID.into()),
            false,
            "gemini -r ID -i hello",
            "gemini --resume=OURS -i NOTE",
        );
        check(
            "gemini -r latest -p go",
            Names::Theirs,
            true,
            "gemini -r latest -p go",
            "gemini --resume=OURS -p NOTE",
        );
        check(
            "qwen --yolo -m qwen3-coder-plus hello",
            Names::Ours,
            true,
            "qwen --auth-type openai --session-id OURS --yolo -m qwen3-coder-plus hello",
            "qwen --auth-type openai --resume=OURS --yolo -m qwen3-coder-plus -p NOTE",
        );
        check(
            "npx @qwen-code/qwen-code --auth-type anthropic -i hello",
            Names::Ours,
            false,
            "npx @qwen-code/qwen-code --session-id OURS --auth-type anthropic -i hello",
            "npx @qwen-code/qwen-code --resume=OURS --auth-type anthropic -i NOTE",
        );
        check(
            "qwen --resume ID -p go",
            Names::Resumed(ID.into()),
            true,
            "qwen --auth-type openai --resume ID -p go",
            "qwen --auth-type openai --resume=OURS -p NOTE",
        );
        check(
            "qwen -c go",
            Names::Theirs,
            true,
            "qwen --auth-type openai -c go",
            "qwen --auth-type openai --resume=OURS -p NOTE",
        );
        check(
            "copilot --allow-tool=shell(git:*) write --model gpt-5 -p hello",
            Names::Ours,
            true,
            "copilot --session-id OURS --allow-tool=shell(git:*) write --model gpt-5 -p hello",
            "copilot --resume=OURS --allow-tool shell(git:*) --model gpt-5 -p NOTE",
        );
        check(
            "npx -y @github/copilot -n fix -i hello",
            Names::Ours,
            false,
            "npx -y @github/copilot --session-id OURS -n fix -i hello",
            "npx -y @github/copilot --resume=OURS -i NOTE",
        );
        check(
            "copilot --resume=ID --yolo",
            Names::Resumed(ID.into()),
            false,
            "copilot --resume=ID --yolo",
            "copilot --resume=OURS --yolo -i NOTE",
        );
        check(
            "copilot --continue -p go",
            Names::Theirs,
            true,
            "copilot --continue -p go",
            "copilot --resume=OURS -p NOTE",
        );
        for text in [
            "gemini mcp list",
            "gemini --version",
            "gemini --list-sessions",
            "gemini --acp",
            "qwen serve",
            "qwen --help",
            "qwen --acp",
            "copilot mcp",
            "copilot --version",
            "copilot --acp",
        ] {
            let (agent, line) = (agent(&line(text).program), line(text));
            assert_eq!(agent.read(&line, false).names, Names::Nothing, "{text}");
            assert_eq!(agent.begin(&line, &With::default(), None).join(" "), text);
        }
        assert!(agent("gemini").read(&line("gemini hello"), true).headless, "nobody could answer");
    }

    #[test]
    fn an_api_that_the_person_has_chosen_stays() {
        let home = tempfile::tempdir().unwrap();
        let around = Surroundings::new(&[("HOME", home.path().to_str().unwrap())], Path::new("/none"));
        let qwen = agent("qwen");
        assert_eq!(qwen.logins(&around), Vec::<String>::new());
        std::fs::create_dir(home.path().join(".qwen")).unwrap();
        let settings = r#"{"security": {"auth": {"selectedType": "anthropic"}}}"#;
        std::fs::write(home.path().join(".qwen/settings.json"), settings).unwrap();
        let with = With { logins: qwen.logins(&around), ..With::default() };
        assert_eq!(qwen.begin(&line("qwen hello"), &with, None).join(" "), "qwen hello");
    }

    #[test]
    fn a_way_to_authenticate_that_does_not_obey_a_base_url_is_told() {
        let home = tempfile::tempdir().unwrap();
        let around = Surroundings::new(
            &[("HOME", home.path().to_str().unwrap()), ("GEMINI_CLI_SYSTEM_SETTINGS_PATH", "/none")],
            Path::new("/none"),
        );
        let gemini = agent("gemini");
        let told = |is_intercepted| {
            let with = With { logins: gemini.logins(&around), is_intercepted, ..With::default() };
            gemini.remarks(&line("gemini hello"), &with).join("")
        };
        assert!(told(false).contains("/auth"), "{}", told(false));
        assert_eq!(told(true), "");
        std::fs::create_dir(home.path().join(".gemini")).unwrap();
        for (kind, wanted) in [("gemini-api-key", ""), ("oauth-personal", "oauth-personal")] {
            let settings = serde_json::json!({"security": {"auth": {"selectedType": kind}}}).to_string();
            std::fs::write(home.path().join(".gemini/settings.json"), settings).unwrap();
            assert!(told(false).contains(wanted) && told(false).is_empty() == wanted.is_empty(), "{kind}");
        }
    }
}

#[cfg(test)]
mod tests_of_copilot {
    use super::*;

    #[test]
    fn only_a_provider_that_the_person_chose_is_pointed_at_the_proxy() {
        let of = |set: &[(&str, &str)]| {
            let mut env: BTreeMap<OsString, OsString> =
                set.iter().map(|(name, value)| (name.into(), value.into())).collect();
            env.insert("OPENAI_BASE_URL".into(), "http://p/v1".into());
            env.insert("ANTHROPIC_BASE_URL".into(), "http://p".into());
            super::copilot_environment(&mut env);
            let get = |name: &str| env.get(OsStr::new(name)).map(|v| v.to_string_lossy().into_owned());
            (get(URL), get(KEY), get(OTHER_KEYS[1]))
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[("OPENAI_API_KEY", "ol_x")]), (None, None, None), "the login at GitHub stays");
        assert_eq!(
            of(&[(KIND, "openai"), ("OPENAI_API_KEY", "ol_x")]),
            (text("http://p/v1"), text("ol_x"), None)
        );
        assert_eq!(of(&[(KIND, "anthropic"), (KEY, "sk-own")]), (text("http://p"), text("sk-own"), None));
        let official = [(URL, "https://api.openai.com/v1"), (KEY, "sk-own"), (OTHER_KEYS[1], "b")];
        assert_eq!(of(&official), (text("http://p/v1"), text("sk-own"), text("b")));
        let ours = [(URL, "https://api.openai.com/v1"), (OTHER_KEYS[1], "b"), ("OPENAI_API_KEY", "ol_x")];
        assert_eq!(of(&ours), (text("http://p/v1"), text("ol_x"), None));
        for url in ["http://localhost:11434/v1", "https://api.openai.com.evil.example/v1"] {
            assert_eq!(of(&[(URL, url), ("OPENAI_API_KEY", "ol_x")]), (text(url), None, None));
        }
        assert_eq!(of(&[(KIND, "azure"), (KEY, "k")]), (None, text("k"), None));
    }
}
