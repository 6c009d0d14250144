"""Servers on one store that are killed and begin again on their port, and a person who asks them over HTTP."""

import http.client
import json
import os
import signal
import subprocess
import time

from conftest import outlast_program
from ports import free_port

LONGEST_S = 120


class Server:
    def __init__(self, home, store):
        self.home, self.store, self.port = home, str(store), free_port()
        self.log = home / f"serve-{self.port}.log"
        self.process = None
        self.start()

    def environment(self):
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "OUTLAST_STORE": self.store}

    def flags(self):
        return []

    def start(self):
        line = [outlast_program(), "serve", "--listen", f"127.0.0.1:{self.port}", *self.flags()]
        with open(self.log, "w") as out:
            self.process = subprocess.Popen(line, env=self.environment(), cwd=self.home, stdout=out, stderr=out)
        until(lambda: "serving on" in self.log.read_text() or self.process.poll() is not None, "the server serves")
        assert self.process.poll() is None, self.log.read_text()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def ask(self, method, target, body=None):
        """The answer's JSON. Raises OSError or HTTPException where the server dies meanwhile."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        try:
            line.request(method, target, json.dumps(body) if body is not None else None)
            answer = line.getresponse()
            told = answer.read()
            assert answer.status < 500 or answer.status == 503, (target, answer.status, told)
            if answer.status == 503:
                raise OSError("it is not ready")
            return json.loads(told)
        finally:
            line.close()


def insists(ask):
    """Asks until a server answers: servers come back."""
    began = time.monotonic()
    while True:
        try:
            return ask()
        except (OSError, http.client.HTTPException):
            assert time.monotonic() - began < LONGEST_S
            time.sleep(0.02)


def until(condition, what, every_s=0.01):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < LONGEST_S, f"waited in vain: {what}"
        time.sleep(every_s)
