#!/usr/bin/env bash
# Names Debian's promtool; where it is not installed, it is unpacked from its package into the directory DIR, and no service
# is installed with it.
set -euo pipefail

if command -v promtool; then exit 0; fi
mkdir -p "$1"
cd "$1"
if [ ! -x usr/bin/promtool ]; then
    apt-get download -q prometheus >/dev/null 2>&1 || { apt-get update -q && apt-get download -q prometheus; } >&2
    dpkg -x prometheus_*.deb .
fi
echo "$PWD/usr/bin/promtool"
