"""The parts of a diffusion pipeline around its models, in NumPy: tokens, noise levels, and schedulers.

A scheduler turns noise into a picture in few steps, given a model that predicts the noise. A latent at level t is
sqrt(a[t]) · picture + sqrt(1 - a[t]) · noise. A scheduler has `levels`, from most noise to least. `start` returns the
first latent, `scaled` the input of the model, and `step` the latent at the next level.
"""

from __future__ import annotations

import numpy as np

COLOURS = {"red": (220, 50, 47), "green": (60, 160, 70), "blue": (38, 100, 210), "yellow": (235, 190, 30)}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = ("small", "large")
WORDS = ("", "a", *SIZES, *COLOURS, *SHAPES)  # the first is padding and replaces unknown words
LENGTH = 6  # tokens of a prompt
LEVELS = 1000  # noise levels


def tokens(prompt: str) -> np.ndarray:
    """Return the token ids of a prompt, (1, LENGTH) int64."""
    words = prompt.lower().split()[:LENGTH]
    ids = [WORDS.index(word) if word in WORDS else 0 for word in words]
    return np.array([ids + [0] * (LENGTH - len(ids))], np.int64)


def signal_levels() -> np.ndarray:
    """Return the share of signal variance at each noise level, (LEVELS,), as in Stable Diffusion."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, LEVELS, dtype=np.float64) ** 2
    return np.cumprod(1 - betas)


class Scheduler:
    def __init__(self, signal: np.ndarray, steps: int) -> None:
        """Choose `steps` of the levels, given the share of signal variance at each level."""
        self.levels = self.chosen(signal, steps)
        share = np.interp(self.levels, np.arange(len(signal)), signal)
        self.alphas, self.sigmas = np.append(share**0.5, 1.0), np.append((1 - share) ** 0.5, 0.0)  # last: no noise

    def chosen(self, signal: np.ndarray, steps: int) -> np.ndarray:
        return np.linspace(len(signal) - 1, 0, steps)

    def start(self, noise: np.ndarray) -> np.ndarray:
        return noise

    def scaled(self, x: np.ndarray, i: int) -> np.ndarray:
        return x

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        raise NotImplementedError

    def picture(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        """Return the picture in a latent, given its noise."""
        return (x - self.sigmas[i] * noise) / self.alphas[i]


class DDIM(Scheduler):
    """DDIM without added noise (eta = 0)."""

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        latent = self.alphas[i + 1] * self.picture(x, noise, i) + self.sigmas[i + 1] * noise
        return latent.astype(x.dtype)


class Karras(Scheduler):
    """Levels that are denser where there is little noise."""

    def chosen(self, signal: np.ndarray, steps: int) -> np.ndarray:
        deviation = (1 / signal - 1) ** 0.5
        deviations = np.linspace(deviation[-1] ** (1 / 7), deviation[0] ** (1 / 7), steps) ** 7
        return np.interp(np.log(deviations), np.log(deviation), np.arange(len(signal)))


class Euler(Karras):
    """The Euler method on latents that are the picture plus noise of deviation sigma / alpha."""

    def start(self, noise: np.ndarray) -> np.ndarray:
        return (noise / self.alphas[0]).astype(noise.dtype)

    def scaled(self, x: np.ndarray, i: int) -> np.ndarray:
        return (x * self.alphas[i]).astype(x.dtype)

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        deviation = self.sigmas / self.alphas
        return (x + (deviation[i + 1] - deviation[i]) * noise).astype(x.dtype)


class DPMSolver(Karras):
    """DPM-Solver++ (2M): linear extrapolation from the last two pictures; first order at both ends."""

    last: np.ndarray

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        picture = self.picture(x, noise, i)
        if i + 1 == len(self.levels):
            return picture.astype(x.dtype)
        times = np.log(self.alphas[:-1] / self.sigmas[:-1])
        h, guess = times[i + 1] - times[i], picture
        if i:
            r = (times[i] - times[i - 1]) / h
            guess = picture + (picture - self.last) / (2 * r)
        self.last = picture
        return (self.sigmas[i + 1] / self.sigmas[i] * x - self.alphas[i + 1] * np.expm1(-h) * guess).astype(x.dtype)


SCHEDULERS: dict[str, type[Scheduler]] = {"ddim": DDIM, "euler": Euler, "dpm": DPMSolver}
