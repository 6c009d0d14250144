//! What this is a build of.

use std::sync::LazyLock;

/// The package's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, in hex. `None` in a developer's build, and where neither git nor `OUTLAST_BUILD_COMMIT` told the build.
pub const COMMIT: Option<&str> = option_env!("OUTLAST_BUILD_COMMIT");

/// The commit's day, `2026-11-20`.
pub const DATE: Option<&str> = option_env!("OUTLAST_BUILD_DATE");

/// `0.1.0`, or `0.1.0 (3f2a9c1d04 2026-11-20)` where that is known.
pub fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| said(COMMIT, DATE));
    &LINE
}

fn said(commit: Option<&str>, date: Option<&str>) -> String {
    // Whole where it is short, or no hash.
    let short = commit.map(|commit| commit.get(..10).unwrap_or(commit));
    let of: Vec<&str> = short.into_iter().chain(date).collect();
    if of.is_empty() { VERSION.to_owned() } else { format!("{VERSION} ({})", of.join(" ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_commit_where_it_is_known() {
        let check = |commit, date, wanted: &str| {
            assert_eq!(said(commit, date), format!("{VERSION}{wanted}"));
        };
        check(None, None, "");
        check(Some("3f2a9c1d04aa00bb11cc"), Some("2026-11-20"), " (3f2a9c1d04 2026-11-20)");
        check(Some("v1"), None, " (v1)");
    }
}
