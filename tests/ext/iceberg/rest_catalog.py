"""A REST catalog over HTTP, in front of a SQL catalog: what pyiceberg asks of one to make, read and commit tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions as errors
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

_STATUS = {
    errors.NoSuchTableError: 404,
    errors.NoSuchNamespaceError: 404,
    errors.NamespaceAlreadyExistsError: 409,
    errors.TableAlreadyExistsError: 409,
    errors.CommitFailedException: 409,
}


class RestCatalog:
    """The server's half: one request at a time, answered by a catalog in SQLite."""

    def __init__(self, folder: Path, warehouse: str, properties: Mapping[str, str]) -> None:
        uri = f"sqlite:///{folder}/behind.db"
        engine = {"warehouse": warehouse, **properties}
        self._catalog = SqlCatalog("behind", uri=uri, **engine)
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self.commits = 0

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str]:
        """Return status and text."""
        with self._lock:
            try:
                return 200, self._do(method, [unquote(part) for part in path.strip("/").split("/")][1:], body)
            except tuple(_STATUS) as error:
                status = _STATUS[type(error)]
                told = {"message": str(error), "type": type(error).__name__, "code": status}
                return status, json.dumps({"error": told})

    def _do(self, method: str, parts: list[str], body: bytes) -> str:
        match method, parts:
            case "GET", ["config"]:
                return json.dumps({"defaults": {"warehouse": self._warehouse}, "overrides": {}})
            case "POST", ["namespaces"]:
                self._catalog.create_namespace(tuple(json.loads(body)["namespace"]))
                return body.decode()
            case "GET", ["namespaces", space]:
                return json.dumps({"namespace": [space], "properties": self._properties(space)})
            case "POST", ["namespaces", space, "tables"]:
                asked = CreateTableRequest.model_validate_json(body)
                table = self._catalog.create_table(
                    (space, asked.name),
                    asked.table_schema,
                    location=asked.location,
                    **({"partition_spec": asked.partition_spec} if asked.partition_spec else {}),
                    properties=asked.properties,
                )
                return _told(table)
            case "GET", ["namespaces", space, "tables", name]:
                return _told(self._catalog.load_table((space, name)))
            case "POST", ["namespaces", space, "tables", name]:
                request = CommitTableRequest.model_validate_json(body)
                loaded = self._catalog.load_table((space, name))
                done = self._catalog.commit_table(loaded, request.requirements, request.updates)
                self.commits += 1
                return done.model_dump_json(by_alias=True)
            case _:
                raise AssertionError(f"the stand-in has no {method} {parts}")

    def _properties(self, space: str) -> dict[str, str]:
        return dict(self._catalog.load_namespace_properties(space))

    def close(self) -> None:
        self._catalog.close()


def _told(table: Any) -> str:
    told = TableResponse.model_validate(
        {"metadata-location": table.metadata_location, "metadata": table.metadata, "config": {}}
    )
    return told.model_dump_json(by_alias=True)


@contextmanager
def rest_catalog(folder: Path, warehouse: str, **properties: str) -> Iterator[tuple[str, RestCatalog]]:
    """Serve a catalog; yields its address, and the server's half."""
    catalog = RestCatalog(folder, warehouse, properties)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = catalog.answer(self.command, urlsplit(self.path).path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _serve  # noqa: N815 (names of http.server)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", catalog
        finally:
            server.shutdown()
            catalog.close()
