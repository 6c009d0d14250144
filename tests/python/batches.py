"""Batches for tests: over which items, with what work."""

import time

import outlast


class Work:
    """A function of an item that notes what it is called with."""

    def __init__(self, body=lambda item: item):
        self.body = body
        self.ran = []

    def __call__(self, item):
        self.ran.append(item)
        return self.body(item)


def results(batch):
    return {r.key: (r.value if r.ok else r.status) for r in batch}


def batch(rt, items, fn, **options):
    return outlast.map(items, fn, **{"job": "j", "key": str, "store": rt, "concurrency": 4, **options})


async def collected(items, fn, **options):
    return [r async for r in outlast.amap(items, fn, **{"job": "j", "key": str, **options})]


def until(condition, seconds=60):
    """Waits for what is to come about."""
    over = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < over, "it did not come about"
        time.sleep(0.005)
