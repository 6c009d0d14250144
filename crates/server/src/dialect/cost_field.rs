//! The cost that some resellers report in their answers.

use outlast_core::{price, words::NanoUsd};
use serde_json::Value;

/// Fields of an answer or a chunk that add up to its cost, in USD: paths of member names with dots between them and
/// plus signs between the paths, such as `usage.cost + usage.cost_details.upstream_inference_cost if usage.is_byok`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostField {
    parts: Vec<Part>,
}

/// Summand of a cost.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    amount: Path,
    /// Field that has to be true for the amount to count; `None`: the amount always counts.
    condition: Option<Path>,
}

/// Names of members, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path(Vec<String>);

/// Error of a text that is not the path of a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a field of an answer: {text:?} (wanted names with dots between them, such as usage.cost, or several as in \
     usage.cost + usage.fee if usage.is_billed)"
)]
pub struct BadCostField {
    pub text: String,
}

impl std::str::FromStr for CostField {
    type Err = BadCostField;

    fn from_str(text: &str) -> Result<CostField, BadCostField> {
        let parts = text.split('+').map(|part| match part.split_once(" if ") {
            Some((amount, condition)) => {
                Some(Part { amount: Path::parse(amount)?, condition: Some(Path::parse(condition)?) })
            }
            None => Some(Part { amount: Path::parse(part)?, condition: None }),
        });
        let parts = parts.collect::<Option<Vec<Part>>>();
        Ok(CostField { parts: parts.ok_or_else(|| BadCostField { text: text.chars().take(80).collect() })? })
    }
}

impl Path {
    fn parse(text: &str) -> Option<Path> {
        let names: Vec<String> = text.trim().split('.').map(str::to_owned).collect();
        let is_name = |name: &String| !name.is_empty() && !name.contains(char::is_whitespace);
        names.iter().all(is_name).then_some(Path(names))
    }

    /// Returns the value in `answer`; `None` if it is absent or null.
    fn find<'a>(&self, answer: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(answer, |value, name| value.get(name)).filter(|value| !value.is_null())
    }
}

impl CostField {
    /// Reads the cost from `answer`, in nano-USD; `None` if no field is there, or one that is there is not an amount.
    pub fn read(&self, answer: &Value) -> Option<NanoUsd> {
        let counts = |part: &&Part| {
            part.condition.as_ref().is_none_or(|path| path.find(answer) == Some(&Value::Bool(true)))
        };
        let amounts = self.parts.iter().filter(counts).filter_map(|part| part.amount.find(answer));
        let usd = |value: &Value| match value {
            Value::Number(number) => price::usd(&number.to_string()),
            Value::String(text) => price::usd(text),
            _ => None,
        };
        let amounts = amounts.map(usd).collect::<Option<Vec<NanoUsd>>>()?;
        amounts.into_iter().reduce(|sum, amount| NanoUsd(sum.0.saturating_add(amount.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::lenient::parse_json;

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
            ("a + b", r#"{"a":1,"b":2}"#, Some(3_000_000_000)),
            ("a + b", r#"{"b":2}"#, Some(2_000_000_000)),
            ("a + b", r#"{"a":null,"b":2}"#, Some(2_000_000_000)),
            // A part that cannot be read leaves the sum unknown.
            ("a + b", r#"{"a":1,"b":-2}"#, None),
            ("a + b.c if b.d", r#"{"a":1,"b":{"c":2,"d":true}}"#, Some(3_000_000_000)),
            ("a + b.c if b.d", r#"{"a":1,"b":{"c":2,"d":false}}"#, Some(1_000_000_000)),
            ("a + b.c if b.d", r#"{"a":1,"b":{"c":2}}"#, Some(1_000_000_000)),
            ("a if d", r#"{"a":1,"d":"true"}"#, None),
            // An answer whose text is no Unicode tells its cost all the same.
            ("usage.cost", r#"{"text":"\ud83d","usage":{"cost":1}}"#, Some(1_000_000_000)),
        ] {
            let field: CostField = field.parse().unwrap();
            let told = parse_json(answer.as_bytes()).unwrap_or_default();
            assert_eq!(field.read(&told), nano.map(NanoUsd), "{answer}");
        }
        for bad in ["", "usage.", ".cost", "a..b", "a +", "a if", "a if b.", "a b"] {
            assert!(bad.parse::<CostField>().is_err(), "{bad}");
        }
    }
}
