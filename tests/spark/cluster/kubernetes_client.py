"""A client of Kubernetes' API, as far as tests need one: a request, and a watch."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path

from tests.spark.cluster.pods import Object


class Refused(Exception):
    """The API server said no, in its own words."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{code}: {said}")
        self.code = code


@dataclass(frozen=True)
class Client:
    """One user of an API server of this machine."""

    port: int
    token: str
    certificate: Path

    def get(self, path: str) -> Object:
        return self.ask("GET", path)

    def read(self, path: str) -> str:
        """Return an answer that may be no object."""
        with self._sent("GET", path, None, "") as answer:
            return answer.read().decode()

    def create(self, path: str, made: Object) -> Object:
        return self.ask("POST", path, made)

    def merge(self, path: str, change: Object) -> Object:
        """Merge a change into an object (RFC 7396)."""
        return self.ask("PATCH", path, change, kind="application/merge-patch+json")

    def delete(self, path: str, options: Object | None = None) -> Object:
        return self.ask("DELETE", path, options)

    def ask(
        self, method: str, path: str, body: Object | None = None, *, kind: str = "application/json"
    ) -> Object:
        """Send a request and return the answer. Raises Refused."""
        with self._sent(method, path, body, kind) as answer:
            found: Object = json.load(answer)
            return found

    def watch(self, path: str, version: str) -> Iterator[Object]:
        """Yield events from a version on, until the server ends the watch."""
        query = f"?watch=true&resourceVersion={version}&allowWatchBookmarks=true"
        with self._sent("GET", path + query, None, "") as answer:
            for line in answer:
                yield json.loads(line)

    @contextmanager
    def _sent(self, method: str, path: str, body: Object | None, kind: str) -> Iterator[HTTPResponse]:
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        with closing(HTTPSConnection("127.0.0.1", self.port, context=trusted)) as connection:
            text = None if body is None else json.dumps(body)
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise Refused(answer.status, answer.read().decode(errors="replace"))
            yield answer
