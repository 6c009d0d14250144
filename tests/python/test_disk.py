"""A disk that is full, or fails: batches and steps say so, nothing acknowledged is lost, and they go on when it is well."""

import os
import subprocess
import sys
import textwrap

import pytest

from conftest import SOURCES

PROGRAM = """
    import asyncio, os, sys, threading, outlast
    where, how = sys.argv[1:3]
    ran, told = [], []

    def break_disk():
        BREAK

    def mend_disk():
        MEND

    def work(i):
        if i == 40 and i not in ran:
            break_disk()
        ran.append(i)
        # Not to be compressed: the disk has to take it.
        return os.urandom(8000).hex()

    async def awork(i):
        return work(i)

    def batch(rt):
        given = dict(job="j", key=str, concurrency=4, store=rt)
        if how == "threads":
            for r in outlast.map(range(200), work, **given):
                told.append((r.key, r.value)) if r.ok else None
            return
        async def main():
            async for r in outlast.amap(range(200), awork, **given):
                told.append((r.key, r.value)) if r.ok else None
        asyncio.run(main())

    def steps(rt):
        with rt.run("r") as run:
            for i in range(200):
                told.append((str(i), run.step("work", work, i)))

    life = steps if how == "steps" else batch
    rt = outlast.connect(where + "/runs.db")
    try:
        life(rt)
        sys.exit("the disk broke, and nobody said so")
    except outlast.StoreError as e:
        print(e.code, "|", str(e).splitlines()[0], flush=True)
    before, acknowledged = len(ran), dict(told)
    assert 0 < before < 200 and acknowledged
    try:
        rt.close()
    except outlast.StoreError as e:
        print("at close:", e.code)
    mend_disk()
    told.clear()
    rt = outlast.connect(where + "/runs.db")
    life(rt)
    rt.close()
    assert [k for k, _ in told] == [str(i) for i in range(200)], "an item is lost"
    assert {k: v for k, v in told if k in acknowledged} == acknowledged, "what was told has changed"
    again = set(ran[:before]) & set(ran[before:])
    assert not again & set(map(int, acknowledged)), "what was told ran again"
    print("went on")
"""


def played(home, how, breaks, mends, within=(), env=None):
    text = textwrap.dedent(PROGRAM)
    text = text.replace("BREAK", textwrap.indent(textwrap.dedent(breaks), "    ").strip())
    text = text.replace("MEND", textwrap.indent(textwrap.dedent(mends), "    ").strip())
    (home / "program.py").write_text(text)
    place = home / "disk"
    place.mkdir()
    command = [*(part.replace("DISK", str(place)) for part in within), sys.executable, str(home / "program.py"), str(place), how]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **(env or {})}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


# A file system of its own, in a mount namespace of its own.
MOUNTED = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--user", "--map-root-user"])]
MOUNTED += ["sh", "-c", 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"', "DISK"]


@pytest.mark.parametrize("how", ["threads", "asyncio", "steps"])
def test_on_a_full_disk_nothing_told_is_lost_and_it_goes_on_when_there_is_room(home, how):
    breaks = """
        with open(where + "/filler", "wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass
    """
    said = played(home, how, breaks, 'os.unlink(where + "/filler")', MOUNTED)
    assert said[0].startswith("store_full |") and said[-1] == "went on", said


FAILING = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/uio.h>
    #include <unistd.h>

    static int broken(void) { return access(getenv("BROKEN_DISK"), F_OK) == 0; }

    int fsync(int fd) {
        int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
        if (broken()) { errno = EIO; return -1; }
        return real(fd);
    }

    int fdatasync(int fd) {
        int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
        if (broken()) { errno = EIO; return -1; }
        return real(fd);
    }

    ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
        ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, "pwritev2");
        if (!broken()) return real(fd, parts, count, at, flags);
        // Written, and not on disk.
        real(fd, parts, count, at, 0);
        errno = EIO;
        return -1;
    }
"""


@pytest.mark.parametrize("how", ["threads", "asyncio", "steps"])
def test_where_a_sync_fails_nothing_told_is_lost_and_it_goes_on_when_the_store_is_opened_anew(home, how):
    (home / "failing.c").write_text(textwrap.dedent(FAILING))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "failing.so", "failing.c", "-ldl"], cwd=home, check=True, timeout=60)
    flag = home / "broken"
    env = {"LD_PRELOAD": str(home / "failing.so"), "BROKEN_DISK": str(flag)}
    breaks, mends = f"open({str(flag)!r}, 'w').close()", f"os.unlink({str(flag)!r})"
    said = played(home, how, breaks, mends, env=env)
    # Whoever was first says it: its commit failed, it is not known whether it did, or nothing is taken any more.
    assert said[0].split(" |")[0] in ("store_io", "commit_unknown", "store_refused"), said
    assert "disk I/O error" in said[0] and said[-1] == "went on", said
