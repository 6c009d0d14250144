//! Encrypted connections to PostgreSQL: which certificates are accepted, and what is said of the others.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, thread};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, UnixStream},
};
use tokio_rustls::TlsAcceptor;

use crate::{beds::open_at, private_postgres::Database};

/// First message of a client that asks for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key, as a server or a client shows them.
struct Shown {
    certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(by: &Authority, name: &str) -> Shown {
    shown(name, Some(by), |_| {})
}

/// A certificate of `name` with other parameters; signed by its own key if there is no authority.
fn shown(name: &str, by: Option<&Authority>, change: impl FnOnce(&mut CertificateParams)) -> Shown {
    let (key, mut params) =
        (KeyPair::generate().unwrap(), CertificateParams::new([name.to_owned()]).unwrap());
    change(&mut params);
    let certificate = by.map_or_else(|| params.self_signed(&key), |by| params.signed_by(&key, by)).unwrap();
    Shown { certificate: certificate.der().clone(), pem: certificate.pem(), key }
}

/// The private server behind TLS; `None` in its place refuses TLS, as a server without a certificate does.
///
/// With `clients`, only clients that show a certificate of that authority are let in.
fn serve(database: &Database, shown: Option<&Shown>, clients: Option<&Authority>) -> SocketAddr {
    let acceptor = shown.map(|shown| {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der().clone()).unwrap();
                let check = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(check.build().unwrap())
            }
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(shown.key.serialize_der()));
        let config = builder.with_single_cert(vec![shown.certificate.clone()], key).unwrap();
        TlsAcceptor::from(Arc::new(config))
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let at = listener.local_addr().unwrap();
    let socket = database.socket_directory().join(".s.PGSQL.5432");
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (acceptor, socket) = (acceptor.clone(), socket.clone());
                tokio::spawn(async move {
                    let mut server = UnixStream::connect(&socket).await.unwrap();
                    let mut first = [0; 8];
                    if client.read_exact(&mut first).await.is_err() {
                        return;
                    }
                    match acceptor {
                        _ if first != SSL_REQUEST => {
                            let _ = server.write_all(&first).await;
                            let _ = copy_bidirectional(&mut client, &mut server).await;
                        }
                        None => {
                            let _ = client.write_all(b"N").await;
                            let _ = copy_bidirectional(&mut client, &mut server).await;
                        }
                        Some(acceptor) => {
                            let _ = client.write_all(b"S").await;
                            if let Ok(mut client) = acceptor.accept(client).await {
                                let _ = copy_bidirectional(&mut client, &mut server).await;
                            }
                        }
                    }
                });
            }
        });
    });
    at
}

/// A database, the server's authority, and files of certificates.
struct Bed {
    database: Database,
    authority: Authority,
    files: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let bed = Bed {
            database: Database::new(),
            authority: authority("the authority"),
            files: tempfile::tempdir().unwrap(),
        };
        bed.file("ca.pem", &bed.authority.pem());
        bed.file("other.pem", &authority("another authority").pem());
        bed
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Opens the store over `at`, with `{ca}`-like names of files in `options`.
    fn open(&self, host: &str, at: SocketAddr, options: &str) -> Result<(), String> {
        let files = self.files.path().to_str().unwrap();
        let name = self.database.name();
        let url =
            format!("postgres://postgres@{host}:{}/{name}?{options}", at.port()).replace("FILES", files);
        open_at(&url, true).map(drop).map_err(|e| {
            assert_eq!(e.code(), "store_open", "{e}");
            e.to_string()
        })
    }

    #[track_caller]
    fn opens(&self, host: &str, at: SocketAddr, options: &str) {
        assert_eq!(self.open(host, at, options), Ok(()), "{host} {options}");
    }

    #[track_caller]
    fn refuses(&self, host: &str, at: SocketAddr, options: &str, wanted: &str) {
        let why = self.open(host, at, options).expect_err(options);
        assert!(why.contains(wanted), "wanted {wanted:?}: {why}");
    }
}

#[test]
fn servers_certificate_is_checked_as_far_as_sslmode_says() {
    let bed = Bed::new();
    let at = serve(&bed.database, Some(&signed(&bed.authority, "localhost")), None);
    for options in ["", "sslmode=disable", "sslmode=prefer", "sslmode=require"] {
        bed.opens("127.0.0.1", at, options);
    }
    bed.opens("localhost", at, "sslmode=verify-full&sslrootcert=FILES/ca.pem");
    bed.opens("127.0.0.1", at, "sslmode=verify-ca&sslrootcert=FILES/ca.pem");
    bed.refuses(
        "127.0.0.1",
        at,
        "sslmode=verify-full&sslrootcert=FILES/ca.pem",
        "does not name the host 127.0.0.1",
    );
    for mode in ["require", "verify-ca", "verify-full"] {
        let options = format!("sslmode={mode}&sslrootcert=FILES/other.pem");
        bed.refuses("localhost", at, &options, "no authority of sslrootcert");
    }
    // A public authority's word is no substitute for the one that was given.
    bed.refuses("localhost", at, "sslmode=verify-full&sslrootcert=system", "no authority of sslrootcert");
}

#[test]
fn server_without_encryption_is_refused_where_it_is_required() {
    let bed = Bed::new();
    let at = serve(&bed.database, None, None);
    bed.opens("127.0.0.1", at, "");
    bed.opens("127.0.0.1", at, "sslmode=prefer");
    bed.refuses("127.0.0.1", at, "sslmode=require", "does not support TLS");
    bed.refuses("127.0.0.1", at, "sslmode=verify-full&sslrootcert=FILES/ca.pem", "does not support TLS");
}

#[test]
fn self_signed_certificate_is_accepted_by_the_file_that_holds_it() {
    let bed = Bed::new();
    let shown = shown("localhost", None, |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    bed.file("self.pem", &shown.pem);
    let at = serve(&bed.database, Some(&shown), None);
    bed.opens("localhost", at, "sslmode=verify-full&sslrootcert=FILES/self.pem");
    bed.opens("127.0.0.1", at, "sslmode=verify-ca&sslrootcert=FILES/self.pem");
    bed.refuses(
        "127.0.0.1",
        at,
        "sslmode=verify-full&sslrootcert=FILES/self.pem",
        "does not name the host 127.0.0.1",
    );
    bed.refuses("localhost", at, "sslmode=verify-ca&sslrootcert=FILES/ca.pem", "no authority of sslrootcert");
}

#[test]
fn certificate_that_is_over_is_refused() {
    let bed = Bed::new();
    let over = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let shown = shown("localhost", Some(&bed.authority), over);
    bed.file("over.pem", &shown.pem);
    let at = serve(&bed.database, Some(&shown), None);
    bed.refuses("localhost", at, "sslmode=verify-full&sslrootcert=FILES/ca.pem", "expired");
    bed.refuses("localhost", at, "sslmode=verify-ca&sslrootcert=FILES/over.pem", "expired");
}

#[test]
fn client_shows_its_certificate_where_the_server_asks_for_one() {
    let bed = Bed::new();
    let clients = authority("the clients' authority");
    let at = serve(&bed.database, Some(&signed(&bed.authority, "localhost")), Some(&clients));
    let (known, stranger) = (signed(&clients, "ann"), signed(&bed.authority, "eve"));
    let key = bed.file("ann.key", &known.key.serialize_pem());
    bed.file("ann.pem", &known.pem);
    bed.file("eve.key", &stranger.key.serialize_pem());
    bed.file("eve.pem", &stranger.pem);
    bed.opens("localhost", at, "sslmode=require&sslcert=FILES/ann.pem&sslkey=FILES/ann.key");
    bed.refuses("localhost", at, "sslmode=require", "CertificateRequired");
    bed.refuses("localhost", at, "sslmode=require&sslcert=FILES/eve.pem&sslkey=FILES/eve.key", "alert");
    bed.refuses("localhost", at, "sslmode=require&sslcert=FILES/ann.pem&sslkey=FILES/eve.key", "ann.pem");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
    bed.refuses("localhost", at, "sslmode=require&sslcert=FILES/ann.pem&sslkey=FILES/ann.key", "chmod 600");
}
