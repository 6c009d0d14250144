//! Plans of subscriptions: the login that pays for a request, and how far an answer says its windows are used.

use http::HeaderMap;
use outlast_core::{
    call::plan::WindowUse,
    envelope::{Length, Share},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Upstream, told_time::Says};

/// Longest account name that is accepted, in bytes.
const LONGEST: usize = 128;

/// Reads the use of the plan's windows from the headers of an answer: of Anthropic's `anthropic-ratelimit-unified-*`
/// the windows of all models, of the ChatGPT backend's `x-codex-*` the primary and the secondary one.
pub fn plan_windows(upstream: Upstream, says: &Says<'_>) -> Vec<WindowUse> {
    upstream.row().plan.as_ref().map_or_else(Vec::new, |plan| (plan.windows)(says))
}

pub(super) fn anthropic(says: &Says<'_>) -> Vec<WindowUse> {
    let windows = [("5h", Length(300)), ("7d", Length::WEEK)];
    let told = windows.into_iter().map(|(name, window)| {
        let used = says.text(&format!("anthropic-ratelimit-unified-{name}-utilization"))?.parse().ok()?;
        let resets_at = says.time(&format!("anthropic-ratelimit-unified-{name}-reset"));
        Some(WindowUse { window, used: Share::of_fraction(used)?, resets_at })
    });
    told.flatten().collect()
}

pub(super) fn codex(says: &Says<'_>) -> Vec<WindowUse> {
    let windows = [("primary", Length(300)), ("secondary", Length::WEEK)];
    let told = windows.into_iter().map(|(name, usual)| {
        let text = |what: &str| says.text(&format!("x-codex-{name}-{what}"));
        let used = text("used-percent")?.parse().ok()?;
        let minutes = text("window-minutes").and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        // Older backends told the time that is left.
        let resets_at = says
            .time(&format!("x-codex-{name}-reset-at"))
            .or_else(|| says.time(&format!("x-codex-{name}-reset-after-seconds")));
        Some(WindowUse { window: minutes.map_or(usual, Length), used: Share::of_percent(used)?, resets_at })
    });
    told.flatten().collect()
}

/// Returns the account that a request names: the header `ChatGPT-Account-Id` of Codex, the account in Claude Code's
/// `metadata.user_id`. A token changes by the hour; the account stays.
pub fn account(upstream: Upstream, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let account = (upstream.row().plan.as_ref()?.account)(headers, body)?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (!account.is_empty() && account.len() <= LONGEST && account.bytes().all(is_plain)).then_some(account)
}

pub(super) fn chatgpt_account(headers: &HeaderMap, _body: &[u8]) -> Option<String> {
    Some(headers.get("chatgpt-account-id")?.to_str().ok()?.to_owned())
}

pub(super) fn claude_account(_headers: &HeaderMap, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        metadata: Value,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    let user = body.metadata["user_id"].as_str()?;
    match serde_json::from_str::<Value>(user) {
        Ok(user) => user["account_uuid"].as_str().map(str::to_owned),
        // Older versions: `user_HASH_account_UUID_session_UUID`.
        Err(_) => user.split_once("_account_")?.1.split("_session_").next().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use outlast_core::words::Micros;

    use super::*;

    /// 2026-11-20 08:00:00 UTC.
    const NOW: Micros = Micros(1_795_161_600_000_000);

    fn map(headers: &[(&str, &str)]) -> HeaderMap {
        let each =
            |(k, v): &(&str, &str)| (HeaderName::try_from(*k).unwrap(), HeaderValue::try_from(*v).unwrap());
        headers.iter().map(each).collect()
    }

    /// Checks window, share in millionths, and seconds until it turns.
    #[track_caller]
    fn check(upstream: Upstream, headers: &[(&str, &str)], wanted: &[(i64, i64, Option<i64>)]) {
        let headers = map(headers);
        let told = plan_windows(upstream, &Says { headers: &headers, now: NOW });
        let told: Vec<_> = told
            .iter()
            .map(|t| (t.window.0, t.used.0, t.resets_at.map(|at| at.ms_since(NOW) / 1000)))
            .collect();
        assert_eq!(told, wanted, "{headers:?}");
    }

    #[test]
    fn the_windows_of_a_plan_are_read_as_each_provider_tells_them() {
        check(
            Upstream::Anthropic,
            &[
                ("anthropic-ratelimit-unified-5h-utilization", "0.42"),
                ("anthropic-ratelimit-unified-5h-reset", "1795165200"),
                ("anthropic-ratelimit-unified-7d-utilization", "0.0731"),
                ("anthropic-ratelimit-unified-7d-reset", "1795248000"),
                ("anthropic-ratelimit-unified-7d_oi-utilization", "0.9"),
            ],
            &[(300, 420_000, Some(3600)), (10_080, 73_100, Some(86_400))],
        );
        check(
            Upstream::OpenAi,
            &[
                ("x-codex-primary-used-percent", "42.5"),
                ("x-codex-primary-window-minutes", "299"),
                ("x-codex-primary-reset-at", "1795165200"),
                ("x-codex-secondary-used-percent", "7"),
                ("x-codex-secondary-reset-after-seconds", "60"),
            ],
            &[(299, 425_000, Some(3600)), (10_080, 70_000, Some(60))],
        );
        // Only a week, as some plans have it.
        let week = [("x-codex-primary-used-percent", "1"), ("x-codex-primary-window-minutes", "10080")];
        check(Upstream::OpenAi, &week, &[(10_080, 10_000, None)]);
    }

    #[test]
    fn what_is_no_share_is_not_told() {
        for text in ["", "some", "-0.1", "NaN", "inf"] {
            check(Upstream::Anthropic, &[("anthropic-ratelimit-unified-5h-utilization", text)], &[]);
            check(Upstream::OpenAi, &[("x-codex-primary-used-percent", text)], &[]);
        }
        check(Upstream::Gemini, &[("x-codex-primary-used-percent", "4")], &[]);
    }

    #[test]
    fn a_login_is_the_account_that_its_requests_name() {
        let claude = |user: &str| {
            let body = serde_json::json!({ "model": "m", "metadata": { "user_id": user } }).to_string();
            account(Upstream::Anthropic, &HeaderMap::new(), body.as_bytes())
        };
        let new = r#"{"device_id":"d","account_uuid":"11-aa","session_id":"s"}"#;
        assert_eq!(claude(new).as_deref(), Some("11-aa"));
        assert_eq!(claude("user_0f_account_11-aa_session_22-bb").as_deref(), Some("11-aa"));
        for none in ["", "user_0f", r#"{"account_uuid":""}"#, r#"{"account_uuid":"a b"}"#] {
            assert_eq!(claude(none), None, "{none}");
        }
        assert_eq!(account(Upstream::Anthropic, &HeaderMap::new(), b"not json"), None);
        let codex = map(&[("ChatGPT-Account-Id", "acc_1")]);
        assert_eq!(account(Upstream::OpenAi, &codex, b"{}").as_deref(), Some("acc_1"));
        assert_eq!(account(Upstream::OpenAi, &HeaderMap::new(), b"{}"), None);
    }
}
