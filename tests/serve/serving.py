"""A server with fake engines as a process: `python -m tests.serve.serving DELAY DRAIN [KEY]` prints its address."""

from __future__ import annotations

import sys

from tests.serve.fake import FakeEngine

from ptegpu.serve import ApiKeys, ServeLimits, Serving, bind, serve, url_of

if __name__ == "__main__":
    delay, drain = map(float, sys.argv[1:3])
    bound = bind(port=0)
    url = url_of(bound)
    engines = {"fake": FakeEngine(delay=delay, context=1000), "tales": FakeEngine(delay=delay, has_chat=False)}
    serving = Serving(engines, ApiKeys(sys.argv[3:]), ServeLimits(drain=drain), {"tales": ("The owl",)})
    serve(serving, bound, lambda: print(url, flush=True))
    print("ended", flush=True)
