#!/usr/bin/env bash
# Takes the pictures of docs/guides/watching.md anew: the page in Chromium, as its tests walk it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shots=$(mktemp -d)
trap 'rm -rf "$shots"' EXIT
OUTLAST_BIN=${OUTLAST_BIN:-$PWD/target/debug/outlast} OUTLAST_SHOTS=$shots \
    OUTLAST_TEST_MODULES=$(scripts/page-modules.sh "${CARGO_TARGET_DIR:-target}/page") \
    node --test --test-name-pattern='1440 px in light|390 px in dark' tests/page/page.test.mjs
cp "$shots/run2-1440-light.png" docs/guides/watching-run.png
cp "$shots/approvals1-390-dark.png" docs/guides/watching-approvals.png
