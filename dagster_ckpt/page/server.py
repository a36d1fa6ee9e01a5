"""A small read-only web server for checkpoint pages; each request reads the store. For this machine, no login."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, Unavailable

__all__ = ["PageServer"]


class PageServer(ThreadingHTTPServer):
    """Answers ``/`` and ``/<pipeline>`` with what ``render`` returns for the pipeline (empty: the index).

    Raises Unavailable: the port is taken.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, render: Callable[[str], str]) -> None:
        self.render = render
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise Unavailable(
                f"the page cannot be served at {host}:{port}: {error}. Choose another --port"
            ) from error

    @property
    def url(self) -> str:
        """Address of the index."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Answer with a page."""
        name = unquote(urlsplit(self.path).path).strip("/")
        try:
            self._answer(HTTPStatus.OK, "text/html", self.server.render(name))
        except (NotFound, InvalidRequest) as error:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", str(error))
        except CheckpointError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: a page that refreshes itself would fill the terminal."""
