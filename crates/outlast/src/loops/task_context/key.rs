//! Keys of the task context, and the one variable that each may set.

use outlast_core::words::BadText;

/// Named keys and the environment variable of each.
pub const NAMED: [(&str, &str); 5] = [
    ("task_id", "TASK_ID"),
    ("issue_number", "ISSUE_NUMBER"),
    ("workspace_path", "WORKSPACE_PATH"),
    ("branch_name", "BRANCH_NAME"),
    ("progress_stage", "PROGRESS_STAGE"),
];

/// Key under which the open task's id stands.
pub const TASK_ID: &str = "task_id";
/// Key under which the open task's stage stands.
pub const STAGE: &str = "progress_stage";

const LONGEST: usize = 64;

/// Returns whether `text` is a key: `[a-z][a-z0-9_]*`, at most 64 bytes.
pub fn is_key(text: &str) -> bool {
    text.len() <= LONGEST
        && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Parses a key.
pub fn key(text: &str) -> Result<String, BadText> {
    let wanted = "a to z, 0 to 9 and _, a letter first, at most 64 of them";
    if is_key(text) { Ok(text.to_owned()) } else { Err(BadText::new("a key", text, wanted)) }
}

/// Parses `KEY=VALUE`. The value is any text, also an empty one.
pub fn pair(text: &str) -> Result<(String, String), BadText> {
    let bad = || BadText::new("KEY=VALUE", text, "for example progress_stage=tests");
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    Ok((key(name)?, value.to_owned()))
}

/// Returns the environment variable that a key sets; `None` for a key from Python that cannot be a variable's name.
pub fn variable(key: &str) -> Option<String> {
    if let Some((_, variable)) = NAMED.iter().find(|(name, _)| *name == key) {
        return Some((*variable).to_owned());
    }
    is_key(key).then(|| format!("OUTLAST_CTX_{}", key.to_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_sets_its_own_variable_and_never_another() {
        for (key, wanted) in [
            ("task_id", Some("TASK_ID")),
            ("progress_stage", Some("PROGRESS_STAGE")),
            ("path", Some("OUTLAST_CTX_PATH")),
            ("ifs", Some("OUTLAST_CTX_IFS")),
            ("bash_env", Some("OUTLAST_CTX_BASH_ENV")),
            ("recovered_task_id", Some("OUTLAST_CTX_RECOVERED_TASK_ID")),
            ("PATH", None),
            ("a-b", None),
            ("a b", None),
            ("x;id", None),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(variable(key).as_deref(), wanted, "{key}");
        }
    }

    #[test]
    fn a_pair_is_a_key_and_any_text() {
        for (text, wanted) in [
            ("a=b", ("a", "b")),
            ("a=", ("a", "")),
            ("a=b=c", ("a", "b=c")),
            ("a_1=$(x)\n'", ("a_1", "$(x)\n'")),
        ] {
            assert_eq!(pair(text), Ok((wanted.0.to_owned(), wanted.1.to_owned())));
        }
        for text in
            ["a", "", "=b", "A=b", "1a=b", "a-b=c", "PATH=x", " a=b", &format!("{}=x", "a".repeat(65))]
        {
            assert!(pair(text).unwrap_err().to_string().contains("wanted"), "{text}");
        }
    }
}
