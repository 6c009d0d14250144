#!/usr/bin/env bash
# A PostgreSQL server of one's own for tests: started in a directory, gone with it.
#
#   scripts/private-postgres.sh start DIR   makes DIR, starts a server in it, prints its URL; with a third word, `synced`,
#                                           it syncs its log as servers do
#   scripts/private-postgres.sh stop DIR    kills it and removes what it wrote
#
# It listens on a Unix socket in DIR only. As root, which PostgreSQL refuses, it runs as `postgres`
# or `nobody`. When the machine has no server and we are root on Debian, the package is installed.
set -euo pipefail

fail() {
    printf 'private-postgres: %s\n' "$*" >&2
    exit 1
}

# The directory of initdb and pg_ctl: Debian's newest version, or whatever is on PATH.
programs() {
    local found
    found=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
    if [ -n "$found" ] && [ -x "$found/initdb" ] && [ -x "$found/pg_ctl" ]; then
        printf '%s\n' "$found"
    elif command -v initdb >/dev/null && command -v pg_ctl >/dev/null; then
        dirname "$(command -v initdb)"
    fi
}

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "wanted PostgreSQL's initdb and pg_ctl, found none; install the package postgresql"
    export DEBIAN_FRONTEND=noninteractive
    # The package would start a cluster of its own, on the machine's port.
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.conf
    { apt-get update -q && apt-get install -q -y --no-install-recommends postgresql; } >&2
}

# Runs a command as somebody PostgreSQL accepts.
unprivileged() {
    if [ "$(id -u)" = 0 ]; then
        runuser -u "$account" -- "$@"
    else
        "$@"
    fi
}

account() {
    if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi
}

# All but unreserved characters and slashes, for a URL.
percent_encoded() {
    local LC_ALL=C text=$1 i c
    for ((i = 0; i < ${#text}; i++)); do
        c=${text:i:1}
        case $c in
        [A-Za-z0-9._~/-]) printf '%s' "$c" ;;
        *) printf '%%%02X' "'$c" ;;
        esac
    done
}

start() {
    local dir=$1 synced=$2 bin free
    bin=$(programs)
    if [ -z "$bin" ]; then
        install
        bin=$(programs)
        [ -n "$bin" ] || fail "the package postgresql brought no initdb and pg_ctl"
    fi
    account=$(account)
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd -P)
    # The kernel's limit for a socket's path is 107 bytes.
    [ ${#dir} -le 85 ] || fail "the directory's path has ${#dir} bytes, at most 85 leave room for a socket: $dir"
    [ ! -e "$dir/data" ] || fail "there is a server's directory already: $dir/data"
    if [ "$(id -u)" = 0 ]; then chown "$account" "$dir"; fi
    chmod 0700 "$dir"
    # A disk may have room for root alone: a server that finds none fails test after test, each after a wait.
    free=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge 2097152 ] || fail "wanted 2 GiB of room in $dir for accounts other than root, had $((free / 1024)) MiB; make room, or set TMPDIR to a directory with more"
    cd "$dir"
    unprivileged "$bin/initdb" --pgdata="$dir/data" --username=postgres --auth=trust --encoding=UTF8 \
        --locale=C --no-sync >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; fail "initdb failed"; }
    # The last line of a setting counts. Quotes within a setting's quotes are doubled.
    {
        printf "listen_addresses = ''\n"
        printf "unix_socket_directories = '%s'\n" "${dir//\'/\'\'}"
        printf 'max_connections = 200\n'
        # Its data end with it: what only a loss of power could take need not be on the disk.
        [ "$synced" ] || printf 'fsync = off\nfull_page_writes = off\n'
    } >>"$dir/data/postgresql.conf"
    unprivileged "$bin/pg_ctl" --pgdata="$dir/data" --log="$dir/server.log" --silent --wait --timeout=60 start \
        >&2 </dev/null || {
        cat "$dir/server.log" >&2 || true
        stop "$dir"
        fail "the server did not start"
    }
    printf 'postgres://postgres@/postgres?host=%s\n' "$(percent_encoded "$dir")"
}

stop() {
    local dir=$1 pid
    [ -d "$dir" ] || return 0
    dir=$(cd "$dir" && pwd -P)
    # Whose data are these? Nothing else is ever removed.
    [ ! -d "$dir/data" ] || [ -e "$dir/data/PG_VERSION" ] || fail "no PostgreSQL server's directory: $dir/data"
    # The first line of the file is the postmaster's pid. SIGQUIT ends it and its children at once,
    # without a checkpoint; a pid that was given to another process meanwhile is left alone.
    pid=$(head -n 1 "$dir/data/postmaster.pid" 2>/dev/null || true)
    if [ -n "$pid" ] && is_ours "$pid" "$dir"; then
        kill -QUIT "$pid" 2>/dev/null || true
        for ((i = 0; i < 100; i++)); do
            is_ours "$pid" "$dir" || break
            sleep 0.1
        done
        # Its children notice that it is gone and end by themselves.
        if is_ours "$pid" "$dir"; then kill -KILL "$pid" 2>/dev/null || true; fi
    fi
    rm -rf "$dir/data" "$dir/initdb.log" "$dir/server.log"
    rmdir "$dir" 2>/dev/null || true
}

# Whether the process runs in that server's data directory.
is_ours() {
    [ "$(readlink "/proc/$1/cwd" 2>/dev/null)" = "$2/data" ]
}

case $#:${1-}:${3-} in
2:start: | 3:start:synced) start "$2" "${3-}" ;;
2:stop:) stop "$2" ;;
*) fail "usage: private-postgres.sh start DIR [synced] | stop DIR" ;;
esac
