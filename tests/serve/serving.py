"""A server with a fake engine as a process: `python -m tests.serve.serving DELAY DRAIN` prints its address."""

from __future__ import annotations

import sys

from tests.serve.fake import FakeEngine

from ptegpu.serve import Limits, Serving, bind, serve, url_of

if __name__ == "__main__":
    delay, drain = map(float, sys.argv[1:])
    bound = bind(port=0)
    url = url_of(bound)
    serving = Serving({"fake": FakeEngine(delay=delay, context=1000)}, limits=Limits(drain=drain))
    serve(serving, bound, lambda: print(url, flush=True))
    print("ended", flush=True)
