//! Settings from variables and from `outlast.toml`, and which comes first.

use std::{collections::BTreeSet, ffi::OsString, path::Path};

use clap::ArgAction;
use outlast::{
    cli::values::Limit,
    commands::{Command, command, config},
    program::told,
    settings::{
        flags::{SetBy, set_by},
        surroundings::Surroundings,
        trust,
    },
};
use outlast_core::run::InDoubt;

use crate::line::{fails, outlast};

/// Reads `line` with the two files, of which the user trusts the directory's, and the variables.
fn read(
    line: &str,
    here: &str,
    home: &str,
    variables: &[(&str, &str)],
) -> Result<Command, (String, Option<String>)> {
    read_with(line, here, home, variables, true)
}

fn read_with(
    line: &str,
    here: &str,
    home: &str,
    variables: &[(&str, &str)],
    is_trusted: bool,
) -> Result<Command, (String, Option<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("home/.config/outlast");
    std::fs::create_dir_all(&config).unwrap();
    for (path, text) in [(dir.path().join("outlast.toml"), here), (config.join("outlast.toml"), home)] {
        if !text.is_empty() {
            std::fs::write(path, text).unwrap();
        }
    }
    let home = dir.path().join("home");
    let all: Vec<(&str, &str)> =
        [("HOME", home.to_str().unwrap())].into_iter().chain(variables.iter().copied()).collect();
    let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let around = Surroundings::new(&all, dir.path());
    if is_trusted {
        trust::give(&around, &dir.path().join("outlast.toml"), here).unwrap();
    }
    outlast::commands::line::parse(&args, &around).map(|c| c.command).map_err(|e| {
        let anonymous = |text: String| text.replace(dir.path().to_str().unwrap(), "DIR");
        (anonymous(e.to_string()), e.hint())
    })
}

fn usd(line: &str, here: &str, home: &str, variables: &[(&str, &str)]) -> Option<Limit> {
    match read(line, here, home, variables).unwrap() {
        Command::Run(args) => args.limits.usd,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flag_comes_before_a_variable_before_the_local_file_before_the_users() {
    let check = |line: &str, here: &str, home: &str, variables: &[(&str, &str)], wanted: Option<i64>| {
        let found = usd(line, here, home, variables);
        assert_eq!(found, wanted.map(|n| Limit::At(n * 1_000_000_000)), "{line} {here} {home} {variables:?}");
    };
    let variable = [("OUTLAST_USD", "2")];
    check("outlast run --usd 1 a", "usd = 3", "usd = 4", &variable, Some(1));
    check("outlast run a", "usd = 3", "usd = 4", &variable, Some(2));
    check("outlast run a", "usd = 3", "usd = 4", &[], Some(3));
    check("outlast run a", "", "usd = \"4\"", &[], Some(4));
    check("outlast run a", "", "", &[], None);
    // A variable that is empty is not set.
    check("outlast run a", "usd = 3", "", &[("OUTLAST_USD", "")], Some(3));
}

#[test]
fn what_is_said_for_one_command_comes_before_what_is_said_for_all() {
    let check = |here: &str, variables: &[(&str, &str)], wanted: i64| {
        assert_eq!(usd("outlast run a", here, "", variables), Some(Limit::At(wanted * 1_000_000_000)));
    };
    check("usd = 1\n[run]\nusd = 2", &[], 2);
    check("usd = 1\n[serve]\ndefault_usd = 2", &[], 1);
    check("", &[("OUTLAST_USD", "1"), ("OUTLAST_RUN_USD", "2")], 2);
}

#[test]
fn every_kind_of_flag_can_be_a_setting() {
    let here = "
        new = true
        tag = { team = \"search\", n = 1 }
        env = [\"A\", \"B\"]
        in-doubt = \"refund\"
        admit_wait = \"2s\"
        wall = \"none\"
        [mock]
        fail = [\"429:0.1\", \"500:0.2\"]
    ";
    let home = "openai_base_url = \"http://127.0.0.1:7078/v1\"";
    let Command::Run(args) = read("outlast run a", here, home, &[]).unwrap() else { panic!() };
    assert!(args.new);
    assert_eq!(args.tags, [("n", "1"), ("team", "search")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    assert_eq!(args.env, ["A", "B"]);
    assert_eq!(args.policy.in_doubt, InDoubt::Refund);
    assert_eq!(args.proxy.admit_wait_ms, 2000);
    assert_eq!(args.limits.wall, Some(Limit::None));
    assert_eq!(args.proxy.openai_base_url.as_deref(), Some("http://127.0.0.1:7078/v1"));
    let Command::Mock(args) = read("outlast mock", here, "", &[]).unwrap() else { panic!() };
    assert_eq!(args.fail.len(), 2);
    let Command::Run(args) =
        read("outlast run a", "", "", &[("OUTLAST_ENV", "A,B"), ("OUTLAST_IN_DOUBT", "as-retry")]).unwrap()
    else {
        panic!()
    };
    assert_eq!((args.env.len(), args.policy.in_doubt), (2, InDoubt::AsRetry));
}

/// Bug: a directory's file set whatever no list forbade, and acts: `[resume] add_usd = 100`.
/// Consequence: an agent wrote it into its own directory; whoever typed `outlast budget` there raised its limit.
/// Cause: a list of what a directory may not set, beside flags that were all settings.
#[test]
fn a_directory_that_nobody_trusts_sets_how_output_looks_and_nothing_else() {
    let limited = "outlast run --usd 0.01 --calls 1 a";
    let run = |here: &str| read_with(limited, here, "", &[], false).map(|command| format!("{command:?}"));
    let alone = run("").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let around = Surroundings::new(&[("HOME", "/nowhere")], dir.path());
    let (command, mut tried) = (command(), BTreeSet::new());
    for sub in command.get_subcommands() {
        let word = sub.get_name();
        for arg in command.get_arguments().chain(sub.get_arguments()).filter(|arg| arg.get_long().is_some()) {
            let long = arg.get_long().unwrap();
            let value = match (arg.get_action(), long) {
                (ArgAction::SetTrue, _) => "true",
                (_, "color") => "'always'",
                _ => "'1'",
            };
            for here in [format!("{long} = {value}"), format!("[{word}]\n{long} = {value}")] {
                if tried.insert(here.clone())
                    && (word == "run" || !here.starts_with('['))
                    && let Ok(run) = run(&here)
                {
                    assert_eq!(run, alone, "{here}");
                }
                std::fs::write(dir.path().join("outlast.toml"), &here).unwrap();
                let told = match config::defaults(&command, word, |_| false, &around) {
                    Ok(taken) if taken.is_empty() => {
                        taken.ignored.map_or("nothing".into(), |e| e.to_string())
                    }
                    Ok(_) => "taken: true".into(),
                    Err(e) => e.to_string(),
                };
                let elsewhere = "not taken from a directory's own settings";
                let wanted = match set_by(word, long) {
                    // It decides whether the file counts.
                    _ if word == "trust" => &["nothing"][..],
                    // The table of masks, and no command's.
                    _ if word == "digest" && here.starts_with('[') => &["nothing"],
                    SetBy::Anyone => &["taken: true", elsewhere],
                    SetBy::Owner => &["that you do not trust", elsewhere],
                    // At the top level it can be another command's setting.
                    SetBy::Typing => &["acts, and is typed", "nothing"],
                };
                assert!(wanted.iter().any(|wanted| told.contains(wanted)), "{word}, {here}: {told}");
            }
        }
    }
}

#[test]
fn what_acts_is_set_by_no_file_and_by_no_variable() {
    let command = command();
    for sub in command.get_subcommands() {
        for long in sub.get_arguments().filter_map(|arg| arg.get_long()) {
            let word = sub.get_name();
            if set_by(word, long) != SetBy::Typing {
                continue;
            }
            let name = long.to_uppercase().replace('-', "_");
            let both = [format!("OUTLAST_{name}"), format!("OUTLAST_{}_{name}", word.to_uppercase())];
            let around = Surroundings::new(&[(&*both[0], "1"), (&*both[1], "1")], "/".as_ref());
            let taken = config::defaults(&command, word, |_| false, &around).unwrap();
            assert!(taken.is_empty(), "{both:?}");
            let own = format!("[{word}]\n{long} = 1");
            let (told, _) = read("outlast ls", "", &own, &[]).unwrap_err();
            assert!(told.contains(&format!("`{word}.{long}` acts, and is typed")), "{told}");
            let (told, _) = read("outlast ls", &own, "", &[]).unwrap_err();
            assert!(told.contains("acts, and is typed"), "{told}");
        }
    }
}

#[test]
fn where_calls_go_is_not_for_a_trusted_directory_either_to_say() {
    let here = "[upstreams.groq]\nbase_url = \"https://evil.example\"";
    let (told, hint) = read("outlast run a", here, "", &[]).unwrap_err();
    assert!(told.contains("is not taken from a directory's own settings"), "{told}");
    assert!(hint.unwrap().contains("~/.config/outlast/outlast.toml"));
}

#[test]
fn a_directory_is_trusted_as_it_was_when_the_person_looked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("outlast.toml");
    let check = |line: &[&str], code: i32, parts: &[&str]| {
        let done = outlast(dir.path()).args(line).assert().code(code);
        let output = done.get_output();
        let told = [&*output.stdout, &*output.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        for part in parts {
            assert!(told.contains(part), "{line:?}: {told}");
        }
    };
    check(&["trust"], 1, &["there is no ", "outlast.toml"]);
    std::fs::write(&file, "[run]\nusd = 3\n[policies.mine]\nusd = 2\n").unwrap();
    let run = ["run", "--name", "r", "--new", "--", "true"];
    check(&run, 2, &["`run.usd` is not taken", "that you do not trust\n", "outlast trust"]);
    check(&["run", "--usd", "1", "--policy", "mine", "--", "true"], 2, &["`policies` is not taken"]);
    check(&["run", "--usd", "1", "--", "true"], 0, &["budget 1.00 usd"]);
    // What does not concern a command does not stop it.
    check(&["ls"], 0, &["completed"]);
    check(&["trust"], 0, &["usd = 3", "is trusted"]);
    check(&run, 0, &["budget 3.00 usd"]);
    check(&["run", "--policy", "mine", "--name", "p", "--", "true"], 0, &["budget 2.00 usd"]);
    std::fs::write(&file, "[run]\nusd = 300\n").unwrap();
    check(&run, 2, &["`run.usd` is not taken", "they have changed since you did"]);
    check(&["trust"], 0, &["usd = 300"]);
    check(&["trust", "--withdraw"], 0, &["is no longer trusted"]);
    check(&run, 2, &["that you do not trust\n"]);
    std::fs::write(&file, "[resume]\nadd_usd = 100\n").unwrap();
    check(&["trust"], 2, &["`resume.add_usd` acts, and is typed"]);
}

#[test]
fn agents_are_declared_in_the_persons_own_file() {
    let agent = "[agents.kimi]\nmatch = \"kimi\"";
    read("outlast run a", "", agent, &[]).unwrap();
    let (told, _) = read("outlast run a", agent, "", &[]).unwrap_err();
    assert!(told.contains("`agents` is not taken from a directory's own settings"), "{told}");
    for (text, part) in [
        ("[agents.kimi]\nresume = 1", "`agents.kimi.resume`: unknown key"),
        ("[agents.claude]", "`agents.claude`: `claude` is an adapter of its own already"),
        ("[agents]\nkimi = 1", "`agents.kimi`: wanted a table"),
        (
            "[agents.kimi]\nnew_args = [\"{session}\"]\nresume_args = []",
            "`agents.kimi.resume_args`: resume_args without {session}",
        ),
    ] {
        let (told, _) = read("outlast run a", "", text, &[]).unwrap_err();
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn what_was_typed_wins_over_a_setting_that_excludes_it() {
    let run = |line: &str, variables: &[(&str, &str)]| match read(line, "", "", variables).unwrap() {
        Command::Run(args) => (args.run.as_ref().map(|r| r.to_string()), args.new),
        other => panic!("{other:?}"),
    };
    assert_eq!(run("outlast run --new a", &[("OUTLAST_RUN", "r")]), (None, true));
    assert_eq!(run("outlast run --run r a", &[("OUTLAST_NEW", "yes")]), (Some("r".into()), false));
}

#[test]
fn a_bad_setting_is_told_with_where_it_stands() {
    let check = |here: &str, variables: &[(&str, &str)], wanted: &str, hint: Option<&str>| {
        let (told, hinted) = read("outlast run a", here, "", variables).unwrap_err();
        assert!(told.contains(wanted), "{here}: {told}");
        assert_eq!(
            hinted.as_deref().map(|h| h.contains(hint.unwrap_or("?"))),
            hint.map(|_| true),
            "{hinted:?}"
        );
    };
    check("admit_wiat = \"1s\"", &[], "DIR/outlast.toml: unknown key `admit_wiat`", Some("`admit_wait`"));
    check("[serve]\nlisen = 1", &[], "unknown key `serve.lisen`", Some("`listen`"));
    check("[run]\nlisten = \"x\"", &[], "unknown key `run.listen`", Some("long flags"));
    check("[serv]\nlisten = \"x\"", &[], "unknown key `serv`", Some("`serve`"));
    check("usd = \"5 usd\"", &[], "`usd` in DIR/outlast.toml: not an amount in usd: \"5 usd\"", None);
    check(
        "[run]\nin_doubt = \"maybe\"",
        &[],
        "`run.in_doubt` in DIR/outlast.toml: not one of as_retry, keep",
        None,
    );
    check("new = 3", &[], "`new` in DIR/outlast.toml: not true or false: \"3\"", None);
    check("wall = [\"1h\", \"2h\"]", &[], "wanted one value, had 2", None);
    check("usd = { a = 1 }", &[], "wanted a value, had a table", None);
    check("usd = 1\nusd = 2", &[], "DIR/outlast.toml, line 2: duplicate key", None);
    check("usd = \n", &[], "DIR/outlast.toml, line 1: ", None);
    check("max-body = 1\nmax_body = 2", &[], "given twice", None);
    check("store = 5", &[], "`store` in DIR/outlast.toml: wanted a text in quotes, had 5", None);
    check("calls = true", &[], "`calls` in DIR/outlast.toml: wanted a value, had true or false", None);
    check("[[hook]]\na = 1", &[], "`hook` in DIR/outlast.toml: wanted a table, `[hook]`, had array", None);
    check("notify = 1", &[], "`notify` in DIR/outlast.toml: wanted a table, `[notify]`, had integer", None);
    check("[upstream.a]", &[], "wanted a", None);
    check("openai_api_key = \"sk-s3cret\"", &[], "would put a secret", Some("0600"));
    check("", &[("OUTLAST_CALLS", "many")], "the variable OUTLAST_CALLS: not a whole number: \"many\"", None);
    check("", &[("OUTLAST_RUN_CALLS", "x")], "the variable OUTLAST_RUN_CALLS", None);
}

#[test]
fn a_secret_in_a_file_is_not_repeated() {
    let (told, hint) = read("outlast ls", "openai_api_key = \"sk-s3cret\"", "", &[]).unwrap_err();
    assert!(!format!("{told}{hint:?}").contains("s3cret"));
}

#[test]
fn help_does_not_need_good_settings() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("outlast.toml"), "nonsense").unwrap();
    for line in [&["--help"][..], &["run", "--help"], &["--version"]] {
        assert_eq!(fails(dir.path(), line, &[]), (0, String::new()), "{line:?}");
    }
    // Nobody trusts this file, and there is no store yet.
    let (code, told) = fails(dir.path(), &["ls"], &[]);
    assert_eq!(code, 69, "{told}");
    assert!(told.contains("outlast.toml, line 1") && told.contains("this file is ignored"), "{told}");
    std::fs::write(dir.path().join("outlast.toml"), "tokns = 1").unwrap();
    let (_, told) = fails(dir.path(), &["ls"], &[]);
    assert!(told.contains("(the nearest known key is `tokens`); this file is ignored"), "{told}");
    std::fs::create_dir_all(dir.path().join("own/outlast")).unwrap();
    std::fs::write(dir.path().join("own/outlast/outlast.toml"), "nonsense").unwrap();
    let own = dir.path().join("own");
    let (code, told) = fails(dir.path(), &["ls"], &[("XDG_CONFIG_HOME", own.to_str().unwrap())]);
    assert_eq!(code, 2);
    assert!(told.starts_with("error: ") && told.contains("own/outlast/outlast.toml, line 1"), "{told}");
}

/// Bug: garbage in a directory's file stopped every command there. Consequence: an agent could keep a person from
/// `outlast stop` and `outlast cancel`. Cause: what an agent can write was refused as a person's own settings are.
#[test]
fn a_directorys_file_keeps_nobody_from_ending_a_run() {
    let check = |word: &str, write: &dyn Fn(&Path), said: &str| {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("outlast.toml"));
        let around = Surroundings::new(&[("HOME", "/nowhere")], dir.path());
        let told = match config::defaults(&command(), word, |_| false, &around) {
            Ok(taken) if taken.is_empty() => {
                taken.ignored.map(|e| format!("ignored: {e}")).unwrap_or_default()
            }
            Ok(_) => "taken".into(),
            Err(e) => format!("refused: {e}"),
        };
        let wanted = if word == "run" { "refused: " } else { "ignored: " };
        assert!(told.starts_with(wanted) && told.contains(said), "{word}: {told:?}, wanted {said:?}");
    };
    let text = |text: &'static str| move |path: &Path| std::fs::write(path, text).unwrap();
    for word in ["cancel", "stop", "ls", "run"] {
        check(word, &text("nonsense"), "outlast.toml, line 1");
        check(word, &text("stoer = 'x'"), "unknown key `stoer`");
        check(word, &text("[upstreams.a]\nbase_url = 'x'"), "not taken from a directory's own settings");
        check(word, &text("[resume]\nadd_usd = 100"), "acts, and is typed");
        check(word, &text("color = 'nonsense'"), "not one of");
        check(word, &text("json = 5"), "not true or false");
        check(word, &|path| std::fs::write(path, [0xff, 0xfe]).unwrap(), "cannot read");
        check(word, &|path| std::fs::create_dir(path).unwrap(), "it is no file");
        check(word, &|path| std::fs::File::create(path).unwrap().set_len(1 << 40).unwrap(), "at most 1 MiB");
        check(word, &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), "it is no file");
    }
    for word in ["cancel", "stop"] {
        check(word, &text("store = '/nowhere'\nserver = 'http://x'"), "that you do not trust");
    }
}

/// Bug: `store = 5` made a store named `5`. Cause: a value became the text that would be typed, whatever it was.
#[test]
fn a_key_takes_no_value_of_another_type() {
    let command = command();
    let dir = tempfile::tempdir().unwrap();
    let around = Surroundings::new(&[("HOME", dir.path().to_str().unwrap())], "/".as_ref());
    let file = dir.path().join(".config/outlast/outlast.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for sub in command.get_subcommands() {
        let word = sub.get_name();
        for arg in command.get_arguments().chain(sub.get_arguments()).filter(|arg| arg.get_long().is_some()) {
            let long = arg.get_long().unwrap();
            // Tables of names are no settings of the commands of the same names.
            let is_of_names = ["budgets", "digest", "mcp", "notify", "policies"].contains(&word);
            if set_by(word, long) == SetBy::Typing || is_of_names {
                continue;
            }
            let taken = |value: &str| {
                std::fs::write(&file, format!("[{word}]\n{long} = {value}")).unwrap();
                config::defaults(&command, word, |_| false, &around).map(|taken| !taken.is_empty())
            };
            let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
            assert_eq!(taken("true") == Ok(true), is_switch, "{word}.{long} = true");
            for number in ["5", "0.5", "2026-01-01"] {
                let is_taken = taken(number) == Ok(true);
                let is_word = taken("'word'") == Ok(true);
                assert!(!is_taken || !is_switch && !is_word, "{word}.{long} = {number}");
            }
            assert!(taken("{ a = [] }").is_err(), "{word}.{long} has a table");
        }
    }
}

/// Bug: `outlast run` inside a loop of `outlast shell-init --run NAME` exited with 2, or looped.
/// Consequence: no paid call of a shell loop could be limited.
/// Cause: `OUTLAST_LOOP=NAME` was told to the loop's programs, and read as `--loop`.
#[test]
fn no_setting_has_the_name_of_a_variable_that_programs_of_a_run_are_told() {
    let command = command();
    for sub in command.get_subcommands() {
        let flags = command.get_arguments().chain(sub.get_arguments()).filter_map(|a| a.get_long());
        for long in flags.filter(|long| set_by(sub.get_name(), long) != SetBy::Typing) {
            let flag = long.to_uppercase().replace('-', "_");
            for name in
                [format!("OUTLAST_{flag}"), format!("OUTLAST_{}_{flag}", sub.get_name().to_uppercase())]
            {
                assert!(!told::ALL.contains(&name.as_str()), "{} --{long}", sub.get_name());
            }
        }
    }
}
