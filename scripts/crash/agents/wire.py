"""HTTP by hand, and what an agent says to the world outside. Little is imported: agents are started thousands of times."""

import json
import os
import socket

RUN, LIFE = os.environ["CRASH_RUN"], os.environ.get("OUTLAST_ATTEMPT", "") or str(os.getpid())
OUTSIDE = int(os.environ["CRASH_OUTSIDE"])
#: A prompt that is long enough for the tokens that the provider bills.
PADDING = "word " * 60


#: A fault that the campaign plants, which its oracle has to find.
FAULT = os.environ.get("CRASH_FAULT", "")


def dies_here(fault):
    """In the first life of an agent with this fault, the process kills itself here. Returns whether it is a later life's turn."""
    if fault != FAULT:
        return False
    try:
        os.close(os.open("lived", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    os.kill(os.getpid(), 9)


class Refused(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


def post(port, path, value, headers=(), host="127.0.0.1"):
    """Sends JSON on a connection of its own; returns the body. Errors: `Refused`, `OSError`."""
    body = json.dumps(value).encode()
    head = [f"POST {path} HTTP/1.1", f"host: {host}:{port}", "content-type: application/json", f"content-length: {len(body)}"]
    head += [f"{name}: {text}" for name, text in headers] + ["connection: close", "", ""]
    with socket.create_connection((host, port), timeout=240) as line:
        line.sendall("\r\n".join(head).encode() + body)
        had = b""
        while part := line.recv(65536):
            had += part
    top, _, rest = had.partition(b"\r\n\r\n")
    lines = top.decode().lower().split("\r\n")
    if len(lines[0].split()) < 2:
        raise ConnectionResetError("no answer")
    if "transfer-encoding: chunked" in lines:
        rest, whole = b"", rest
        while True:
            size, _, whole = whole.partition(b"\r\n")
            if not size:
                raise ConnectionResetError("half an answer")
            if not int(size, 16):
                break
            if len(whole) < int(size, 16):
                raise ConnectionResetError("half an answer")
            rest, whole = rest + whole[: int(size, 16)], whole[int(size, 16) + 2 :]
    else:
        lengths = [int(text.split(":")[1]) for text in lines if text.startswith("content-length:")]
        if lengths and len(rest) < lengths[0]:
            raise ConnectionResetError("half an answer")
    status = int(lines[0].split()[1])
    if status != 200:
        raise Refused(status, rest.decode(errors="replace"))
    return rest.decode()


def ask(number, url, headers, run=RUN, stream=False):
    """The model's answer to question `number`."""
    host, _, rest = url.split("://")[1].partition("/")
    name, _, port = host.partition(":")
    path = "/" + rest.rstrip("/") + "/chat/completions" if rest else "/v1/chat/completions"
    asked = {"model": "gpt-4o-mini", "max_tokens": 200, "messages": [{"role": "user", "content": f"{run} {number} {PADDING}"}]}
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    text = post(int(port), path, asked, headers, name)
    if not stream:
        return json.loads(text)["choices"][0]["message"]["content"]
    rows = [json.loads(row[6:]) for row in text.split("\n\n") if row.startswith("data: {")]
    if "data: [DONE]" not in text:
        raise ConnectionResetError("half an answer")
    return "".join(choice["delta"].get("content") or "" for row in rows for choice in row["choices"])


def ack(what, value, run=RUN):
    """Tells what this life has been given: from now on it must not be lost."""
    post(OUTSIDE, "/ack", {"run": run, "life": LIFE, "what": what, "value": value})


def effect(name, key="", run=RUN):
    """Does something in the world, and returns its number."""
    return post(OUTSIDE, "/effect", {"run": run, "life": LIFE, "name": name, "key": key})
