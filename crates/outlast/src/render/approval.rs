//! Approvals as text for people.

use outlast_core::{journal::approval::Status, reads::approvals::View, words::Micros};

use super::{
    look::{Look, Paint, clean_line},
    time,
};

/// Most characters of the arguments that are shown.
const ARGUMENTS: usize = 400;

/// Formats an approval in two or three lines: the tool, its arguments, and the state of the question.
pub fn text(view: &View, now: Micros, look: Look) -> String {
    let d = &view.detail;
    let effect = d.side_effect.as_ref().map_or_else(String::new, |s| format!("  [{}]", clean_line(s, 40)));
    let status = look.paint(paint(view.status), view.status.name());
    let run = match &view.name {
        Some(name) => format!("{} ({})", clean_line(name, 60), view.run),
        None => view.run.to_string(),
    };
    let mut out = format!(
        "{}  {status}  {}{effect}  run {run}\n",
        look.paint(Paint::Strong, &view.id.to_string()),
        clean_line(&d.tool, 80),
    );
    let arguments = String::from_utf8_lossy(&view.arguments);
    out.push_str(&format!("  {}\n", clean_line(&arguments, ARGUMENTS)));
    if arguments.chars().count() > ARGUMENTS {
        // A person must not approve arguments that are cut off without being told.
        let bytes = arguments.len();
        out.push_str(&format!("  these are the first {ARGUMENTS} of {bytes} bytes: --json shows all\n"));
    }
    out.push_str(&format!("  {}\n", standing(view, now)));
    out
}

fn standing(view: &View, now: Micros) -> String {
    let d = &view.detail;
    let asked = format!("asked {} ago", time::age(now.ms_since(view.asked_at)));
    match (&d.decision, view.status) {
        (Some(said), _) => {
            let why = said.reason.as_ref().map_or_else(String::new, |r| format!(": {}", clean_line(r, 200)));
            let ago = time::age(now.ms_since(said.at));
            format!("{asked}, {} by {} {ago} ago{why}", view.status.name(), clean_line(&said.by, 80))
        }
        (None, Status::Pending) => {
            format!("{asked}, expires in {}", time::span(d.expires_at.ms_since(now) / 1000 * 1000))
        }
        (None, Status::Timeout) => format!("{asked}, expired {} ago", time::age(now.ms_since(d.expires_at))),
        (None, Status::Blocked) => format!("{asked}, and the run's policy has no such tool"),
        (None, _) => format!("{asked}, and its run is over"),
    }
}

fn paint(status: Status) -> Paint {
    match status {
        Status::Pending => Paint::Care,
        Status::Approved => Paint::Good,
        Status::Denied | Status::Timeout | Status::Blocked => Paint::Bad,
        Status::Void => Paint::Faint,
    }
}
