"""What can go wrong in the proxy.

ProxyError              ends ``singletree serve`` with one line and an exit code
├── PortTaken           something listens on the address already
├── UnsafeBind          keys missing beyond loopback, or the same for both scopes
└── KeysUnwritable      the file for generated keys cannot be written
Refusal                 answers one call with an HTTP status, in the caller's dialect
UpstreamFailed          an engine failed a call; retried while nothing was sent to the caller
ClientGone              the caller left: the engine's work is stopped
"""

from __future__ import annotations


class ProxyError(Exception):
    """A user's mistake at start-up; the message names the remedy."""

    exit_code: int = 2


class PortTaken(ProxyError):
    exit_code = 3


class UnsafeBind(ProxyError):
    pass


class KeysUnwritable(ProxyError):
    exit_code = 4


class Refusal(Exception):
    """A call that is answered with an error instead of a reply."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after


class UpstreamFailed(Exception):
    """An engine did not give a whole reply.

    ``status`` is what the caller gets (the engine's own where it sent one), ``body`` the engine's own error document,
    ``retryable`` whether another try could help.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        code: str = "upstream_error",
        body: dict | None = None,
        retryable: bool = True,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.body = body
        self.retryable = retryable
        self.retry_after = retry_after


class ClientGone(Exception):
    """The caller closed its connection."""
