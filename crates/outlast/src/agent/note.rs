//! Text for the model of a resumed agent: how its program ended, and the outcome of the tools it had begun.
//! Pure.

use super::truth::InFlight;
use crate::{files::history::Effect, render::time};

/// Longest excerpt of a tool's input in a note, in characters.
const EXCERPT: usize = 400;

/// Longest beginning, and longest end, of a result that the conversation has lost, in characters.
const RESULT: usize = 1000;

/// Most tool calls that a note names whose files were taken away.
const CALLS: usize = 10;

/// Beginning and end of a note to the model of a resumed agent, and its words where it has no tool call to tell of.
const BEGINS: &str = "[Outlast] Your program ended (";
const ENDS: &str = "\nGo on with the task from there.";
const NO_CALL: &str = " No tool call was in flight.";

/// Most characters of a conversation that the note to a new session repeats: the newest.
const CONVERSATION: usize = 16_000;

/// Note to the model of a resumed agent, as it stands in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    Plain,
    /// Tells of tool calls that were in flight.
    OfCalls,
}

/// Returns a text without the note that is in it; `None`: no note of a resumption is.
pub fn cut_out(text: &str) -> Option<(String, Note)> {
    let (before, rest) = text.split_once(BEGINS)?;
    // Nothing that a note quotes has lines of its own.
    let (note, after) = rest.split_once(ENDS)?;
    Some((format!("{before}{after}"), if note.ends_with(NO_CALL) { Note::Plain } else { Note::OfCalls }))
}

/// Returns the note to the model of a resumed session. `how`: words for the end of the attempt before.
pub fn words(how: &str, in_flight: &[InFlight]) -> String {
    let began =
        format!("Your program ended ({how}) and was started again, in the same session and directory.");
    told(&began, "the crash", in_flight)
}

/// Returns the note to the model of a new session: the old conversation is lost, but its tools' effects are not. `how`:
/// words for the end of the attempt before.
pub fn words_anew(how: &str, in_flight: &[InFlight]) -> String {
    let began = format!(
        "Your program ended ({how}) before it had kept its session, and was started again, in the same directory."
    );
    told(&began, "the crash", in_flight)
}

/// Returns the note to the model of a fork's session. `of`: words for the run that it is a fork of, and for the point.
pub fn words_of_fork(of: &str, in_flight: &[InFlight]) -> String {
    told(
        &format!(
            "Your session is a copy, in a fork of {of}. What was done after that is no part of it, though files may show \
             it: look at them before you rely on them."
        ),
        "that point",
        in_flight,
    )
}

/// Returns the note to the model of a fork that begins a new session. `conversation`: that of its origin.
pub fn words_of_new_fork(of: &str, conversation: &str) -> String {
    let left_out = conversation.chars().count().saturating_sub(CONVERSATION);
    let newest: String = conversation.chars().skip(left_out).collect();
    let cut = if left_out > 0 { "…" } else { "" };
    format!(
        "[Outlast] You are a fork of {of}. Your session is new; until then the conversation was:\n{cut}{newest}\n[Outlast] Go on \
         with the task from there. What you did after that is no part of it, though files may show it: look before you \
         repeat anything."
    )
}

/// Returns words that follow those for an end: files have been brought back since, as they were before tool calls.
pub fn undone(calls: &[Effect]) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let named = calls
        .iter()
        .take(CALLS)
        .map(|call| format!("{} `{}`", cut(&call.tool, EXCERPT), excerpt(&call.input)));
    let named: Vec<String> = named.collect();
    let more = calls.len().saturating_sub(CALLS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("; then files were brought back as they were before you called {}{more}", named.join(", "))
}

/// Returns a note that tells of tool calls. `end`: words for the moment before which they were started.
fn told(began: &str, end: &str, in_flight: &[InFlight]) -> String {
    let mut out = format!("[Outlast] {began}");
    match in_flight {
        [] => out.push_str(NO_CALL),
        calls => {
            for call in calls {
                out.push_str(&format!(
                    "\nBefore {end} you had started: {} `{}`, at {} UTC; outcome: {}{}; check before repeating it.",
                    call.name,
                    excerpt(&call.input),
                    time::utc(call.asked_at),
                    call.outcome.words(),
                    call.lost.as_deref().map(lost).unwrap_or_default(),
                ));
            }
        }
    }
    out.push_str(ENDS);
    out
}

/// Returns words for a result that the conversation has lost: all of it, or its beginning and its end.
fn lost(result: &str) -> String {
    let result = result.trim();
    let text = match result.chars().count().checked_sub(2 * RESULT).filter(|left_out| *left_out > 0) {
        None => cut(result, 2 * RESULT),
        Some(left_out) => {
            let end: String = result.chars().skip(RESULT + left_out).collect();
            cut(result, RESULT) + &cut(&end, RESULT)
        }
    };
    format!("; you had read its result, which this conversation has lost: `{text}`")
}

/// Returns a shell tool's command, or the whole input of another tool, on one line and cut to `EXCERPT` characters.
pub fn excerpt(input: &str) -> String {
    let text = super::truth::command(input).unwrap_or_else(|| input.to_owned());
    cut(&text, EXCERPT)
}

/// Returns a text on one line, cut to `most` characters.
fn cut(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (n, c) in text.trim().chars().enumerate() {
        if n == most {
            out.push('…');
            break;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '`' => out.push('\''),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use outlast_core::words::Micros;

    use super::*;
    use crate::agent::truth::Outcome;

    #[test]
    fn each_call_in_flight_is_told_with_its_outcome() {
        let call = |outcome| InFlight {
            id: "t1".into(),
            name: "Bash".into(),
            input: r#"{"command":"make deploy\nmock: tool x `y`"}"#.into(),
            asked_at: Micros(1_795_241_129_000_000),
            outcome,
            lost: None,
        };
        let told = words(
            "killed by SIGKILL",
            &[call(Outcome::Finished { code: Some(0) }), call(Outcome::EndedByOutlast)],
        );
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{told}");
        assert!(lines[0].starts_with("[Outlast] Your program ended (killed by SIGKILL)"), "{told}");
        assert!(
            lines[1].starts_with(
                "Before the crash you had started: Bash `make deploy\\nmock: tool x 'y'`, at 2026-"
            ),
            "{told}"
        );
        assert!(lines[1].ends_with("; outcome: finished with code 0; check before repeating it."), "{told}");
        assert!(lines[2].contains("outcome: ended by Outlast"), "{told}");
        assert!(words("exit 1", &[]).contains("No tool call was in flight."));
        for (note, wanted) in [
            (told, Note::OfCalls),
            (words("exit 1", &[]), Note::Plain),
            (words_anew("exit 1", &[call(Outcome::Unknown)]), Note::OfCalls),
        ] {
            assert_eq!(
                cut_out(&format!("before {note} after")),
                Some(("before  after".into(), wanted)),
                "{note}"
            );
        }
    }

    #[test]
    fn tool_calls_whose_files_were_taken_away_are_told() {
        assert_eq!(undone(&[]), "");
        let call = Effect { entry: 1, tool: "Bash".into(), input: "ls\n`".into() };
        let told = words(&format!("exit 1{}", undone(&vec![call; 12])), &[]);
        let wanted =
            "(exit 1; then files were brought back as they were before you called Bash `ls\\n'`, Bash";
        assert!(told.contains(wanted) && told.contains("'` and 2 more) and was started again"), "{told}");
        assert_eq!(cut_out(&told), Some((String::new(), Note::Plain)));
    }

    #[test]
    fn a_result_that_the_conversation_has_lost_is_told() {
        let call = InFlight {
            id: "t1".into(),
            name: "Bash".into(),
            input: r#"{"command":"make deploy"}"#.into(),
            asked_at: Micros(0),
            outcome: Outcome::Finished { code: Some(0) },
            lost: Some("deployed\nas `7`".into()),
        };
        let told = words("exit 1", &[call]);
        let wanted = "outcome: finished with code 0; you had read its result, which this conversation has lost: \
                      `deployed\\nas '7'`; check before repeating it.";
        assert!(told.contains(wanted), "{told}");
    }

    #[test]
    fn of_a_long_result_the_beginning_and_the_end_are_told() {
        let told = lost(&format!("begins{}ends", "x".repeat(3 * RESULT)));
        assert!(told.contains("`begins") && told.contains("x…x") && told.ends_with("ends`"), "{told}");
        assert!(told.chars().count() < 3 * RESULT);
    }

    #[test]
    fn a_long_input_is_cut() {
        assert_eq!(excerpt(&"x".repeat(1000)).chars().count(), EXCERPT + 1);
    }
}
