//! Rows of a Claude Code session that a resumed model gets: each row names the one before it, and only the rows behind
//! the last one are loaded. Others are whole, and lost to the model all the same.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Returns the rows of a session's file that its model gets when it goes on, in their order. Rows without names are a
/// file of another format: all of them.
pub fn loaded(rows: Vec<Value>) -> Vec<Value> {
    let name = |row: &Value, member: &str| row[member].as_str().map(str::to_owned);
    let named: HashMap<String, &Value> =
        rows.iter().filter_map(|row| Some((name(row, "uuid")?, row))).collect();
    let is_said =
        |row: &&Value| row["isSidechain"] != true && (row["type"] == "user" || row["type"] == "assistant");
    let mut next = rows.iter().rev().filter(is_said).find_map(|row| name(row, "uuid"));
    if next.is_none() {
        return rows;
    }
    let mut chain = HashSet::new();
    while let Some(row) = next.as_ref().and_then(|name| named.get(name)) {
        // Whoever compacts a conversation begins a chain, and says what it goes on from.
        let before = name(row, "parentUuid").or_else(|| name(row, "logicalParentUuid"));
        next = next.filter(|name| chain.insert(name.clone())).and(before);
    }
    // Calls of one answer are rows of their own, and a result's parent is its call: of several, one is on the chain.
    let answer = |row: &Value| name(&row["message"], "id").filter(|_| row["type"] == "assistant");
    let has = |names: &HashSet<String>, name: Option<String>| name.is_some_and(|name| names.contains(&name));
    let answers: HashSet<String> =
        rows.iter().filter(|row| has(&chain, name(row, "uuid"))).filter_map(answer).collect();
    let of_answers = rows.iter().filter(|row| has(&answers, answer(row))).filter_map(|row| name(row, "uuid"));
    let calls: HashSet<String> = of_answers.collect();
    let is_loaded = |row: &Value| {
        let own = name(row, "uuid");
        has(&chain, own.clone()) || has(&calls, own) || has(&calls, name(row, "parentUuid")) && is_result(row)
    };
    let is_loaded: Vec<bool> = rows.iter().map(is_loaded).collect();
    rows.into_iter().zip(is_loaded).filter(|(_, is_loaded)| *is_loaded).map(|(row, _)| row).collect()
}

fn is_result(row: &Value) -> bool {
    let pieces = row["message"]["content"].as_array();
    pieces.is_some_and(|pieces| pieces.iter().any(|piece| piece["type"] == "tool_result"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(kind: &str, own: &str, before: Option<&str>, piece: &str) -> Value {
        let kind_of_piece = if kind == "user" { "tool_result" } else { "tool_use" };
        let message = json!({"id": piece, "content": [{"type": kind_of_piece, "id": own}]});
        json!({"type": kind, "uuid": own, "parentUuid": before, "message": message})
    }

    fn names(rows: Vec<Value>) -> Vec<String> {
        loaded(rows).iter().map(|row| row["uuid"].as_str().unwrap_or("-").to_owned()).collect()
    }

    /// Bug: a session whose rows are whole, and whose chain skips the newest, was taken for whole. Consequence: the
    /// resumed model made calls again whose results it had read, and nobody was told. Cause: a row in the file counted
    /// as one that the model gets.
    #[test]
    fn a_row_that_the_last_one_does_not_lead_to_is_lost() {
        let skipped = vec![
            row("user", "u1", None, ""),
            row("assistant", "a1", Some("u1"), "m1"),
            row("user", "r1", Some("a1"), ""),
            row("assistant", "a2", Some("gone"), "m2"),
            row("user", "r2", Some("a1"), ""),
        ];
        assert_eq!(names(skipped), ["u1", "a1", "r1", "r2"], "both are results of one answer; a2 is lost");
        let cut = vec![row("user", "r1", Some("a1"), ""), row("user", "u2", Some("gone"), "")];
        assert_eq!(names(cut), ["u2"]);
    }

    #[test]
    fn all_calls_of_an_answer_and_their_results_are_loaded() {
        let rows = vec![
            row("user", "u1", None, ""),
            row("assistant", "a1", Some("u1"), "m1"),
            row("assistant", "a2", Some("a1"), "m1"),
            row("user", "r1", Some("a1"), ""),
            row("user", "r2", Some("a2"), ""),
            row("assistant", "a3", Some("r2"), "m2"),
        ];
        assert_eq!(names(rows), ["u1", "a1", "a2", "r1", "r2", "a3"]);
    }

    #[test]
    fn a_compacted_conversation_goes_on_from_where_it_says() {
        let mut boundary = row("system", "b", None, "");
        boundary["logicalParentUuid"] = json!("u1");
        let rows = vec![row("user", "u1", None, ""), boundary, row("user", "u2", Some("b"), "")];
        assert_eq!(names(rows), ["u1", "b", "u2"]);
    }

    #[test]
    fn a_sub_agents_row_is_not_the_last_and_a_circle_ends() {
        let mut side = row("assistant", "s1", None, "m9");
        side["isSidechain"] = json!(true);
        assert_eq!(names(vec![row("user", "u1", Some("u1"), ""), side]), ["u1"]);
        assert_eq!(names(vec![json!({"type": "user"}), json!({})]), ["-", "-"], "rows without names");
    }
}
