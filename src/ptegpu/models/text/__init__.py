"""Text from language models: prompts in, text out, with the KV cache and the sampling of tokens on the GPU.

from ptegpu.models.text import LanguageModel
with LanguageModel("model.pte") as model:
    for text in model.stream("Once upon a time", temperature=0.8, seed=1):
        print(text, end="", flush=True)
"""

from __future__ import annotations

from ..tokenizer import Tokenizer
from .batch import BatchEngine
from .chat import Conversation
from .evaluate import Evaluation, evaluate
from .generation import Generation, Stream, Timings
from .model import LanguageModel
from .sampling import Sampling

__all__ = [
    "BatchEngine",
    "Conversation",
    "Evaluation",
    "Generation",
    "LanguageModel",
    "Sampling",
    "Stream",
    "Timings",
    "Tokenizer",
    "evaluate",
]
