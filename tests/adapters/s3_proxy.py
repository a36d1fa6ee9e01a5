"""A proxy in front of an S3 that counts requests, and can be as slow, throttled and forgetful as a real one."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.adapters.servers import S3Server, s3_server

SEEN = "/-/seen"
"""Answered by the proxy itself: kind and path of all requests so far, as JSON."""
CONDITION = "If-None-Match"


_OF_THE_HOP = frozenset({"expect", "connection", "transfer-encoding", "content-length"})


def error(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'.encode()


class Wire(Enum):
    """What becomes of a request."""

    FINE = "answered"
    SLOW_DOWN = "503 SlowDown, nothing happens"
    NOT_IMPLEMENTED = "501, nothing happens"
    UNCONDITIONAL = "carried out without its condition"
    LOST = "the connection is reset before the request arrives"
    UNHEARD = "it is carried out, and the connection is reset before the answer"


def always_fine(request: Request) -> Wire:
    return Wire.FINE


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    verb: str
    path: str
    """With the query."""
    is_conditional: bool = False

    @property
    def kind(self) -> str:
        """Return what S3 charges for: the verb, and LIST for a listing."""
        return "LIST" if self.verb == "GET" and "list-type=" in self.path else self.verb


@dataclass
class S3Proxy:
    """Requests it has seen, and how it treats the next ones."""

    endpoint: str
    latency: float = 0.0
    """Seconds before every answer."""
    treat: Callable[[Request], Wire] = always_fine
    seen: list[tuple[Request, Wire]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, verb: str, path: str, *, is_conditional: bool) -> Wire:
        with self._lock:
            request = Request(len(self.seen), verb, path, is_conditional)
            wire = self.treat(request)
            self.seen.append((request, wire))
        return wire

    def requests(self) -> Counter[str]:
        """Return how many requests there were, by kind."""
        with self._lock:
            return Counter(request.kind for request, _ in self.seen)


@contextmanager
def s3_proxy(server: S3Server) -> Iterator[tuple[S3Proxy, S3Server]]:
    """Start a proxy; what is yielded beside it is the server as its clients reach it."""
    target = urlsplit(server.endpoint)
    assert target.hostname is not None
    host, port = target.hostname, target.port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do(self) -> None:
            if self.path == SEEN:
                told = [[request.kind, request.path] for request, _ in list(proxy.seen)]
                self._answer(200, {}, json.dumps(told).encode())
                return
            body = self._body()
            wire = proxy.next(self.command, self.path, is_conditional=CONDITION in self.headers)
            time.sleep(proxy.latency)
            if wire is Wire.LOST:
                self._reset()
            elif wire is Wire.SLOW_DOWN:
                self._answer(503, {"Content-Type": "application/xml"}, error("SlowDown"))
            elif wire is Wire.NOT_IMPLEMENTED:
                self._answer(501, {"Content-Type": "application/xml"}, error("NotImplemented"))
            else:
                if wire is Wire.UNCONDITIONAL:
                    del self.headers[CONDITION]
                status, headers, content = _forwarded(self, body)
                self._reset() if wire is Wire.UNHEARD else self._answer(status, headers, content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do  # noqa: N815

        def _body(self) -> bytes:
            if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(pieces)

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            with suppress(OSError):
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        def _reset(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.close()

    def _forwarded(handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(host, port)
        try:
            names = [name for name in handler.headers if name.lower() not in _OF_THE_HOP]
            sent = {name: handler.headers[name] for name in names}
            connection.request(handler.command, handler.path, body, sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        dropped = {"connection", "transfer-encoding"}
        if handler.command != "HEAD":
            dropped.add("content-length")
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in dropped}
        return answer.status, headers, content

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    proxy = S3Proxy(f"http://127.0.0.1:{listener.server_address[1]}")
    try:
        yield proxy, S3Server(proxy.endpoint)
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextmanager
def s3_proxy_process(latency: float = 0.0) -> Iterator[S3Server]:
    """Start moto's S3 behind a proxy, in a process of its own: delta-rs holds Python's lock while it waits."""
    command = [sys.executable, "-m", "tests.adapters.s3_proxy", str(latency)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield S3Server(process.stdout.readline().strip())
        process.stdin.close()


def seen_by(server: S3Server) -> list[tuple[str, str]]:
    """Return kind and path of all requests that such a proxy has seen."""
    with urllib.request.urlopen(server.endpoint + SEEN) as answer:
        return [(kind, path) for kind, path in json.load(answer)]


def main() -> None:
    """Serve moto's S3 behind a proxy until standard input ends; ``latency`` in seconds is the only argument."""
    with s3_server() as server, s3_proxy(server) as (proxy, reached):
        proxy.latency = float(sys.argv[1])
        print(reached.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
