"""Commands over a server that speaks TLS with the certificate of an authority that only this machine knows."""

import json
import os
import socket
import ssl
import subprocess
import threading

import pytest

import outlast
from batches import Work, batch
from conftest import outlast_program
from fleet_bed import until
from ports import free_port

TOKEN = "an-api-token-of-24-chars"


def authority(place, name):
    """An authority and a certificate of it for localhost; gives the authority's file and the certificate's."""
    ca, own, request = place / f"{name}.pem", place / f"{name}-own.pem", place / f"{name}.csr"
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]

    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=place)

    openssl("req", "-x509", *new, f"/CN={name}", "-days", "2", "-keyout", f"{name}.key", "-out", str(ca))
    openssl("req", *new, "/CN=localhost", "-keyout", f"{name}-own.key", "-out", str(request))
    (place / "ext").write_text("subjectAltName=DNS:localhost\n")
    openssl("x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", f"{name}.key", "-days", "2", "-extfile", "ext", "-out", str(own))
    return ca, own, place / f"{name}-own.key"


def carry(one, other):
    """Carries bytes one way until it ends."""
    try:
        while some := one.recv(65536):
            other.sendall(some)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def terminate(listener, context, port):
    """Speaks TLS with whoever comes, and carries it to the server at `port`."""

    def one(near):
        try:
            near = context.wrap_socket(near, server_side=True)
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=carry, args=(far, near), daemon=True).start()
        carry(near, far)

    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=one, args=(near,), daemon=True).start()


@pytest.fixture
def afar(rt, home):
    """Runs `outlast …` as on another machine, over TLS, and beside the store: `afar("jobs", near=False, code=0)`."""
    ca, certificate, key = authority(home, "own")
    other, _, _ = authority(home, "other")
    token = home / "token"
    token.write_text(f"# who may\nlaptop {TOKEN}\nci another-token-of-24-chars\n")
    token.chmod(0o600)
    port, log = free_port(), home / "serve.log"
    plain = {"HOME": str(home), "PATH": os.environ["PATH"], "USER": "ann"}
    line = [outlast_program(), "serve", "--listen", f"127.0.0.1:{port}", "--api-token-file", token, "--store", rt.place]
    with open(log, "w") as out:
        server = subprocess.Popen(line, env=plain, cwd=home, stdout=out, stderr=out)
    until(lambda: "serving on" in log.read_text() or server.poll() is not None, "the server serves")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=terminate, args=(listener, context, port), daemon=True).start()
    there = {
        "HOME": str(home / "afar"),
        "PATH": os.environ["PATH"],
        "USER": "ann",
        "OUTLAST_SERVER": f"https://localhost:{listener.getsockname()[1]}",
        "OUTLAST_API_TOKEN": TOKEN,
        "SSL_CERT_FILE": str(ca),
    }

    def run(*args, near=False, code=0, trusts=None):
        env = {**plain, "OUTLAST_STORE": rt.place} if near else {**there, "SSL_CERT_FILE": str(trusts or ca)}
        done = subprocess.run([outlast_program(), *args], env=env, cwd=home, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    run.other = other
    yield run
    listener.close()
    server.terminate()
    server.wait()


def same(told):
    """Output of a command, without the parts that depend on the moment."""
    if isinstance(told, dict):
        moment = ("until", "wall_s", "active_s", "wall_ms", "per_minute")
        return {key: same(value) for key, value in told.items() if key not in moment}
    return [same(one) for one in told] if isinstance(told, list) else told


def test_jobs_budgets_and_spend_are_read_from_afar_and_items_and_forks_begun(rt, afar):
    batch(rt, ["a", "b", "c"], Work(lambda i: 1 / (i == "c"))).wait()
    with rt.run("chat", tags={"team": "search"}) as run:
        run.step("one", lambda: 1)
        run.state.put("plan", "first")
    afar("snapshot", "chat", "early", near=True)
    afar("budgets", "set", "all", "--usd", "5", "--per", "day", near=True)
    for args in (["jobs"], ["inspect", "j"], ["inspect", "j", "--gaps"], ["spend"], ["spend", "--by", "run,day"], ["budgets"]):
        near, far = (json.loads(afar(*args, "--json", near=near)) for near in (True, False))
        assert same(near) == same(far), args
    assert "ZeroDivisionError" in afar("inspect", "j")
    # An authority that is not trusted is refused, and told.
    assert "name its file in SSL_CERT_FILE" in afar("jobs", code=69, trusts=afar.other)

    assert "1 item will run again" in afar("retry", "j", "--key", "a")
    assert "1 item will run again" in afar("retry", "j", "--failed")
    ran = Work()
    assert [r.value for r in batch(rt, ["a", "b", "c"], ran)] == ["a", "b", 1.0] and sorted(ran.ran) == ["a", "b"]
    assert "reset by api:laptop (cli:ann@" in afar("journal", "j", near=True)

    assert "chat:early" in afar("fork", "chat", "--from-snapshot", "early")
    # The same point is the same fork.
    assert "which is there already" in afar("fork", "chat", "--from-snapshot", "early")
    told = json.loads(afar("fork", "chat", "--from-snapshot", "1", "--id", "other", "--json"))
    assert told["created"] and json.loads(afar("show", "other", "--json"))["run"] == "other"
    with rt.run("chat:early") as run:
        assert run.state.get("plan") == "first"
    assert "by api:laptop (cli:ann@" in afar("journal", "chat", near=True)

    assert "budget all is raised" in afar("budgets", "raise", "all", "--add-usd", "1")
    assert json.loads(afar("budgets", "--json", near=True))["budgets"][0]["acts"][-1]["by"].startswith("api:laptop (cli:ann@")
    for args in (["snapshot", "chat", "late"], ["resume", "chat"]):
        assert "on its machine" in afar(*args, code=2), args
