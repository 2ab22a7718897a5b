"""What the browser job runs: sites of programs, calls of each, and what ptegpu gives for them here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests import saved
from tests.saved import Call

import ptegpu
from ptegpu.models.text import LanguageModel
from ptegpu.plan.save import save_web
from ptegpu.plan.target import Target
from ptegpu.site.site import make_site

DATA = Path(__file__).resolve().parents[2] / "data"
DEMO = Path(ptegpu.__file__).parent / "demo"
SIZES = ((1, 2), (1, 5), (1, 12), (2, 3), (2, 8), (3, 9), (3, 12), (4, 2), (4, 7), (4, 12))  # batch × length
PROMPTS = (1, 2, 9, 65, 200)  # tokens
SERVED: dict[str, Any] = {  # what the page of a server is made to ask
    "key": "a key of a server",
    "endless": {"maxTokens": 900, "seed": 0},  # 90 s, and no token that ends the text
    "prompt": "The fox",
    "settings": {"maxTokens": 5, "seed": 3},
}
NAMES = {
    "max_tokens": "maxTokens", "top_k": "topK", "top_p": "topP", "min_p": "minP", "repeat_penalty": "repeatPenalty",
    "stop_tokens": "stopTokens",
}  # fmt: skip


@dataclass
class Program:
    """A program with calls in order, and what each gives natively."""

    name: str
    data: bytes | Path
    calls: Sequence[Call]
    expected: list[Any] = field(default_factory=list)

    def run(self) -> Program:
        with ptegpu.load(self.data) as program:
            for call in self.calls:
                if call.reset:
                    program.reset()
                self.expected.append(program.method(call.method).execute(list(call.inputs)))
        return self


def programs() -> list[Program]:
    random = np.random.default_rng(0)
    few = saved.read(DATA / "few.zip")[1]

    def noise(*shape: int, shift: float = 0.0) -> np.ndarray:
        return (random.standard_normal(shape) + shift).astype(np.float32)

    def text(b: int, t: int) -> list[np.ndarray]:
        lengths = random.integers(1, t + 1, (b, 1))
        return [random.integers(0, 50, (b, t)), (np.arange(t) < lengths).astype(np.int64)]

    images = np.load(DEMO / "digits.npz")["images"]
    rows = np.array([2, 0])
    found = [
        Program("digits", DEMO / "digits.pte", [Call([image[None]], []) for image in images]),
        Program("cond", DATA / "control.pte", [Call([noise(3, 4, shift=s), rows], []) for s in (2, -2, -2, 2)]),
        Program("encoder", few["bert"].data, [Call(text(*size), []) for size in SIZES]),
        Program("state", few["state"].data, few["state"].calls),
        Program("ints", few["every kind of output"].data, few["every kind of output"].calls),
        Program("methods", DATA / "methods.pte", [Call([noise(2, 8)], [], m) for m in ("forward", "encode")]),
        Program("mobilenet", mobilenet(), [Call([noise(1, 3, 64, 64)], [])]),
    ]
    return [program.run() for program in found]


def mobilenet() -> bytes:
    """MobileNetV2 with all of its layers, for small images."""
    import torch
    from benchmarks.models import MobileNetV2, filled
    from tests.exporting import export

    return export(filled(MobileNetV2()), (torch.zeros(1, 3, 64, 64),))


@dataclass
class Request:
    """A generation: tokens of a prompt, options as Python has them."""

    prompt: Any
    options: dict[str, Any]
    reset: bool = False

    def told(self) -> dict[str, Any]:
        options = {NAMES.get(key, key): value for key, value in self.options.items()}
        return {"prompt": self.prompt, "options": options, "reset": self.reset}


def requests(model: LanguageModel) -> list[Request]:
    tokens = model.encode((DEMO / "tales.heldout.txt").read_text()[:850])
    common = {"max_tokens": 6, "stop_tokens": []}
    sampled = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 7}
    found = []
    for n in PROMPTS:
        found.append(Request(tokens[:n], common, reset=True))
        found.append(Request(tokens[:n], common | sampled))
    text = model.tokenizer.decode(tokens[:9])  # of which the cache has all but the last token
    rare = {"temperature": 1.1, "min_p": 0.02, "repeat_penalty": 1.3, "seed": 1}
    found.append(Request(text, common | rare))
    found.append(Request(text, {"max_tokens": 24, "stop": [" a "]}))
    return found


def make(folder: Path) -> tuple[list[Program], list[Any]]:
    """Sites and `job.json` in a folder. Returns the programs, and what the language model generates natively."""
    made, sites = programs(), folder / "sites"
    sites.mkdir()
    for program in made:
        labels = {"labels": [str(k) for k in range(10)]} if program.name == "digits" else {}
        site(program.data, sites / program.name, **labels)
    site(DEMO / "tales.pte", sites / "tales")
    with patch("ptegpu.plan.save.SHARD", 4096):
        site(DEMO / "digits.pte", sites / "sharded")
    shards = sorted((sites / "sharded").glob("shard-*.bin"))
    assert len(shards) > 6
    save_web(ptegpu.compile(DEMO / "digits.pte", targets=[Target(f16=True, name="halves")]), sites / "halves")
    save_web(ptegpu.compile(DATA / "counting.pte"), sites / "hosted")
    for name in ("changed", "corrupt", "html"):
        shutil.copytree(sites / "digits", sites / name)
    (sites / "html" / "bundle.json").write_text("<!doctype html><title>Not found</title>")
    for path in (sites / "changed").glob("variant-*.json"):
        path.write_bytes(path.read_bytes().replace(b"main", b"mein"))
    with LanguageModel(DEMO / "tales.pte") as model:
        asked, generations = requests(model), []
        for request in asked:
            if request.reset:
                model.reset()
            generations.append(model.generate(request.prompt, **request.options))
    calls = {program.name: told(program.calls[0]) for program in made}
    job = {
        "programs": [{"name": p.name, "site": p.name, "calls": [told(c) for c in p.calls]} for p in made],
        "calls": calls | {"sharded": calls["digits"]},
        "language": {"requests": [request.told() for request in asked]},
        "shards": _held(shards),
        "served": SERVED,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return made, generations


def _held(shards: Sequence[Path]) -> dict[str, Any]:
    """Say which shard is held at its half, how many others arrive meanwhile, and how many bytes that are in all."""
    window = shards[:6]  # three are fetched at once, so behind the one with index 3 come two
    sizes = [path.stat().st_size for path in window]
    return {"held": f"sharded/{shards[3].name}", "others": len(window) - 1, "cutAt": sum(sizes) - (sizes[3] + 1) // 2}


def site(data: bytes | Path, folder: Path, **options: Any) -> None:
    path = data if isinstance(data, Path) else folder.with_suffix(".pte")
    if isinstance(data, bytes):
        path.write_bytes(data)
    make_site(path, folder, **options)


def told(call: Call) -> dict[str, Any]:
    return {"method": call.method, "inputs": [_value(v) for v in call.inputs], "reset": call.reset}


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.ravel().tolist()}
    return value
