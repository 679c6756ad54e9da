"""Errors as OpenAI's API has them: {"error": {"message", "type", "param", "code"}}, whatever went wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from roseinfer.arguments import unknown_name
from roseinfer.stage import TooLong

from .request_id import REQUEST_ID

INVALID, LIMITED, UNAVAILABLE, SERVER = (
    "invalid_request_error",
    "rate_limit_error",
    "service_unavailable_error",
    "server_error",
)
CLIENT_GONE = 499  # as nginx has it; seen by a log alone
TYPES = {429: LIMITED, 503: UNAVAILABLE, 500: SERVER}
LONGEST_VALUE = 100  # characters of a wrong value in a message
LONGEST_MESSAGE = 2000
logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that is refused. param: the field that is wrong. code: OpenAI's word for it, if there is one."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param, self.status, self.code, self.headers = param, status, code, headers

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, INVALID)
        message = f"{self} (request {REQUEST_ID.get()})" if kind == SERVER else str(self)  # the log has it too
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSON(self.body(), self.status, self.headers)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a ValueError of the library, which checks what a client sent, into an ApiError with its message."""
    try:
        yield
    except ValueError as error:
        code = "context_length_exceeded" if isinstance(error, TooLong) else None
        raise ApiError(str(error)[:LONGEST_MESSAGE], code=code) from error


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Any error."""

    error: ErrorDetail


class JSON(Response):
    """JSON in ASCII alone: a text may have half of a surrogate pair, which UTF-8 cannot hold."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(json.dumps(content, allow_nan=False), status_code, headers)


def api_error(error: Exception) -> ApiError:
    """Return what a client is told of an error. A bug is logged, and its client learns only that there is one."""
    if isinstance(error, ApiError):
        return error
    logger.error("a bug in the server, at request %s", REQUEST_ID.get(), exc_info=error)
    return ApiError("the server has a bug: its log has the details", status=500, code="internal_error")


def install_handlers(app: FastAPI) -> None:
    """Let every error of the app leave it in this form."""

    async def of_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        body = request.scope["route"].body_field.field_info.annotation
        return validation_error(error, body.model_fields).response()

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            message = f"there is nothing at {request.method} {request.url.path[:LONGEST_VALUE]}"
            return ApiError(message, status=404, code="not_found").response()
        if error.status_code == 405:
            message = f"{request.url.path} does not take {request.method}"
            return ApiError(message, status=405, code="method_not_allowed", headers=error.headers).response()
        return ApiError(str(error.detail), status=error.status_code, headers=error.headers).response()

    async def of_any(request: Request, error: Exception) -> Response:
        return api_error(error).response()

    app.add_exception_handler(RequestValidationError, of_body)
    app.add_exception_handler(HTTPException, of_http)
    for kind in (ApiError, Exception):
        app.add_exception_handler(kind, of_any)


def validation_error(error: RequestValidationError, fields: Iterable[str]) -> ApiError:
    """Make the error for the first field that is wrong. fields: of the body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", "")
        return ApiError(f"the body must be JSON: {why} at character {first['loc'][-1]}", code="invalid_json")
    place, wrong = nearest(error)
    first, name = wrong[0], dotted(place)
    if not place:
        return ApiError(f"the body must be a JSON object, sent as application/json: {first['msg']}")
    if first["type"] == "extra_forbidden":
        return unknown_field(place, fields)
    if first["type"] == "missing":
        return ApiError(f"{name} is missing", name, code="missing_required_parameter")
    messages = " or ".join(dict.fromkeys(one["msg"] for one in wrong))
    return ApiError(f"{name}: {messages}, got {first['input']!r:.{LONGEST_VALUE}}", name, code="invalid_value")


def nearest(error: RequestValidationError) -> tuple[list[str | int], list[dict[str, Any]]]:
    """Return the place of a wrong value, and pydantic's errors about it.

    It is in the first field that is wrong. Where the field may have several forms, the one that fits best is wrong
    deepest inside.
    """
    places = [(place_of(one, error.body), one) for one in error.errors()]
    field = places[0][0][:1]
    deepest = max((place for place, _ in places if place[:1] == field), key=len)
    return deepest, [one for place, one in places if place == deepest]


def place_of(error: dict[str, Any], body: Any) -> list[str | int]:
    """Return the keys and indices that lead to the wrong value.

    pydantic writes the names of forms between them, where a field may have several.
    """
    _, *parts = error["loc"]  # the first is "body"
    place: list[str | int] = []
    value = body
    for number, part in enumerate(parts, 1):
        try:
            value = value[part]
        except (TypeError, KeyError, IndexError):
            if number < len(parts) or error["type"] != "missing":
                continue
        place.append(part)
    return place


def unknown_field(place: Sequence[str | int], fields: Iterable[str]) -> ApiError:
    *outer, last = place
    name = str(last)
    if outer:
        message = f"{dotted(outer)} has no field {name!r:.{LONGEST_VALUE}}"
    else:
        message = f"unknown field {unknown_name(name, fields)}"
    return ApiError(message, dotted([*outer, name[:LONGEST_VALUE]]), code="unknown_parameter")


def dotted(place: Sequence[str | int]) -> str:
    """Write ["messages", 0, "role"] as messages[0].role."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
