//! `outlast journal RUN --divergence`: shows where an attempt left its recorded past, and how the two requests differ.

use outlast_core::{
    body,
    journal::divergence::{Difference, Parting, first_difference, partings},
    run::masks::Rules,
    store::Error,
};
use outlast_server::dialect::canonical::LEFT_OUT;

use super::prelude::*;

/// Most characters of a value that are shown in one line.
const WIDTH: usize = 160;

pub fn divergence(store: &dyn Store, view: &RunView, page: &mut Page) -> Result {
    let (no, id) = (view.run.no, &view.run.id);
    let attempts = store.attempts(no)?;
    let rules = reads::runs::masks(store, view)?.compile().map_err(Error::from)?;
    let told = partings(&attempts, || entries::each(store, no))?
        .into_iter()
        .map(|parting| DivergedRequests::gather(store, no, parting, &rules))
        .collect::<Result<Vec<_>>>()?;
    if page.look.json {
        let all: Vec<_> = told.iter().map(|one| ShownDivergence::new(id, one)).collect();
        return Ok(page.json(&json!({ "run": id, "divergences": all }))?);
    }
    if told.is_empty() {
        return Ok(page.line("no attempt has asked for something new while recorded answers were left")?);
    }
    for one in &told {
        one.print(page)?;
    }
    Ok(())
}

/// One divergence with both requests; a request is `None` if its body was not recorded.
struct DivergedRequests<'a> {
    parting: Parting<'a>,
    recorded: Option<Value>,
    new: Option<Value>,
    rules: &'a Rules,
}

impl<'a> DivergedRequests<'a> {
    fn gather(
        store: &dyn Store,
        run: RunNo,
        parting: Parting<'a>,
        rules: &'a Rules,
    ) -> Result<DivergedRequests<'a>> {
        let read = |seq: Seq| -> Result<Option<Value>> {
            let Some(bytes) = body::stored(store, run, seq)? else { return Ok(None) };
            // The proxy only takes JSON requests. Other recorded bodies are shown as text.
            Ok(Some(json_or_text(&bytes)))
        };
        let recorded = parting.recorded.as_ref().map(|e| read(e.seq)).transpose()?.flatten();
        Ok(DivergedRequests { recorded, new: read(parting.new.seq)?, parting, rules })
    }

    fn difference(&self) -> Option<Difference<'_>> {
        first_difference(self.recorded.as_ref()?, self.new.as_ref()?, &LEFT_OUT, self.rules)
    }

    /// Names a difference outside the body that makes the two requests different: the upstream or the path.
    fn elsewhere(&self) -> Option<&'static str> {
        let (a, b) = (self.parting.recorded.as_ref()?.call.as_deref()?, self.parting.new.call.as_deref()?);
        let parts = [("upstream", &a.upstream, &b.upstream), ("path", &a.path, &b.path)];
        parts.into_iter().find(|(_, a, b)| a != b).map(|(part, ..)| part)
    }

    /// Explains why no place can be named in which the bodies differ.
    fn why_not(&self) -> &'static str {
        match (&self.parting.recorded, &self.recorded, &self.new) {
            (None, ..) => "what it had left then was taken since",
            (_, Some(_), Some(_)) => {
                "their bodies are the same, but for what is masked: their headers or query differ"
            }
            _ => "the requests are not kept (the run's `record` is not `all`)",
        }
    }

    fn print(&self, page: &mut Page) -> Result {
        let Parting { attempt, new, recorded, .. } = &self.parting;
        let left = some(attempt.diverged_untaken, "recorded answer");
        let title =
            format!("attempt {} asked something new at entry {}, with {left} unused", attempt.no, new.seq);
        page.line(&page.look.paint(Paint::Care, &title))?;
        let name = |e: &Entry| {
            let call = e.call.as_deref();
            let (model, path) = call.map_or(("", ""), |c| (c.model.as_str(), c.path.as_str()));
            clean(&format!("entry {}, attempt {}, {model} {path}", e.seq, e.attempt))
        };
        if let Some(e) = recorded {
            page.line(&format!("  recorded  {}", name(e)))?;
        }
        page.line(&format!("  new       {}", name(new)))?;
        if let Some(what) = self.elsewhere() {
            return Ok(page.line(&format!("  they differ in their {what}"))?);
        }
        let Some(d) = self.difference() else {
            return Ok(page.line(&format!("  {}", self.why_not()))?);
        };
        let at = if d.path.is_empty() { "the whole body" } else { &d.path };
        page.line(&format!("  they differ first at {}", page.look.paint(Paint::Strong, &clean(at))))?;
        let value = |v: Option<&Value>| {
            v.map_or_else(|| "not there".to_owned(), |v| around(&v.to_string(), d.recorded, d.new))
        };
        page.line(&format!("    recorded  {}", value(d.recorded)))?;
        Ok(page.line(&format!("    new       {}", value(d.new)))?)
    }
}

shape! {
    /// Divergence as `journal --divergence --json` prints it.
    ShownDivergence(run: &RunId, d: &DivergedRequests<'_>; let (attempt, difference) = (d.parting.attempt, d.difference())) {
        attempt: AttemptNo = attempt.no;
        diverged_at: Seq = d.parting.new.seq;
        diverged_untaken: i64 = attempt.diverged_untaken;
        recorded: Option<Value> = d.parting.recorded.as_ref().map(|e| call(run, e, &d.recorded));
        new: Value = call(run, &d.parting.new, &d.new);
        /// Part in which the two requests differ.
        differs_in: Option<&'static str> = d.elsewhere().or(difference.as_ref().map(|_| "body"));
        difference: Option<Value> = difference
            .as_ref()
            .map(|d| json!({ "path": d.path, "recorded": d.recorded, "new": d.new }));
    }
}

/// Returns a call with its request; null if that is not kept.
fn call(run: &RunId, e: &Entry, request: &Option<Value>) -> Value {
    with(view::Entry::new(run, e), json!({ "request": request }))
}

/// Formats a value in one line. Long text is cut to the surroundings of the first character that differs.
fn around(text: &str, a: Option<&Value>, b: Option<&Value>) -> String {
    let (Some(a), Some(b)) = (a, b) else { return clean_line(text, WIDTH) };
    let same = a.to_string().chars().zip(b.to_string().chars()).take_while(|(a, b)| a == b).count();
    if same < WIDTH / 2 {
        return clean_line(text, WIDTH);
    }
    let rest: String = text.chars().skip(same - WIDTH / 4).collect();
    format!("…{}", clean_line(&rest, WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_texts_the_place_that_differs_is_shown() {
        let text = |end: &str| json!(format!("{}{end}", "x".repeat(1000)));
        let (a, b) = (text("noon"), text("midnight"));
        assert!(around(&b.to_string(), Some(&a), Some(&b)).ends_with("xmidnight\""));
        assert_eq!(around("\"b\"", Some(&json!("a")), Some(&json!("b"))), "\"b\"");
    }
}
