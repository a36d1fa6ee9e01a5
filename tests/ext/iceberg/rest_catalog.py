"""A REST catalog over HTTP, in front of a SQL catalog: what pyiceberg asks of one to make, read and commit tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions as errors
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

_STATUS = {
    errors.NoSuchTableError: 404,
    errors.NoSuchNamespaceError: 404,
    errors.NamespaceAlreadyExistsError: 409,
    errors.TableAlreadyExistsError: 409,
    errors.CommitFailedException: 409,
}


class Together(Enum):
    """How the server takes changes of several tables in one request."""

    NOT_NAMED = "not named"
    WHOLE = "whole"
    IN_PART = "in part"
    """Those before one that it refuses have happened."""
    NOT_SERVED = "not served"
    """Though its configuration names it."""


class RestCatalog:
    """The server's half: one request at a time, answered by a catalog in SQLite."""

    def __init__(self, folder: Path, warehouse: str, properties: Mapping[str, str]) -> None:
        uri = f"sqlite:///{folder}/behind.db"
        engine = {"warehouse": warehouse, **properties}
        self._catalog = SqlCatalog("behind", uri=uri, **engine)
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self.commits = 0
        self.together = Together.NOT_NAMED
        self.keeps_tags = True

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
                return json.dumps(
                    {"defaults": {"warehouse": self._warehouse}, "overrides": {}} | self._endpoints()
                )
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
            case "POST", _:
                return self._commit(parts, body)
            case _:
                raise AssertionError(f"the stand-in has no {method} {parts}")

    def _commit(self, parts: list[str], body: bytes) -> str:
        if parts == ["transactions", "commit"]:
            return self._commit_several(json.loads(body)["table-changes"])
        _, space, _, name = parts
        request = CommitTableRequest.model_validate_json(body)
        loaded = self._catalog.load_table((space, name))
        kept = [one for one in request.updates if self.keeps_tags or getattr(one, "type", "") != "tag"]
        done = self._catalog.commit_table(loaded, request.requirements, tuple(kept))
        self.commits += 1
        return done.model_dump_json(by_alias=True)

    def _commit_several(self, asked: list[Any]) -> str:
        if self.together is Together.NOT_SERVED:
            raise errors.NoSuchTableError("there is no such resource")
        changes = [CommitTableRequest.model_validate(one) for one in asked]
        if self.together is Together.WHOLE:
            for change in changes:
                for requirement in change.requirements:
                    requirement.validate(self._table_of(change).metadata)
        for change in changes:
            self._catalog.commit_table(self._table_of(change), change.requirements, change.updates)
        self.commits += 1
        return "{}"

    def _endpoints(self) -> dict[str, list[str]]:
        if self.together is Together.NOT_NAMED:
            return {}
        return {"endpoints": [*map(str, DEFAULT_ENDPOINTS), "POST /v1/{prefix}/transactions/commit"]}

    def _table_of(self, change: CommitTableRequest) -> Any:
        return self._catalog.load_table((*change.identifier.namespace.root, change.identifier.name))

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
