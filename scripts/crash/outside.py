"""The world outside of Outlast, which is believed by the campaign alone: a provider that bills, and a service for effects.

    python outside.py LOG

Prints its port. Each line of LOG is JSON, written before the answer leaves, and bears the digest of itself and the line
before it: a line that was lost, added or changed is found (`Chain`). Kinds of lines:

- call: an answer was bought: of which run, which question (`ask`), what it cost, and its `nonce`, new with each answer;
- effect: something was done: `name`, the idempotency key that came with it, and its number;
- ack: an agent says what it has been given: `what`, `value`, in which `life`. From then on it must not be lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from pathlib import Path

#: Nano-dollars for a token of gpt-4o-mini, from OpenAI's page of prices: 0.15 and 0.60 usd for a million.
INPUT_NANO_USD, OUTPUT_NANO_USD = 150, 600
#: How long the provider thinks, in seconds: so that calls are in flight when something dies.
THINKS_S = 0.003
BEGIN = "0" * 64


class Broken(Exception):
    """A log that is not what was written."""


class Log:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._chain, self._n = BEGIN, 0

    def add(self, **line: object) -> dict:
        self._n += 1
        told = {"n": self._n, "at_ns": time.monotonic_ns(), **line}
        text = json.dumps(told, sort_keys=True)
        self._chain = digest(self._chain, text)
        self._file.write(f'{{"chain": "{self._chain}", "line": {text}}}\n')
        self._file.flush()
        return told


class Chain:
    """Reads a log from its beginning on, and believes only what the chain holds."""

    def __init__(self) -> None:
        self._chain, self._n = BEGIN, 0

    def lines(self, text: str) -> list[dict]:
        """The next lines. Errors: `Broken`."""
        lines = []
        for row in text.splitlines():
            told = json.loads(row)
            self._n += 1
            self._chain = digest(self._chain, json.dumps(told["line"], sort_keys=True))
            if self._chain != told["chain"] or told["line"]["n"] != self._n:
                raise Broken(f"the log of the world outside is not whole: its chain breaks at line {self._n}")
            lines.append(told["line"])
        return lines


def digest(chain: str, text: str) -> str:
    return hashlib.sha256(f"{chain}\n{text}".encode()).hexdigest()


class Outside:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.done = 0

    def call(self, asked: dict) -> tuple[str, list[str]]:
        """Bills an answer; returns its content type and body, in pieces."""
        ask = asked["messages"][-1]["content"]
        run, number = ask.split()[:2]
        usage = {"prompt_tokens": 60 + 7 * int(number), "completion_tokens": 20 + 3 * int(number)}
        usage["total_tokens"] = sum(usage.values())
        cost = usage["prompt_tokens"] * INPUT_NANO_USD + usage["completion_tokens"] * OUTPUT_NANO_USD
        self.done += 1
        nonce = f"answer-{number}-{self.done}"
        key = hashlib.sha256(ask.encode()).hexdigest()[:16]
        self.log.add(kind="call", run=run, ask=int(number), digest=key, cost_nano_usd=cost, nonce=nonce)
        head = {"id": nonce, "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": nonce}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            return "application/json", [json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage})]
        chunks = [{"delta": {"role": "assistant", "content": part}} for part in (nonce[:7], nonce[7:])]
        chunks.append({"delta": {}, "finish_reason": "stop"})
        rows = [{**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **chunk}]} for chunk in chunks]
        rows.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return "text/event-stream", [f"data: {json.dumps(row)}\n\n" for row in rows] + ["data: [DONE]\n\n"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *rest = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in rest if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(first.split()[1], json.loads(body or b"{}"), writer)
                if headers.get("connection") == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, asked: dict, writer: asyncio.StreamWriter) -> None:
        if path.endswith("/chat/completions"):
            kind, pieces = self.call(asked)
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
            for piece in pieces:
                await asyncio.sleep(THINKS_S / len(pieces))
                writer.write(f"{len(piece.encode()):x}\r\n{piece}\r\n".encode())
            writer.write(b"0\r\n\r\n")
        else:
            told = self.log.add(kind={"/effect": "effect", "/ack": "ack"}[path], **asked)
            text = str(told["n"])
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()


async def main() -> None:
    # That a client has died is no news here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    outside = Outside(Log(Path(sys.argv[1])))
    server = await asyncio.start_server(outside.serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        # Ends with whoever started it.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
