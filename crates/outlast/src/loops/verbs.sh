
# Says a word and evaluates the answer: exports, with every value quoted.
__outlast_verb() {
    if __outlast_said=$("$__outlast_program" shell-loop --pid "$$" --loop "$__outlast_name" "$@"); then
        eval "$__outlast_said"
        unset __outlast_said
        return 0
    else
        __outlast_rc=$?
        unset __outlast_said
        return "$__outlast_rc"
    fi
}

# What cannot be recorded must not go on as if it were. 1 is an answer, not a failure.
__outlast_checked() {
    if [ "$1" -gt 1 ]; then
        case $- in
            *i*) ;;
            *) exit "$1" ;;
        esac
    fi
    return "$1"
}

# 0, with RECOVERED_TASK_ID TASK_ID ISSUE_NUMBER WORKSPACE_PATH BRANCH_NAME PROGRESS_STAGE of the task that an
# earlier life of this loop began and did not finish; 1 when there is none.
outlast_recover() {
    if __outlast_verb recover --max-lives "$__outlast_lives"; then
        return 0
    else
        __outlast_rc=$?
        unset RECOVERED_TASK_ID
        __outlast_checked "$__outlast_rc"
    fi
}

# outlast_begin TASK [KEY=VALUE …]
outlast_begin() { __outlast_verb begin -- "$@" || __outlast_checked "$?"; }

# outlast_stage NAME [KEY=VALUE …]
outlast_stage() { __outlast_verb stage -- "$@" || __outlast_checked "$?"; }

# outlast_done [TASK]
outlast_done() { __outlast_verb "done" -- "$@" || __outlast_checked "$?"; }

# outlast_is_over TASK: 0 when it was done before, or set aside.
outlast_is_over() { __outlast_verb is-over -- "$@" || __outlast_checked "$?"; }
