//! opencode: `opencode`. It chooses its session id, which its requests name in a header, and is resumed by
//! `run --session ID`.
//!
//! Measured with 1.18: base URLs in variables are not obeyed, so the proxy is put into its configuration, by the
//! variable OPENCODE_CONFIG_CONTENT; a provider that is named there counts as available, with a key or without; after
//! kill -9 its history has the unfinished call with the result "[Tool execution was interrupted]".

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    sync::LazyLock,
};

use outlast_core::run::token::looks_like_token;
use serde_json::{Value, json};

use super::{
    Adapter, Names, Reading, With,
    line::{self, Line, Piece, has, value},
    row::{self, Row},
};
use crate::settings::surroundings::Surroundings;
use outlast_server::dialect::Upstream;

pub struct Opencode;

/// Environment variable with a part of opencode's configuration. The variable takes precedence over the configuration
/// files.
const CONFIGURATION: &str = "OPENCODE_CONFIG_CONTENT";

/// Providers whose calls the proxy takes: opencode's name for the provider, a variable of the key that it reads besides,
/// and the path that it expects behind the proxy's URL.
const PROVIDERS: [(&str, Upstream, &str, &str); 3] = [
    ("openai", Upstream::OpenAi, "", ""),
    ("anthropic", Upstream::Anthropic, "", "/v1"),
    ("google", Upstream::Gemini, "GOOGLE_GENERATIVE_AI_API_KEY", "/v1beta"),
];

static ROW: LazyLock<&Row> = LazyLock::new(|| row::named("opencode"));

fn runs(pieces: &[Piece]) -> bool {
    line::words(pieces).first() == Some(&"run")
}

impl Adapter for Opencode {
    fn row(&self) -> &Row {
        &ROW
    }

    fn read(&self, line: &Line, _piped: bool) -> Reading {
        let pieces = ROW.pieces(line);
        // The session of `--attach` is kept by a server elsewhere.
        let names = if !ROW.converses(&pieces) {
            Names::Nothing
        } else if has(&pieces, &ROW.finds) {
            Names::Theirs
        } else {
            value(&pieces, &ROW.resumes).map_or(Names::Theirs, Names::Resumed)
        };
        Reading { names, headless: runs(&pieces) && !has(&pieces, &["-i", "--interactive"]) }
    }

    fn begin(&self, line: &Line, with: &With, _session: Option<&str>) -> Vec<String> {
        let note = with.note.iter().filter(|_| self.takes_note_anew(line));
        let end = (!line.tail.iter().any(|argument| argument == "--")).then(|| "--".to_owned());
        let noted = note.flat_map(|note| end.iter().cloned().chain([note.clone()]));
        line.with(line.tail.iter().cloned().chain(noted))
    }

    fn takes_note_anew(&self, line: &Line) -> bool {
        runs(&ROW.pieces(line))
    }

    fn resume(&self, line: &Line, _with: &With, session: &str, note: &str) -> Vec<String> {
        let pieces = ROW.pieces(line);
        // Files came with the first prompt.
        let gone = ["--prompt", "-f", "--file", "--title", "--command"];
        let stays =
            |p: &&Piece| p.word().is_none() && !p.is(&gone) && !p.is(&ROW.resumes) && !p.is(&ROW.finds);
        let options = pieces.iter().filter(stays).flat_map(Piece::words);
        let mut out: Vec<String> = Vec::new();
        if runs(&pieces) {
            out.push("run".into());
            out.extend(options);
            out.extend(["--session", session, "--", note].map(str::to_owned));
        } else {
            // The word is the directory of the project.
            out.extend(line::words(&pieces).into_iter().map(str::to_owned));
            out.extend(options);
            out.extend(["--session", session].map(str::to_owned));
        }
        line.with(out)
    }

    fn tells(&self, line: &Line) -> bool {
        // Its full screen takes no prompt for a session that it shows.
        runs(&ROW.pieces(line))
    }

    fn environment(&self, line: &Line, env: &mut BTreeMap<OsString, OsString>, with: &With) {
        let text = |name: &str| env.get(OsStr::new(name)).and_then(|v| v.to_str()).filter(|v| !v.is_empty());
        let mut configuration: Value = match text(CONFIGURATION).map(serde_json::from_str) {
            None => json!({}),
            Some(Ok(theirs @ Value::Object(_))) => theirs,
            // With comments in it, say: opencode reads more than JSON, and theirs is not thrown away.
            Some(_) => return,
        };
        let model = value(&ROW.pieces(line), &["-m", "--model"]).unwrap_or_default();
        for (name, upstream, more, behind) in PROVIDERS {
            let row = upstream.row();
            let key = row.key_variables.iter().chain([&more]).find_map(|name| text(name));
            let is_used = key.is_some()
                || with.logins.iter().any(|login| login == name)
                || model.split('/').next() == Some(name);
            let Some(url) = text(row.url_variable).filter(|_| is_used) else { continue };
            let options = &mut configuration["provider"][name]["options"];
            // A provider of the person's own stays where it is.
            if !options["baseURL"].is_null() {
                continue;
            }
            options["baseURL"] = format!("{url}{behind}").into();
            // A key that opencode keeps itself would count more than the variable.
            if let Some(token) = key.filter(|key| looks_like_token(key)) {
                options["apiKey"] = token.into();
            }
            if let Some(agent) = &with.name {
                options["headers"]["X-Outlast-Agent"] = agent.as_str().into();
            }
        }
        if configuration.get("provider").is_some() {
            env.insert(CONFIGURATION.into(), configuration.to_string().into());
        }
    }

    fn logins(&self, around: &Surroundings) -> Vec<String> {
        let file = around.expand("${XDG_DATA_HOME:-~/.local/share}/opencode/auth.json");
        let kept = file.and_then(|file| std::fs::read(file).ok());
        let kept: Value = kept.and_then(|kept| serde_json::from_slice(&kept).ok()).unwrap_or_default();
        // A subscription's login ("oauth") goes to an address of its own, whatever is configured.
        let with_key = kept.as_object().into_iter().flatten().filter(|(_, login)| login["type"] == "api");
        with_key.map(|(provider, _)| provider.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ses_df7ace023ffeqZjj4dQn1az3Km";

    fn line(text: &str) -> Line {
        let words: Vec<String> = text.split_whitespace().map(|w| w.replace("ID", ID)).collect();
        Line::read(&words).unwrap()
    }

    #[test]
    fn a_line_tells_who_chooses_its_session() {
        for (text, names, headless) in [
            ("opencode run hello", Names::Theirs, true),
            ("opencode --print-logs run -m openai/gpt-5 hello", Names::Theirs, true),
            ("opencode", Names::Theirs, false),
            ("opencode /some/where", Names::Theirs, false),
            ("opencode run -i hello", Names::Theirs, false),
            ("opencode run -s ID go", Names::Resumed(ID.into()), true),
            ("opencode --session=ID", Names::Resumed(ID.into()), false),
            ("opencode run -c go", Names::Theirs, true),
            ("opencode run -s ID --fork go", Names::Theirs, true),
            ("opencode run --attach http://h:1 go", Names::Nothing, true),
            ("opencode serve", Names::Nothing, false),
            ("opencode --version", Names::Nothing, false),
        ] {
            assert_eq!(Opencode.read(&line(text), false), Reading { names, headless }, "{text}");
        }
    }

    #[test]
    fn its_session_is_resumed_with_everything_else_the_person_said() {
        for (text, resumed) in [
            (
                "opencode run --auto -m openai/gpt-5 hello there",
                "opencode run --auto -m openai/gpt-5 --session ID -- NOTE",
            ),
            (
                "opencode run hello -f a.png b.png --title x --format json",
                "opencode run --format json --session ID -- NOTE",
            ),
            ("opencode run -c --fork go", "opencode run --session ID -- NOTE"),
            ("opencode /p --prompt hello", "opencode /p --session ID"),
            ("npx opencode-ai@1.18.33 run x", "npx opencode-ai@1.18.33 run --session ID -- NOTE"),
        ] {
            let line = line(text);
            assert_eq!(line.program, "opencode", "{text}");
            assert_eq!(Opencode.begin(&line, &With::default(), None).join(" "), text);
            let with = With { note: Some("NOTE".into()), ..With::default() };
            let noted = Opencode.begin(&line, &with, None).join(" ");
            let is_noted = Opencode.takes_note_anew(&line);
            assert_eq!(noted, if is_noted { format!("{text} -- NOTE") } else { text.into() });
            let had = Opencode.resume(&line, &With::default(), ID, "NOTE").join(" ").replace(ID, "ID");
            assert_eq!(had, resumed, "{text}");
            assert_eq!(Opencode.tells(&line), resumed.contains("NOTE"), "{text}");
        }
    }

    fn configuration(text: &str, with: &With, variables: &[(&str, &str)]) -> Value {
        let mut env: BTreeMap<OsString, OsString> =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        env.insert("OPENAI_BASE_URL".into(), "http://p/v1".into());
        env.insert("ANTHROPIC_BASE_URL".into(), "http://p".into());
        Opencode.environment(&line(text), &mut env, with);
        let text = env.get(OsStr::new(CONFIGURATION)).map(|v| v.to_str().unwrap().to_owned());
        serde_json::from_str(&text.unwrap_or("null".into())).unwrap()
    }

    #[test]
    fn the_proxy_is_named_for_providers_that_are_used_and_no_other() {
        let with = With::default();
        let openai = json!({"provider": {"openai": {"options": {"baseURL": "http://p/v1"}}}});
        let anthropic = json!({"provider": {"anthropic": {"options": {"baseURL": "http://p/v1"}}}});
        assert_eq!(configuration("opencode run x", &with, &[]), Value::Null);
        assert_eq!(configuration("opencode run x", &with, &[("OPENAI_API_KEY", "sk")]), openai);
        assert_eq!(configuration("opencode run -m anthropic/claude x", &with, &[]), anthropic);
        let login = With { logins: vec!["anthropic".into(), "groq".into()], ..With::default() };
        assert_eq!(configuration("opencode run x", &login, &[]), anthropic);
    }

    #[test]
    fn what_the_person_has_configured_stays() {
        let own = r#"{"theme":"x","provider":{"openai":{"options":{"baseURL":"http://own"}}}}"#;
        let variables = [(CONFIGURATION, own), ("OPENAI_API_KEY", "sk"), ("ANTHROPIC_API_KEY", "sk")];
        let had = configuration("opencode run x", &With::default(), &variables);
        assert_eq!(had["theme"], "x");
        assert_eq!(had["provider"]["openai"]["options"]["baseURL"], "http://own");
        assert_eq!(had["provider"]["anthropic"]["options"]["baseURL"], "http://p/v1");
    }

    #[test]
    fn our_own_key_counts_more_than_one_that_it_keeps_and_the_agents_name_is_sent() {
        let with = With { name: Some("a.1".into()), ..With::default() };
        let token = "ol_token";
        assert!(looks_like_token(token));
        let had = configuration("opencode run x", &with, &[("OPENAI_API_KEY", token)]);
        let options = &had["provider"]["openai"]["options"];
        assert_eq!(options["apiKey"], token);
        assert_eq!(options["headers"]["X-Outlast-Agent"], "a.1");
    }

    #[test]
    fn keys_that_it_keeps_are_known_and_subscriptions_are_not_taken_for_keys() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join(".local/share/opencode");
        std::fs::create_dir_all(&place).unwrap();
        let kept = r#"{"anthropic": {"type": "oauth"}, "openai": {"type": "api", "key": "sk-1"}}"#;
        std::fs::write(place.join("auth.json"), kept).unwrap();
        let around = Surroundings::new(&[("HOME", home.path().to_str().unwrap())], home.path());
        assert_eq!(Opencode.logins(&around), ["openai"]);
    }
}
