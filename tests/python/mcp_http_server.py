"""An MCP server over streamable HTTP, in both eras, whose tool appends to a log and misbehaves as it is told.

mcp_http_server.py LOG PORTFILE [PORT]
"""

import json
import os
import secrets
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOG = Path(sys.argv[1])
VERSION = "io.modelcontextprotocol/protocolVersion"
sessions, kept, lock = set(), {}, threading.Lock()
said = threading.Condition()
unasked = []


def note(text):
    with lock, LOG.open("a") as log:
        log.write(text + "\n")
        log.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/json", **headers):
        if isinstance(body, (dict, list)):
            # Pretty-printed, so that a line is not a message by itself.
            body = json.dumps(body, indent=1).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, message, id=None):
        head = f"id: {id}\nretry: 10\n" if id else ""
        data = "" if message is None else "".join(f"data: {line}\n" for line in json.dumps(message, indent=1).split("\n"))
        self.wfile.write(f"{head}{data or 'data:'}\n\n".encode())
        self.wfile.flush()

    def known(self):
        session = self.headers.get("Mcp-Session-Id")
        if session in sessions:
            return True
        self.answer(404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}})
        return False

    def do_GET(self):
        last = self.headers.get("Last-Event-ID")
        if last in kept:
            self.stream()
            self.event(kept.pop(last), "again")
            return
        if not self.known():
            return
        self.stream()
        note("listened")
        sent = 0
        while True:
            with said:
                said.wait_for(lambda: len(unasked) > sent)
            self.event(unasked[sent])
            sent += 1

    def do_DELETE(self):
        sessions.discard(self.headers.get("Mcp-Session-Id"))
        note("deleted")
        self.answer(200)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = os.environ.get("WANTED_LOGIN")
        if wanted and self.headers.get("Authorization") != wanted:
            return self.answer(401, f"no: {self.headers.get('Authorization')}".encode(), "text/plain")
        method, id = request.get("method"), request.get("id")
        alone = request.get("params", {}).get("_meta", {}).get(VERSION)
        if alone:
            repeated = [self.headers.get(name) for name in ("MCP-Protocol-Version", "Mcp-Method")]
            assert repeated == [alone, method] and "Mcp-Session-Id" not in self.headers, repeated
        elif method == "initialize":
            session = secrets.token_hex(8)
            sessions.add(session)
            note("initialize")
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            return self.answer(200, {"jsonrpc": "2.0", "id": id, "result": result}, Mcp_Session_Id=session)
        elif not self.known():
            return
        else:
            assert self.headers.get("MCP-Protocol-Version") == "2025-11-25", dict(self.headers)
        if id is None or method is None:
            note(f"told {method or 'answer'}")
            return self.answer(202)
        if method == "tools/call":
            return self.tool(request)
        if method == "tools/list":
            region = {"type": "string", "x-mcp-header": "Region"}
            tools = [
                {"name": "append", "inputSchema": {"type": "object", "properties": {"region": region}}},
                {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
            ]
            return self.answer(200, {"jsonrpc": "2.0", "id": id, "result": {"tools": tools}})
        self.answer(200, {"jsonrpc": "2.0", "id": id, "result": {}})

    def tool(self, request):
        params, id = request["params"], request["id"]
        told = params.get("arguments", {})
        how = told.get("how", "json")
        if how == "forget" and len(sessions) and not kept.get("forgotten"):
            kept["forgotten"] = True
            sessions.clear()
            return self.known()
        if how in ("401", "429", "302"):
            return self.answer(int(how), b"not you", "text/plain", Location="http://127.0.0.1:1/")
        note(f"{params['name']} {told.get('text')} {params['_meta']['outlast/idempotencyKey']} {self.headers.get('Mcp-Param-Region')}")
        while told.get("wait") and not Path(told["wait"]).exists():
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                self.close_connection = True
                return note("hung up")
            time.sleep(0.01)
        result = {"content": [{"type": "text", "text": f"{told.get('text')} done"}], "newField": {"n": 1.50}}
        answer = {"jsonrpc": "2.0", "id": id, "result": result}
        if how == "die":
            os._exit(9)
        if how == "502":
            return self.answer(502, b"<html>bad gateway</html>", "text/html")
        if how in ("json", "forget"):
            return self.answer(200, answer)
        self.stream()
        if how == "sse":
            self.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
            self.event(answer)
        if how == "resume":
            kept["e1"] = answer
            self.event(None, "e1")
        if how == "says":
            with said:
                unasked.append({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
                said.notify_all()
            self.event(answer)
        # Any other stream breaks off here.


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0), Handler)
server.daemon_threads = True
Path(sys.argv[2]).write_text(str(server.server_address[1]))
server.serve_forever()
