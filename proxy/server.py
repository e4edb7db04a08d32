"""``singletree serve`` without the command line: open what is needed, or say in one line why not; serve; drain."""

from __future__ import annotations

import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import uvicorn

from proxy.app import create_app
from proxy.errors import PortTaken, ProxyError
from proxy.keyfile import with_keys
from proxy.settings import Settings
from spanlog import migrate
from spanlog.database import Database

BACKLOG = 2048
LEVELS = ("debug", "info", "warning", "error")
KEEP_ALIVE_S = 75
"""Longer than the idle time after which HTTP clients drop pooled connections, so that they never send into a close."""

log = structlog.get_logger("proxy.server")


def run_server(settings: Settings, log_level: str = "info") -> None:
    """Serves until SIGTERM or SIGINT. Raises ProxyError and SpanlogError, each with an ``exit_code``."""
    configure_logs(log_level)
    listener = bind(settings)
    try:
        database = Database(
            settings.database_url, durability=settings.durability, busy_timeout_s=settings.busy_timeout_s
        )
        try:
            database.claim_single_writer()  # before the schema is touched: another proxy may be using it
            migrate.upgrade(database)
            settings, keys_file = with_keys(settings, _folder_of(database))
            _serve(settings, database, listener, keys_file)
        finally:
            database.close()
    finally:
        listener.close()


def _serve(settings: Settings, database: Database, listener: socket.socket, keys_file: Path | None) -> None:
    host, port = listener.getsockname()[:2]
    with _named_errors(settings):
        listener.listen(BACKLOG)
    log.info(
        "listening",
        url=f"http://{host}:{port}",
        database=database.display_url,
        keys_file=str(keys_file or ""),
    )
    config = uvicorn.Config(
        create_app(settings, database),  # pyright: ignore[reportArgumentType]
        http="httptools",
        loop="uvloop",
        ws="none",
        proxy_headers=False,
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
    # uvicorn drains on SIGTERM and then raises it again for the handler that was there before: with one that does
    # nothing, the database is closed properly and the exit code is 0.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    gc.freeze()  # what is loaded stays: collections need not look at it on every round of calls
    gc.set_threshold(20_000, 20, 50)
    uvicorn.Server(config).run(sockets=[listener])


def bind(settings: Settings) -> socket.socket:
    """The socket to serve on, taken before anything else is touched; nobody can connect yet.

    Raises PortTaken, ProxyError.
    """
    with _named_errors(settings):
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
        return listener


@contextmanager
def _named_errors(settings: Settings) -> Iterator[None]:
    where = f"{settings.host}:{settings.port}"
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"{where} is taken: stop what listens there, or choose another --port") from None
        reason = error.strerror or str(error)
        raise ProxyError(f"cannot listen on {where} ({reason}): choose another --host or --port") from None


def _folder_of(database: Database) -> Path:
    return Path(database.url.database or ".").parent if database.is_sqlite else Path()


def configure_logs(level: str) -> None:
    """Structured lines on stderr. Requests, replies and keys are never logged."""
    if level not in LEVELS:
        raise ProxyError(f"unknown log level {level}: use one of {', '.join(LEVELS)}")
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # plain: richer tracebacks show local variables, so requests too
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
            if sys.stderr.isatty()
            else structlog.processors.LogfmtRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(
        level=max(number, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s %(message)s"
    )
