"""`ptegpu serve` with the bundled language model: concurrent clients get the texts that each would get alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.cli.conftest import Invoke, invoke
from tests.serve.conftest import wait_until

import ptegpu
from ptegpu.errors import UnsupportedProgram
from ptegpu.models.text import LanguageModel
from ptegpu.runtime import LoadOptions
from ptegpu.serve.models import open_model
from ptegpu.site.pages import TITLES as OFFERS

__all__ = ["invoke"]
MODEL = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
ROOT = Path(__file__).resolve().parent.parent.parent
TITLES = ("The Wolf and the Tailor", "The Old Mill", "The King's Daughter", "The Wolf and the Fox")


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    command = [sys.executable, "-m", "ptegpu", "serve", "demo", "--port", "0", "--precision", "exact", "--json"]
    paths = {"PYTHONPATH": ":".join([str(ROOT / "src"), *sys.path]), "PTEGPU_ENGINE": "wgpu", "PTEGPU_CACHE": "off"}
    more = ["--sequences", "4", "--max-tokens", "64", "--allow-host", "tales.example"]
    with subprocess.Popen(
        [*command, *more], env=paths, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            text = ""
            for line in lines:
                text += line
                if line == "}\n":
                    break
            info = json.loads(text)
            assert ["tales"] == info["models"] and 200 == httpx2.get(info["page"]).status_code
            offers = httpx2.get(f"{info['page']}site.json").json()["server"]["examples"]["models"]
            assert {"tales": list(OFFERS)} == offers and all(title.endswith("\n") for title in OFFERS)
            for host, status in (("tales.example", 200), ("evil.example", 403)):
                assert status == httpx2.get(info["page"], headers={"Host": host}).status_code
            yield process, openai.OpenAI(base_url=info["url"], api_key="any", max_retries=0, timeout=300)
        finally:
            process.kill()


@pytest.mark.slow
def test_many_clients_get_what_each_gets_alone(server: tuple[subprocess.Popen[str], openai.OpenAI]) -> None:
    process, client = server
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9}

    def ask(seed: int) -> tuple[str, str | None]:
        prompt = f"{TITLES[seed % len(TITLES)]}\n"
        choice = client.completions.create(model="tales", prompt=prompt, seed=seed, **options).choices[0]
        return choice.text, choice.finish_reason

    with ThreadPoolExecutor(6) as pool:
        actual = list(pool.map(ask, range(6)))
    with LanguageModel(MODEL, engine="wgpu", precision="exact") as model:
        expected = [model.generate(f"{TITLES[k % len(TITLES)]}\n", seed=k, **options) for k in range(6)]
    assert [(result.text, result.finish_reason) for result in expected] == actual
    with client.completions.create(model="tales", prompt=TITLES[0], max_tokens=64, stream=True) as stream:
        next(iter(stream))
    used = [f'ptegpu_{name}{{model="tales"}} 0' for name in ("running", "queue", "cache_pages_used")]
    metrics = str(client.base_url).replace("/v1/", "/metrics")
    wait_until(lambda: set(used) <= set(httpx2.get(metrics).text.splitlines()))
    with pytest.raises(openai.BadRequestError, match="tales has no chat template: ask /v1/completions"):
        client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "x"}])
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (0, "", "") == (process.returncode, out, err)


NEITHER = "this is not an encoder: its first input is not a tensor of tokens but float32"
ONE = "--tokenizer is for one model: put those of several beside them, as NAME.tokenizer.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["a.pte", "--host", "0.0.0.0"],
            "0.0.0.0 is reachable from other machines: give API keys with --keys, or use --open",
        ),
        (["a.pte", "b/a.pte"], "two models have one name, a: rename a file"),
        (["a.pte", "b.pte", "--tokenizer", "t.json"], ONE),
        (["a.pte", "--keys", "no.txt"], "no.txt: No such file or directory"),
        (["a.pte", "--port", "0"], "a.pte: No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_served(invoke: Invoke, arguments: list[str], message: str) -> None:
    ended = invoke("serve", *arguments)
    assert (1, "", f"error: {message}\n") == (ended.code, ended.out, ended.err)


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_program_that_is_neither_kind(tmp_path: Path, with_tokenizer: bool) -> None:
    program = tmp_path / "mlp.pte"
    program.write_bytes((ROOT / "tests" / "data" / "mlp.pte").read_bytes())
    if with_tokenizer:
        (tmp_path / "tokenizer.json").write_bytes(MODEL.with_name("tales.tokenizer.json").read_bytes())
    reason = "this is not an encoder: its first input is not a tensor of tokens"
    neither = f"^{re.escape(str(program))} cannot be served: .*; {reason}"
    with pytest.raises(UnsupportedProgram, match=neither):
        open_model(program, "mlp", LoadOptions())
