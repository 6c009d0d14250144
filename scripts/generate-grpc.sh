#!/usr/bin/env bash
# Makes crates/server/src/grpc/generated.rs from crates/server/proto/statehouse.proto, after a change of that file.
#
# In a package of its own, outside the workspace: no build of Outlast needs a protobuf compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

mkdir "$made/src" "$made/out"
cat >"$made/Cargo.toml" <<'TOML'
[package]
name = "generate-grpc"
version = "0.0.0"
edition = "2024"

[dependencies]
protox = "0.9"
tonic-prost-build = "0.14"
TOML
cat >"$made/src/main.rs" <<'RUST'
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let files = protox::compile([format!("{}/statehouse.proto", args[1])], [&args[1]]).unwrap();
    tonic_prost_build::configure().out_dir(&args[2]).compile_fds(files).unwrap();
}
RUST
(cd "$made" && cargo run --quiet -- "$root/crates/server/proto" "$made/out")
cp "$made/out/statehouse.v1.rs" crates/server/src/grpc/generated.rs
