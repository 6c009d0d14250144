//! Scripts for the fake provider: lines `mock: …` in a request's text that control its answer.
//!
//! | line | |
//! |---|---|
//! | `mock: tool NAME {"json": "args"}` | the nth such line is the nth assistant turn, if the request offers tools |
//! | `mock: tool NAMESPACE/NAME {…}` | the same, of a tool that the Responses API offers in a namespace |
//! | `mock: run COMMAND` | the same, of the tool that the request offers for shell commands, whatever the agent calls it |
//! | `mock: unless "WORDS" tool NAME {…}` | the same, unless a user message of the request has these words, outside of its `mock:` lines; every line can begin so |
//! | `mock: reply TEXT` | the final answer; `{n}` becomes its occurrence; several lines are lines of it |
//! | `mock: tokens N` | the answer is N tokens long, and N chunks when streamed |
//! | `mock: search N` | N web searches of the provider's own are billed, if the request offers that tool |
//! | `mock: usage INPUT,OUTPUT` | what is billed, even past the request's cap |
//! | `mock: latency 300ms` | instead of the provider's |
//! | `mock: status CODE` | refused, unpaid; `mock: status CODE N` only the first N times |
//! | `mock: limit TIME` | refused with 429, unpaid: a plan's usage limit that is over in TIME; `mock: limit TIME N` as above |
//! | `mock: truncate` | paid; half the answer, then the connection breaks |
//! | `mock: garbage` | paid; a 200 that is not JSON |
//! | `mock: hang` | paid; half the answer, then nothing until the client leaves |
//! | `mock: linger TIME` | paid; the end of a streamed answer comes that much later than what it says and calls |
//! | `mock: silent` | unpaid; no answer at all until the client leaves |

use std::{borrow::Cow, time::Duration};

use http::StatusCode;
use serde_json::{json, value::RawValue};

use super::options::{self, FixedUsage};

/// Largest number of tokens that a script may ask for: an answer is held in memory as a whole.
const MAX_TOKENS: usize = 100_000;

/// The `mock:` lines of one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    pub tools: Vec<Turn>,
    pub reply: Option<String>,
    pub tokens: Option<usize>,
    pub usage: Option<FixedUsage>,
    pub searches: u64,
    pub latency: Option<Duration>,
    pub fault: Option<Fault>,
}

/// Tool call of a turn of the assistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Call(ToolCall),
    /// Runs a shell command.
    Run(String),
}

/// Tools by which known agents run shell commands.
const SHELLS: [&str; 6] = ["exec_command", "shell_command", "shell", "Bash", "bash", "run_shell_command"];

impl Turn {
    /// Returns the call of the turn, of one of the tools that are offered. Errors: what is wanted, in words.
    pub fn call(&self, offered: &[String]) -> Result<ToolCall, String> {
        let is_offered = |name: &str| offered.iter().any(|tool| tool == name);
        match self {
            Turn::Call(call) if is_offered(&call.name) => Ok(call.clone()),
            Turn::Call(call) => Err(format!("is {:?}", call.name)),
            Turn::Run(command) => {
                let name = SHELLS.into_iter().find(|name| is_offered(name));
                let name = name.ok_or_else(|| format!("runs a command, by one of {SHELLS:?}"))?;
                let args = match name {
                    "exec_command" => json!({ "cmd": command }),
                    "shell" => json!({ "command": ["bash", "-lc", command] }),
                    // Some want to be told what it is for.
                    "Bash" | "bash" => json!({ "command": command, "description": "scripted" }),
                    _ => json!({ "command": command }),
                };
                Ok(ToolCall { name: name.into(), args: args.to_string() })
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub name: String,
    /// Arguments: a JSON object on one line.
    pub args: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// HTTP status of the answer, and the number of equal requests that get it (`None`: all).
    Status(StatusCode, Option<u64>),
    /// Time after which the usage limit ends, and the number of equal requests that meet it (`None`: all).
    Limit(Duration, Option<u64>),
    Truncate,
    Garbage,
    Hang,
    Linger(Duration),
    Silent,
}

/// Error for a `mock:` line that cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot follow the line {line:?}: wanted {wanted}")]
pub(super) struct BadLine {
    pub line: String,
    pub wanted: Cow<'static, str>,
}

/// Returns whether `text` has a `mock:` line.
pub(super) fn is_in(text: &str) -> bool {
    lines(text).next().is_some()
}

/// Returns what `text` says besides its `mock:` lines.
pub(super) fn spoken(text: &str) -> String {
    let said = text.lines().filter(|line| !line.trim().starts_with("mock:"));
    said.collect::<Vec<_>>().join("\n")
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("mock:")).map(str::trim)
}

impl Script {
    /// Reads the `mock:` lines of `text`. `said` returns whether a user message contains these words.
    ///
    /// Errors: a line that cannot be understood, so that no test passes by a typo.
    pub fn read(text: &str, said: impl Fn(&str) -> bool) -> Result<Self, BadLine> {
        let mut script = Self::default();
        for line in lines(text) {
            let (mut verb, mut rest) = split(line);
            if verb == "unless" {
                let wanted = "unless \"WORDS\" tool NAME {json object}";
                let (words, conditional) =
                    unless(rest).ok_or_else(|| BadLine { line: line.into(), wanted: wanted.into() })?;
                if said(words) {
                    continue;
                }
                (verb, rest) = split(conditional);
            }
            script.follow(verb, rest.trim()).map_err(|wanted| BadLine { line: line.into(), wanted })?;
        }
        Ok(script)
    }

    fn follow(&mut self, verb: &str, rest: &str) -> Result<(), Cow<'static, str>> {
        match verb {
            "tool" => self.tools.push(Turn::Call(tool(rest).ok_or("tool NAME {json object}")?)),
            "run" if rest.is_empty() => return Err("run COMMAND".into()),
            "run" => self.tools.push(Turn::Run(rest.into())),
            "reply" => match &mut self.reply {
                Some(reply) => {
                    reply.push('\n');
                    reply.push_str(rest);
                }
                None => self.reply = Some(rest.into()),
            },
            "tokens" => {
                let tokens = rest.parse().ok().filter(|n| (1..=MAX_TOKENS).contains(n));
                self.tokens = Some(tokens.ok_or_else(|| format!("tokens N, 1 to {MAX_TOKENS}"))?);
            }
            "search" => self.searches = rest.parse().map_err(|_| "search N")?,
            "usage" => self.usage = Some(rest.parse().map_err(|_| "usage INPUT,OUTPUT")?),
            "latency" => self.latency = Some(options::duration(rest).map_err(|_| "latency 300ms")?),
            "status" => self.fault = Some(status(rest).ok_or("status CODE [TIMES], CODE 400 to 599")?),
            "limit" => self.fault = Some(limit(rest).ok_or("limit TIME [TIMES], such as limit 5h")?),
            "truncate" => self.fault = Some(Fault::Truncate),
            "garbage" => self.fault = Some(Fault::Garbage),
            "hang" => self.fault = Some(Fault::Hang),
            "linger" => {
                self.fault = Some(Fault::Linger(options::duration(rest).map_err(|_| "linger 300ms")?))
            }
            "silent" => self.fault = Some(Fault::Silent),
            _ => {
                return Err(
                    "tool, run, reply, tokens, search, usage, latency, status, limit, truncate, garbage, hang, linger or silent"
                        .into(),
                );
            }
        }
        Ok(())
    }
}

fn split(line: &str) -> (&str, &str) {
    line.split_once(char::is_whitespace).unwrap_or((line, ""))
}

fn unless(rest: &str) -> Option<(&str, &str)> {
    let (words, line) = rest.trim().strip_prefix('"')?.split_once('"')?;
    (!words.is_empty()).then(|| (words, line.trim()))
}

fn tool(rest: &str) -> Option<ToolCall> {
    let (name, args) = rest.split_once(char::is_whitespace).unwrap_or((rest, "{}"));
    let args = serde_json::from_str::<&RawValue>(args).ok()?.get();
    (!name.is_empty() && args.starts_with('{')).then(|| ToolCall { name: name.into(), args: args.into() })
}

/// Splits off the number of times that a fault is to happen; without one it happens each time.
fn times(rest: &str) -> Option<(&str, Option<u64>)> {
    match rest.split_once(char::is_whitespace) {
        Some((fault, times)) => Some((fault, Some(times.trim().parse().ok()?))),
        None => Some((rest, None)),
    }
}

fn status(rest: &str) -> Option<Fault> {
    let (code, times) = times(rest)?;
    Some(Fault::Status(options::error_status(code)?, times))
}

fn limit(rest: &str) -> Option<Fault> {
    let (time, times) = times(rest)?;
    let ms = u64::try_from(outlast_core::words::duration::parse_ms(time).ok()?).ok()?;
    Some(Fault::Limit(Duration::from_millis(ms), times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_its_mock_lines_and_nothing_else() {
        let text = "do it\n  mock: tool bash {\"cmd\": \"ls\"}\nnot mock: hang\nmock: tool done\n\
                    mock: reply all\nmock: reply done {n}\nmock: tokens 7\nmock: status 503 2";
        let script = Script::read(text, |_| false).unwrap();
        let call = |name: &str, args: &str| Turn::Call(ToolCall { name: name.into(), args: args.into() });
        assert_eq!(script.tools, [call("bash", r#"{"cmd": "ls"}"#), call("done", "{}")]);
        assert_eq!(script.reply.as_deref(), Some("all\ndone {n}"));
        assert_eq!(script.tokens, Some(7));
        assert_eq!(script.fault, Some(Fault::Status(StatusCode::SERVICE_UNAVAILABLE, Some(2))));
        let limit = Script::read("mock: limit 5h 2", |_| false).unwrap().fault;
        assert_eq!(limit, Some(Fault::Limit(Duration::from_secs(5 * 3600), Some(2))));
        assert_eq!(Script::read("no lines here", |_| false), Ok(Script::default()));
    }

    // Bug: a demo with Codex ran no command: the script's tool was not one that its default model offers.
    #[test]
    fn a_command_is_run_by_the_tool_that_is_offered_for_it() {
        let script = Script::read("mock: run make \"all\"", |_| false).unwrap();
        let check = |offered: &[&str], wanted: Option<(&str, &str)>| {
            let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
            let call = script.tools[0].call(&offered).ok();
            let told = call.as_ref().map(|call| (call.name.as_str(), call.args.as_str()));
            assert_eq!(told, wanted, "{offered:?}");
        };
        check(&["update_plan", "exec_command"], Some(("exec_command", r#"{"cmd":"make \"all\""}"#)));
        check(&["shell"], Some(("shell", r#"{"command":["bash","-lc","make \"all\""]}"#)));
        check(&["shell_command"], Some(("shell_command", r#"{"command":"make \"all\""}"#)));
        check(&["Read", "Bash"], Some(("Bash", r#"{"command":"make \"all\"","description":"scripted"}"#)));
        check(&["read_file"], None);
        assert!(Script::read("mock: run", |_| false).is_err());
    }

    #[test]
    fn a_line_may_stand_only_while_something_was_not_said() {
        let text = "mock: unless \"check before\" tool bash {}\nmock: tool done";
        let tools =
            |said: bool| Script::read(text, |words| said && words == "check before").unwrap().tools.len();
        assert_eq!((tools(false), tools(true)), (2, 1));
    }

    // Bug: a condition held never. Cause: its words were looked for in its own line, too.
    #[test]
    fn what_is_said_is_what_stands_outside_of_the_lines() {
        assert_eq!(spoken("do it\n  mock: unless \"check\" tool bash {}\nnow"), "do it\nnow");
    }

    #[test]
    fn a_line_that_means_nothing_is_an_error() {
        let lines = [
            "",
            "unless x tool y",
            "unless \"x\"",
            "trunkate",
            "tool",
            "tool x [1]",
            "tool x {",
            "tokens 0",
            "tokens 100001",
            "status 200",
        ];
        for line in lines.into_iter().chain([
            "status 500 x",
            "usage 1",
            "latency 3",
            "linger",
            "limit",
            "limit x",
            "limit 5h x",
        ]) {
            assert!(Script::read(&format!("mock: {line}"), |_| false).is_err(), "{line}");
        }
        let error = Script::read("mock: tokens many", |_| false).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"cannot follow the line "tokens many": wanted tokens N, 1 to 100000"#
        );
    }
}
