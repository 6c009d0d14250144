//! Addresses that messages may be posted to.
//!
//! `https` everywhere, `http` to this machine only. Link-local addresses are refused, because a cloud's metadata service
//! is at one; so are the addresses by IPv6 at which clouds have it. A name that is not `localhost` may not lead to this machine: whoever controls the name could turn a post
//! against a service that trusts loopback.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// Reason why nothing is posted to an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    #[error("not a URL (wanted https://…)")]
    NoUrl,
    #[error("http:// is for this machine only (wanted https://…)")]
    PlainHttp,
    #[error("{0} is an address that is never posted to")]
    Refused(IpAddr),
}

/// Parses a URL and checks that it may be posted to. A host name's addresses are checked by the [`Resolver`].
pub fn check(url: &str) -> Result<Uri, BadAddress> {
    let uri: Uri = url.parse().map_err(|_| BadAddress::NoUrl)?;
    let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadAddress::NoUrl)?;
    let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    if let Some(ip) = address.filter(|ip| is_refused(*ip)) {
        return Err(BadAddress::Refused(ip));
    }
    let here = is_localhost(host) || address.is_some_and(|ip| plain(ip).is_loopback());
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if here => Ok(uri),
        Some("http") => Err(BadAddress::PlainHttp),
        _ => Err(BadAddress::NoUrl),
    }
}

fn is_localhost(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
}

/// Returns an IPv4 address that is written as an IPv6 one, mapped or translated (NAT64), as what it is.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4((u32::from(high) << 16 | u32::from(low)).into())
            }
            _ => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        },
        IpAddr::V4(_) => ip,
    }
}

/// Networks of metadata services by IPv6, by their first 32 bits: those of AWS (`fd00:ec2::254`) and of Google Cloud
/// (`fd20:ce::254`).
const METADATA: [[u16; 2]; 2] = [[0xfd00, 0xec2], [0xfd20, 0xce]];

fn is_refused(ip: IpAddr) -> bool {
    match plain(ip) {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => {
            let is_metadata = METADATA.contains(&[v6.segments()[0], v6.segments()[1]]);
            v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast() || is_metadata
        }
    }
}

/// Returns those addresses of a host to which messages may be posted.
fn allowed(name: &str, found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let is_here = |at: &SocketAddr| plain(at.ip()).is_loopback();
    found.filter(|at| !is_refused(at.ip()) && is_here(at) == is_localhost(name)).collect()
}

/// Resolver of host names that returns only addresses to which messages may be posted. The connection is made
/// to the address that it returns, so that a name cannot change between the check and the connection.
#[derive(Clone, Default)]
pub struct Resolver(());

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || {
                let found = (name.as_str(), 0).to_socket_addrs()?;
                let allowed = allowed(name.as_str(), found);
                match allowed.is_empty() {
                    false => Ok(allowed),
                    true => {
                        Err(io::Error::other(format!("{name} leads to an address that is never posted to")))
                    }
                }
            });
            Ok(found.await.map_err(io::Error::other)??.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_or_refused_by_its_kind() {
        let check = |url: &str, wanted: Result<(), BadAddress>| {
            assert_eq!(super::check(url).map(drop), wanted, "{url}");
        };
        let refused = |ip: &str| Err(BadAddress::Refused(ip.parse().unwrap()));
        check("https://hooks.example/x?y=1", Ok(()));
        check("https://10.0.0.7/x", Ok(()));
        check("http://127.0.0.1:9/x", Ok(()));
        check("http://localhost:9/x", Ok(()));
        check("http://[::1]:9/x", Ok(()));
        check("http://hooks.example/x", Err(BadAddress::PlainHttp));
        check("http://10.0.0.7/x", Err(BadAddress::PlainHttp));
        check("https://169.254.169.254/latest", refused("169.254.169.254"));
        check("https://[fe80::1]/x", refused("fe80::1"));
        check("https://[::ffff:169.254.169.254]/x", refused("::ffff:169.254.169.254"));
        check("https://0.0.0.0/x", refused("0.0.0.0"));
        check("https://[fd00:ec2::254]/latest", refused("fd00:ec2::254"));
        check("https://[fd20:ce::254]/latest", refused("fd20:ce::254"));
        check("https://[64:ff9b::a9fe:a9fe]/latest", refused("64:ff9b::a9fe:a9fe"));
        check("https://[fd12:3456::1]/x", Ok(()));
        check("ftp://hooks.example/x", Err(BadAddress::NoUrl));
        check("hooks.example", Err(BadAddress::NoUrl));
        check("https://", Err(BadAddress::NoUrl));
    }

    #[test]
    fn a_name_leads_neither_to_this_machine_nor_to_a_metadata_service() {
        let check = |name: &str, addresses: &[&str], wanted: &[&str]| {
            let all = |texts: &[&str]| -> Vec<SocketAddr> {
                texts.iter().map(|t| SocketAddr::new(t.parse().unwrap(), 0)).collect()
            };
            assert_eq!(allowed(name, all(addresses).into_iter()), all(wanted), "{name} {addresses:?}");
        };
        check("hooks.example", &["192.0.2.1", "2001:db8::1"], &["192.0.2.1", "2001:db8::1"]);
        check("rebound.example", &["127.0.0.1", "::1", "::ffff:127.0.0.1"], &[]);
        check("metadata.example", &["169.254.169.254", "fe80::1", "fd00:ec2::254"], &[]);
        check("half.example", &["127.0.0.1", "192.0.2.1"], &["192.0.2.1"]);
        check("localhost", &["127.0.0.1", "::1", "192.0.2.1"], &["127.0.0.1", "::1"]);
    }
}
