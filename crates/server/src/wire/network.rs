//! The network of a person's machine, as their variables describe it: the way out, and whose certificates count.
//!
//! Ways out of this machine: straight, or through the HTTP proxy that a person's environment names.

use std::{
    ffi::OsString,
    io,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use percent_encoding::percent_decode_str;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::CertificateDer};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Lookup of a variable of a person's environment; `None` if it is not set.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<OsString>;

/// Variables that name the proxy, in the order of curl.
const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Network under which every connection to another machine is made. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    pub ways: Ways,
    /// TLS client that verifies servers by the authorities of this network. They are read when it is first used: most
    /// processes ask no other machine, and a hundred and fifty certificates are a tenth of a command's time.
    pub tls: Later<Arc<ClientConfig>>,
}

/// Value that is made when it is first used. Cheap to clone.
pub type Later<T> = Arc<LazyLock<T, Box<dyn FnOnce() -> T + Send>>>;

/// Returns the value that `make` makes when it is first used.
pub fn later<T>(make: impl FnOnce() -> T + Send + 'static) -> Later<T> {
    Arc::new(LazyLock::new(Box::new(make)))
}

/// Error of variables that describe no network which can be used.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct BadNetwork {
    variable: &'static str,
    why: BadProxy,
}

impl Network {
    /// Reads the network from `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    ///
    /// Authorities that a variable names count in place of all others, as with OpenSSL. Where none is named, those of
    /// the system and those of the web count. Errors: a proxy that cannot be used.
    pub fn of(variable: Variable<'_>) -> Result<Network, BadNetwork> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let except = set("no_proxy").or_else(|| set("NO_PROXY")).unwrap_or_default();
        let ways = match PROXIES.into_iter().find_map(|name| Some((name, set(name)?))) {
            None => Ways::default(),
            Some((variable, proxy)) => Ways::through(&proxy.to_string_lossy(), &except.to_string_lossy())
                .map_err(|why| BadNetwork { variable, why })?,
        };
        let named = Named::by(variable);
        Ok(Network { ways, tls: later(move || Arc::new(named.read().client())) })
    }
}

/// File and directory of certificate authorities that environment variables name.
struct Named {
    file: Option<PathBuf>,
    directory: Option<PathBuf>,
}

impl Named {
    fn by(variable: Variable<'_>) -> Named {
        let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Named { file: path("SSL_CERT_FILE"), directory: path("SSL_CERT_DIR") }
    }

    /// Reads these authorities, or the system's if none are named. A file that cannot be read is logged.
    fn read(&self) -> Authorities {
        let is_named = self.file.is_some() || self.directory.is_some();
        let read = match is_named {
            false => load_native_certs(),
            true => load_certs_from_paths(self.file.as_deref(), self.directory.as_deref()),
        };
        for why in &read.errors {
            tracing::warn!("certificate authorities are left out: {why}");
        }
        Authorities { named: is_named && !read.certs.is_empty(), all: read.certs }
    }
}

/// Certificate authorities of a machine.
struct Authorities {
    all: Vec<CertificateDer<'static>>,
    /// Whether environment variables name these authorities. No others count then.
    named: bool,
}

impl Authorities {
    fn client(self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.all);
        if !self.named {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let begun = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let begun = begun.with_safe_default_protocol_versions().expect("ring has a cipher for each version");
        begun.with_root_certificates(roots).with_no_client_auth()
    }
}

/// Returns the certificate authorities of this machine as PEM: those that variables name, or the system's.
///
/// Errors: there are none.
pub fn authorities(variable: Variable<'_>) -> io::Result<String> {
    let all = Named::by(variable).read().all;
    match all.is_empty() {
        true => Err(io::Error::other("this machine has no certificate authorities")),
        false => Ok(all.iter().map(|der| pem(der)).collect()),
    }
}

/// Returns a certificate as PEM.
pub(crate) fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]);
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    format!("-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n")
}

/// Time in which a connection has to be made, and a proxy has to answer.
const CONNECT: Duration = Duration::from_secs(10);

/// Largest head of a proxy's answer, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Ways out of this machine: directly, or through a proxy. The default is directly for every host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    proxy: Option<Arc<Behind>>,
}

/// Proxy through which this machine reaches other hosts.
#[derive(Debug, PartialEq, Eq)]
struct Behind {
    host: String,
    port: u16,
    /// Value of `Proxy-Authorization`; `None` if the proxy needs none.
    authorization: Option<String>,
    /// Hosts that are reached without the proxy, as in `NO_PROXY`.
    except: Vec<String>,
}

/// Error: the address of a proxy that cannot be used. Does not hold the address, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a proxy that can be chained: wanted http://HOST:PORT, {why}")]
pub struct BadProxy {
    why: String,
}

impl Ways {
    /// Returns the ways through `proxy` (`http://[USER:PASSWORD@]HOST[:PORT]`), with straight ways to loopback and to the
    /// hosts of `no_proxy`, a list with commas.
    pub fn through(proxy: &str, no_proxy: &str) -> Result<Ways, BadProxy> {
        let bad = |why: &str| BadProxy { why: why.to_owned() };
        let whole = if proxy.contains("://") { proxy.to_owned() } else { format!("http://{proxy}") };
        let uri: Uri = whole.parse().map_err(|_| bad("had no URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            other => return Err(bad(&format!("had the scheme {}", other.unwrap_or("none")))),
        }
        let authority = uri.authority().ok_or_else(|| bad("had no host"))?;
        let authorization = authority.as_str().rsplit_once('@').map(|(who, _)| {
            let plain: Vec<u8> = percent_decode_str(who).collect();
            format!("Basic {}", STANDARD.encode(plain))
        });
        let host = bare(authority.host()).to_owned();
        let except = no_proxy.split(',').map(|e| e.trim().to_ascii_lowercase()).filter(|e| !e.is_empty());
        let port = authority.port_u16().unwrap_or(80);
        Ok(Ways { proxy: Some(Arc::new(Behind { host, port, authorization, except: except.collect() })) })
    }

    /// Returns whether `host` is reached directly, without a proxy.
    pub fn are_straight(&self, host: &str) -> bool {
        self.proxy.as_ref().is_none_or(|proxy| is_loopback(host) || is_excepted(host, &proxy.except))
    }

    /// Connects to `host`, an address or a name without brackets.
    ///
    /// Errors: those of the connection; `Other` when the proxy refuses, with its status line.
    pub async fn dial(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let connecting = async {
            let Some(proxy) = self.proxy.as_ref().filter(|_| !self.are_straight(host)) else {
                return TcpStream::connect((host, port)).await;
            };
            let stream = TcpStream::connect((proxy.host.as_str(), proxy.port)).await?;
            proxy.ask(stream, host, port).await
        };
        let stream =
            tokio::time::timeout(CONNECT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Behind {
    /// Asks the proxy for a tunnel to the host over a new connection.
    async fn ask(&self, mut stream: TcpStream, host: &str, port: u16) -> io::Result<TcpStream> {
        let to = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some(value) = &self.authorization {
            head.push_str(&format!("Proxy-Authorization: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        // Byte by byte: what follows the head is the tunnel's.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() > MAX_HEAD {
                return Err(io::Error::other("the proxy before this machine did not end its answer's head"));
            }
            answer.push(stream.read_u8().await?);
        }
        let text = String::from_utf8_lossy(&answer);
        let line = text.lines().next().unwrap_or_default();
        let status = line.split(' ').nth(1).unwrap_or_default();
        if line.starts_with("HTTP/1.") && status.len() == 3 && status.starts_with('2') {
            return Ok(stream);
        }
        let short: String = line.chars().take(120).collect();
        Err(io::Error::other(format!("the proxy before this machine answered: {short}")))
    }
}

/// Returns whether a host is this machine's loopback.
pub fn is_loopback(host: &str) -> bool {
    let host = bare(host);
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns whether an entry of a `NO_PROXY` list names the host: the host itself, a domain above it, or `*`.
pub fn is_excepted<S: AsRef<str>>(host: &str, entries: &[S]) -> bool {
    let host = bare(host).to_ascii_lowercase();
    entries.iter().any(|entry| {
        let entry = entry.as_ref().trim().to_ascii_lowercase();
        let name = bare(entry.split_once(':').filter(|(_, port)| is_number(port)).map_or(&*entry, |e| e.0));
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        let domain = name.strip_prefix('.').unwrap_or(name);
        let below = || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        name == "*" || (!domain.is_empty() && (host == domain || below()))
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns a host without the brackets of an IPv6 address.
pub fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(variables: &[(&str, &str)]) -> Result<Network, BadNetwork> {
        let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Network::of(&|name| found(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_proxy_is_the_one_that_the_variables_name() {
        let straight = |variables: &[(&str, &str)]| {
            let network = network(variables).unwrap_or_else(|e| panic!("{e}"));
            ["llm.corp", "api.openai.com", "127.0.0.1"].map(|host| network.ways.are_straight(host))
        };
        assert_eq!(straight(&[]), [true; 3]);
        assert_eq!(straight(&[("HTTPS_PROXY", "")]), [true; 3]);
        assert_eq!(straight(&[("HTTP_PROXY", "http://p")]), [true; 3], "it is for http://");
        for name in PROXIES {
            assert_eq!(straight(&[(name, "http://p")]), [false, false, true], "{name}");
        }
        assert_eq!(straight(&[("HTTPS_PROXY", "http://p"), ("NO_PROXY", ".corp")]), [true, false, true]);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
        let told = network(&[("ALL_PROXY", "socks5://me:s3cret@h")]).err().map(|e| e.to_string());
        let told = told.unwrap_or_default();
        assert!(told.starts_with("ALL_PROXY: ") && told.contains("had the scheme socks5"), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }

    #[test]
    fn named_authorities_count_in_place_of_all_others() {
        let own = rcgen::generate_simple_self_signed(vec!["llm.corp".into()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), own.cert.pem()).unwrap();
        let all = |path: &str| Named::by(&|name| (name == "SSL_CERT_FILE").then(|| path.into())).read();
        let named = all(file.path().to_str().unwrap());
        assert_eq!((named.all, named.named), (vec![own.cert.der().clone()], true));
        let gone = all("/not/there.pem");
        assert!(gone.all.is_empty() && !gone.named, "the web's count where no file can be read");
    }
}

#[cfg(test)]
mod ways_tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_list_of_exceptions_names_hosts_and_domains() {
        for (host, list, wanted) in [
            ("api.openai.com", "openai.com", true),
            ("api.openai.com", ".openai.com", true),
            ("api.openai.com", "*.openai.com", true),
            ("api.openai.com", "API.openai.com:443", true),
            ("api.openai.com", "*", true),
            ("notopenai.com", "openai.com", false),
            ("api.openai.com", "api.openai.com.evil", false),
            ("api.openai.com", "", false),
            ("10.0.0.1", "10.0.0.1", true),
        ] {
            let entries: Vec<&str> = list.split(',').collect();
            assert_eq!(is_excepted(host, &entries), wanted, "{host} {list}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_chained_is_told_without_its_password() {
        for bad in ["socks5://me:pw@h:1080", "https://me:pw@h", "http://", "a b"] {
            let e = Ways::through(bad, "").unwrap_err().to_string();
            assert!(e.contains("wanted http://") && !e.contains("pw"), "{e}");
        }
        let ways = Ways::through("proxy.corp:3128", "internal.corp").unwrap();
        assert!(ways.are_straight("127.0.0.1") && ways.are_straight("a.internal.corp"));
        assert!(!ways.are_straight("api.openai.com") && Ways::default().are_straight("api.openai.com"));
    }

    #[tokio::test]
    async fn a_tunnel_begins_behind_the_proxys_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let mut heads = Vec::new();
            for answer in ["HTTP/1.1 200 OK\r\nVia: x\r\n\r\nhello", "HTTP/1.1 403 No\r\n\r\n"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                heads.push(String::from_utf8(head).unwrap());
            }
            heads
        });
        let ways = Ways::through(&format!("http://me:p%40ss@{at}"), "").unwrap();
        let mut stream = ways.dial("example.test", 443).await.unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        let refused = ways.dial("example.test", 443).await.unwrap_err().to_string();
        assert!(refused.contains("403"), "{refused}");
        let heads = serving.await.unwrap();
        assert!(heads[0].starts_with("CONNECT example.test:443 HTTP/1.1\r\n"), "{}", heads[0]);
        let authorization = format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode("me:p@ss"));
        assert!(heads[0].contains(&authorization), "{}", heads[0]);
    }
}
