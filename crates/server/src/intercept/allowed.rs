//! Hosts that a run confined to its proxy may reach.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use tokio::net::TcpStream;

use crate::wire::network::Ways;

/// Host that may be reached: `HOST`, `HOST:PORT`, or `.DOMAIN` for every host below it. Without a port, 443.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Name of the host. With a dot before it: every host below that domain.
    host: String,
    port: u16,
}

/// Error: a text that names no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a host: {text:?} (wanted for example github.com, .github.com or registry.corp:8443; or the path of a Unix socket)"
)]
pub struct BadHost {
    text: String,
}

impl FromStr for Allowed {
    type Err = BadHost;

    fn from_str(text: &str) -> Result<Self, BadHost> {
        let bad = || BadHost { text: text.chars().take(80).collect() };
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?),
            None => (text, 443),
        };
        let is_label = |label: &str| {
            !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if !host.strip_prefix('.').unwrap_or(host).split('.').all(is_label) {
            return Err(bad());
        }
        Ok(Allowed { host: host.to_ascii_lowercase(), port })
    }
}

impl Allowed {
    pub fn permits(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        let is_it = if self.host.starts_with('.') { host.ends_with(&self.host) } else { host == self.host };
        is_it && port == self.port
    }
}

/// Connects to a host at one of its public addresses. The connection goes to the very address that was
/// checked.
///
/// Errors: those of the connection; `PermissionDenied` if the host has no public address. Behind a proxy,
/// that proxy resolves the name.
pub async fn dial_public(ways: &Ways, host: &str, port: u16) -> io::Result<TcpStream> {
    if !ways.are_straight(host) {
        return ways.dial(host, port).await;
    }
    let mut last = io::Error::new(io::ErrorKind::PermissionDenied, "it has no public address");
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    for address in found.into_iter().filter(|address| is_public(address.ip())) {
        match ways.dial(&address.ip().to_string(), port).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Returns whether an address is one of the public network: not of this machine, of a private network or of a link.
fn is_public(ip: IpAddr) -> bool {
    let v4 = |v4: Ipv4Addr| {
        let [a, b, ..] = v4.octets();
        let is_shared = a == 100 && (64..128).contains(&b);
        let is_special = a == 0 || a >= 240 || (a == 192 && b == 0) || (a == 198 && (b == 18 || b == 19));
        !(v4.is_private()
            || v4.is_loopback()
            || v4.is_link_local()
            || v4.is_multicast()
            || is_shared
            || is_special)
    };
    match ip {
        IpAddr::V4(ip) => v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(mapped) => v4(mapped),
            // The global unicast range, without the translations of IPv4 in it.
            None => ip.segments()[0] & 0xe000 == 0x2000 && ip.segments()[0] != 0x2002,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_by_its_name_or_a_domain_above_it() {
        for (text, host, port, wanted) in [
            ("github.com", "GitHub.com", 443, true),
            ("github.com", "api.github.com", 443, false),
            ("github.com", "github.com", 22, false),
            (".github.com", "api.github.com", 443, true),
            (".github.com", "github.com", 443, false),
            (".github.com", "evilgithub.com", 443, false),
            ("registry.corp:8443", "registry.corp", 8443, true),
        ] {
            assert_eq!(text.parse::<Allowed>().unwrap().permits(host, port), wanted, "{text} {host}:{port}");
        }
        for bad in ["", ".", "a b", "https://x", "*", "h:0", "h:x", "a..b"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn private_addresses_are_not_connected_to() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fd00::1",
            "64:ff9b::a9fe:a9fe",
            "2002:a00:1::1",
            "224.0.0.1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
            let e = dial_public(&Ways::default(), text, 443).await.unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{text}");
        }
        for text in ["1.1.1.1", "140.82.121.4", "2606:4700::1111"] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
