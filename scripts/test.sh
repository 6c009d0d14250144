#!/usr/bin/env bash
# All checks, one after the other; called by `make test`, which has seen to the set-up.
#
# Ends with the line `N passed, N failed`: tests count as their runners count them, any other check as one.
# A check that fails does not keep the others from being run. OUTLAST_BIN and PYTHON name the programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp)
postgres=$(mktemp -d)
# As root, the server runs under another account, which has to get through.
chmod 0711 "$postgres"
passed=0 failed=0 broken=()

finish() {
    scripts/private-postgres.sh stop "$postgres/server" || true
    rm -rf "$log" "$postgres"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title() { printf '\n== %s\n' "$1"; }

# check NAME COMMAND…: a check that counts as one.
check() {
    local name=$1 began=$SECONDS
    shift
    title "$name"
    if "$@"; then
        passed=$((passed + 1))
        echo "ok ($((SECONDS - began)) s)"
    else
        failed=$((failed + 1)) broken+=("$name")
        echo "FAILED: $*"
    fi
}

# tests NAME PATTERN COMMAND…: a runner whose output counts its tests. One that counts none has failed.
tests() {
    local name=$1 code=0 good bad
    shift
    title "$name"
    "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    good=$(counted passed) bad=$(counted failed)
    if [ "$code" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    passed=$((passed + good)) failed=$((failed + bad))
    [ "$bad" = 0 ] || broken+=("$name")
}

# The sum over the closing lines of nextest, cargo test and pytest; timeouts and failed starts are failures.
counted() {
    local words=$1
    [ "$words" = passed ] || words='failed|timed out|exec failed|errors?'
    sed 's/\x1b\[[0-9;]*m//g' "$log" |
        grep -E '^ *Summary \[|^test result:|^=* ?[0-9]+ (passed|failed|error).* in ' |
        grep -oE "[0-9]+ ($words)" | awk '{ sum += $1 } END { print sum + 0 }'
}

nextest() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --no-fail-fast --cargo-quiet --status-level retry --final-status-level flaky
    else
        cargo test --workspace --quiet --no-fail-fast --lib --bins --tests
    fi
}

# rustdoc reads all crates before it finds no example in them.
doctests() {
    grep -rqE '^ *//[/!].*```|doc = include_str!' crates/*/src --include=*.rs || { echo "there are none"; return; }
    cargo test --workspace --doc --quiet --no-fail-fast
}

# Programs on which nothing else here leans.
scripts_are_sound() {
    local file
    for file in scripts/*.sh .ci/run examples/*.sh examples/*/*.sh; do bash -n "$file" || return 1; done
    "$PYTHON" -c 'import ast, pathlib, sys; [ast.parse(pathlib.Path(f).read_text(), f) for f in sys.argv[1:]]' \
        scripts/*.py examples/*/*.py
}

if ! OUTLAST_TEST_POSTGRES=$(scripts/private-postgres.sh start "$postgres/server"); then
    echo "the private PostgreSQL did not start" >&2
    exit 1
fi
export OUTLAST_TEST_POSTGRES
# The official SDKs are in it.
export OUTLAST_TEST_PYTHON=$PYTHON
# Claude Code and Codex, against the fake provider.
OUTLAST_TEST_CLIS=$(scripts/clis.sh "${CARGO_TARGET_DIR:-target}/clis")
export OUTLAST_TEST_CLIS

check "format" cargo fmt --all --check
check "lints" cargo clippy --workspace --all-targets --quiet -- -D warnings
tests "Rust" nextest
tests "Rust, examples in docs" doctests
check "the program" cargo build --workspace --quiet
check "scripts" scripts_are_sound
if compgen -G 'tests/python/test_*.py' >/dev/null; then
    # As with `crash` (.config/nextest.toml): a second try, and listed.
    tests "Python" "$PYTHON" -m pytest -q --reruns 1 -rR tests/python
fi
check "documentation" "$PYTHON" scripts/check-docs.py --outlast "$OUTLAST_BIN"
check "make demo" "$PYTHON" scripts/demo.py --outlast "$OUTLAST_BIN"
check "examples/kill-9-resume" examples/kill-9-resume/demo.sh
check "examples/riskkernel" examples/riskkernel/demo.sh

echo
for name in "${broken[@]}"; do echo "failed: $name"; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
