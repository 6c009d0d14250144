//! The file of a bundle: a tar archive, compressed with zstd, behind it a signature if it has one, and the SHA-256 of all
//! that comes before.
//!
//! Signature and digest stand in frames that zstd's own readers pass over, so that `tar --zstd` lists a bundle. They are
//! checked before anything is unpacked.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _, Seek as _, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use outlast_core::words::Digest;
use sha2::{Digest as _, Sha256};

use super::sign::{self, Signer, Verifier};
use crate::{
    disk::{self, beside},
    program::error::BundleError,
};

/// First bytes of what zstd has compressed.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Head of a frame that zstd passes over, of [`WORD`] and a digest.
const SKIPPED: [u8; 8] = [0x5d, 0x2a, 0x4d, 0x18, 40, 0, 0, 0];
const WORD: [u8; 8] = *b"OLBUNDLE";
const FOOT: usize = SKIPPED.len() + WORD.len() + 32;
/// Head of such a frame with a signature.
const SIGNED: [u8; 16] = *b"\x5e\x2a\x4d\x18\x48\0\0\0OLSIGNED";
const SIGNATURE: usize = SIGNED.len() + sign::LENGTH;

const LEVEL: i32 = 3;

/// Names of the files in a bundle. The manifest is the first.
pub const MANIFEST: &str = "manifest.json";
pub const STORE: &str = "runs.db";
pub const FILES: &str = "files";

/// Sums what is written.
struct Summed<W> {
    to: W,
    sum: Sha256,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn foot(digest: &Digest) -> Vec<u8> {
    [&SKIPPED[..], &WORD, &digest.0].concat()
}

/// Packs files of a directory, and signs them if there is a key. The bundle has its name when it is whole and on the disk,
/// and is never put over a file.
pub fn pack(
    directory: &Path,
    names: &[String],
    file: &Path,
    signer: Option<&Signer>,
) -> Result<Digest, BundleError> {
    let fresh = beside(file, ".unfinished");
    let packed = write(directory, names, (file, fresh.as_path()), signer);
    if packed.is_err() {
        // It would only take room; its name is not that of a bundle.
        let _ = fs::remove_file(&fresh);
    }
    packed.map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => BundleError::Exists { file: file.display().to_string() },
        _ => BundleError::Unwritten { file: file.display().to_string(), why },
    })
}

fn write(
    directory: &Path,
    names: &[String],
    (file, fresh): (&Path, &Path),
    signer: Option<&Signer>,
) -> io::Result<Digest> {
    let summed = Summed { to: BufWriter::new(disk::create_new(fresh)?), sum: Sha256::new() };
    let mut tar = tar::Builder::new(zstd::Encoder::new(summed, LEVEL)?);
    tar.mode(tar::HeaderMode::Deterministic);
    for name in names {
        tar.append_path_with_name(directory.join(name), name)?;
    }
    let mut summed = tar.into_inner()?.finish()?;
    if let Some(signer) = signer {
        let content = Digest(summed.sum.clone().finalize().into());
        summed.write_all(&[&SIGNED[..], &signer.sign(&content)].concat())?;
    }
    let Summed { mut to, sum } = summed;
    let digest = Digest(sum.finalize().into());
    to.write_all(&foot(&digest))?;
    to.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    if file.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    disk::rename(fresh, file)?;
    Ok(digest)
}

/// Reads the whole file and returns its digest. `name`: what people call it. With a key, it must have the signature of that
/// key. Errors: `NotOne`, `Damaged`, `Unsigned`.
pub fn check(file: &Path, name: &str, verifier: Option<&Verifier>) -> Result<Digest, BundleError> {
    let name = || name.to_owned();
    let mut read = File::open(file).map_err(|why| BundleError::Unread { file: name(), why })?;
    let (mut head, mut sum) = ([0; 4], Summed { to: io::sink(), sum: Sha256::new() });
    if read.read_exact(&mut head).is_err() || head != ZSTD {
        return Err(BundleError::NotOne { file: name() });
    }
    read.rewind()?;
    let content = read.metadata()?.len().saturating_sub((SIGNATURE + FOOT) as u64);
    let mut end = Vec::new();
    io::copy(&mut (&mut read).take(content), &mut sum)?;
    read.take((SIGNATURE + FOOT) as u64).read_to_end(&mut end)?;
    let content = Digest(sum.sum.clone().finalize().into());
    let (last, end) = end.split_at(end.len().saturating_sub(FOOT));
    sum.write_all(last)?;
    let digest = Digest(sum.sum.finalize().into());
    if end != foot(&digest) {
        return Err(BundleError::Damaged { file: name() });
    }
    let signature = last.strip_prefix(&SIGNED);
    match verifier {
        Some(verifier) if signature.is_none_or(|signature| !verifier.accepts(&content, signature)) => {
            Err(BundleError::Unsigned { file: name(), by_another: signature.is_some() })
        }
        Some(_) | None => Ok(digest),
    }
}

/// Unpacks a bundle that was checked into an empty directory. Errors: `NotOne` for a name that no bundle has.
pub fn unpack(file: &Path, to: &Path) -> Result<(), BundleError> {
    let mut tar = tar::Archive::new(zstd::Decoder::new(File::open(file)?)?);
    for entry in tar.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_str().filter(|name| is_ours(name)).map(str::to_owned);
        let (Some(name), tar::EntryType::Regular) = (name, entry.header().entry_type()) else {
            return Err(BundleError::NotOne { file: file.display().to_string() });
        };
        let mut options = OpenOptions::new();
        let mut out = options.write(true).create_new(true).mode(0o600).open(to.join(name))?;
        io::copy(&mut entry, &mut out)?;
    }
    Ok(())
}

/// Reads the manifest, which is the first file of a bundle. `None`: it is none.
pub fn manifest(file: &Path) -> Result<Option<Vec<u8>>, BundleError> {
    let mut tar = tar::Archive::new(zstd::Decoder::new(File::open(file)?)?);
    let Some(first) = tar.entries()?.next() else { return Ok(None) };
    let (mut first, mut bytes) = (first?, Vec::new());
    if first.path()? != Path::new(MANIFEST) {
        return Ok(None);
    }
    first.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn is_ours(name: &str) -> bool {
    let pack = name.strip_prefix("files/").and_then(|name| name.strip_suffix(".pack"));
    let is_digest = |pack: &str| pack.len() == 64 && pack.bytes().all(|b| b.is_ascii_hexdigit());
    name == MANIFEST || name == STORE || pack.is_some_and(is_digest)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_bundle_is_whole_or_refused_whatever_was_cut_or_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        let noise: Vec<u8> =
            (0..100_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        fs::write(from.join(MANIFEST), "{}").unwrap();
        fs::write(from.join(STORE), &noise).unwrap();
        let file = dir.path().join("b");
        let names = [MANIFEST.to_owned(), STORE.to_owned()];
        let digest = pack(&from, &names, &file, None).unwrap();
        assert!(matches!(pack(&from, &names, &file, None), Err(BundleError::Exists { .. })));
        assert_eq!(check(&file, "b", None).unwrap(), digest);
        assert_eq!(manifest(&file).unwrap().unwrap(), b"{}");
        fs::create_dir(&to).unwrap();
        unpack(&file, &to).unwrap();
        assert_eq!(fs::read(to.join(STORE)).unwrap(), noise);
        let whole = fs::read(&file).unwrap();
        let code = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            check(&file, "b", None).unwrap_err().fact().0
        };
        for len in [4, 40, FOOT, whole.len() / 2, whole.len() - FOOT, whole.len() - 1] {
            assert_eq!(code(&whole[..len]), "bundle_damaged", "{len}");
        }
        for at in [4, 100, whole.len() / 2, whole.len() - FOOT, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(code(&changed), "bundle_damaged", "{at}");
        }
        assert_eq!(code(&[&whole[..], b"x"].concat()), "bundle_damaged");
        for other in [&b""[..], b"PK", b"SQLite format 3\0"] {
            assert_eq!(code(other), "bundle_unknown");
        }
    }

    #[test]
    fn a_signature_fits_one_key_and_one_content() {
        let dir = tempfile::tempdir().unwrap();
        let [plain, signed, forged] = ["plain", "signed", "forged"].map(|name| dir.path().join(name));
        fs::write(dir.path().join(MANIFEST), "{}").unwrap();
        // Of the example of RFC 8410.
        let private = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
            -----END PRIVATE KEY-----\n";
        fs::write(dir.path().join("key"), private).unwrap();
        fs::set_permissions(dir.path().join("key"), fs::Permissions::from_mode(0o600)).unwrap();
        let signer = Signer::read(&dir.path().join("key")).unwrap();
        let (names, key) = ([MANIFEST.to_owned()], signer.verifier());
        pack(dir.path(), &names, &plain, None).unwrap();
        let digest = pack(dir.path(), &names, &signed, Some(&signer)).unwrap();
        assert_eq!(check(&signed, "b", None).unwrap(), digest, "whoever has no key reads it too");
        assert_eq!(check(&signed, "b", Some(&key)).unwrap(), digest);
        assert_eq!(manifest(&signed).unwrap().unwrap(), b"{}");
        let code = |bytes: &[u8]| {
            fs::write(&forged, bytes).unwrap();
            check(&forged, "b", Some(&key)).map_err(|e| e.fact().0)
        };
        // Whoever changes something can also make the digest anew.
        let again = |bytes: &[u8]| [bytes, &foot(&Digest::of(bytes))].concat();
        let (plain, whole) = (fs::read(plain).unwrap(), fs::read(signed).unwrap());
        assert_eq!(code(&plain), Err("bundle_unsigned"));
        let (content, signature) = whole[..whole.len() - FOOT].split_at(whole.len() - FOOT - SIGNATURE);
        assert_eq!(code(&again(&[content, signature].concat())), Ok(digest));
        let (signed_twice, doubled) = ([content, signature].concat(), [content, content].concat());
        for (content, signature) in [
            (content, &signature[1..]),
            (&content[..content.len() - 1], signature),
            (&signed_twice[..], signature),
            (&doubled[..], signature),
        ] {
            assert_eq!(code(&again(&[content, signature].concat())), Err("bundle_unsigned"));
        }
        for at in 4..content.len() + signature.len() {
            let mut changed = [content, signature].concat();
            changed[at] ^= 1;
            assert_eq!(code(&again(&changed)), Err("bundle_unsigned"), "{at}");
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_not_unpacked() {
        for name in ["manifest.json", "runs.db", &format!("files/{}.pack", "0a".repeat(32))] {
            assert!(is_ours(name), "{name}");
        }
        for name in
            ["", "../runs.db", "/runs.db", "files/../x.pack", "files/lock", "runs.db-wal", "files/a/b.pack"]
        {
            assert!(!is_ours(name), "{name}");
        }
    }
}
