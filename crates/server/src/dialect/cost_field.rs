//! The cost that some resellers report in their answers.

use outlast_core::{price, words::money::NanoUsd};
use serde_json::Value;

/// Path of the cost in an answer or a chunk, in USD: member names with dots between them, such as `usage.cost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostField {
    names: Vec<String>,
}

/// Error of a text that is not the path of a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a field of an answer: {text:?} (wanted names with dots between them, such as usage.cost)")]
pub struct BadCostField {
    pub text: String,
}

impl std::str::FromStr for CostField {
    type Err = BadCostField;

    fn from_str(text: &str) -> Result<CostField, BadCostField> {
        let names: Vec<String> = text.split('.').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) {
            return Err(BadCostField { text: text.chars().take(80).collect() });
        }
        Ok(CostField { names })
    }
}

impl CostField {
    /// Reads the cost from `answer`, in nano-USD; `None` if the field is absent or is not an amount.
    pub fn read(&self, answer: &[u8]) -> Option<NanoUsd> {
        let last = self.names.last()?;
        // Most chunks of a stream report no cost; they are not parsed for it.
        memchr::memmem::find(answer, last.as_bytes())?;
        let answer: Value = serde_json::from_slice(answer).ok()?;
        let found = self.names.iter().try_fold(&answer, |value, name| value.get(name))?;
        match found {
            Value::Number(number) => price::usd(&number.to_string()),
            Value::String(text) => price::usd(text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_read_where_it_stands() {
        for (field, answer, nano) in [
            ("usage.cost", r#"{"usage":{"cost":0.00045}}"#, Some(450_000)),
            ("usage.cost", r#"{"usage":{"cost":1.5e-7}}"#, Some(150)),
            ("usage.cost", r#"{"usage":{"cost":"0.01"}}"#, Some(10_000_000)),
            ("usage.cost", r#"{"usage":{"cost":0}}"#, Some(0)),
            ("cost", r#"{"cost":2}"#, Some(2_000_000_000)),
            ("usage.cost", r#"{"usage":{"cost":-1}}"#, None),
            ("usage.cost", r#"{"usage":{"cost":null}}"#, None),
            ("usage.cost", r#"{"usage":null,"cost":1}"#, None),
            ("usage.cost", "[DONE]", None),
        ] {
            let field: CostField = field.parse().unwrap();
            assert_eq!(field.read(answer.as_bytes()), nano.map(NanoUsd), "{answer}");
        }
        for bad in ["", "usage.", ".cost", "a..b"] {
            assert!(bad.parse::<CostField>().is_err(), "{bad}");
        }
    }
}
