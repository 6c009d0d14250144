//! Amounts of dollars in JSON, each written twice: `NAME_nano_usd` to count with, `NAME_usd` as exact decimal text.
//! Both are null where there is no amount.

use outlast_core::words::NanoUsd;
use serde::Serialize;

/// Formats nano-USD as decimal dollars, exactly.
pub fn usd(nano: i64) -> String {
    NanoUsd(nano).to_string()
}

macro_rules! money {
    ($($(#[$about:meta])* $name:ident $nano:literal $usd:literal;)*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct $name {
            #[serde(rename = $nano)]
            nano: Option<i64>,
            #[serde(rename = $usd)]
            usd: Option<String>,
        }

        impl $name {
            pub fn new(nano: impl Into<Option<i64>>) -> $name {
                let nano = nano.into();
                $name { nano, usd: nano.map(usd) }
            }

            /// Returns the amount in nano-USD; 0 if there is none.
            pub fn nano(&self) -> i64 {
                self.nano.unwrap_or(0)
            }
        }
    )*};
}

money! {
    /// Amount that is charged.
    Spent "spent_nano_usd" "spent_usd";
    /// Charge of a run with its children and forks, which its budget counts; null if they cost nothing.
    WithChildren "with_children_nano_usd" "with_children_usd";
    /// Part of the charge that somebody is billed.
    Billed "billed_nano_usd" "billed_usd";
    /// Part of the charge that is a list price: a login's subscription pays for it.
    Listed "listed_nano_usd" "listed_usd";
    /// Amount reserved for calls in flight and in doubt.
    Reserved "reserved_nano_usd" "reserved_usd";
    /// Amount reserved for calls whose outcome is unknown.
    InDoubt "in_doubt_nano_usd" "in_doubt_usd";
    /// Most that may be spent.
    Limit "limit_nano_usd" "limit_usd";
    /// Price of recorded answers that were given again.
    Saved "saved_nano_usd" "saved_usd";
    /// Amount still reserved for one entry.
    Held "held_nano_usd" "held_usd";
    /// Amount that was billed beyond what a call had reserved.
    Overrun "overrun_nano_usd" "overrun_usd";
    /// Amount that may be billed for lost calls, and that no envelope has reserved or spent.
    Unbacked "unbacked_nano_usd" "unbacked_usd";
    /// Price of input that a restarted agent bought again.
    Rebought "rebought_nano_usd" "rebought_usd";
    /// Amount charged and still reserved.
    Cost "cost_nano_usd" "cost_usd";
    /// Amount reserved for calls in flight.
    InFlight "in_flight_nano_usd" "in_flight_usd";
    /// Price of calls that failed.
    Failed "failed_nano_usd" "failed_usd";
    /// Price of recorded answers that nobody took.
    Untaken "untaken_nano_usd" "untaken_usd";
    /// Price of calls that brought nothing new.
    BusyWaiting "busy_waiting_nano_usd" "busy_waiting_usd";
    /// Price of one web search by the provider.
    WebSearch "web_search_nano_usd" "web_search_usd";
    /// Price of one request, whatever its tokens.
    PerRequest "request_nano_usd" "request_usd";
    /// Price of the usage that was asked for.
    Charged "charged_nano_usd" "charged_usd";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_amount_is_a_number_and_its_decimal_text() {
        let written = |spent: Spent| serde_json::to_value(spent).unwrap();
        let wanted = json!({ "spent_nano_usd": 1_250_000_001, "spent_usd": "1.250000001" });
        assert_eq!(written(Spent::new(1_250_000_001)), wanted);
        assert_eq!(written(Spent::new(None)), json!({ "spent_nano_usd": null, "spent_usd": null }));
    }
}
