#!/usr/bin/env bash
# All checks that need no program of others but PostgreSQL and shells; called by `make test`, which has seen to the set-up.
# What needs Claude Code, Codex or npm is in scripts/test-clients.sh.
#
# Ends with the line `N passed, N failed`. OUTLAST_BIN and PYTHON name the programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/checks.sh

postgres=$(mktemp -d)
# As root, the server runs under another account, which has to get through.
chmod 0711 "$postgres"

finish() {
    kill "${aside_pid[@]}" 2>/dev/null || true
    scripts/private-postgres.sh stop "$postgres/server" || true
    rm -rf "$log" "$postgres"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Half of the time of a test is waiting for a process or a deadline: twice as many tests as cores keep the cores busy.
nextest() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --test-threads "$((2 * $(nproc)))" --no-fail-fast --cargo-quiet --status-level fail --final-status-level fail
    else
        cargo test --workspace --quiet --no-fail-fast --lib --bins --tests -- --skip cli_agents::
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
    for file in scripts/*.sh scripts/crash/agents/*.sh .ci/run examples/*.sh examples/*/*.sh; do bash -n "$file" || return 1; done
    "$PYTHON" -c 'import ast, pathlib, sys; [ast.parse(pathlib.Path(f).read_text(), f) for f in sys.argv[1:]]' \
        scripts/*.py scripts/*/*.py scripts/*/*/*.py examples/*/*.py
}

if ! OUTLAST_TEST_POSTGRES=$(scripts/private-postgres.sh start "$postgres/server"); then
    echo "the private PostgreSQL did not start" >&2
    exit 1
fi
export OUTLAST_TEST_POSTGRES
# The official SDKs are in it.
export OUTLAST_TEST_PYTHON=$PYTHON

# Documents and demos wait more than they work.
documents_and_demos() {
    "$PYTHON" scripts/check-docs.py --outlast "$OUTLAST_BIN" &&
        "$PYTHON" scripts/demo.py --outlast "$OUTLAST_BIN" &&
        examples/kill-9-resume/demo.sh &&
        examples/riskkernel/demo.sh
}

check "format" cargo fmt --all --check
check "scripts" scripts_are_sound
check "dependencies" "$PYTHON" scripts/check-dependencies.py
check "the build, with lints" lints
# Side by side, since all wait half of the time, for processes that they have killed and for deadlines. Each has ports of
# its own: a server that is killed and started again finds its port free.
aside "Python" "$PYTHON" -m pytest -q -n 2 --dist loadgroup tests/python
aside "documents and demos" documents_and_demos
tests "Rust" nextest
tests "Rust, examples in docs" doctests
join tests "Python"
join check "documents and demos"

summary
