"""What the control plane's endpoints share: scopes, the error shape, access to the services."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Row
from starlette.exceptions import HTTPException

from proxy.engine.register import EngineRefused
from proxy.errors import Refusal
from proxy.services import Services
from spanlog import errors
from spanlog.keys import Scope

bearer = HTTPBearer(auto_error=False, description="A runner's or the admin key.")


def get_services(request: Request) -> Services:
    return request.app.state.services


ServicesDep = Annotated[Services, Depends(get_services)]


class RequireScope:
    """A dependency: the caller's key must have one of these scopes."""

    def __init__(self, *scopes: Scope) -> None:
        self._scopes = scopes

    def __call__(
        self,
        services: ServicesDep,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    ) -> None:
        if credentials is None:
            raise Refusal(
                401,
                "No key given: send 'Authorization: Bearer <key>' (keys.json, or SINGLETREE_KEY).",
                code="no_key",
            )
        scope = services.keys.scope(credentials.credentials)
        if scope is None:
            raise Refusal(
                401, "Unknown key: use the keys that `singletree serve` was started with.", code="bad_key"
            )
        if scope not in self._scopes:
            raise Refusal(
                403,
                f"A key of scope '{scope}' may not do this: use one of scope {' or '.join(self._scopes)}.",
                code="wrong_scope",
            )


admin_only = Depends(RequireScope(Scope.ADMIN))
runner_or_admin = Depends(RequireScope(Scope.RUNNER, Scope.ADMIN))


def error_response(
    status: int, message: str, code: str | None, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "code": code}}, status, headers)


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}


def row_dict(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)


def now() -> float:
    return time.time()


_STATUS_OF: list[tuple[type[errors.SpanlogError], int, str]] = [
    (errors.NotFound, 404, "not_found"),
    (errors.RolloutEnded, 409, "rollout_ended"),
    (errors.Conflict, 409, "conflict"),
    (errors.RewardNotFinite, 422, "reward_not_finite"),
    (errors.DatabaseLocked, 503, "database_locked"),
    (errors.DatabaseUnreachable, 503, "database_unreachable"),
    (errors.DatabaseUnwritable, 503, "database_unwritable"),
]
"""First match counts: subclasses stand before their bases."""


def add_error_handlers(app: FastAPI) -> None:
    """Every error of the control plane leaves as ``{"error": {"message", "code"}}``."""

    @app.exception_handler(Refusal)
    def _refusal(_request: Request, error: Refusal) -> JSONResponse:
        headers = None if error.retry_after is None else retry_after(error.retry_after)
        return error_response(error.status, error.message, error.code, headers)

    @app.exception_handler(EngineRefused)
    def _engine(_request: Request, error: EngineRefused) -> JSONResponse:
        return error_response(422, str(error), error.code)

    @app.exception_handler(errors.AdmissionRefused)
    def _admission(_request: Request, error: errors.AdmissionRefused) -> JSONResponse:
        return error_response(429, str(error), "admission", retry_after(error.retry_after))

    @app.exception_handler(errors.SpanlogError)
    def _spanlog(_request: Request, error: errors.SpanlogError) -> JSONResponse:
        for kind, status, code in _STATUS_OF:
            if isinstance(error, kind):
                return error_response(status, str(error), code, retry_after(1) if status == 503 else None)
        return error_response(500, str(error), "span_log")

    @app.exception_handler(RequestValidationError)
    def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()[0]
        where = ".".join(str(part) for part in found["loc"] if part != "body")
        message = found["msg"].removeprefix("Value error, ")
        return error_response(422, f"{where}: {message}" if where else message, "invalid_body")

    @app.exception_handler(Exception)
    def _unforeseen(_request: Request, _error: Exception) -> JSONResponse:
        """The server logs it with its traceback."""
        return error_response(500, "Internal error of the proxy: see its log.", "internal_error")

    @app.exception_handler(HTTPException)
    def _http(_request: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), "http", dict(error.headers or {}))
