"""Models on many machines, distributed by Ray (extra `ray`).

from ray import serve
import ptegpu.serve.ray

serve.run(ptegpu.serve.ray.deployment("model.pte", replicas=(1, 4)))                              # OpenAI's API
ds.map_batches(ptegpu.serve.ray.Predictor, fn_constructor_args=["model.pte", ["image"]], num_gpus=1)  # any program
"""

from __future__ import annotations

from .data import Predictor
from .serving import deployment

__all__ = ["Predictor", "deployment"]
