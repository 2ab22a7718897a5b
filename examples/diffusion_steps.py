"""What a diffusion pipeline computes beside its models, in NumPy: tokens, levels of noise, and schedulers.

Schedulers get from noise to a picture in few steps, given a model of the noise. A latent at level t is
sqrt(a[t]) · picture + sqrt(1 - a[t]) · noise. Each scheduler has `levels`, from most noise to least, `start` noise,
`scaled` to make a latent what the model takes, and `step`, from the latent of one level to that of the next.
"""

from __future__ import annotations

import numpy as np

COLOURS = {"red": (220, 50, 47), "green": (60, 160, 70), "blue": (38, 100, 210), "yellow": (235, 190, 30)}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = ("small", "large")
WORDS = ("", "a", *SIZES, *COLOURS, *SHAPES)  # the first is padding, and stands for words that are unknown
LENGTH = 6  # tokens of a prompt
LEVELS = 1000  # of noise


def tokens(prompt: str) -> np.ndarray:
    """(1, LENGTH) int64."""
    words = prompt.lower().split()[:LENGTH]
    ids = [WORDS.index(word) if word in WORDS else 0 for word in words]
    return np.array([ids + [0] * (LENGTH - len(ids))], np.int64)


def signal_levels() -> np.ndarray:
    """How much of a picture's variance is left at each level of noise, (LEVELS,): as in Stable Diffusion."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, LEVELS, dtype=np.float64) ** 2
    return np.cumprod(1 - betas)


class Scheduler:
    def __init__(self, signal: np.ndarray, steps: int) -> None:
        """`signal`: how much variance of the picture is left at each level; `steps` of them are visited."""
        self.levels = self.chosen(signal, steps)
        left = np.interp(self.levels, np.arange(len(signal)), signal)
        self.alphas, self.sigmas = np.append(left**0.5, 1.0), np.append((1 - left) ** 0.5, 0.0)  # the end: no noise

    def chosen(self, signal: np.ndarray, steps: int) -> np.ndarray:
        return np.linspace(len(signal) - 1, 0, steps)

    def start(self, noise: np.ndarray) -> np.ndarray:
        return noise

    def scaled(self, x: np.ndarray, i: int) -> np.ndarray:
        return x

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        raise NotImplementedError

    def picture(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        """What the latent shows if that is its noise."""
        return (x - self.sigmas[i] * noise) / self.alphas[i]


class DDIM(Scheduler):
    """Without added noise (eta = 0)."""

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        found = self.alphas[i + 1] * self.picture(x, noise, i) + self.sigmas[i + 1] * noise
        return found.astype(x.dtype)


class Karras(Scheduler):
    """At levels that are closer to each other where there is little noise."""

    def chosen(self, signal: np.ndarray, steps: int) -> np.ndarray:
        deviation = (1 / signal - 1) ** 0.5
        wanted = np.linspace(deviation[-1] ** (1 / 7), deviation[0] ** (1 / 7), steps) ** 7
        return np.interp(np.log(wanted), np.log(deviation), np.arange(len(signal)))


class Euler(Karras):
    """Latents are the picture plus noise of deviation sigma / alpha, and one follows the slope."""

    def start(self, noise: np.ndarray) -> np.ndarray:
        return (noise / self.alphas[0]).astype(noise.dtype)

    def scaled(self, x: np.ndarray, i: int) -> np.ndarray:
        return (x * self.alphas[i]).astype(x.dtype)

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        deviation = self.sigmas / self.alphas
        return (x + (deviation[i + 1] - deviation[i]) * noise).astype(x.dtype)


class DPMSolver(Karras):
    """DPM-Solver++ (2M): the picture as a line through this step's and the last one's; the ends are of first order."""

    last: np.ndarray

    def step(self, x: np.ndarray, noise: np.ndarray, i: int) -> np.ndarray:
        found = self.picture(x, noise, i)
        if i + 1 == len(self.levels):
            return found.astype(x.dtype)
        times = np.log(self.alphas[:-1] / self.sigmas[:-1])
        h, guess = times[i + 1] - times[i], found
        if i:
            r = (times[i] - times[i - 1]) / h
            guess = found + (found - self.last) / (2 * r)
        self.last = found
        return (self.sigmas[i + 1] / self.sigmas[i] * x - self.alphas[i + 1] * np.expm1(-h) * guess).astype(x.dtype)


SCHEDULERS: dict[str, type[Scheduler]] = {"ddim": DDIM, "euler": Euler, "dpm": DPMSolver}
