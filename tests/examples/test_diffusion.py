"""The diffusion example: every scheduler converges, and every step on the GPU agrees with PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ptegpu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    """Import an example as a script would: with its folder first on the path."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


steps = example("diffusion_steps")
models = example("diffusion_models")
diffusion = example("diffusion")

STEPS = 10


def distance(name: str, count: int) -> float:
    """Return the distance from the exact result for normal pictures of mean 0.5, whose best model is known."""
    mean, deviation = 0.5, 0.3
    scheduler = steps.SCHEDULERS[name](steps.signal_levels(), count)

    def total(i: int) -> float:
        return float(np.hypot(scheduler.alphas[i] * deviation, scheduler.sigmas[i]))  # the deviation of latents

    def model(x: np.ndarray, i: int) -> np.ndarray:
        return scheduler.sigmas[i] * (x - scheduler.alphas[i] * mean) / total(i) ** 2

    noise, end = np.linspace(-2, 2, 9), count - 1
    x = scheduler.start(noise)
    for i in range(count):
        x = scheduler.step(x, model(scheduler.scaled(x, i), i), i)
    last = scheduler.alphas[end] * mean + total(end) / total(0) * (noise - scheduler.alphas[0] * mean)
    return float(abs(x - scheduler.picture(last, model(last, end), end)).max())


@pytest.mark.parametrize(("name", "order"), [("ddim", 1), ("euler", 1), ("dpm", 2)])
def test_schedulers_come_to_the_exact_end(name: str, order: int) -> None:
    distances = [distance(name, count) for count in (20, 40, 80, 160)]
    assert distances[-1] < 0.05
    assert all(a > 1.7**order * b for a, b in pairwise(distances))


def test_dpm_needs_the_fewest_steps() -> None:
    assert distance("dpm", 20) < min(distance("ddim", 20), distance("euler", 20)) / 2


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ptegpu.Program]]:
    folder = tmp_path_factory.mktemp("diffusion")
    diffusion.export(folder, delegate=False)
    with ExitStack() as stack:
        yield {name: stack.enter_context(ptegpu.load(folder / f"{name}.pte")) for name in diffusion.NAMES}


def drawn(parts: dict[str, Any], prompt: str, scheduler: str) -> tuple[list[np.ndarray], np.ndarray]:
    latents = list(diffusion.sample(parts, prompt, scheduler, STEPS, 3.0, 1))
    return latents, diffusion.pixels(parts["decoder"](latents[-1]))


@pytest.mark.heavy
def test_every_step_is_pytorchs(programs: dict[str, ptegpu.Program]) -> None:
    assert dict.fromkeys(diffusion.NAMES, 1) == {n: len(p.method("forward").plans) for n, p in programs.items()}
    eager = diffusion.in_pytorch()
    for scheduler, prompt in (
        ("ddim", "a large red circle"),
        ("euler", "a small blue square"),
        ("dpm", "a green cross"),
    ):
        latents, picture = drawn(programs, prompt, scheduler)
        expected, reference = drawn(eager, prompt, scheduler)
        assert STEPS == len(latents) == len(expected)
        for x, e in zip(latents, expected):
            np.testing.assert_allclose(x, e, rtol=0, atol=1e-4 * abs(e).max())
        np.testing.assert_allclose(picture.astype(int), reference, rtol=0, atol=1)


def test_pictures_show_what_was_asked_for() -> None:
    """PyTorch draws the shape in the requested colour, on white."""
    eager = diffusion.in_pytorch()
    for colour, ink in steps.COLOURS.items():
        _, picture = drawn(eager, f"a large {colour} square", "dpm")
        corner, middle = picture[:3, :3].mean((0, 1)), picture[12:20, 12:20].mean((0, 1))
        assert corner.min() > 200
        nearest = min(steps.COLOURS, key=lambda name: np.linalg.norm(middle - steps.COLOURS[name]))
        assert colour == nearest, (ink, middle)


def test_a_file_of_pixels() -> None:
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    np.testing.assert_array_equal(image, np.asarray(Image.open(BytesIO(diffusion.png(image)))))


def test_the_weights_are_small_and_those_of_the_models() -> None:
    assert models.WEIGHTS.stat().st_size < 300_000
    state = models.Models().state_dict()
    with np.load(models.WEIGHTS) as arrays:
        assert {n: tuple(v.shape) for n, v in state.items()} == {n: arrays[n].shape for n in arrays.files}
    picture, ids = models.batch(np.random.default_rng(0), 3)
    assert ((3, 3, 32, 32), (3, steps.LENGTH), torch.int64) == (picture.shape, ids.shape, ids.dtype)
