//! JSON without its values: a line for each place, with the types that stand there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The lines `place: types`, sorted. Elements of an array are one place; `?` marks a member that not all have.
pub fn shape(value: &Value) -> String {
    let mut places = BTreeMap::new();
    walk("", &[value], &mut places);
    places
        .iter()
        .map(|(place, types)| format!("  {}: {types}\n", if place.is_empty() { "." } else { place }))
        .collect()
}

/// The same on one line, for small bodies.
pub fn short(value: &Value) -> String {
    shape(value).lines().map(str::trim).filter(|l| !l.starts_with(".:")).collect::<Vec<_>>().join(", ")
}

fn walk(place: &str, values: &[&Value], places: &mut BTreeMap<String, String>) {
    let types: BTreeSet<&str> = values.iter().map(|v| kind(v)).collect();
    places.insert(place.to_owned(), types.into_iter().collect::<Vec<_>>().join(" | "));
    let objects: Vec<_> = values.iter().filter_map(|v| v.as_object()).collect();
    let keys: BTreeSet<&String> = objects.iter().flat_map(|o| o.keys()).collect();
    for key in keys {
        let below: Vec<&Value> = objects.iter().filter_map(|o| o.get(key)).collect();
        let mark = if below.len() < objects.len() { "?" } else { "" };
        walk(&format!("{place}.{key}{mark}"), &below, places);
    }
    let elements: Vec<&Value> = values.iter().filter_map(|v| v.as_array()).flatten().collect();
    if !elements.is_empty() {
        walk(&format!("{place}[]"), &elements, places);
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[test]
fn a_shape_is_places_and_types() {
    let value = serde_json::json!({"a": [{"b": 1}, {"b": null, "c": 1.5}], "d": "x"});
    assert_eq!(short(&value), ".a: array, .a[]: object, .a[].b: int | null, .a[].c?: float, .d: string");
}
