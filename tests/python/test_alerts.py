"""Alerts of an endpoint that is down half the time, by servers and supervisors that are killed."""

import http.server
import json
import signal
import subprocess
import threading

from conftest import outlast_program
from fleet_bed import Server, insists, until

ALERTS, KILLS, WRITERS = 1000, 10, 4


class Hook(http.server.ThreadingHTTPServer):
    """A webhook that refuses, or hangs up on, every other dozen of messages."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Taker)
        self.lock, self.asked, self.refused, self.taken = threading.Lock(), 0, 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass


class Taker(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        hook = self.server
        with hook.lock:
            hook.asked += 1
            down = hook.asked // 12 % 2 == 1
            hook.refused += down
            hangs_up = down and hook.asked % 3 == 0
            # What was taken and not acknowledged is sent again: the worst moment for whoever is killed.
            if not down:
                hook.taken.append((self.headers["webhook-id"], body.decode()))
        if hangs_up:
            self.connection.close()
            return
        self.send_response(503 if down else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


class Supervisor:
    """A supervisor whose agent only waits. It delivers what a killed server left, and the other way round."""

    def __init__(self, server):
        self.server, self.process = server, None
        self.start(["run", "--run", "sup", "--", "sleep", "1000"])

    def start(self, line):
        self.process = subprocess.Popen(
            [outlast_program(), *line], env=self.server.environment(), cwd=self.server.home,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def restart(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.start(["resume", "sup"])

    def close(self):
        self.process.terminate()
        self.process.wait()


def test_a_thousand_alerts_arrive_though_the_endpoint_is_down_half_the_time_and_ten_deliverers_are_killed(tmp_path):
    hook = Hook()
    settings = tmp_path / ".config" / "outlast"
    settings.mkdir(parents=True)
    url = f"http://127.0.0.1:{hook.server_address[1]}/hook"
    (settings / "hook.secret").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    (settings / "hook.secret").chmod(0o600)
    (settings / "outlast.toml").write_text(
        f'[notify.hook]\nurl = "{url}"\nsecret_file = "hook.secret"\nevents = ["cancelled"]\n'
    )
    server = Server(tmp_path, tmp_path / "runs.db")
    supervisor = Supervisor(server)
    try:
        check(hook, server, supervisor)
    finally:
        supervisor.close()
        server.kill()
        hook.shutdown()


def check(hook, server, supervisor):
    def alert():
        run = insists(lambda: server.ask("POST", "/v1/runs", {}))["id"]
        insists(lambda: server.ask("POST", f"/v1/runs/{run}/cancel", {}))

    def retries():
        # Instead of waiting for the next try: an endpoint that was down is asked again at once.
        line = [outlast_program(), "notify", "retry", "hook"]
        subprocess.run(line, env=server.environment(), cwd=server.home, check=True, capture_output=True)

    # A new endpoint is told what happens from then on.
    alert()
    while not hook.asked:
        alert()
    begun = len(cancelled(server))
    done = []

    def write():
        for _ in range(ALERTS // WRITERS):
            alert()
            done.append(1)

    writers = [threading.Thread(target=write, daemon=True) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for kill in range(KILLS):
        mark = (kill + 1) * ALERTS // (KILLS + 1)
        until(lambda: len(done) >= mark, f"{mark} alerts")
        retries()
        (server if kill % 2 else supervisor).restart()
    for writer in writers:
        writer.join()
    wanted = cancelled(server)
    assert len(wanted) >= begun + ALERTS
    # Those from before the endpoint was known are nobody's.
    with hook.lock:
        first = min(int(id.split("_")[2]) for id, _ in hook.taken)
    wanted = {f"evt_0_{no}_hook" for no in wanted if no >= first}

    seen = [0]

    def all_taken():
        with hook.lock:
            asked, taken = hook.asked, {id for id, _ in hook.taken}
        # Only where nobody sends: a retry and a delivery that write at once make the delivery again.
        if asked == seen[0]:
            retries()
        seen[0] = asked
        return wanted <= taken

    until(all_taken, f"every alert is taken: {standing(server)}", every_s=0.25)
    bodies = {}
    for id, body in hook.taken:
        assert id in wanted, f"{id} was never to be sent"
        assert bodies.setdefault(id, body) == body, "one id is one message"
        assert json.loads(body)["id"] == id
    assert hook.refused > ALERTS // 4, "it was down half the time"
    print(f"{len(wanted)} alerts, {hook.asked} posts, {hook.refused} refused, {len(hook.taken) - len(wanted)} twice")


def standing(server):
    line = [outlast_program(), "notify", "ls"]
    return subprocess.run(line, env=server.environment(), cwd=server.home, capture_output=True, text=True).stdout


def cancelled(server):
    numbers, cursor = [], "0.0"
    while True:
        told = server.ask("GET", f"/v1/events?kind=status&limit=1000&after={cursor}")
        numbers += [event["no"] for event in told["events"] if event["about"]["to"] == "cancelled"]
        if told["cursor"] == cursor:
            return numbers
        cursor = told["cursor"]


def test_settings_of_endpoints_that_are_bad_are_refused_before_a_run_is_made(home):
    """Bug: `outlast run` made its run, and only then read `[notify]`. Consequence: a run in `ls` that never began."""
    config = home / ".config" / "outlast"
    config.mkdir(parents=True)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "OUTLAST_STORE": str(home / "runs.db")}

    def command(*line):
        return subprocess.run([outlast_program(), *line], env=env, cwd=home, capture_output=True, text=True, timeout=60)

    assert command("run", "--name", "before", "--", "true").returncode == 0
    for url, why in (("http://10.0.0.7/x", "this machine only"), ("https://[fd00:ec2::254]/x", "never posted to")):
        (config / "outlast.toml").write_text(f'[notify.own]\nurl = "{url}"\n')
        done = command("run", "--name", "after", "--", "true")
        assert done.returncode == 2 and why in done.stderr, done.stderr
    (config / "outlast.toml").unlink()
    assert [run["name"] for run in json.loads(command("ls", "--json").stdout)["runs"]] == ["before"]
