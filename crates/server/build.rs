//! Makes the gRPC service from `proto/statehouse.proto`, and tells the crate which commit it is built from, where that can
//! be known: see `src/version.rs`.

use std::{
    env,
    error::Error,
    path::Path,
    process::{Command, Stdio},
};

/// Given by whoever builds from an archive; else asked of git.
const COMMIT: &str = "OUTLAST_BUILD_COMMIT";
const DATE: &str = "OUTLAST_BUILD_DATE";

/// Directory of the protocol, below the crate's.
const PROTO: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROTO}");
    // Compiled without `protoc`, which not every machine has.
    #[cfg(feature = "grpc")]
    tonic_prost_build::configure().compile_fds(protox::compile(["statehouse.proto"], [PROTO])?)?;
    println!("cargo::rerun-if-env-changed={COMMIT}");
    // A developer's build does not look: each commit would compile this crate and all above it anew.
    let is_shipped = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_shipped && env::var_os(COMMIT).is_none() {
        tell();
    }
    Ok(())
}

/// Nothing, where there is no git, no repository, or only another's around this directory.
fn tell() -> Option<()> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "--verify", "HEAD"])?;
    let date = git(&["show", "-s", "--no-show-signature", "--format=%cs", "HEAD"])?;
    println!("cargo::rustc-env={COMMIT}={commit}");
    println!("cargo::rustc-env={DATE}={date}");
    // One that is not there would count as changed, always.
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"])?;
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        let file = git(&["rev-parse", "--git-path", name]).filter(|file| Path::new(file).exists());
        file.into_iter().for_each(|file| println!("cargo::rerun-if-changed={file}"));
    }
    Some(())
}

fn git(args: &[&str]) -> Option<String> {
    let done = Command::new("git").args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let said = String::from_utf8(done.stdout).ok().filter(|_| done.status.success())?;
    Some(said.trim().to_owned()).filter(|said| !said.is_empty() && !said.contains('\n'))
}
