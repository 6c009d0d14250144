//! Edits of a request body, spliced in at byte positions. All other bytes stay as the client wrote them.

use std::{borrow::Cow, ops::Range};

use super::request::{Request, Spans, UsageOption};

pub(super) fn edit<'b>(
    body: &'b [u8],
    request: &Request,
    cap: Option<u64>,
    want_usage: bool,
) -> Cow<'b, [u8]> {
    let spans = &request.spans;
    debug_assert_eq!(body.len(), spans.body_len, "edited another body than the one that was parsed");
    let mut splices = Vec::new();
    if let Some(cap) = cap {
        cap_splices(request, cap, &mut splices);
    }
    if want_usage && !request.client_asked_usage {
        splices.extend(usage_splice(spans));
    }
    splice(body, splices)
}

/// Lowers every cap above `cap`; inserts one where the client set none.
fn cap_splices(request: &Request, cap: u64, splices: &mut Vec<(Range<usize>, String)>) {
    let spans = &request.spans;
    if request.cap.is_some() {
        let higher = spans.caps.iter().filter(|c| c.value.is_some_and(|value| value > cap));
        splices.extend(higher.map(|c| (c.at.clone(), cap.to_string())));
        return;
    }
    match (spans.caps.iter().find(|c| c.field == request.cap_field), &spans.cap_place) {
        (Some(null), _) => splices.push((null.at.clone(), cap.to_string())),
        (None, Some(place)) => {
            splices.push((place.at.clone(), format!("{}{cap}{}", place.before, place.after)));
        }
        (None, None) => splices.push((spans.open..spans.open, format!("\"{}\":{cap},", request.cap_field))),
    }
}

fn usage_splice(spans: &Spans) -> Option<(Range<usize>, String)> {
    Some(match &spans.usage_option {
        UsageOption::Nothing => return None,
        UsageOption::InsertObject => {
            (spans.open..spans.open, "\"stream_options\":{\"include_usage\":true},".into())
        }
        UsageOption::ReplaceObject(at) => (at.clone(), "{\"include_usage\":true}".into()),
        UsageOption::InsertMember { open, empty } => {
            (*open..*open, format!("\"include_usage\":true{}", if *empty { "" } else { "," }))
        }
        UsageOption::ReplaceMember(at) => (at.clone(), "true".into()),
    })
}

fn splice(body: &[u8], mut splices: Vec<(Range<usize>, String)>) -> Cow<'_, [u8]> {
    if splices.is_empty() {
        return Cow::Borrowed(body);
    }
    // Stable: two insertions at one place stay in the order they were made.
    splices.sort_by_key(|(at, _)| at.start);
    let added: usize = splices.iter().map(|(_, text)| text.len()).sum();
    let mut out = Vec::with_capacity(body.len() + added);
    let mut from = 0;
    for (at, text) in splices {
        out.extend_from_slice(&body[from..at.start]);
        out.extend_from_slice(text.as_bytes());
        from = at.end;
    }
    out.extend_from_slice(&body[from..]);
    Cow::Owned(out)
}
