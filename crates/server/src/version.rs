//! Version, commit and date of this build.

use std::sync::LazyLock;

/// Version of the package, such as `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the build, in hex. `None` in a developer's build, and if neither git nor `OUTLAST_BUILD_COMMIT` names it.
pub const COMMIT: Option<&str> = option_env!("OUTLAST_BUILD_COMMIT");

/// Day of the commit, such as `2026-11-20`; `None` if it is not known.
pub const DATE: Option<&str> = option_env!("OUTLAST_BUILD_DATE");

/// Returns the version as `0.1.0`, or as `0.1.0 (3f2a9c1d04 2026-11-20)` if commit and date are known.
pub fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| said(COMMIT, DATE));
    &LINE
}

fn said(commit: Option<&str>, date: Option<&str>) -> String {
    // A commit name that is shorter than ten bytes (a tag, for example) is shown whole.
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
