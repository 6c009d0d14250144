//! Finds the agent's program in a command line. Pure.

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
