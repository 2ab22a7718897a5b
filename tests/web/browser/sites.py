"""The inputs of the browser job: sites of programs, their calls, and the results of ptegpu here."""

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
SERVED: dict[str, Any] = {  # requests of a served page
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
    """A program with calls in order, and the native results of each."""

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
    examples = saved.read(DATA / "few.zip")[1]

    def noise(*shape: int, shift: float = 0.0) -> np.ndarray:
        return (random.standard_normal(shape) + shift).astype(np.float32)

    def text(b: int, t: int) -> list[np.ndarray]:
        lengths = random.integers(1, t + 1, (b, 1))
        return [random.integers(0, 50, (b, t)), (np.arange(t) < lengths).astype(np.int64)]

    images = np.load(DEMO / "digits.npz")["images"]
    rows = np.array([2, 0])
    cases = [
        Program("digits", DEMO / "digits.pte", [Call([image[None]], []) for image in images]),
        Program("cond", DATA / "control.pte", [Call([noise(3, 4, shift=s), rows], []) for s in (2, -2, -2, 2)]),
        Program("encoder", examples["bert"].data, [Call(text(*size), []) for size in SIZES]),
        Program("state", examples["state"].data, examples["state"].calls),
        Program("ints", examples["every kind of output"].data, examples["every kind of output"].calls),
        Program("methods", DATA / "methods.pte", [Call([noise(2, 8)], [], m) for m in ("forward", "encode")]),
        Program("mobilenet", mobilenet(), [Call([noise(1, 3, 64, 64)], [])]),
    ]
    return [program.run() for program in cases]


def mobilenet() -> bytes:
    """Return MobileNetV2 with all of its layers, for small images."""
    import torch
    from benchmarks.models import MobileNetV2, filled
    from tests.exporting import export

    return export(filled(MobileNetV2()), (torch.zeros(1, 3, 64, 64),))


@dataclass
class Request:
    """A generation: the tokens or text of a prompt, and options with Python's names."""

    prompt: Any
    options: dict[str, Any]
    reset: bool = False

    def to_json(self) -> dict[str, Any]:
        options = {NAMES.get(key, key): value for key, value in self.options.items()}
        return {"prompt": self.prompt, "options": options, "reset": self.reset}


def requests(model: LanguageModel) -> list[Request]:
    tokens = model.encode((DEMO / "tales.heldout.txt").read_text()[:850])
    common = {"max_tokens": 6, "stop_tokens": []}
    sampled = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 7}
    result = []
    for n in PROMPTS:
        result.append(Request(tokens[:n], common, reset=True))
        result.append(Request(tokens[:n], common | sampled))
    text = model.tokenizer.decode(tokens[:9])  # the cache has all of these but the last token
    rare = {"temperature": 1.1, "min_p": 0.02, "repeat_penalty": 1.3, "seed": 1}
    result.append(Request(text, common | rare))
    result.append(Request(text, {"max_tokens": 24, "stop": [" a "]}))
    return result


def make(folder: Path) -> tuple[list[Program], list[Any]]:
    """Write sites and `job.json` to a folder; return the programs, and the native generations of the language model."""
    cases, sites = programs(), folder / "sites"
    sites.mkdir()
    for program in cases:
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
        language_requests, generations = requests(model), []
        for request in language_requests:
            if request.reset:
                model.reset()
            generations.append(model.generate(request.prompt, **request.options))
    calls = {program.name: call_json(program.calls[0]) for program in cases}
    job = {
        "programs": [{"name": p.name, "site": p.name, "calls": [call_json(c) for c in p.calls]} for p in cases],
        "calls": calls | {"sharded": calls["digits"]},
        "language": {"requests": [request.to_json() for request in language_requests]},
        "shards": _held_shard(shards),
        "served": SERVED,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return cases, generations


def _held_shard(shards: Sequence[Path]) -> dict[str, Any]:
    """Return the shard held at its half, the number of others that arrive meanwhile, and the bytes in total."""
    window = shards[:6]  # three are fetched at once, so two follow the one with index 3
    sizes = [path.stat().st_size for path in window]
    return {"held": f"sharded/{shards[3].name}", "others": len(window) - 1, "cutAt": sum(sizes) - (sizes[3] + 1) // 2}


def site(data: bytes | Path, folder: Path, **options: Any) -> None:
    path = data if isinstance(data, Path) else folder.with_suffix(".pte")
    if isinstance(data, bytes):
        path.write_bytes(data)
    make_site(path, folder, **options)


def call_json(call: Call) -> dict[str, Any]:
    return {"method": call.method, "inputs": [_value(v) for v in call.inputs], "reset": call.reset}


def _value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.ravel().tolist()}
    return value
