"""Errors in OpenAI's format: a status, a type, a code, the parameter at fault, one line."""

from __future__ import annotations

from typing import Any

from ..printing import shown

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}  # others depend on the hundreds


class ApiError(Exception):
    """An error for a client. It may try again after `retry` seconds, unless that is None."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, retry: float | None = None
    ) -> None:
        self.status, self.message, self.code, self.param = status, shown(message), code, param
        super().__init__(self.message)
        self.retry = retry

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers; OpenAI's clients retry after most errors unless a header forbids that."""
        if self.retry is not None:
            return {"Retry-After": str(max(1, round(self.retry)))}
        return {"x-should-retry": "false"} | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of an invalid request."""
    return ApiError(400, message, code, param)
