//! Check of `Host` and `Origin`, so that a page of another site cannot use a browser to reach this server.

use http::HeaderMap;

use super::{
    access::{Access, NotLetIn},
    headers::text,
};

/// Checks that a request does not come from a page of another site.
///
/// A page of another site sends its own `Origin`. With DNS rebinding (a foreign name that resolves to this machine) it
/// sends that name as `Host`. An IP address as `Host` cannot be rebound. Errors: `foreign_host`, `foreign_origin`.
pub fn check(access: &Access, headers: &HeaderMap) -> Result<(), NotLetIn> {
    let short = |text: &str| text.chars().take(80).collect();
    let host = text(headers, "host").unwrap_or("");
    // Of two, whoever stands before this server may have looked at the other.
    if headers.get_all("host").iter().count() > 1 || !is_ours(access, host) {
        return Err(NotLetIn::ForeignHost { host: short(host) });
    }
    let Some(origin) = text(headers, "origin") else { return Ok(()) };
    let (scheme, from) = origin.split_once("://").unwrap_or_default();
    // On loopback every page of this machine is let in, on any port.
    let same = if access.loopback { is_ours(access, from) } else { is_same_place(scheme, from, host) };
    if same { Ok(()) } else { Err(NotLetIn::ForeignOrigin { origin: short(origin) }) }
}

/// Returns whether `host`, as a browser sent it, certainly names this listener.
fn is_ours(access: &Access, host: &str) -> bool {
    let name = without_port(host);
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|ip| !access.loopback || ip.is_loopback())
        || access.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// Returns whether the authority of an origin is the `Host` that the request was sent to.
fn is_same_place(scheme: &str, origin: &str, host: &str) -> bool {
    let default = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |authority: &str| authority.strip_suffix(default).unwrap_or(authority).to_ascii_lowercase();
    !origin.is_empty() && bare(origin) == bare(host)
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|h| h.split_once(']')) {
        Some((inside, _)) => inside,
        None => host.split(':').next().unwrap_or(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(access: &Access, headers: &[(&str, &str)]) -> Result<(), NotLetIn> {
        let named = |(name, value): &(&str, &str)| -> (http::HeaderName, http::HeaderValue) {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        super::check(access, &headers.iter().map(named).collect())
    }

    #[test]
    fn a_listener_for_others_takes_addresses_and_the_names_it_was_given() {
        let access = Access { allowed_hosts: vec!["outlast.internal".into()], ..Access::default() };
        let check = |host: &str, origin: Option<&str>, wanted: Option<&str>| {
            let headers: Vec<_> = [("host", host)].into_iter().chain(origin.map(|o| ("origin", o))).collect();
            let refused = asked(&access, &headers).err().map(|e| e.code());
            assert_eq!(refused, wanted, "{host} {origin:?}");
        };
        for host in
            ["10.0.0.7:7077", "[fd00::7]:7077", "Outlast.Internal", "outlast.internal:7077", "localhost"]
        {
            check(host, None, None);
        }
        for host in ["evil.example", "evil.outlast.internal", "10.0.0.7.evil.example", ""] {
            check(host, None, Some("foreign_host"));
        }
        for (host, origin) in [
            ("10.0.0.7:7077", "http://10.0.0.7:7077"),
            ("10.0.0.7", "http://10.0.0.7:80"),
            ("outlast.internal", "https://Outlast.internal"),
            ("outlast.internal:443", "https://outlast.internal"),
        ] {
            check(host, Some(origin), None);
        }
        for (host, origin) in [
            ("10.0.0.7:7077", "http://10.0.0.8:7077"),
            ("10.0.0.7:7077", "http://10.0.0.7:3000"),
            ("10.0.0.7:7077", "http://localhost:7077"),
            ("outlast.internal", "https://evil.example"),
            ("outlast.internal", "null"),
            ("outlast.internal", "file://outlast.internal"),
        ] {
            check(host, Some(origin), Some("foreign_origin"));
        }
        let mut headers = HeaderMap::new();
        for host in ["localhost", "evil.example"] {
            headers.append("host", host.parse().unwrap());
        }
        assert_eq!(super::check(&access, &headers).map_err(|e| e.code()), Err("foreign_host"));
        let near = Access { loopback: true, ..access.clone() };
        assert!(asked(&near, &[("host", "outlast.internal:1")]).is_ok());
    }
}
