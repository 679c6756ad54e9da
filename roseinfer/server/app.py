"""The FastAPI app: its routes, and nothing else of the server. run.py gives it a socket."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.security import HTTPBearer
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .async_engine import LOADING, READY
from .errors import JSON, ErrorBody, install_handlers
from .limits import Limits
from .lines import to_stderr
from .live_view import live_view
from .prometheus import CONTENT_TYPE, exposition
from .protocol import ChatBody, CompletionBody, DetokenizeBody, GenerateBody, TokenizeBody
from .request_log import RequestLog
from .service import Service
from .settings import ServerSettings

PAGE = Path(__file__).parent / "page" / "index.html"
# The page has its style and its script in itself, and asks this server alone.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": why}
    for status, why in {
        400: "the request is wrong; `param` names the field",
        401: "the API key is missing or wrong",
        403: "the header Host names another server",
        404: "there is no such model",
        408: "the body took too long",
        413: "the body is too large",
        429: "the queue is full: Retry-After has the seconds to wait",
        500: "a step of the engine failed",
        503: "the server loads its model, or shuts down",
    }.items()
}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}
POSTED = ERRORS | STREAMED
# Of the description alone: limits.py checks it before a body is read.
Key = Annotated[Any, Depends(HTTPBearer(auto_error=False))]


class HeadIsGet:
    """ASGI middleware that answers HEAD as GET, wherever GET is answered. The connection keeps the body back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self.app({**scope, "method": "GET"} if is_head else scope, receive, send)


def make_app(service: Service, settings: ServerSettings, replica: str | None = None) -> ASGIApp:
    """Wrap the routes in what every request passes through. replica: see RequestLog."""
    return RequestLog(routes(service, settings), to_stderr if settings.access_log else None, replica)


def routes(service: Service, settings: ServerSettings) -> FastAPI:
    # The usual pages about the API load scripts from elsewhere: a server without a network would show a blank one.
    app = FastAPI(title="roseinfer", version=version("roseinfer"), docs_url=None, redoc_url=None)
    install_handlers(app)
    app.add_middleware(HeadIsGet)
    app.add_middleware(Limits, settings=settings)
    started = int(time.time())

    @app.post("/v1/completions", responses=POSTED)
    async def completions(body: CompletionBody, http: Request, key: Key) -> Response:
        """Continue a prompt, or each of several: OpenAI's form."""
        return await service.complete(body, http)

    @app.post("/v1/chat/completions", responses=POSTED)
    async def chat_completions(body: ChatBody, http: Request, key: Key) -> Response:
        """Answer a conversation: OpenAI's form."""
        return await service.chat(body, http)

    @app.post("/generate", responses=POSTED)
    async def generate(body: GenerateBody, http: Request, key: Key) -> Response:
        """Continue a prompt: the form of post 002's server."""
        return await service.generate(body, http)

    @app.post("/models/{model:path}/generate", responses=POSTED)
    async def generate_of_model(model: str, body: GenerateBody, http: Request, key: Key) -> Response:
        """Continue a prompt with the model that the path names: the form of post 002's server."""
        service.require_model(model)
        return await service.generate(body, http)

    @app.post("/tokenize", responses=ERRORS)
    async def tokenize(body: TokenizeBody, http: Request, key: Key) -> Response:
        """Encode a text or a conversation to tokens: vLLM's form."""
        return await service.tokenize(body, http)

    @app.post("/detokenize", responses=ERRORS)
    async def detokenize(body: DetokenizeBody, http: Request, key: Key) -> Response:
        """Decode tokens to a text: vLLM's form."""
        return await service.detokenize(body, http)

    @app.get("/v1/models", responses=ERRORS)
    async def models(key: Key) -> Response:
        """List the one model."""
        return JSON({"object": "list", "data": [card()]})

    @app.get("/v1/models/{model:path}", responses=ERRORS)
    async def model(model: str, key: Key) -> Response:
        """Describe the model of this name."""
        service.require_model(model)
        return JSON(card())

    def card() -> dict[str, Any]:
        about = {"id": service.model_name, "object": "model", "created": started, "owned_by": "roseinfer"}
        if service.engine.status == LOADING:
            return about
        llm = service.llm
        return about | {"max_model_len": llm.max_model_len, "vocab_size": llm.model.config.vocab_size}

    @app.get("/health", responses={503: {}})
    async def health() -> Response:
        """Answer 200 once the model is loaded and warm, until the server drains."""
        status = service.engine.status
        headers = {} if status == READY else {"Retry-After": "1"}
        return JSON({"status": status}, 200 if status == READY else 503, headers)

    @app.get("/version")
    async def own_version() -> Response:
        """Tell the version of roseinfer."""
        return JSON({"version": app.version})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Report the metrics in Prometheus' text form, with vLLM's names."""
        return Response(exposition(service.engine, service.model_name), media_type=CONTENT_TYPE)

    @app.get("/live", responses=ERRORS)
    async def live(key: Key) -> Response:
        """Report what the page shows of the engine."""
        return JSON({"model": service.model_name} | live_view(service.engine))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        """Show a playground, and the engine at work."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=PAGE_HEADERS)

    return app
