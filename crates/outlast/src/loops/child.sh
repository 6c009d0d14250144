
# outlast_run CMD…: runs it with its standard input, and waits so that a signal to this shell is heard at once.
outlast_run() {
    __outlast_catch
    # The standard input of a background command is empty unless it is kept before. All within one group: a zsh forgets
    # a child that has ended before the group did, and cannot wait for it.
    {
        "$@" <&9 9<&- &
        __outlast_child=$!
        while :; do
            if wait "$__outlast_child"; then
                __outlast_rc=0
            else
                __outlast_rc=$?
            fi
            # Any other trap of the script interrupts the wait, too.
            kill -0 "$__outlast_child" 2>/dev/null || break
        done
    } 9<&0
    unset __outlast_child
    __outlast_release
    return "$__outlast_rc"
}
