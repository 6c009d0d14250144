"""Events of a fleet: read over several servers of one store, which commit at once and are killed."""

import http.client
import json
import os
import random
import threading

import pytest

from fleet_bed import LONGEST_S, Server, insists, until

POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES")
# Tests of one database run one after another: they look at the whole of it.
ON_POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))
WRITERS, RUNS, KILLS = 4, 40, 6


@pytest.fixture(params=["file", ON_POSTGRES] if POSTGRES else ["file"])
def servers(tmp_path, request):
    store = POSTGRES if request.param == "postgres" else tmp_path / "runs.db"
    servers = [Server(tmp_path, store) for _ in range(2)]
    yield servers
    for server in servers:
        server.kill()


class Reader:
    """Reads from a cursor on until the run `end` is cancelled, and takes each event once it has it whole."""

    end = None

    def __init__(self, servers, cursor, seed):
        self.servers, self.cursor, self.dice, self.had = servers, cursor, random.Random(seed), []

    def is_over(self):
        last = self.had[-1] if self.had else {}
        return self.end is not None and last.get("run") == self.end and (last.get("about") or {}).get("to") == "cancelled"

    def take(self, event, cursor):
        self.had.append(event)
        self.cursor = cursor


class Pages(Reader):
    """By pages of changing sizes, now of one server and now of the other."""

    def read(self):
        while not self.is_over():
            server, limit = self.dice.choice(self.servers), self.dice.randint(1, 9)
            told = insists(lambda: server.ask("GET", f"/v1/events?after={self.cursor}&limit={limit}"))
            for event in told["events"]:
                self.take(event, event["cursor"])
                if self.is_over():
                    return
            if not told["events"]:
                self.cursor = told["cursor"]


class Stream(Reader):
    """By server-sent events: where a connection breaks, it comes again with the last id, at the other server."""

    def read(self):
        turn = 0
        while not self.is_over():
            turn += 1
            try:
                self.listen(self.servers[turn % 2])
            except (OSError, http.client.HTTPException):
                continue

    def listen(self, server):
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)
        try:
            line.request("GET", "/v1/events", headers={"Accept": "text/event-stream", "Last-Event-ID": self.cursor})
            answer, fields = line.getresponse(), {}
            assert answer.status == 200, answer.read()
            while raw := answer.readline():
                name, _, value = raw.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                    continue
                # An event is whole with its empty line.
                if fields.get("event") not in (None, "cursor", "error"):
                    self.take(json.loads(fields["data"]), fields["id"])
                    # Now and then a reader goes by itself, and comes again.
                    if self.is_over() or self.dice.random() < 0.05:
                        return
                fields = {}
        finally:
            line.close()


def test_each_event_comes_once_to_each_reader_over_two_servers_that_commit_at_once_and_are_killed(servers):
    Reader.end, seed = None, random.randrange(1 << 30)
    print(f"seed {seed}")
    begin = servers[0].ask("GET", "/v1/events?after=now")["cursor"]
    readers = [Pages(servers, begin, seed), Stream(servers, begin, seed + 1), Pages(servers, begin, seed + 2)]
    acknowledged, lock = [], threading.Lock()

    def begins_and_cancels(name, dice):
        server = dice.choice(servers)
        # What a killed server did not acknowledge may have been done: the run is another one then.
        run = insists(lambda: server.ask("POST", "/v1/runs", {"name": name}))["id"]
        told = insists(lambda: dice.choice(servers).ask("POST", f"/v1/runs/{run}/cancel", {}))
        assert told["id"] == run, told
        with lock:
            acknowledged.append(run)

    def write(writer):
        dice = random.Random(seed * 31 + writer)
        for n in range(RUNS):
            begins_and_cancels(f"w{writer}-{n}", dice)

    failed = []

    def kept(work, *args):
        try:
            work(*args)
        except BaseException as e:
            failed.append(e)
            raise

    writers = [threading.Thread(target=kept, args=(write, n), daemon=True) for n in range(WRITERS)]
    reading = [threading.Thread(target=kept, args=(reader.read,), daemon=True) for reader in readers]
    for thread in [*writers, *reading]:
        thread.start()
    for kill in range(KILLS):
        mark = (kill + 1) * WRITERS * RUNS // (KILLS + 2)
        until(lambda: len(acknowledged) >= mark or failed, f"{mark} runs are cancelled")
        servers[kill % 2].restart()
    for thread in writers:
        thread.join(LONGEST_S)
    assert not failed and len(acknowledged) == WRITERS * RUNS
    end = insists(lambda: servers[0].ask("POST", "/v1/runs", {"name": "end"}))["id"]
    Reader.end = end
    insists(lambda: servers[0].ask("POST", f"/v1/runs/{end}/cancel", {}))
    for thread in reading:
        thread.join(LONGEST_S)
    assert not failed, failed
    first_read = [event["no"] for event in readers[0].had]
    assert len(set(first_read)) == len(first_read), "an event came twice"
    for reader in readers[1:]:
        assert [event["no"] for event in reader.had] == first_read, "readers were told different things"
    for run in acknowledged:
        kinds = [
            (event["kind"], (event["about"] or {}).get("to")) for event in readers[0].had if event["run"] == run
        ]
        assert kinds.count(("run_created", None)) == 1 and kinds.count(("status", "cancelled")) == 1, (run, kinds)
