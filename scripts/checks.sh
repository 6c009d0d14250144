# What scripts/test.sh and scripts/test-clients.sh share: checks that are counted. To be sourced.
#
# A check that fails does not keep the others from being run. `summary` ends with the line `N passed, N failed`: tests
# count as their runners count them, any other check as one.

log=$(mktemp)
passed=0 failed=0 broken=()
declare -A aside_pid aside_log

# Clippy stands in for the compiler of our own crates: what is linted is what is tested, and nothing is compiled for lints
# alone. In both scripts, as another compiler makes another build.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver

# Compiles everything once. A warning fails it.
lints() {
    local out code=0
    out=$(mktemp)
    cargo build --workspace --all-targets >"$out" 2>&1 || code=$?
    if [ "$code" != 0 ] || grep -qE 'generated [0-9]+ warning' "$out"; then
        grep -vE '^ +(Compiling|Downloaded|Downloading) ' "$out"
        code=1
    fi
    rm -f "$out"
    return "$code"
}

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

# aside NAME COMMAND…: begins a check beside those that follow. `join KIND NAME` waits for it, shows its output and counts
# it as a `check` or as `tests`.
aside() {
    local name=$1
    shift
    aside_log[$name]=$(mktemp)
    "$@" >"${aside_log[$name]}" 2>&1 &
    aside_pid[$name]=$!
}

join() {
    local kind=$1 name=$2 code=0
    wait "${aside_pid[$name]}" || code=$?
    "$kind" "$name" told "${aside_log[$name]}" "$code"
    rm -f "${aside_log[$name]}"
}

# Shows what a check printed, and ends as it did.
told() {
    cat "$1"
    return "$2"
}

# tests NAME COMMAND…: a runner whose output counts its tests. One that fails and counts no failure counts as one.
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

# Whether everything passed, after the closing lines.
summary() {
    local name
    rm -f "$log"
    echo
    for name in "${broken[@]}"; do echo "failed: $name"; done
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}
