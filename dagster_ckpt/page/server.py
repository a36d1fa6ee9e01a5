"""A small read-only web server for checkpoint pages; each request reads the store. For this machine, no login."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, Unavailable

_OF_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class PageServer(ThreadingHTTPServer):
    """Answers ``/`` and ``/<pipeline>`` with what ``render`` returns for the pipeline (empty: the index).

    Raises Unavailable: the port is taken.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, render: Callable[[str], str]) -> None:
        self.render = render
        self.names = _OF_THIS_MACHINE | {host} if host in _OF_THIS_MACHINE else None
        """Names by which it is asked for; None: anybody may reach it, by names that only its network knows."""
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
        if self.server.names is not None and self._asked_for() not in self.server.names:
            # Another web page's name that leads here: a browser would show it this one's content.
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"ask for {self.server.url}")
            return
        name = unquote(urlsplit(self.path).path).strip("/")
        try:
            self._answer(HTTPStatus.OK, "text/html", self.server.render(name))
        except (NotFound, InvalidRequest) as error:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", str(error))
        except CheckpointError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
        except Exception as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}: {error}")

    def _asked_for(self) -> str:
        host = self.headers.get("Host", "").lower()
        return host if host.endswith("]") else host.rpartition(":")[0] or host

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: a page that refreshes itself would fill the terminal."""
