//! Response headers of RiskKernel's proxy, only for callers that name their run in its request header.

use http::{HeaderMap, HeaderValue, Response};
use outlast_core::{
    envelope::Unit,
    store::{self, Store},
    words::{RunId, RunNo, Seq},
};

use crate::{proxy::host::Host, wire::body::AnswerBody};

/// Header in which a caller names its run.
const RUN: &str = "x-riskkernel-run-id";

/// Caller that names its run in RiskKernel's header, and so gets RiskKernel's headers in the response.
pub(crate) struct Speaks {
    run: HeaderValue,
}

/// Run and call that a response belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Stamped {
    pub run: RunNo,
    /// Entry of the call that was paid for the answer; `None` for a replay, which costs nothing.
    pub paid: Option<Seq>,
    /// Whether the call is settled, so that its cost is known. The head of a stream is sent before.
    pub whole: bool,
}

impl Speaks {
    pub fn of(headers: &HeaderMap) -> Option<Speaks> {
        let run = headers.get(RUN)?;
        RunId::new(run.to_str().ok()?).ok()?;
        Some(Speaks { run: run.clone() })
    }

    /// Adds RiskKernel's headers to a response: the run, its steps so far, the cost and tokens of this call, and the
    /// reason of a refusal.
    pub fn stamp(self, host: &Host, response: &mut Response<AnswerBody>) {
        let refused = response.status() == http::StatusCode::PAYMENT_REQUIRED;
        let reason = response.headers().get("x-outlast-code").filter(|_| refused).cloned();
        let stamped = response.extensions().get::<Stamped>().copied();
        let headers = response.headers_mut();
        headers.insert(RUN, self.run);
        if let Some(reason) = reason {
            headers.insert("x-riskkernel-halt-reason", reason);
        }
        if let Some(stamped) = stamped {
            // The answer is paid for: it goes out even when its headers cannot be read from the store.
            match told(host.store.as_ref(), stamped) {
                Ok(told) => headers.extend(told),
                Err(e) => tracing::warn!(error = %e, "what a call came to cannot be read"),
            }
        }
    }
}

/// Reads the headers of a metered call. Reads in place, because they are point reads of hot pages.
fn told(store: &dyn Store, of: Stamped) -> Result<HeaderMap, store::Error> {
    let mut headers = HeaderMap::new();
    if let Some(view) = store.run(of.run)? {
        headers.insert("x-riskkernel-step", view.envelope.spent[Unit::Loops].into());
    }
    if of.whole {
        let entry = of.paid.map(|seq| store.entry(of.run, seq)).transpose()?.flatten();
        let spent = entry.map(|e| e.spent).unwrap_or_default();
        if let Ok(cost) = HeaderValue::from_str(&six_decimals(spent.cost())) {
            headers.insert("x-riskkernel-cost-usd", cost);
        }
        headers.insert("x-riskkernel-tokens", spent.tokens().into());
    }
    Ok(headers)
}

/// Writes nano-USD as dollars with six decimals, rounded up, so that a paid call never shows as free.
fn six_decimals(nano_usd: i64) -> String {
    let micro = nano_usd.div_euclid(1000) + i64::from(nano_usd.rem_euclid(1000) != 0);
    format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_have_six_decimals() {
        let check = |nano, want: &str| assert_eq!(six_decimals(nano), want);
        check(0, "0.000000");
        check(450_000, "0.000450");
        check(1, "0.000001");
        check(12_345_678_901, "12.345679");
    }
}
