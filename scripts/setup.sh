#!/usr/bin/env bash
# Sees to it that programs are there: scripts/setup.sh cc|venv|script|ps|shells|tls|npm|chromium|nginx|pgbouncer|debootstrap…
#
# What is missing is installed from Debian when we are root; else its package is named, and nothing is changed.
set -euo pipefail

has() {
    case $1 in
    cc) command -v cc >/dev/null ;;
    venv) python3 -c 'import venv, ensurepip' 2>/dev/null ;;
    script) command -v script >/dev/null ;;
    ps) command -v ps >/dev/null && command -v setsid >/dev/null ;;
    shells) command -v bash >/dev/null && command -v dash >/dev/null && command -v zsh >/dev/null ;;
    tls) command -v curl >/dev/null && command -v openssl >/dev/null && [ -e /etc/ssl/certs ] ;;
    npm) command -v npm >/dev/null && command -v node >/dev/null ;;
    chromium) command -v chromium >/dev/null ;;
    nginx) command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] ;;
    debootstrap) command -v debootstrap >/dev/null || [ -x /usr/sbin/debootstrap ] ;;
    pgbouncer) command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] ;;
    *) echo "setup: what is $1?" >&2; exit 2 ;;
    esac
}

packages() {
    case $1 in
    cc) echo build-essential ;;
    venv) echo python3 python3-venv ;;
    script) echo bsdutils ;;
    ps) echo procps util-linux ;;
    shells) echo bash dash zsh ;;
    tls) echo curl openssl ca-certificates ;;
    npm) echo nodejs npm ;;
    chromium) echo chromium fonts-dejavu-core ;;
    nginx) echo nginx-light ;;
    pgbouncer) echo pgbouncer ;;
    debootstrap) echo debootstrap ;;
    esac
}

missing=()
for program in "$@"; do
    if ! has "$program"; then
        read -ra more <<<"$(packages "$program")"
        missing+=("${more[@]}")
    fi
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: wanted the packages ${missing[*]}; install them, for example: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"
