# What demonstrations of `outlast serve` stand on, to be sourced with their arguments: the programs, a directory that goes
# with a success, processes that end with the script, and what is asked of them again and again.

usd=0.25
while [ $# -gt 0 ]; do
    case $1 in
    --usd) usd=${2:?--usd wants an amount}; shift 2 ;;
    --usd=*) usd=${1#*=}; shift ;;
    *) echo "usage: demo.sh [--usd 0.25]" >&2; exit 2 ;;
    esac
done

here=$(cd "$(dirname "$0")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
if [ -z "${OUTLAST_BIN:-}" ] || [ -z "${PYTHON:-}" ]; then make -s -C "$root" program; fi
outlast=${OUTLAST_BIN:-${CARGO_TARGET_DIR:-$root/target}/demo/outlast}
python=${PYTHON:-$root/.venv-demo/bin/python}

dir=$(mktemp -d)
server='' provider='' agent=''
# What a failure leaves behind is worth a look; after a success nothing is.
finish() {
    local code=$?
    for pid in $agent $server $provider; do kill -9 "$pid" 2>/dev/null || true; done
    if [ $code = 0 ]; then rm -rf "$dir"; else echo "what happened is in $dir" >&2; fi
}
trap finish EXIT

say() { printf '  %s\n' "$*"; }
fail() {
    printf 'PROMISE BROKEN: %s\n' "$*" >&2
    exit 1
}
# Below those that the kernel gives out: no connection takes it while the server is away.
free_port() {
    local port=$((RANDOM % 2000 + 8000))
    while is_up "$port"; do port=$((port + 1)); done
    echo "$port"
}
paid() { if [ -e "$dir/paid" ]; then wc -l <"$dir/paid"; else echo 0; fi; }
is_up() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
lives() { kill -0 "$1" 2>/dev/null; }

# wait_for COMMAND…: until it is true. The number of tries is against a hang alone: nothing here is a matter of speed.
wait_for() {
    local tries=45000
    until "$@"; do
        ((tries-- > 0)) || fail "waited in vain for: $*"
        sleep 0.02
    done
}
