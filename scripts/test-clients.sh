#!/usr/bin/env bash
# Checks with programs of others: CLI agents as they are published, every method of npm's clients, the npm package in Node, Bun
# and Deno, MCP's conformance suite, Python's frameworks, and the page in Debian's Chromium; called by `make test-clients`. A program that
# cannot be installed fails the tests that need it.
#
# Ends with the line `N passed, N failed`. OUTLAST_BIN and PYTHON name the programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/checks.sh

postgres=$(mktemp -d)
chmod 711 "$postgres"
trap 'rm -f "$log"; scripts/private-postgres.sh stop "$postgres/server"; rm -rf "$postgres"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

agents() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --profile clients --no-fail-fast --cargo-quiet --status-level fail --final-status-level fail
    else
        cargo test --workspace --quiet --no-fail-fast --test crash cli_agents::
    fi
}

# Node's own runner counts in a shape of its own. `$1` is what is tested, the rest are its files.
node_tests() {
    local code=0 out what=$1
    out=$(mktemp)
    node --test --test-concurrency=1 --test-reporter=spec "${@:2}" >"$out" 2>&1 || code=$?
    cat "$out"
    awk -v what="$what" '/^ℹ pass /{ good = $3 } /^ℹ fail /{ bad = $3 } END { printf "%d passed, %d failed in %s\n", good, bad, what }' "$out"
    rm -f "$out"
    return "$code"
}

page() {
    node_tests "the page" tests/page/
}

OUTLAST_TEST_TYPESCRIPT=$(scripts/typescript.sh "${CARGO_TARGET_DIR:-target}/typescript")
export OUTLAST_TEST_TYPESCRIPT

types() {
    (cd "$OUTLAST_TEST_TYPESCRIPT/node_modules/outlast" && ../.bin/tsc -p . && ../.bin/tsc -p test/frameworks)
}

npm_package() {
    node_tests "the npm package" typescript/test/*.test.js "$OUTLAST_TEST_TYPESCRIPT"/node_modules/outlast/test/frameworks/*.test.js
}

OUTLAST_TEST_CLIS=$(scripts/clis.sh "${CARGO_TARGET_DIR:-target}/clis")
OUTLAST_TEST_MODULES=$(scripts/page-modules.sh "${CARGO_TARGET_DIR:-target}/page")
# The official SDKs are in it.
OUTLAST_TEST_PYTHON=$PYTHON
export OUTLAST_TEST_CLIS OUTLAST_TEST_MODULES OUTLAST_TEST_PYTHON
OUTLAST_TEST_CONFORMANCE=$(scripts/mcp-conformance.sh "${CARGO_TARGET_DIR:-target}/mcp-conformance")
export OUTLAST_TEST_CONFORMANCE

rules() {
    local promtool
    promtool=$(scripts/promtool.sh "${CARGO_TARGET_DIR:-target}/promtool") && "$promtool" check rules docs/alerts.yml
}

check "the build, with lints" lints
check "rules for alerts" rules
tests "CLI agents" agents
check "types of the npm package" types
tests "the npm package" npm_package
tests "npm's clients, and the conformance of MCP" "$PYTHON" -m pytest -q -m clients tests/python
if ! OUTLAST_TEST_POSTGRES=$(scripts/private-postgres.sh start "$postgres/server"); then
    echo "the private PostgreSQL did not start" >&2
    exit 1
fi
export OUTLAST_TEST_POSTGRES
tests "Python's frameworks" .venv-clients/bin/python -m pytest -q -n 2 tests/frameworks
tests "the page in Chromium" page

summary
