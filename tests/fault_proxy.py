"""Stands before a real engine and makes one of its routes go wrong, in fact or in word. No streaming."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

Forward = Callable[[], httpx.Response]


@dataclass
class Fault:
    """What to do with calls whose path or body contains ``trigger``; null passes all through."""

    trigger: str | None = None
    act: Callable[[Forward], httpx.Response] = lambda forward: forward()
    seen: list[str] = field(default_factory=list)
    """Paths of all calls, in order."""


def truncated_during(file: Path) -> Callable[[Forward], httpx.Response]:
    """The engine finds ``file`` cut off while it handles the call; afterwards it is whole again."""

    def act(forward: Forward) -> httpx.Response:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        try:
            return forward()
        finally:
            file.write_bytes(whole)

    return act


def replaced_during(file: Path, content: bytes) -> Callable[[Forward], httpx.Response]:
    """The engine finds another ``content`` in ``file`` while it handles the call."""

    def act(forward: Forward) -> httpx.Response:
        whole = file.read_bytes()
        file.write_bytes(content)
        try:
            return forward()
        finally:
            file.write_bytes(whole)

    return act


def answered_without_doing(body: dict[str, object]) -> Callable[[Forward], httpx.Response]:
    """Says 200 and does nothing."""
    return lambda forward: httpx.Response(200, json=body)


@contextmanager
def fault_proxy(engine_url: str, fault: Fault) -> Iterator[str]:
    """Yields the URL of a proxy to ``engine_url`` that obeys ``fault``, which may be changed while it runs."""

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            fault.seen.append(self.path.partition("?")[0])

            def forward() -> httpx.Response:
                headers = {"content-type": self.headers.get("content-type") or "application/json"}
                return httpx.request(
                    self.command,
                    engine_url + self.path,
                    content=body,
                    headers=headers,
                    timeout=60.0,
                    trust_env=False,
                )

            if fault.trigger is None or (
                fault.trigger not in self.path and fault.trigger.encode() not in body
            ):
                self._stream(body)
                return
            reply = fault.act(forward)
            self.send_response(reply.status_code)
            self.send_header("content-type", reply.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        def _stream(self, body: bytes) -> None:
            """Bytes as they come; the end of the connection is the end of the reply (HTTP/1.0)."""
            headers = {"content-type": self.headers.get("content-type") or "application/json"}
            url = engine_url + self.path
            with (
                suppress(OSError),
                httpx.stream(
                    self.command, url, content=body, headers=headers, timeout=90.0, trust_env=False
                ) as reply,
            ):
                self.send_response(reply.status_code)
                self.send_header("content-type", reply.headers.get("content-type", "application/json"))
                self.end_headers()
                for data in reply.iter_raw():
                    self.wfile.write(data)
                    self.wfile.flush()

        do_GET = do_POST = _pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
