"""A static server for viewing one site on this machine: nothing is cached, each request has a thread."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import InvalidInput
from .hosts import Hosts

ADDRESS, PORT = "127.0.0.1", 8000
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".jinja": "text/plain; charset=utf-8",
}
OTHER = "application/octet-stream"


class SiteServer(ThreadingHTTPServer):
    """A server of the files of a folder, without subfolders. `port` None means 8000, or else any free port."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int | None = None, hosts: Iterable[str] = ()) -> None:
        """`hosts` are names to accept besides loopback names."""
        self.folder, self.hosts = folder, Hosts(hosts)
        try:
            super().__init__((ADDRESS, PORT if port is None else port), _Handler)
        except OSError as e:
            if port is not None:
                raise InvalidInput(f"port {port}: {e.strerror}; choose another one with --port") from None
            super().__init__((ADDRESS, 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: SiteServer
    timeout = 30.0  # seconds without a byte
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ptegpu", ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        if not self.server.hosts.accepts(self.headers.get("Host")):
            text = b"This server does not accept that host: allow it with --allow-host.\n"
            self._send(HTTPStatus.FORBIDDEN, text, body, {"Content-Type": TYPES[".txt"]})
            return
        name = unquote(self.path.partition("?")[0].partition("#")[0])[1:] or "index.html"
        path = self.server.folder / name
        if re.search(r"[/\\\0]", name) or name in (".", "..") or not self._is_here(path):
            self._send(HTTPStatus.NOT_FOUND, b"There is no such file.\n", body, {"Content-Type": TYPES[".txt"]})
            return
        data = path.read_bytes()
        head = {"Content-Type": TYPES.get(path.suffix, OTHER), "Last-Modified": formatdate(path.stat().st_mtime)}
        if (part := _range(self.headers.get("Range", ""), len(data))) is not None:
            start, end = part
            if start >= end:
                head["Content-Range"] = f"bytes */{len(data)}"
                self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", body, head)
                return
            head["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            self._send(HTTPStatus.PARTIAL_CONTENT, data[start:end], body, head)
            return
        if path.suffix in TYPES and "gzip" in self.headers.get("Accept-Encoding", ""):
            head |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            data = gzip.compress(data, 6)
        self._send(HTTPStatus.OK, data, body, head)

    def _is_here(self, path: Path) -> bool:
        """Return whether this is a file, and, if it is a link, one to a file of this folder."""
        try:
            return path.is_file() and path.resolve().parent == self.server.folder.resolve()
        except OSError:  # the name is too long
            return False

    def _send(self, status: HTTPStatus, data: bytes, body: bool, head: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (head | {"Cache-Control": "no-store", "Accept-Ranges": "bytes"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):  # the client is gone
                self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _range(text: str, length: int) -> tuple[int, int] | None:
    """Return start and end of `bytes=2-5`, `bytes=2-` or `bytes=-5`, or None for anything else."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        return max(0, length - int(match[2])), length
    return int(match[1]), min(length, int(match[2]) + 1) if match[2] else length
