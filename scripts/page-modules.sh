#!/usr/bin/env bash
# Installs what drives the tests of the page by npm into the directory $1 (kept from time to time), and prints where it is.
# The browser is Debian's: none is downloaded.
set -euo pipefail

packages=(puppeteer-core@24.43.1 axe-core@4.14.1)

mkdir -p "$1"
into=$(cd "$1" && pwd)
if [ "$(cat "$into/ready" 2>/dev/null)" != "${packages[*]}" ]; then
    npm install --prefix "$into" --no-audit --no-fund --silent "${packages[@]}" >&2
    echo "${packages[*]}" >"$into/ready"
fi
echo "$into/node_modules"
