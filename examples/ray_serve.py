"""Serve a model on a Ray cluster, behind OpenAI's API: Ray adds replicas while requests wait, and replaces lost ones.

    python examples/ray_serve.py model.pte --replicas 1 4      # on this machine's cluster, or only on this machine
    python examples/ray_serve.py --gpus 0                      # the bundled model, on any adapter

Connect as with `ptegpu serve`: OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none").
Needs `pip install "ptegpu[ray]"`.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray import serve

import ptegpu
import ptegpu.serve.ray

TALES = Path(ptegpu.__file__).parent / "demo" / "tales.pte"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a language model or an encoder with Ray Serve.")
    parser.add_argument("model", type=Path, nargs="?", default=TALES, help="a path on every machine (a small model)")
    parser.add_argument(
        "--replicas", type=int, nargs=2, default=(1, 2), metavar=("FEWEST", "MOST"), help="replicas (1 2)"
    )
    parser.add_argument("--gpus", type=float, default=1, help="GPUs per replica: 1, a fraction, or 0 (1)")
    parser.add_argument("--sequences", type=int, default=64, metavar="N", help="concurrent requests per replica (64)")
    parser.add_argument("--port", type=int, default=8000, help="port, local unless Ray is configured otherwise (8000)")
    return parser.parse_args(arguments)


def start(options: argparse.Namespace, **more: Any) -> None:
    """Deploy the model and return when the first replicas are ready."""
    serve.start(http_options={"port": options.port})
    fewest, most = options.replicas
    app = ptegpu.serve.ray.deployment(
        options.model.resolve(), replicas=(fewest, most), gpus=options.gpus, sequences=options.sequences, **more
    )
    serve.run(app)


if __name__ == "__main__":
    start(parse())
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
