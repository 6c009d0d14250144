#!/usr/bin/env bash
# fuzz.sh SECONDS [TARGET…]: each target of tests/fuzz/ for so long, guided by the code that its inputs reach. Inputs that reached
# something new stay in target/fuzz/corpus; one that fails is named, and stays in target/fuzz/failed.
#
# The stable compiler has counters of coverage and no sanitizers: what is found is panics, overflows and broken promises.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:?seconds for each target}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename -a -s .rs tests/fuzz/targets/*.rs)

out=$PWD/${CARGO_TARGET_DIR:-target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# The versions are those of every other build.
cp Cargo.lock tests/fuzz/Cargo.lock
# With a target named, build scripts and macros are compiled without counters.
RUSTFLAGS="--cfg fuzzing $coverage" CARGO_TARGET_DIR=$out \
    cargo build --quiet --release --manifest-path tests/fuzz/Cargo.toml --target "$host"

failed=()
for target in "${targets[@]}"; do
    mkdir -p "$out/corpus/$target" "$out/failed/$target"
    echo "== $target"
    "$out/$host/release/$target" "$out/corpus/$target" $([ -d "tests/fuzz/seeds/$target" ] && echo "tests/fuzz/seeds/$target") \
        -artifact_prefix="$out/failed/$target/" -max_total_time="$seconds" -print_final_stats=1 -timeout=10 2>&1 |
        grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|RELOAD)' || failed+=("$target")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
