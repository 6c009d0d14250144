"""Plays one life of a story in Python: reads it from the environment, works in the run, says what came of each thing."""

import json
import os
import signal
import sys

import outlast

LIFE = json.loads(os.environ["STORY_LIFE"])


def append(name, line):
    with open(os.environ[name], "a") as file:
        file.write(f"{line}\n")


def add(line):
    append("STORY_LEDGER", line)


def say(what):
    append("STORY_SAID", json.dumps(what, ensure_ascii=False))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def worked(name, arg, how):
    add(f"{name} {arg}")
    if how == "dies":
        die()
    if how == "throws":
        raise RuntimeError(f"no {arg}")
    return {name: arg}


class Deeds:
    def __init__(self, rt, run):
        self.rt, self.run, self.how = rt, run, None
        self.tools = {}

    def step(self, name, arg, how=None):
        return self.run.step(name, lambda a: worked(name, a, how), arg)

    def once(self, name, arg, how=None):
        return self.run.step(name, lambda a: worked(name, a, how), arg, key=name, at_most_once=True)

    def retried(self, name, tries, how=None):
        def work():
            tried = outlast.current().try_
            add(f"{name} {tried}")
            if how == "dies":
                die()
            if tried < tries:
                raise RuntimeError("again")
            return {name: tried}

        return self.run.step(name, work, retries=outlast.Retry(tries - 1, base=0))

    def tool(self, name, arg, how=None):
        self.how = how
        if name not in self.tools:
            self.tools[name] = outlast.tool(name=name)(lambda a: worked(name, a, self.how))
        return self.tools[name](arg)

    def die(self):
        die()

    def map(self, items, dies=None):
        def work(item):
            add(f"item {item}")
            if item == dies:
                die()
            return item.upper()

        return [r.value for r in outlast.map(items, work, job="job", key=str, concurrency=1)]

    def loop(self, key):
        return self.run.loop(key)

    def set(self, key, value):
        self.run.state.put(key, value)

    def cas(self, key, version, value):
        self.run.state.put(key, value, expected=version)

    def get(self, key):
        return list(self.run.state.get_versioned(key))

    def counts(self, key, how=None):
        def work():
            add(f"counts {key}")
            version, value = self.run.state.get_versioned(key, 0)
            self.run.state.put(key, value + 1, expected=version)
            if how == "dies":
                die()
            return value + 1

        return self.run.step("counts", work)

    def save(self, name, value):
        self.run.checkpoint(name, value)

    def latest(self, name):
        found = self.run.latest_checkpoint(name)
        return found

    def approve(self, tool, arguments):
        self.run.approve(tool, arguments)
        return "approved"

    def snapshot(self, name):
        self.run.snapshot(name)

    def reserve(self, most, cost=None):
        held = outlast.reserve(usd=most)
        if cost is not None:
            held.settle(usd=cost)

    def hold(self):
        say("held")
        sys.stdin.read()


def play():
    limits = {name: LIFE[name] for name in ("loops", "usd") if name in LIFE}
    how = {"budget": outlast.Budget(**limits)} if limits else {}
    if "from" in LIFE:
        how["from_snapshot"] = LIFE["from"]
    rt = outlast.connect()
    is_open = False
    try:
        with rt.run(os.environ["STORY_RUN"], **how) as run:
            is_open = True
            deeds = Deeds(rt, run)
            for deed, *about in LIFE["does"]:
                try:
                    say(getattr(deeds, deed)(*about))
                except outlast.Error as e:
                    if e.code.startswith("tool_"):
                        say(f"error: {e.message}")
                        continue
                    say(e.code)
                    raise
                except RuntimeError as e:
                    say(f"error: {e}")
    except outlast.Error as e:
        if not is_open:
            say({"opens": e.code})
        return 1
    return 0


sys.exit(play())
