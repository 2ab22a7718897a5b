"""Text from language models: prompts in, text out, with the KV cache and the sampling of tokens on the GPU.

with ptegpu.open("model.pte") as model:
    for text in model.stream("Once upon a time", temperature=0.8, seed=1):
        print(text, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .batch import BatchEngine
    from .chat import Conversation
    from .generation import Generation, Timings
    from .handle import Stream
    from .model import LanguageModel
    from .perplexity import Evaluation, evaluate
    from .sampling import Sampling

__getattr__ = lazy(
    __name__,
    {
        "BatchEngine": ".batch",
        "Conversation": ".chat",
        "Evaluation": ".perplexity",
        "Generation": ".generation",
        "LanguageModel": ".model",
        "Sampling": ".sampling",
        "Stream": ".handle",
        "Timings": ".generation",
        "Tokenizer": "..tokenizer",
        "evaluate": ".perplexity",
    },
)

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
