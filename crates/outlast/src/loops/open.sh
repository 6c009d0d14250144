
if [ -n "${ZSH_VERSION-}" ]; then
    setopt POSIX_TRAPS TRAPS_ASYNC
fi
if __outlast_verb open; then
    trap "outlast_exit \"\$?\" ${__outlast_in-}" EXIT
    __outlast_catch
    __outlast_release
    # bash knows aliases in scripts only when it is told.
    if [ -n "${BASH_VERSION-}" ]; then shopt -s expand_aliases; fi
    alias trap=__outlast_trap
else
    __outlast_rc=$?
    case $- in
        *i*) (exit "$__outlast_rc") ;;
        *) exit "$__outlast_rc" ;;
    esac
fi
