"""A deployment for Ray Serve: replicas of `ptegpu serve` without its server, which Ray routes, scales and replaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ExecutionError, InvalidInput
from ...printing import shown
from ...runtime import LoadOptions
from ..models import EngineLimits
from .gpus import assigned

if TYPE_CHECKING:
    from ...gpu import Engine
    from ...plan import Cache, Persistent, Precision
    from .. import ApiKeys, ServeLimits

Models = Mapping[str, str | os.PathLike[str]]


class Replica:
    """Models on one GPU, behind OpenAI's API. Ray calls the methods."""

    def __init__(
        self,
        models: Models,
        tokenizer: Path | None,
        room: EngineLimits,
        options: LoadOptions,
        keys: ApiKeys | None,
        limits: ServeLimits,
    ) -> None:
        from .. import Serving
        from ..models import open_model

        options = replace(options, device=assigned(options.device, options.engine))
        with ExitStack() as stack:
            engines = {
                name: stack.enter_context(closing(open_model(Path(path), name, options, tokenizer, room)))
                for name, path in models.items()
            }
            for name, engine in engines.items():
                if reason := getattr(engine, "alone", ""):
                    print(shown(f"{name} answers one request at a time: {reason}"), file=sys.stderr, flush=True)
            self.serving = Serving(engines, keys, limits)
            self._engines = stack.pop_all()

    def __serve_build_asgi_app__(self) -> Any:
        return self.serving.app

    def check_health(self) -> None:
        """Raise ExecutionError if a model can run nothing more; Ray then replaces this replica."""
        for name, engine in self.serving.engines.items():
            if error := engine.stats().error:
                raise ExecutionError(f"{name} can run nothing more: {error}")

    def __del__(self) -> None:
        if hasattr(self, "_engines"):
            self._engines.close()


def deployment(
    models: str | os.PathLike[str] | Models,
    *,
    replicas: int | tuple[int, int] = 1,
    gpus: float = 1,
    tokenizer: str | os.PathLike[str] | None = None,
    sequences: int = 64,
    memory: int | None = None,
    device: str | int = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: Cache = "f32",
    persistent: Persistent = "auto",
    keys: ApiKeys | None = None,
    limits: ServeLimits | None = None,
    **options: Any,
) -> Any:
    """Return an application for `ray.serve.run`: one model, or several by name, behind OpenAI's API.

    `replicas` is their number, or a minimum and a maximum; then Ray adds one while requests wait. Each has `gpus` GPUs:
    1, a fraction that several share, or 0, to run on `device`. A replica runs `sequences` requests at once, with
    `memory` bytes of cache for each model. `limits.queue` more wait at each of Ray's proxies; a replica that stops
    gives running requests `limits.drain` seconds. Files must exist on the replicas' machines. `options` are those of
    `ray.serve.deployment`.
    """
    from ray import serve

    from .. import ServeLimits

    if not 0 <= gpus <= 1:
        raise InvalidInput(f"a replica runs on one GPU or on a part of it, not on {gpus}: ask for more replicas")
    named = models if isinstance(models, Mapping) else {Path(models).stem: models}
    if tokenizer and len(named) > 1:
        raise InvalidInput("tokenizer is for one model: put those of several beside them, as NAME.tokenizer.json")
    limits = limits or ServeLimits()
    at_once = sequences * len(named)
    scaled: dict[str, Any] = {"num_replicas": replicas}
    if isinstance(replicas, tuple):
        # Ray's target counts running and waiting requests of a replica; above it, some wait
        scaling = {"min_replicas": replicas[0], "max_replicas": replicas[1], "target_ongoing_requests": at_once}
        scaled = {"autoscaling_config": scaling | options.pop("autoscaling_config", {})}
    defaults = scaled | {
        "name": "ptegpu",
        "max_ongoing_requests": at_once,
        "max_queued_requests": limits.queue,
        "backpressure_config": {"status_code": 429, "retry_after_s": 1},
        "graceful_shutdown_timeout_s": limits.drain + 5,
        "ray_actor_options": {"num_gpus": gpus} | options.pop("ray_actor_options", {}),
    }
    loading = LoadOptions(device, engine, precision, cache, persistent)
    room = EngineLimits(sequences, memory)
    replica = serve.deployment(serve.ingress()(Replica), **defaults | options)
    return replica.bind(named, Path(tokenizer) if tokenizer else None, room, loading, keys, limits)
