//! Hosts that programs reach without a proxy. A URL on loopback comes with a run's token: it must not go to the proxy that
//! the person's environment names.

use std::ffi::OsString;

use outlast_server::intercept::is_excepted;

/// Variables that name those hosts. Programs obey one or the other.
pub const NAMES: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Variables by which a plain `http://` URL goes to a proxy.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// This machine's loopback.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Returns the value of both variables: loopback, and what the person's own values name, as far as it `stays`.
pub fn list(variable: impl Fn(&str) -> Option<OsString>, stays: impl Fn(&str) -> bool) -> String {
    let mut list = LOOPBACK.map(str::to_owned).to_vec();
    for entry in own(&variable) {
        // Some programs know the mark of every host only where it stands alone.
        if entry == "*" && stays(&entry) {
            return entry;
        }
        if stays(&entry) && !list.contains(&entry) {
            list.push(entry);
        }
    }
    list.join(",")
}

/// Returns the variable by which a program's calls to loopback go to a proxy; `None` if they go straight.
pub fn leads_away(variable: impl Fn(&str) -> Option<OsString>) -> Option<&'static str> {
    let own = own(&variable);
    let is_straight = LOOPBACK[..2].iter().all(|host| is_excepted(host, &own));
    PROXIES
        .into_iter()
        .find(|name| variable(name).is_some_and(|value| !value.is_empty()))
        .filter(|_| !is_straight)
}

fn own(variable: &impl Fn(&str) -> Option<OsString>) -> Vec<String> {
    let value = |name| variable(name).unwrap_or_default().to_string_lossy().into_owned();
    let entries = |value: String| value.split(',').map(|entry| entry.trim().to_owned()).collect::<Vec<_>>();
    let all = NAMES.into_iter().rev().map(value).flat_map(entries);
    all.filter(|entry| !entry.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'v>(variables: &'v [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'v {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    #[test]
    fn loopback_is_reached_without_a_proxy_beside_the_persons_own_hosts() {
        const OURS: &str = "localhost,127.0.0.1,::1";
        for (variables, wanted) in [
            (&[][..], OURS.to_owned()),
            (&[("NO_PROXY", "")], OURS.to_owned()),
            (&[("NO_PROXY", ".corp, ::1")], format!("{OURS},.corp")),
            (&[("NO_PROXY", "a"), ("no_proxy", "b,a")], format!("{OURS},b,a")),
            (&[("no_proxy", "a,*")], "*".to_owned()),
        ] {
            assert_eq!(list(of(variables), |_| true), wanted, "{variables:?}");
        }
        assert_eq!(list(of(&[("no_proxy", "a,*")]), |entry| entry != "*"), format!("{OURS},a"));
    }

    #[test]
    fn a_proxy_without_exceptions_takes_calls_to_loopback_away() {
        for (variables, wanted) in [
            (&[][..], None),
            (&[("HTTPS_PROXY", "http://p")], None),
            (&[("HTTP_PROXY", "")], None),
            (&[("HTTP_PROXY", "http://p")], Some("HTTP_PROXY")),
            (&[("all_proxy", "socks5://p"), ("NO_PROXY", ".corp")], Some("all_proxy")),
            (&[("http_proxy", "http://p"), ("NO_PROXY", "localhost")], Some("http_proxy")),
            (&[("http_proxy", "http://p"), ("no_proxy", "localhost,127.0.0.1")], None),
            (&[("http_proxy", "http://p"), ("NO_PROXY", "*")], None),
        ] {
            assert_eq!(leads_away(of(variables)), wanted, "{variables:?}");
        }
    }
}
