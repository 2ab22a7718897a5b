"""Models behind OpenAI's API, for many clients at once (extra `serve`). `ptegpu serve model.pte` is the command.

from ptegpu.serve import Serving, bind, serve

serve(Serving({"tales": engine}), bind(port=8000))
"""

from __future__ import annotations

from .app import Serving
from .engine import Embeds, Engine, Event, Finished, Piece, Served, Stats, Writes
from .keys import ApiKeys, read_keys
from .limits import ServeLimits
from .run import bind, serve, url_of

__all__ = [
    "ApiKeys",
    "Embeds",
    "Engine",
    "Event",
    "Finished",
    "Piece",
    "ServeLimits",
    "Served",
    "Serving",
    "Stats",
    "Writes",
    "bind",
    "read_keys",
    "serve",
    "url_of",
]
