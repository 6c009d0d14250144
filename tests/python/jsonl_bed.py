"""A job over a file of results, and a count of the calls that were paid for."""

import json
from collections import Counter

import pytest

from outlast import JsonlStore, resume_or_start

DOCUMENTS = [{"id": i, "text": f"document {i}"} for i in range(20)]

WHOLE = [{"of": i} for i in range(20)]


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """A killed process needs no disk to be survived: the order of commits is the same, and the tests are quick."""
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


class Bed:
    """A file of results, and a count of the calls that were paid for."""

    def __init__(self, home):
        self.path = home / "runs" / "docs.jsonl"
        self.calls = Counter()
        self.fail_at = None

    def call(self, doc):
        self.calls[doc["id"]] += 1
        if doc["id"] == self.fail_at:
            raise RuntimeError("a malformed response")
        return {"of": doc["id"]}

    def generator(self, documents):
        for doc in documents:
            yield self.call(doc)

    def start(self, documents=DOCUMENTS, fn=None, job="docs", **more):
        return resume_or_start(job, JsonlStore(self.path), fn or self.generator, (documents,), **more)

    def life(self, *args, fail_at=None, **more):
        """One life; gives its results, those before a failure too."""
        self.fail_at, out = fail_at, []
        try:
            for result in self.start(*args, **more):
                out.append(result)
        except RuntimeError:
            assert fail_at is not None
        return out

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def old(self, count, job="docs", path=None):
        """A file of the older library."""
        self.path.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"job_id": job, "index": i, "result": {"of": i}}) for i in range(count)]
        self.path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def bed(home):
    return Bed(home)
