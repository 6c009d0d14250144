//! Conversion between `google.protobuf.Struct`, as sent over gRPC, and JSON text, as stored.
//!
//! The JSON has no whitespace, members sorted by name, and whole numbers without a point. A number is a double over
//! gRPC, and its shortest text reads back as the same double.

use std::collections::BTreeMap;

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};

use crate::state::Error;

/// Absolute value from which on a double no longer stands for exactly one `i64`.
const WHOLE: f64 = 9.0e18;

/// Converts a Struct to JSON text. Errors: a number that JSON does not have.
pub fn to_json(value: &Struct) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&members(&value.fields)?).map_err(|e| Error::BadValue(e.to_string()))
}

/// Converts JSON text to a Struct. A Struct is always an object, so any other value becomes its one member
/// `value`.
///
/// Errors: bytes that are not JSON, which only other interfaces can have written; the error names `key`.
pub fn from_json(text: &[u8], key: &str) -> Result<Struct, Error> {
    let json = serde_json::from_slice(text)
        .map_err(|_| Error::NotJson { what: format!("the value of key {key:?}") })?;
    Ok(match read(json).kind {
        Some(Kind::StructValue(object)) => object,
        kind => Struct { fields: BTreeMap::from([("value".to_owned(), Value { kind })]) },
    })
}

fn members(fields: &BTreeMap<String, Value>) -> Result<Map<String, Json>, Error> {
    fields.iter().map(|(name, value)| Ok((name.clone(), written(value)?))).collect()
}

fn written(value: &Value) -> Result<Json, Error> {
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(b)) => (*b).into(),
        Some(Kind::StringValue(s)) => s.as_str().into(),
        Some(Kind::NumberValue(n)) if is_whole(*n) => (*n as i64).into(),
        Some(Kind::NumberValue(n)) => {
            let none = || Error::BadValue(format!("the number {n}, which JSON does not have"));
            Json::Number(Number::from_f64(*n).ok_or_else(none)?)
        }
        Some(Kind::StructValue(object)) => Json::Object(members(&object.fields)?),
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.iter().map(written).collect::<Result<_, _>>()?)
        }
    })
}

fn read(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(b) => Kind::BoolValue(b),
        // JSON text has no number beyond those of a double.
        Json::Number(n) => Kind::NumberValue(n.as_f64().unwrap_or_default()),
        Json::String(s) => Kind::StringValue(s),
        Json::Array(values) => Kind::ListValue(ListValue { values: values.into_iter().map(read).collect() }),
        Json::Object(members) => {
            let fields = members.into_iter().map(|(name, value)| (name, read(value))).collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

fn is_whole(n: f64) -> bool {
    n.is_finite() && n.fract() == 0.0 && n.abs() < WHOLE && !(n == 0.0 && n.is_sign_negative())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(n: f64) -> Struct {
        Struct { fields: BTreeMap::from([("n".to_owned(), Value { kind: Some(Kind::NumberValue(n)) })]) }
    }

    #[test]
    fn numbers_have_one_text_and_come_back_as_they_were() {
        let check = |n: f64, text: &str| {
            let written = to_json(&number(n)).unwrap();
            assert_eq!(String::from_utf8(written.clone()).unwrap(), format!("{{\"n\":{text}}}"));
            let back = from_json(&written, "k").unwrap();
            let Some(Kind::NumberValue(had)) = back.fields["n"].kind else { panic!("{back:?}") };
            assert_eq!(had.to_bits(), n.to_bits());
        };
        check(1.0, "1");
        check(-7.0, "-7");
        check(0.0, "0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(9_007_199_254_740_993.0, "9007199254740992");
        check(1e300, "1e+300");
        check(f64::MAX, "1.7976931348623157e+308");
        check(5e-324, "5e-324");
        for n in [f64::NAN, f64::INFINITY] {
            assert_eq!(to_json(&number(n)).unwrap_err().code(), "bad_value");
        }
    }

    #[test]
    fn a_value_that_is_no_object_comes_as_the_member_value() {
        let check = |text: &str, want: &str| {
            let read = from_json(text.as_bytes(), "k").unwrap();
            assert_eq!(String::from_utf8(to_json(&read).unwrap()).unwrap(), want);
        };
        check("[1,[null,{}]]", r#"{"value":[1,[null,{}]]}"#);
        check("null", r#"{"value":null}"#);
        check(r#"{"b":1,"a":[{"x":[[]]}]}"#, r#"{"a":[{"x":[[]]}],"b":1}"#);
        assert_eq!(from_json(b"\xff", "k").unwrap_err().code(), "not_json");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Kind::NullValue(0)),
            any::<bool>().prop_map(Kind::BoolValue),
            prop::num::f64::NORMAL.prop_map(Kind::NumberValue),
            any::<i64>().prop_map(|n| Kind::NumberValue(n as f64)),
            ".{0,8}".prop_map(Kind::StringValue),
        ]
        .prop_map(|kind| Value { kind: Some(kind) });
        leaf.prop_recursive(4, 32, 4, |inner| {
            let kind = prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|values| Kind::ListValue(ListValue { values })),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|fields| Kind::StructValue(Struct { fields })),
            ];
            kind.prop_map(|kind| Value { kind: Some(kind) })
        })
    }

    proptest! {
        #[test]
        fn any_struct_comes_back_as_it_was(fields in prop::collection::btree_map(".{0,4}", any_value(), 0..4)) {
            let value = Struct { fields };
            prop_assert_eq!(from_json(&to_json(&value).unwrap(), "k").unwrap(), value);
        }
    }
}
