"""The chat page. It talks only to its own server, and a content security policy enforces that."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..site.pages import EXAMPLES, QUESTIONS
from ..site.site import FILES, SITE, filled

TITLE = "ptegpu"
ABOUT = "Write to the model on this server. Your words go there, and nowhere else."
TYPES = {"css": "text/css", "js": "text/javascript", "json": "application/json", "html": "text/html"}


def page_routes(keys: bool, examples: Mapping[str, Sequence[str]]) -> list[Route]:
    """Return the routes of the page at / and of its files. With `keys`, it asks for one; `examples` are by model."""
    index = filled("chat", TITLE, ABOUT)
    offers = {"chat": QUESTIONS, "text": EXAMPLES, "models": dict(examples)}
    site = {"title": TITLE, "page": "chat", "server": {"keys": keys, "examples": offers}}
    files = {"": index, SITE: json.dumps(site).encode()}
    files |= {name: (FILES / name).read_bytes() for name in ("chat.js", "style.css")}
    headers = {
        "Content-Security-Policy": policy(index),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    return [_route(name, content, headers) for name, content in files.items()]


def _route(name: str, content: bytes, headers: dict[str, str]) -> Route:
    kind = f"{TYPES[name.rpartition('.')[2] or 'html']}; charset=utf-8"

    async def respond(request: Request) -> Response:
        return Response(content, headers=headers | {"Content-Type": kind})

    return Route(f"/{name}", respond)


def policy(index: bytes) -> str:
    """Return a policy that allows the page's own scripts and requests to this server, but no frames."""
    scripts = re.findall(rb"<script>(.*?)</script>", index, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(sha256(script).digest()).decode()}'" for script in scripts]
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *hashes]),
        "style-src": "'self'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())
