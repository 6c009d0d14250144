#!/bin/sh
# Works through issues/*.md with `claude -p`, one after another. Killed anywhere, by anything, it goes on where it was.
set -u
eval "$(outlast shell-init --run "${LOOP_NAME:-claude-loop}")" || exit

next_issue() {
    for file in issues/*.md; do
        number=$(basename "$file" .md)
        if [ -e "$file" ] && ! outlast_is_over "issue-$number"; then
            printf '%s\n' "$number"
            return 0
        fi
    done
    return 1
}

while :; do
    note=
    if outlast_recover; then
        echo "claude-loop: going on with $TASK_ID at stage ${PROGRESS_STAGE:-none} (life $OUTLAST_TASK_LIVES)"
        note="You were interrupted at this issue before: look at what is there already, and do nothing twice. "
    elif number=$(next_issue); then
        outlast_begin "issue-$number" issue_number="$number" workspace_path="$PWD" branch_name="issue-$number" || exit
        outlast ctx ref issue="issues/$number.md"
    else
        break
    fi
    outlast_stage coding
    # Not in the foreground: a signal to this script is heard at once, and ends claude with all it started.
    outlast_run claude -p "${note}Resolve issue $ISSUE_NUMBER: $(cat "issues/$ISSUE_NUMBER.md")" || exit
    outlast_stage review
    outlast_run claude -p "Review branch $BRANCH_NAME." || exit
    outlast_done
done
echo "claude-loop: nothing is left to do"
