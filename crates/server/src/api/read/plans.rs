//! Plans of logins as JSON: how far each window is used, when it turns, and at what pace.

use outlast_core::{
    call::plan::{Plan, Window},
    envelope::ceiling::Share,
    reads::plans,
    store::{Error, Store},
    words::id::Micros,
};
use serde_json::{Value, json};

/// Most characters of an account's name that are told to people.
const NAME: usize = 8;

/// Returns the plans of all logins.
pub fn all(store: &dyn Store) -> Result<Value, Error> {
    let now = store.now()?;
    let each = plans::list(store)?;
    let each = each.iter().map(|(login, plan)| one(login, plan, now));
    Ok(json!({ "plans": each.collect::<Vec<_>>() }))
}

fn one(login: &str, plan: &Plan, now: Micros) -> Value {
    let windows = plan.windows.iter().map(|w| window(w, now));
    json!({ "login": login, "windows": windows.collect::<Vec<_>>() })
}

fn window(w: &Window, now: Micros) -> Value {
    json!({
        "window": w.length.to_string(),
        "minutes": w.length.0,
        "used_percent": w.used.percent(),
        "resets_at": w.resets_at.map(|at| at.0),
        "told_at": w.told_at.0,
        "is_over": w.is_over(now),
        "per_call_percent": w.per_call().map(Share::percent),
        "used_up_at": w.used_up_at(Share::WHOLE).map(|at| at.0),
    })
}

/// Returns a login with the beginning of its account's name, as people are shown it: `anthropic:account-`.
pub fn short(login: &str) -> String {
    let (provider, account) = login.split_once(':').unwrap_or((login, ""));
    let account = account.strip_prefix("key:").unwrap_or(account);
    format!("{provider}:{}", account.chars().take(NAME).collect::<String>())
}
