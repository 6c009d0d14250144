#!/usr/bin/env bash
# The trap pattern as it is found in the wild, for comparison. Do not use it: README.md lists what is wrong with it.
STATE_FILE="/tmp/agent_state_$(whoami)_$$.json"
CURRENT_TASK_ID=

save() {
    echo "Agent interrupted, saving state"
    cat > "$STATE_FILE" << EOF
{
    "task_id": "${CURRENT_TASK_ID:-null}",
    "issue_number": "${ISSUE_NUMBER:-null}",
    "workspace_path": "${WORKSPACE_PATH:-null}",
    "branch_name": "${BRANCH_NAME:-null}",
    "progress_stage": "${PROGRESS_STAGE:-null}",
    "timestamp": "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
}
EOF
    exit 0
}
trap save SIGTERM SIGINT EXIT

recover() {
    local file
    for file in "/tmp/agent_state_$(whoami)_"*.json; do
        if [ -f "$file" ]; then
            RECOVERED_TASK_ID=$(jq -r .task_id "$file")
            echo "Recovering task: $RECOVERED_TASK_ID"
            rm "$file"
            return 0
        fi
    done
    return 1
}

if recover; then
    CURRENT_TASK_ID=$RECOVERED_TASK_ID
    kimi --print --prompt "$CURRENT_TASK_ID"
fi
while IFS= read -r CURRENT_TASK_ID; do
    kimi --print --prompt "$CURRENT_TASK_ID" </dev/null
done <tasks.txt
