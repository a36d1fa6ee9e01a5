"""As much of Kubernetes' API as Spark asks of it: objects are stored, listed by labels, watched, patched, deleted.

Whatever is a pod is handed to a kubelet, which runs it and tells how it goes. In the API's own words (``metadata``,
``labelSelector``, ``resourceVersion``), as its reference has them for ``core/v1``.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.spark.cluster.pods import Object

Selector = tuple[tuple[str, str, str], ...]
"""Labels, how they are compared (``=``, ``!=``) and with what; ``!=`` is true of objects without the label, too."""


@dataclass
class Objects:
    """What the API server stores, by kind (``pods``) and name. Thread-safe."""

    on_pod: Callable[[Object], None]
    """Called with every new pod."""
    on_deleted: Callable[[str], None]
    """Called with the name of every pod that is deleted; it ends the pod's process."""
    _stored: dict[str, dict[str, Object]] = field(default_factory=dict)
    _watches: list[tuple[str, Selector, queue.SimpleQueue[Object | None]]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _version: int = 0

    def create(self, kind: str, made: Object) -> Object:
        """Store an object and tell the watches."""
        with self._lock:
            name = made["metadata"]["name"]
            made["metadata"] |= {"uid": f"{kind}-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
            if kind == "pods":
                made["status"] = {"phase": "Pending"}
            self._stored.setdefault(kind, {})[name] = made
            self._tell(kind, "ADDED", made)
        if kind == "pods":
            self.on_pod(made)
        return made

    def get(self, kind: str, name: str) -> Object | None:
        """Return one object."""
        with self._lock:
            return self._stored.get(kind, {}).get(name)

    def select(self, kind: str, selector: Selector) -> list[Object]:
        """Return the objects of a kind that have those labels."""
        with self._lock:
            return [one for one in self._stored.get(kind, {}).values() if _fits(one, selector)]

    def update(self, kind: str, name: str, change: Object) -> Object | None:
        """Merge a change into an object (RFC 7396) and tell the watches."""
        with self._lock:
            found = self.get(kind, name)
            if found is not None:
                _merge(found, change)
                self._tell(kind, "MODIFIED", found)
            return found

    def delete(self, kind: str, name: str) -> Object | None:
        """Remove an object and tell the watches; a pod is marked, and gone once its process has ended."""
        if kind != "pods":
            return self._remove(kind, name)
        with self._lock:
            found = self.get(kind, name)
            if found is None or "deletionTimestamp" in found["metadata"]:
                return found
            self.update(kind, name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z"}})

        def end() -> None:
            self.on_deleted(name)
            self._remove(kind, name)

        threading.Thread(target=end, daemon=True).start()
        return found

    def _remove(self, kind: str, name: str) -> Object | None:
        with self._lock:
            gone = self._stored.get(kind, {}).pop(name, None)
            if gone is not None:
                self._tell(kind, "DELETED", gone)
            return gone

    @contextmanager
    def watch(self, kind: str, selector: Selector) -> Iterator[queue.SimpleQueue[Object | None]]:
        """Yield a queue of events from now on; None: the server ends."""
        events: queue.SimpleQueue[Object | None] = queue.SimpleQueue()
        watching = (kind, selector, events)
        with self._lock:
            self._watches.append(watching)
            for one in self.select(kind, selector):
                events.put({"type": "ADDED", "object": json.loads(json.dumps(one))})
        try:
            yield events
        finally:
            with self._lock:
                self._watches.remove(watching)

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            for _, _, events in self._watches:
                events.put(None)

    def _tell(self, kind: str, what: str, changed: Object) -> None:
        self._version += 1
        changed["metadata"]["resourceVersion"] = str(self._version)
        for watched, selector, events in self._watches:
            if watched == kind and _fits(changed, selector):
                events.put({"type": what, "object": json.loads(json.dumps(changed))})


def _fits(one: Object, selector: Selector) -> bool:
    labels = one["metadata"].get("labels") or {}
    return all((labels.get(name) == value) is (how == "=") for name, how, value in selector)


def _merge(into: Object, change: Object) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        elif value is None:
            into.pop(name, None)
        else:
            into[name] = value


def selector_of(text: str) -> Selector:
    """Read ``labelSelector``: ``a=b,c!=d``."""
    found = []
    for part in filter(None, text.split(",")):
        name, how, value = re.split("(!=|==?)", part, maxsplit=1)
        found.append((name, how.replace("==", "="), value))
    return tuple(found)


class _Handler(BaseHTTPRequestHandler):
    """One request: ``/api/v1/namespaces/<namespace>/<kind>[/<name>]``."""

    protocol_version = "HTTP/1.1"
    objects: Objects

    def do_GET(self) -> None:
        kind, name, asked = self._where()
        selector = selector_of(asked.get("labelSelector", ""))
        if self.headers.get("Upgrade"):  # a web socket: clients go on with plain HTTP
            self._answer(503, _status(503))
        elif asked.get("watch") == "true":
            self._stream(kind, selector)
        elif name:
            found = self.objects.get(kind, name)
            self._answer(200 if found else 404, found or _status(404))
        else:
            found_all = self.objects.select(kind, selector)
            self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": found_all})

    def do_POST(self) -> None:
        kind, _, _ = self._where()
        self._answer(201, self.objects.create(kind, self._body()))

    def do_PATCH(self) -> None:
        kind, name, _ = self._where()
        change = self._body()
        found = self.objects.update(kind, name, change if isinstance(change, dict) else {})
        self._answer(200 if found else 404, found or _status(404))

    def do_DELETE(self) -> None:
        kind, name, asked = self._where()
        self._body()
        names = (
            [name]
            if name
            else [
                one["metadata"]["name"]
                for one in self.objects.select(kind, selector_of(asked.get("labelSelector", "")))
            ]
        )
        gone = [one for one in names if self.objects.delete(kind, one) is not None]
        self._answer(200 if gone or not name else 404, _status(200 if gone or not name else 404))

    def _where(self) -> tuple[str, str, dict[str, str]]:
        path, _, query = self.path.partition("?")
        parts = [*path.strip("/").split("/"), "", "", "", "", ""]
        kind, name = (parts[4], parts[5]) if parts[2] == "namespaces" else (parts[2], parts[3])
        return kind, name, dict(urllib.parse.parse_qsl(query))

    def _body(self) -> Any:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(text) if text else {}

    def _answer(self, code: int, body: Object) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, kind: str, selector: Selector) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.objects.watch(kind, selector) as events, suppress(OSError):
            while (event := events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None: ...


def _status(code: int) -> Object:
    went = "Success" if code < 400 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": went, "code": code}


@contextmanager
def api_server(objects: Objects) -> Iterator[int]:
    """Serve objects on a port of this machine, which is yielded."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": objects}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        objects.close()
        server.shutdown()
        server.server_close()
        thread.join()
