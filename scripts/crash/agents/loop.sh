# A loop over tasks that a shell does in stages, and says to the world outside which of it is recorded.
name=$CRASH_RUN
[ "$CRASH_FAULT" != "a loop under another name" ] || name=$name-$$
eval "$(outlast shell-init --run "$name")" || exit

ack() {
    local body="{\"run\": \"$CRASH_RUN\", \"life\": \"$$\", \"what\": \"$1\", \"value\": \"$2\"}"
    exec 9<>"/dev/tcp/127.0.0.1/$CRASH_OUTSIDE"
    printf 'POST /ack HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s' "${#body}" "$body" >&9
    read -r _ <&9
    exec 9>&-
}

while :; do
    stage=
    if outlast_recover; then
        task=$TASK_ID stage=${PROGRESS_STAGE-}
        ack recovered "$task ${stage:-0}"
    else
        task=
        for t in $(seq "$CRASH_CALLS"); do
            outlast_is_over "$t" || { task=$t; break; }
        done
        [ -n "$task" ] || break
        outlast_begin "$task"
        ack stage "$task 0"
    fi
    for s in 1 2; do
        [ "$s" -gt "${stage:-0}" ] || continue
        outlast_stage "$s"
        ack stage "$task $s"
    done
    [ "$CRASH_FAULT" != "a loop under another name" ] || [ -e lived ] || { touch lived; kill -9 $$; }
    outlast_done
    ack stage "$task 9"
done
ack end ""
