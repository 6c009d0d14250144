//! Signatures of bundles: Ed25519, over the digest of all that zstd has compressed. Keys are files as openssl writes them.

use std::{fs, path::Path};

use outlast_core::words::Digest;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, pem::PemObject as _};

use crate::{
    program::error::{BundleError, CliError},
    settings::keys::{Readers, read_private},
};

/// Length of a signature in bytes.
pub const LENGTH: usize = 64;

/// First bytes of a public Ed25519 key with its name, as RFC 8410 has it. The key itself follows.
const PUBLIC: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Returns what is signed: never the same bytes as those of another kind of document.
fn message(digest: &Digest) -> Vec<u8> {
    [&b"outlast bundle 1\0"[..], &digest.0].concat()
}

/// Private key, which signs.
pub struct Signer(Ed25519KeyPair);

impl Signer {
    /// Reads a private key that only its owner may read. Errors: `bundle_key`, `keys_readable`, `keys_foreign`.
    pub fn read(path: &Path) -> Result<Signer, CliError> {
        let bad = |why: String| BundleError::Key { file: path.display().to_string(), kind: "private", why };
        let parse = |text: &[u8]| PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|e| bad(e.to_string()));
        // What the file holds comes before who can read it: a public key is the wrong file, whatever its mode.
        if let Ok(text) = fs::read(path) {
            parse(&text)?;
        }
        let text = read_private(path, Readers::Owner)?.ok_or_else(|| bad("there is no such file".into()))?;
        let key = parse(text.as_bytes())?;
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der());
        Ok(Signer(key.map_err(|e| bad(format!("it is no key of Ed25519 ({e})")))?))
    }

    pub fn sign(&self, digest: &Digest) -> Vec<u8> {
        self.0.sign(&message(digest)).as_ref().to_vec()
    }

    /// Returns the key that belongs to this one.
    pub fn verifier(&self) -> Verifier {
        Verifier(ring::signature::KeyPair::public_key(&self.0).as_ref().to_vec())
    }
}

/// Public key, which tells what its private key has signed.
pub struct Verifier(Vec<u8>);

impl Verifier {
    /// Reads a public key. Errors: `Key`.
    pub fn read(path: &Path) -> Result<Verifier, BundleError> {
        let bad = |why: String| BundleError::Key { file: path.display().to_string(), kind: "public", why };
        let text = fs::read(path).map_err(|e| bad(e.to_string()))?;
        let key = SubjectPublicKeyInfoDer::from_pem_slice(&text).map_err(|e| bad(e.to_string()))?;
        let key = key.strip_prefix(&PUBLIC).filter(|key| key.len() == 32);
        Ok(Verifier(key.ok_or_else(|| bad("it is no key of Ed25519".into()))?.to_vec()))
    }

    /// Returns whether the private key has signed this.
    pub fn accepts(&self, digest: &Digest, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(&message(digest), signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    /// Keys of the examples of RFC 8410.
    const PRIVATE: &str = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC";
    const PUBLIC: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
    /// Signature of `openssl pkeyutl -sign -rawin` over the message of the digest of nothing.
    const SIGNED: &str = "a130c353b2f1b669b12b2496002e1609771f48aebed1cbbd6f5153d6b0b12713\
                          e91eaa17ec24da7d0206bc110907dcfd1048fd1f12aec71f168562b12f168d0d";

    fn pem(kind: &str, key: &str) -> String {
        format!("-----BEGIN {kind} KEY-----\n{key}\n-----END {kind} KEY-----\n")
    }

    /// Writes a file into a directory, which only its owner may read, and returns its path.
    fn private(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("key");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    #[test]
    fn a_signature_is_the_one_that_openssl_makes() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::read(&private(dir.path(), &pem("PRIVATE", PRIVATE))).unwrap();
        let verifier = Verifier::read(&private(dir.path(), &pem("PUBLIC", PUBLIC))).unwrap();
        let digest = Digest::of(b"");
        let signature = signer.sign(&digest);
        let hex: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, SIGNED);
        for verifier in [&verifier, &signer.verifier()] {
            assert!(verifier.accepts(&digest, &signature));
            assert!(!verifier.accepts(&Digest::of(b"x"), &signature));
            assert!(!verifier.accepts(&digest, &signature[1..]));
        }
    }

    #[test]
    fn a_key_that_is_none_or_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let code = |path: &Path| Signer::read(path).err().unwrap().code();
        let (private_key, public_key) = (pem("PRIVATE", PRIVATE), pem("PUBLIC", PUBLIC));
        for text in ["", "ssh-ed25519 AAAA", &public_key] {
            assert_eq!(code(&private(dir.path(), text)), "bundle_key", "{text}");
        }
        for text in ["", "ssh-ed25519 AAAA", &private_key] {
            let fault = Verifier::read(&private(dir.path(), text)).err().unwrap();
            assert_eq!(fault.fact().0, "bundle_key", "{text}");
        }
        assert_eq!(code(&dir.path().join("nowhere")), "bundle_key");
        // Bug: a public key was told as a file that others can read.
        let wrong = private(dir.path(), &public_key);
        fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(code(&wrong), "bundle_key");
        let open = private(dir.path(), &private_key);
        fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(code(&open), "keys_readable");
    }
}
