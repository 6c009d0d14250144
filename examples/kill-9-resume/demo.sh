#!/usr/bin/env bash
# kill -9 the server under a running agent, restart it, and see that the run's budget is still the run's.
#
#   examples/kill-9-resume/demo.sh [--usd 0.25]
#
# Nobody supervises the agent here: `outlast serve` stands between it and a fake provider, and the agent names
# its run in a header. Run it again with another budget: the ceiling holds. Exits non-zero at the first promise
# that is not kept. OUTLAST_BIN and PYTHON choose the programs; else they are built by `make`.
set -euo pipefail
# shellcheck source=examples/stage.sh
. "$(dirname "${BASH_SOURCE[0]}")/../stage.sh"

# show RUN EXPRESSION: a fact of the run's story, t.
show() {
    "$outlast" --json show "$1" | "$python" -c '
import json, sys
t = json.load(sys.stdin)
spent = {unit["unit"]: unit["spent"] for unit in t["budget"]}
print(eval(sys.argv[1]))' "$2"
}
usd_of() { "$python" -c 'import sys; print(int(sys.argv[1]) / 1e9)' "$1"; }

# Nothing of the person's own is read or written, and no proxy of theirs is in the way.
unset "${!OUTLAST_@}" "${!XDG_@}" http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export HOME=$dir OUTLAST_STORE=$dir/outlast.db

provider_port=$(free_port)
"$outlast" mock --listen "127.0.0.1:$provider_port" --usage 2250,1000 --latency 150ms --log "$dir/paid" \
    >"$dir/mock.out" 2>&1 &
provider=$!
disown
wait_for is_up "$provider_port"
port=$(free_port)

# start BUDGET: the server, always on the same port.
start() {
    OPENAI_API_KEY=sk-a-fake-key "$outlast" serve --listen "127.0.0.1:$port" --default-usd "$1" \
        --openai-base-url "http://127.0.0.1:$provider_port/v1" >>"$dir/serve.out" 2>&1 &
    server=$!
    disown
    wait_for is_up "$port"
}

kill_server() {
    kill -9 "$server"
    wait_for eval "! is_up $port"
}

# ask RUN LABEL [UNTIL]: an agent in the background.
ask() {
    OPENAI_BASE_URL=http://127.0.0.1:$port/v1 OPENAI_API_KEY=any-key "$python" "$here/agent.py" \
        --run "$1" --label "$2" --checkpoint "$dir/$1.json" --until "${3:-10000}" >>"$dir/$1.out" 2>&1 &
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

echo
echo "1. A run that nobody disturbs, on a budget of $usd usd"
start "$usd"
ask clean one
ended 3
clean_paid=$(paid)
clean_answers=$(answered clean)
say "$clean_answers answers, then refused: $(show clean 't["halt"]["message"]')"
[ "$clean_paid" = "$clean_answers" ] || fail "the provider was paid $clean_paid times for $clean_answers answers"

echo
echo "2. The same, and the server is killed under it"
before=$clean_paid
ask killed one
pid=$agent
lost=0
for call in 3 7; do
    wait_for at_least $((before + call))
    lives "$agent" || { say "not killed: the run had ended before its call $call"; break; }
    kill_server
    spent=$(show killed 'spent["cost_nano_usd"]') loops=$(show killed 'spent["loops"]')
    lives "$agent" || fail "the agent was to live, only the server was killed"
    say "kill -9 the server (pid $server), call $call on the way; the agent (pid $agent) lives and waits"
    lost=$((lost + 1))
    start "$usd"
    say "restarted on port $port: $loops loops and $(usd_of "$spent") usd are still spent"
    [ "$(show killed 'spent["cost_nano_usd"]')" -ge "$spent" ] || fail "the spend went back"
    [ "$(show killed 'spent["loops"]')" -ge "$loops" ] || fail "the loop count went back"
done
[ "$pid" = "$agent" ] || fail "the agent was to be one process"
ended 3
killed_paid=$(($(paid) - before))
killed_answers=$(answered killed)
say "$killed_answers answers, then refused: $(show killed 't["halt"]["message"]')"
grep -q 'refused, dollar_budget_exceeded' "$dir/killed.out" || fail "wanted a refusal for dollars: $(tail -1 "$dir/killed.out")"
say "the provider was asked $killed_paid times: $killed_answers answers, and $((killed_paid - killed_answers)) lost with the server"
[ "$killed_paid" -le "$clean_paid" ] || fail "$killed_paid paid calls, a clean run has $clean_paid: the ceiling was passed"
[ "$killed_paid" -le $((killed_answers + lost)) ] || fail "$killed_paid paid calls for $killed_answers answers and $lost lost ones"
accounted=$(show killed 'sum(t["calls_by_state"][state] for state in ("done", "failed", "unknown"))')
[ "$accounted" = "$killed_paid" ] || fail "the journal accounts for $accounted of $killed_paid paid calls"
spent=$(show killed 'spent["cost_nano_usd"]')
limit=$("$python" -c 'import sys; from decimal import Decimal; print(int(Decimal(sys.argv[1]) * 10**9))' "$usd")
[ "$spent" -le "$limit" ] || fail "$(usd_of "$spent") usd spent of $usd usd"
say "$(usd_of "$spent") usd of $usd usd are spent; each paid call is in the journal"

echo
echo "3. The ceiling stays after the halt, whoever asks"
kill_server
start "$usd"
before=$(paid)
ask killed two
ended 3
[ "$(paid)" = "$before" ] || fail "a halted run reached the provider"
say "a new agent on the restarted server: $(tail -1 "$dir/killed.out"); the provider was not asked"

echo
echo "4. An agent that has its own checkpoint: 47 requests of a 5 usd budget, then kill -9 everything"
kill_server
start 5
ask research one 47
ended 0
spent=$(show research 'spent["cost_nano_usd"]') loops=$(show research 'spent["loops"]')
kill_server
start 5
say "before the crash: $loops loops, $(usd_of "$spent") usd"
[ "$loops" = 47 ] || fail "wanted 47 loops, had $loops"
ask research two 50
ended 0
after=$(show research 'spent["cost_nano_usd"]') loops=$(show research 'spent["loops"]')
first=$(sed -n 48p "$dir/research.out")
say "$first by a new process; now $loops loops, $(usd_of "$after") usd"
[ "$first" = "request 48: answered" ] || fail "wanted it to go on at request 48, had: $first"
[ "$loops" = 50 ] || fail "wanted 50 loops, had $loops"
[ "$after" = $((spent / 47 * 50)) ] || fail "wanted 50 times the price of a call, had $after nano-usd"

echo
echo "Every promise was kept."
