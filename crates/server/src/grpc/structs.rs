//! Conversion between `google.protobuf.Struct`, as sent over gRPC, and JSON text, as stored.
//!
//! The JSON has no whitespace, members sorted by name, and whole numbers without a point. A number is a double over
//! gRPC, and its shortest text reads back as the same double.

use std::{collections::BTreeMap, fmt};

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::{
    de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor},
    ser::{Error as _, Serialize, SerializeMap as _, SerializeSeq as _, Serializer},
};

use crate::state::Error;

/// Absolute value from which on a double no longer stands for exactly one `i64`.
const WHOLE: f64 = 9.0e18;

/// Converts a Struct to JSON text. Errors: a number that JSON does not have.
pub fn to_json(value: &Struct) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&Members(&value.fields)).map_err(|e| Error::BadValue(e.to_string()))
}

/// Converts JSON text to a Struct. A Struct is always an object, so any other value becomes its one member
/// `value`.
///
/// Errors: bytes that are not JSON, which only other interfaces can have written; the error names `key`.
pub fn from_json(text: &[u8], key: &str) -> Result<Struct, Error> {
    let Read(value) = serde_json::from_slice(text)
        .map_err(|_| Error::NotJson { what: format!("the value of key {key:?}") })?;
    Ok(match value.kind {
        Some(Kind::StructValue(object)) => object,
        kind => Struct { fields: BTreeMap::from([("value".to_owned(), Value { kind })]) },
    })
}

struct Members<'a>(&'a BTreeMap<String, Value>);

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, &Written(value))?;
        }
        map.end()
    }
}

struct Written<'a>(&'a Value);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0.kind {
            None | Some(Kind::NullValue(_)) => to.serialize_unit(),
            Some(Kind::BoolValue(b)) => to.serialize_bool(*b),
            Some(Kind::StringValue(s)) => to.serialize_str(s),
            Some(Kind::NumberValue(n)) if !n.is_finite() => {
                Err(S::Error::custom(format!("the number {n}, which JSON does not have")))
            }
            Some(Kind::NumberValue(n)) if is_whole(*n) => to.serialize_i64(*n as i64),
            Some(Kind::NumberValue(n)) => to.serialize_f64(*n),
            Some(Kind::StructValue(object)) => Members(&object.fields).serialize(to),
            Some(Kind::ListValue(list)) => {
                let mut seq = to.serialize_seq(Some(list.values.len()))?;
                for value in &list.values {
                    seq.serialize_element(&Written(value))?;
                }
                seq.end()
            }
        }
    }
}

fn is_whole(n: f64) -> bool {
    n.fract() == 0.0 && n.abs() < WHOLE && !(n == 0.0 && n.is_sign_negative())
}

struct Read(Value);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Read, D::Error> {
        from.deserialize_any(AnyJson).map(|kind| Read(Value { kind: Some(kind) }))
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::NullValue(0))
    }

    fn visit_bool<E>(self, b: bool) -> Result<Kind, E> {
        Ok(Kind::BoolValue(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(n as f64))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(n as f64))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Kind, E> {
        Ok(Kind::NumberValue(n))
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::StringValue(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Kind, E> {
        Ok(Kind::StringValue(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
        let mut values = Vec::new();
        while let Some(Read(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Kind::ListValue(ListValue { values }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, Read(value))) = map.next_entry()? {
            fields.insert(name, value);
        }
        Ok(Kind::StructValue(Struct { fields }))
    }
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
