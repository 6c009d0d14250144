//! Encryption of connections to a database: libpq's `sslmode` and certificate files, by rustls.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Value of `sslrootcert` that means the certificate authorities of the machine.
const SYSTEM: &str = "system";

/// libpq's `sslmode`: whether a connection is encrypted, and what is checked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server offers that; nothing is checked.
    Prefer,
    /// Encrypted. Nothing is checked, unless a file of certificate authorities is given.
    Require,
    /// The server's certificate must be signed by an authority of the file.
    VerifyCa,
    /// The server's certificate must be signed by a known authority, and name the host.
    VerifyFull,
}

impl Mode {
    /// Returns the mode of that name; `None` for an unknown one. libpq's `allow` is taken for `prefer`.
    pub fn parse(name: &str) -> Option<Mode> {
        Some(match name {
            "disable" => Mode::Disable,
            "allow" | "prefer" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return None,
        })
    }
}

/// PEM files of a connection's certificates.
pub struct Files {
    /// Certificate authorities; the path `system` means those of the machine.
    pub roots: Option<PathBuf>,
    /// The client's certificate, with those between it and its authority; `None`: the client shows none.
    pub certificate: Option<PathBuf>,
    /// Private key of `certificate`.
    pub key: Option<PathBuf>,
}

/// Returns the maker of encrypted connections. Errors: the reason, which names the option or file.
pub fn connector(mode: Mode, files: &Files) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(ring::default_provider());
    let check = ServerCheck::new(mode, files.roots.as_deref(), provider.clone())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check));
    let config = match (&files.certificate, &files.key) {
        _ if mode == Mode::Disable => config.with_no_client_auth(),
        (None, _) => config.with_no_client_auth(),
        (Some(_), None) => return Err("sslcert is given without sslkey, the file of its private key".into()),
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            config
                .with_client_auth_cert(chain, private_key(key)?)
                .map_err(|e| format!("{} and {}: {e}", certificate.display(), key.display()))?
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

/// Check of a server's certificate.
#[derive(Debug)]
struct ServerCheck {
    mode: Mode,
    /// Authorities of the file. A server may show one of them itself, as one does whose certificate is self-signed.
    trusted: Vec<CertificateDer<'static>>,
    /// `None` if nothing is checked.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCheck {
    fn new(mode: Mode, roots: Option<&Path>, provider: Arc<CryptoProvider>) -> Result<ServerCheck, String> {
        let is_system = roots.is_some_and(|roots| roots.as_os_str() == SYSTEM);
        let trusted = match (mode, roots) {
            (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) => None,
            (Mode::VerifyFull, None) => Some(system()?),
            (Mode::VerifyFull, Some(_)) if is_system => Some(system()?),
            (_, Some(_)) if is_system => {
                return Err("sslrootcert=system wants sslmode=verify-full: anybody gets a certificate of a public authority".into());
            }
            (Mode::VerifyCa, None) => {
                return Err("sslmode=verify-ca wants sslrootcert, a file of certificate authorities".into());
            }
            (_, Some(file)) => Some(certificates(file)?),
        };
        let Some(trusted) = trusted else {
            return Ok(ServerCheck { mode, trusted: Vec::new(), authorities: None, provider });
        };
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(trusted.iter().cloned());
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
            .build()
            .map_err(|e| format!("the certificate authorities cannot be used: {e}"))?;
        Ok(ServerCheck { mode, trusted, authorities: Some(authorities), provider })
    }
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{BadSignature, NotValidForName, NotValidForNameContext, Other, UnknownIssuer};
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        match authorities.verify_server_cert(shown, between, host, ocsp, now) {
            // The name is checked last: all else is in order.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if self.mode != Mode::VerifyFull =>
            {
                Ok(ServerCertVerified::assertion())
            }
            // An authority is not accepted as a server's own certificate, unless it is exactly the one in the file.
            Err(Error::InvalidCertificate(Other(_) | UnknownIssuer)) if self.trusted.contains(shown) => {
                if self.mode == Mode::VerifyFull {
                    verify_server_name(&ParsedCertificate::try_from(shown)?, host)
                        .map_err(|_| other_name(host))?;
                }
                Ok(ServerCertVerified::assertion())
            }
            Err(Error::InvalidCertificate(Other(_) | UnknownIssuer | BadSignature)) => {
                let why = "no authority of sslrootcert (or of this machine) signed the server's certificate";
                Err(Error::General(why.into()))
            }
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Err(other_name(host))
            }
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, shown, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn other_name(host: &ServerName<'_>) -> Error {
    Error::General(format!("the server's certificate does not name the host {}", host.to_str()))
}

/// Returns the certificate authorities of the machine.
fn system() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    match (found.certs.is_empty(), found.errors.first()) {
        (false, _) => Ok(found.certs),
        (true, Some(e)) => Err(format!("this machine's certificate authorities cannot be read: {e}")),
        (true, None) => {
            Err("this machine has no certificate authorities; install ca-certificates, or give sslrootcert"
                .into())
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable =
        |why: &dyn std::fmt::Display| format!("no certificate can be read from {}: {why}", file.display());
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).map_err(|e| unusable(&e))?.collect();
    let all = all.map_err(|e| unusable(&e))?;
    if all.is_empty() { Err(unusable(&"it holds none in PEM")) } else { Ok(all) }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let unusable =
        |why: &dyn std::fmt::Display| format!("no private key can be read from {}: {why}", file.display());
    let found = fs::metadata(file).map_err(|e| unusable(&e))?;
    // A key that the machine's administrator keeps for a group is libpq's one exception.
    let allowed = if found.uid() == 0 { 0o037 } else { 0o077 };
    if found.mode() & allowed != 0 {
        return Err(unusable(&"others can read it; `chmod 600` it"));
    }
    PrivateKeyDer::from_pem_file(file).map_err(|e| unusable(&e))
}
