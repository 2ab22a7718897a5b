"""The page at /: it needs no key, knows whether the server has keys, and may only connect to this server."""

from __future__ import annotations

import base64
import re
from hashlib import sha256

import httpx2
from tests.serve.conftest import Running, Start

from ptegpu.serve import ApiKeys

FILES = {"": "text/html", "chat.js": "text/javascript", "style.css": "text/css", "site.json": "application/json"}


def test_the_page_is_served_with_what_it_may_do(server: Running) -> None:
    for name, kind in FILES.items():
        answer = httpx2.get(f"{server.url}/{name}")
        assert (200, f"{kind}; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
        assert "nosniff" == answer.headers["x-content-type-options"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    index = httpx2.get(server.url)
    (script,) = re.findall("<script>(.*?)</script>", index.text, re.DOTALL)
    allowed = base64.b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{allowed}';" in index.headers["content-security-policy"]
    assert "{{" not in index.text
    named = set(re.findall(r'(?:src|href)="([^"#:]+)"', index.text))
    assert {"chat.js", "style.css"} == named  # all of them are served
    assert 404 == httpx2.get(f"{server.url}/any.js").status_code


def test_the_page_knows_whether_to_ask_for_a_key(start: Start) -> None:
    for keys in (ApiKeys(), ApiKeys(["one of 16 letters"])):
        running = start(keys=keys)
        site = httpx2.get(f"{running.url}/site.json").json()
        assert bool(keys) == site["server"]["keys"]
        assert {"chat", "text", "models"} == set(site["server"]["examples"])


def test_models_say_what_they_are_for(start: Start) -> None:
    def summary(running: Running) -> dict[str, object]:
        listed = running.openai().models.list().data
        return {m.id: (m.kind, m.context, m.max_tokens) for m in listed}  # type: ignore[attr-defined]

    assert {"fake": ("chat", 64, 64), "rows": ("embeddings", 64, 0)} == summary(start())
    assert {"fake": ("text", 64, 64)} == summary(start(has_chat=False, encoder=False))
