#!/usr/bin/env bash
# Takes the next line of tasks.txt, gives it to `kimi`, for ever or until nothing is left.
set -u
eval "$(outlast shell-init --run "${LOOP_NAME:-kimi-loop}")" || exit

while :; do
    if outlast_recover; then
        echo "kimi-loop: going on with $TASK_ID"
    else
        task=
        while IFS= read -r line; do
            if [ -n "$line" ] && ! outlast_is_over "$line" </dev/null; then
                task=$line
                break
            fi
        done <tasks.txt
        [ -n "$task" ] || break
        outlast_begin "$task" workspace_path="$PWD" || exit
    fi
    outlast_stage "attempt $OUTLAST_ATTEMPT"
    outlast_run kimi --print --prompt "$TASK_ID" || exit
    outlast_done
done
