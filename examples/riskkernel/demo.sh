#!/usr/bin/env bash
# kill -9 the server under an agent on RiskKernel's published SDK, restart it, and resume the run: budget, spend, loops
# and checkpoint are still the run's.
#
#   examples/riskkernel/demo.sh [--usd 0.25]
#
# Exits non-zero at the first promise that is not kept. OUTLAST_BIN and PYTHON choose the programs; else they are built
# by `make`.
set -euo pipefail
# shellcheck source=examples/stage.sh
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

# Nothing of the person's own is read or written, and no proxy of theirs is in the way.
unset "${!OUTLAST_@}" "${!XDG_@}" "${!RISKKERNEL_@}" http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export HOME=$dir OUTLAST_STORE=$dir/outlast.db

provider_port=$(free_port)
"$outlast" mock --listen "127.0.0.1:$provider_port" --usage 2250,1000 --latency 150ms --log "$dir/paid" \
    >"$dir/mock.out" 2>&1 &
provider=$!
disown
wait_for is_up "$provider_port"
port=$(free_port)
export RISKKERNEL_BASE_URL=http://127.0.0.1:$port

# The server, always on the same port.
start() {
    OPENAI_API_KEY=sk-a-fake-key "$outlast" serve --listen "127.0.0.1:$port" \
        --openai-base-url "http://127.0.0.1:$provider_port/v1" >>"$dir/serve.out" 2>&1 &
    server=$!
    disown
    wait_for is_up "$port"
}

kill_server() {
    kill -9 "$server"
    wait_for eval "! is_up $port"
}

# work NAME: an agent in the background.
work() {
    "$python" "$here/agent.py" --run-file "$dir/$1.run" --usd "$usd" >>"$dir/$1.out" 2>&1 &
    agent=$!
}

# ended CODE: waits for the agent, which has to end with that code.
ended() {
    local code=0
    wait "$agent" || code=$?
    agent=''
    [ "$code" = "$1" ] || { cat "$dir"/*.out >&2; fail "wanted the agent to exit with $1, had $code"; }
}
answered() { grep -c answered "$dir/$1.out" || true; }
at_least() { [ "$(paid)" -ge "$1" ] || ! lives "$agent"; }

# status NAME EXPRESSION: a fact of the run as the SDK has it, s; dollars as whole nano-dollars.
status() {
    "$python" -c '
import sys
import riskkernel as rk
with rk.default_runtime().resume_run(open(sys.argv[1]).read()) as run:
    s = run.status()
nano = round(s["usage"]["dollars"] * 10**9)
print(eval(sys.argv[2]))' "$dir/$1.run" "$2"
}

echo
echo "1. A run that nobody disturbs, on a budget of $usd usd"
start
work clean
ended 3
clean_paid=$(paid)
clean_answers=$(answered clean)
say "$clean_answers answers, then $(tail -1 "$dir/clean.out")"
[ "$clean_paid" = "$clean_answers" ] || fail "the provider was paid $clean_paid times for $clean_answers answers"

echo
echo "2. The same, and the server is killed with a call on its way"
before=$clean_paid
work killed
lost=0 spent=0
for call in 3 7; do
    wait_for at_least $((before + call))
    lives "$agent" || { say "not killed: the run had ended before its call $call"; break; }
    kill_server
    ended 4
    lost=$((lost + 1))
    start
    [ "$(status killed 's["status"]')" = running ] || fail "wanted a run that goes on, had $(status killed 's["status"]')"
    spent=$(status killed nano) loops=$(status killed 's["usage"]["loops"]')
    say "kill -9 the server with call $call on its way; restarted: $loops loops and $spent nano-usd are used"
    work killed
done
ended 3
killed_paid=$(($(paid) - before))
killed_answers=$(answered killed)
loops=$(status killed 's["usage"]["loops"]')
say "$killed_answers answers, then $(tail -1 "$dir/killed.out")"
say "the provider was asked $killed_paid times: $killed_answers answers, and $((killed_paid - killed_answers)) lost with the server"
[ "$(status killed 's["haltReason"]')" = "$(status clean 's["haltReason"]')" ] || fail "it was halted by another limit"
[ "$killed_paid" -le "$clean_paid" ] || fail "$killed_paid paid calls, a clean run has $clean_paid: the ceiling was passed"
[ "$killed_paid" -le $((killed_answers + lost)) ] || fail "$killed_paid paid calls for $killed_answers answers and $lost lost ones"
# A turn that was cut off is taken again; the last one was refused, at its step or at its call.
turns=$((killed_answers + lost))
if [ "$loops" -lt $turns ] || [ "$loops" -gt $((turns + 1)) ]; then
    fail "$loops loops for $killed_answers answers, $lost lost turns and a refused one"
fi
[ "$(status killed nano)" -ge "$spent" ] || fail "the spend went back"
limit=$(status killed 'round(s["budget"]["dollars"] * 10**9)')
[ "$(status killed nano)" -le "$limit" ] || fail "$(status killed nano) nano-usd spent of $limit"
say "$(status killed nano) of $limit nano-usd are spent, in $loops loops"

echo
echo "3. The ceiling stays, whoever resumes the run"
kill_server
start
before=$(paid)
work killed
ended 3
[ "$(paid)" = "$before" ] || fail "a halted run reached the provider"
say "resumed on the restarted server: $(tail -1 "$dir/killed.out"); the provider was not asked"

echo
echo "Every promise was kept."
