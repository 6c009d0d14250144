//! Command line of an agent: its program, the program's options with their values, and words. Pure.

use serde::Deserialize;

use super::row::rows;

/// Command line split at the program: words that lead to it, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Words up to and including the program: `env X=Y npx -y @openai/codex`.
    pub head: Vec<String>,
    /// Name of the program without its directory: `claude`, also for a package or script of that name.
    pub program: String,
    /// Arguments of the program.
    pub tail: Vec<String>,
}

impl Line {
    /// Finds the program in `argv`: the first word, or the word behind `env`, `nohup`, `npx`, `node` and the like.
    /// Returns `None` if the line names no program.
    pub fn read(argv: &[String]) -> Option<Line> {
        let mut at = 0;
        loop {
            let word = argv.get(at)?;
            at = match stem(word) {
                "env" => skip(argv, at + 1, &["-u", "-C", "--unset", "--chdir"], |w| w.contains('=')),
                "nohup" | "exec" => skip(argv, at + 1, &[], |_| false),
                "nice" => skip(argv, at + 1, &["-n", "--adjustment"], |_| false),
                "npx" | "bunx" | "pnpx" => skip(argv, at + 1, &["-p", "--package"], |_| false),
                "node" | "nodejs" | "bun" => skip(argv, at + 1, &["-r", "--require", "--import"], |_| false),
                _ => {
                    let program = named(word).to_owned();
                    return Some(Line { head: argv[..=at].to_vec(), program, tail: argv[at + 1..].to_vec() });
                }
            };
        }
    }

    /// Returns the whole command line with `tail` in place of the program's arguments.
    pub fn with(&self, tail: impl IntoIterator<Item = String>) -> Vec<String> {
        self.head.iter().cloned().chain(tail).collect()
    }
}

/// Returns the index of the first word behind a wrapper's own options, searching from `at`.
fn skip(argv: &[String], mut at: usize, with_value: &[&str], is_own: impl Fn(&str) -> bool) -> usize {
    while let Some(word) = argv.get(at) {
        if word == "--" {
            return at + 1;
        }
        if with_value.contains(&word.as_str()) {
            at += 2;
        } else if word.starts_with('-') || is_own(word) {
            at += 1;
        } else {
            break;
        }
    }
    at
}

/// Returns the last part of a path without an extension such as `.js` or `.exe`.
fn stem(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    [".exe", ".cjs", ".mjs", ".js"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

/// Returns the program that a word means. A package, and the scripts in it, are named after their program.
fn named(word: &str) -> &str {
    if let Some(row) = rows().iter().find(|row| row.packages.iter().any(|package| word.contains(package))) {
        return &row.name;
    }
    // `kimi@1.2`, as npx takes it.
    match stem(word).split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => stem(word),
    }
}

/// Number of values that an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takes {
    Nothing,
    One,
    /// One value: the next word, unless that word is an option.
    Perhaps,
    /// All following words up to the next option.
    Many,
}

/// One option with its values, or one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Option with its `name` as written, such as `--resume` or `-r`. A value after `=` is among `values`.
    Option {
        name: String,
        values: Vec<String>,
    },
    Word(String),
}

impl Piece {
    pub fn is(&self, names: &[impl AsRef<str>]) -> bool {
        matches!(self, Piece::Option { name, .. } if names.iter().any(|known| known.as_ref() == name))
    }

    pub fn word(&self) -> Option<&str> {
        match self {
            Piece::Word(word) => Some(word),
            Piece::Option { .. } => None,
        }
    }

    /// Turns this piece of a command line back into arguments: an option and its values are one argument each.
    pub fn words(&self) -> Vec<String> {
        match self {
            Piece::Word(word) => vec![word.clone()],
            Piece::Option { name, values } => [name].into_iter().chain(values).cloned().collect(),
        }
    }
}

/// Returns whether one of the options `names` is among the pieces.
pub fn has(pieces: &[Piece], names: &[impl AsRef<str>]) -> bool {
    pieces.iter().any(|piece| piece.is(names))
}

/// Returns the first value of the first option of `names` that has one.
pub fn value(pieces: &[Piece], names: &[impl AsRef<str>]) -> Option<String> {
    pieces.iter().find_map(|piece| match piece {
        Piece::Option { values, .. } if piece.is(names) => values.first().cloned(),
        _ => None,
    })
}

/// Returns the words among the pieces, in their order.
pub fn words(pieces: &[Piece]) -> Vec<&str> {
    pieces.iter().filter_map(Piece::word).collect()
}

/// Splits arguments into options and words. `takes`: returns the number of values of an option, `None` for an unknown
/// one. After `--` all are words.
///
/// An unknown option takes the word behind it as its value if other words are there: an option of a newer version is
/// more likely than a second prompt.
pub fn pieces(arguments: &[String], takes: impl Fn(&str) -> Option<Takes>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // Indices of unknown options that may own the word behind them.
    let mut doubtful = Vec::new();
    let mut left = arguments.iter().peekable();
    while let Some(argument) = left.next() {
        if argument == "--" {
            pieces.extend(left.map(|word| Piece::Word(word.clone())));
            break;
        }
        let is_option = argument.starts_with('-') && argument.len() > 1;
        if !is_option {
            pieces.push(Piece::Word(argument.clone()));
            continue;
        }
        for (name, attached) in split(argument, &takes) {
            let mut values: Vec<String> = attached.into_iter().collect();
            let mut next = |values: &mut Vec<String>| {
                let found = left.next_if(|word| !word.starts_with('-') || word.len() == 1);
                values.extend(found.cloned());
                found.is_some()
            };
            match takes(&name) {
                Some(Takes::One) if values.is_empty() => values.extend(left.next().cloned()),
                Some(Takes::Perhaps) if values.is_empty() => drop(next(&mut values)),
                Some(Takes::Many) if values.is_empty() => while next(&mut values) {},
                None if !name.contains('=') => doubtful.push(pieces.len()),
                _ => {}
            }
            pieces.push(Piece::Option { name, values });
        }
    }
    settle(pieces, &doubtful)
}

/// Splits an argument into its options: `--name=value`, `-rVALUE`, and `-pc`, which is two.
fn split(argument: &str, takes: impl Fn(&str) -> Option<Takes>) -> Vec<(String, Option<String>)> {
    if argument.starts_with("--") {
        return match argument.split_once('=') {
            Some((name, value)) if takes(name).is_some() => {
                vec![(name.to_owned(), Some(value.to_owned()))]
            }
            // Unknown: left as written.
            _ => vec![(argument.to_owned(), None)],
        };
    }
    let mut found = Vec::new();
    let letters = &argument[1..];
    for (at, letter) in letters.char_indices() {
        let name = format!("-{letter}");
        let rest = &letters[at + letter.len_utf8()..];
        match takes(&name) {
            Some(Takes::Nothing) => found.push((name, None)),
            Some(_) => {
                let value = rest.strip_prefix('=').unwrap_or(rest);
                found.push((name, (!rest.is_empty()).then(|| value.to_owned())));
                return found;
            }
            // Unknown: left as written.
            None => return vec![(argument.to_owned(), None)],
        }
    }
    found
}

/// Gives doubtful options the words after them as values, except the last of these words where no other word
/// would be left.
fn settle(pieces: Vec<Piece>, doubtful: &[usize]) -> Vec<Piece> {
    let is_word = |at: usize| matches!(pieces.get(at), Some(Piece::Word(_)));
    let mut taken: Vec<usize> = doubtful.iter().map(|at| at + 1).filter(|at| is_word(*at)).collect();
    let words = (0..pieces.len()).filter(|at| is_word(*at)).count();
    if words == taken.len() {
        taken.pop();
    }
    let mut out: Vec<Piece> = Vec::new();
    for (at, piece) in pieces.into_iter().enumerate() {
        match (piece, out.last_mut()) {
            (Piece::Word(word), Some(Piece::Option { values, .. })) if taken.contains(&at) => {
                values.push(word)
            }
            (piece, _) => out.push(piece),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_program_is_found_behind_what_starts_it() {
        for (line, program, tail) in [
            ("claude -p hello", "claude", "-p hello"),
            ("/usr/local/bin/claude", "claude", ""),
            ("env A=1 B=2 claude -p x", "claude", "-p x"),
            ("env -u HOME -i A=1 nohup codex exec x", "codex", "exec x"),
            ("npx -y @anthropic-ai/claude-code@2.1.197 -p x", "claude", "-p x"),
            ("npx --package @openai/codex -- codex exec x", "codex", "exec x"),
            ("npx kimi@1.2 --yes", "kimi", "--yes"),
            ("node --max-old-space-size=99 /n/@anthropic-ai/claude-code/cli.js -p x", "claude", "-p x"),
            ("node /n/@openai/codex/bin/codex.js exec x", "codex", "exec x"),
            ("bunx codex@latest exec", "codex", "exec"),
            ("nice -n 5 ./claude.exe -c", "claude", "-c"),
            ("npx -y opencode-ai@1.18.33 run x", "opencode", "run x"),
            ("python agent.py claude", "python", "agent.py claude"),
            ("sh -c claude", "sh", "-c claude"),
        ] {
            let read = Line::read(&words(line)).unwrap();
            assert_eq!((read.program.as_str(), read.tail), (program, words(tail)), "{line}");
        }
        for line in ["", "env A=1", "npx -y", "env -u"] {
            assert_eq!(Line::read(&words(line)), None, "{line}");
        }
    }
}

#[cfg(test)]
mod tests_of_options {
    use super::*;

    fn takes(name: &str) -> Option<Takes> {
        Some(match name {
            "-p" | "-c" | "--print" => Takes::Nothing,
            "-m" | "--model" => Takes::One,
            "-r" | "--resume" => Takes::Perhaps,
            "--tools" => Takes::Many,
            _ => return None,
        })
    }

    fn check(line: &str, wanted: &[&[&str]]) {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let pieces: Vec<Vec<String>> = pieces(&arguments, takes)
            .iter()
            .map(|piece| match piece {
                Piece::Word(word) => vec!["word".into(), word.clone()],
                option => option.words(),
            })
            .collect();
        assert_eq!(pieces, wanted, "{line}");
    }

    #[test]
    fn values_belong_to_their_options() {
        check("-p hello", &[&["-p"], &["word", "hello"]]);
        check("-pc", &[&["-p"], &["-c"]]);
        check("-pr ID hello", &[&["-p"], &["-r", "ID"], &["word", "hello"]]);
        check("-mgpt x", &[&["-m", "gpt"], &["word", "x"]]);
        check("--model=gpt --resume", &[&["--model", "gpt"], &["--resume"]]);
        check("--resume -p", &[&["--resume"], &["-p"]]);
        check("--model -odd x", &[&["--model", "-odd"], &["word", "x"]]);
        check("--tools a b -p x", &[&["--tools", "a", "b"], &["-p"], &["word", "x"]]);
        check("--tools a -- x -y", &[&["--tools", "a"], &["word", "x"], &["word", "-y"]]);
        check("-p -", &[&["-p"], &["word", "-"]]);
        check("--model", &[&["--model"]]);
    }

    #[test]
    fn an_option_that_is_not_known_has_a_value_where_another_word_is_left() {
        check("--new value hello", &[&["--new", "value"], &["word", "hello"]]);
        check("-p --new hello", &[&["-p"], &["--new"], &["word", "hello"]]);
        check("--new=value hello", &[&["--new=value"], &["word", "hello"]]);
        check("--new a --newer b hello", &[&["--new", "a"], &["--newer", "b"], &["word", "hello"]]);
        check("-xyz hello", &[&["-xyz"], &["word", "hello"]]);
    }
}
