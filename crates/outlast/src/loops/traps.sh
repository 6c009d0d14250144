
# What is known is in the store before anything dies: a signal has nothing to save. SIGTERM and SIGHUP are left at
# their default, which ends a shell at once even while it waits for a foreground child; only while outlast_run waits,
# which a trap interrupts, they are caught, so that the child is ended first. zsh runs its traps at once anyhow. SIGQUIT
# is left to dash in the same way. At their default bash (both signals) and dash (SIGINT) would wait for the child all
# the same, and bash would forget the signal if the child does not die of it.
__outlast_catch() {
    case $- in *i*) return 0 ;; esac
    trap '__outlast_signal TERM 15' TERM
    trap '__outlast_signal HUP 1' HUP
    trap '__outlast_signal INT 2' INT
    trap '__outlast_signal QUIT 3' QUIT
}

__outlast_release() {
    case $- in *i*) return 0 ;; esac
    if [ -n "${BASH_VERSION-}" ]; then
        trap - TERM HUP
    elif [ -z "${ZSH_VERSION-}" ]; then
        trap - TERM HUP QUIT
    fi
}

# Ends the child with all it started, tells how this shell ends, and ends it by the same signal.
__outlast_signal() {
    trap '' TERM HUP INT QUIT
    if [ -n "${__outlast_child-}" ]; then
        "$__outlast_program" shell-loop --pid "$$" --loop "$__outlast_name" stop-child "$__outlast_child" || :
    fi
    "$__outlast_program" shell-loop --pid "$$" --loop "$__outlast_name" end --signal "$2" || :
    trap - EXIT TERM HUP INT QUIT
    # Shells differ in what they do about a signal of their own, and zsh has it blocked in its trap: a program in their
    # place, with their pid, does not.
    exec "$__outlast_program" shell-loop --pid "$$" --loop "$__outlast_name" die "$2"
}

# A bash in a function when its EXIT trap runs, without an `exit`, was ended by a signal: an end of its own leaves all
# functions first.
if [ -n "${BASH_VERSION-}" ]; then __outlast_in='"${FUNCNAME[*]-}"'; fi

# outlast_exit CODE: for EXIT traps of a script's own that end it themselves, in place of `exit`.
outlast_exit() {
    trap - EXIT
    __outlast_over=1
    if [ -n "${BASH_VERSION-}" ]; then
        # bash gets here also when a signal ends it in the middle of a command, and does not say so.
        set -- "$1" --jobs="$(jobs -lr)" --command="$BASH_COMMAND" --within="${2-}" --traps="$(trap -p)"
    else
        set -- "$1"
    fi
    if "$__outlast_program" shell-loop --pid "$$" --loop "$__outlast_name" end --code "$@"; then
        exit 0
    else
        exit "$?"
    fi
}

# trap, as a script says it (an alias, made last): an EXIT trap of the script's own is followed by ours, and does not
# take its place.
__outlast_trap() {
    case ${1-} in
        -[!-]*) __outlast_builtin_trap "$@"; return ;;
        --) shift ;;
    esac
    [ "$#" -gt 1 ] || { __outlast_builtin_trap "$@"; return; }
    __outlast_action=$1
    shift
    for __outlast_condition; do
        case $__outlast_condition in
            EXIT | 0)
                case $__outlast_action in
                    -) __outlast_own= ;;
                    *) __outlast_own=$__outlast_action ;;
                esac
                __outlast_builtin_trap "__outlast_at_exit \"\$?\" ${__outlast_in-}" EXIT
                ;;
            *) __outlast_builtin_trap -- "$__outlast_action" "$__outlast_condition" ;;
        esac
    done
}
if [ -n "${BASH_VERSION-}${ZSH_VERSION-}" ]; then
    __outlast_builtin_trap() { builtin trap "$@"; }
else
    __outlast_builtin_trap() { command trap "$@"; }
fi

# Runs the script's own EXIT trap with its `$?`, also under `set -e`, and then ours.
__outlast_at_exit() {
    __outlast_status=$1
    if [ "$__outlast_status" = 0 ]; then
        eval "${__outlast_own-}"
    else
        (exit "$__outlast_status") || eval "${__outlast_own-}"
    fi
    # In a trap, zsh returns from a function that said `exit`.
    [ -n "${__outlast_over-}" ] || outlast_exit "$__outlast_status" "${2-}"
}
