"""The examples for Ray on a small local cluster: replicas and actors that die cost their callers nothing but time."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.ray.predictors import RECORDS
from tests.serve.conftest import wait_until

import ptegpu
from ptegpu.serve import bind

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ptegpu[ray]'")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = [str(ROOT / name) for name in ("examples", "src", ".")]


@pytest.fixture(scope="module")
def records() -> Iterator[Path]:
    """One cluster for all tests, without a GPU, and a folder for what its processes tell."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # whose name is short, as those of sockets must be
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*PATHS, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))  # otherwise Ray writes one to the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # on a full machine its processes are not the first to go
        patch.setenv("RAY_worker_oom_score_adjustment", "0")
        patch.setenv(RECORDS, str(folder / "records"))
        (folder / "records").mkdir()
        ray.init(
            num_cpus=3, num_gpus=0, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR", _temp_dir=str(folder / "ray"),
        )  # fmt: skip
        try:
            yield folder / "records"
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def client(records: Path) -> Iterator[openai.OpenAI]:
    """Of two replicas that run two requests each."""
    import ray_serve

    with bind(port=0) as bound:
        port = bound.getsockname()[1]
    options = ["--replicas", "2", "2", "--gpus", "0", "--sequences", "2", "--port", str(port)]
    try:
        ray_serve.start(ray_serve.parse(options), precision="exact", health_check_period_s=1)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=120)
    finally:
        ray.serve.shutdown()


def replicas() -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "#ptegpu#" in a["name"]]


def test_a_replica_dies(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tales", "prompt": "The Wolf and the Fox\n", "max_tokens": 200, "seed": 1}
    with ThreadPoolExecutor(4) as pool:  # so that both have compiled their kernels
        list(pool.map(lambda _: client.completions.create(**asked | {"max_tokens": 2}), range(4)))
    whole = client.completions.create(**asked)
    expected = whole.choices[0].text
    assert ("length", 200) == (whole.choices[0].finish_reason, whole.usage and whole.usage.completion_tokens)
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here: take tales"):
        client.completions.create(**asked | {"model": "other"})

    tries: list[int] = []
    patient = client.with_options(max_retries=5)
    patient._client.event_hooks["request"].append(lambda request: tries.append(1))
    (first, *_) = before = replicas()
    assert 2 == len(before)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(patient.completions.create, **asked)
        wait_until(lambda: tries)
        streams = [client.completions.create(stream=True, **asked) for _ in range(3)]  # four requests: two on each
        texts = [next(iter(stream)).choices[0].text for stream in streams]
        tries.clear()
        ray.kill(ray.get_actor(first, namespace="serve"))
        cut = 0
        for k, stream in enumerate(streams):
            try:
                texts[k] += "".join(chunk.choices[0].text for chunk in stream)
                assert expected == texts[k]
            except openai.APIError:
                cut += 1
        assert expected == waiting.result().choices[0].text
    assert 2 == cut + len(tries), "what ran on the other replica went on; the stream was cut, or the request repeated"
    wait_until(lambda: len(replicas()) == 2 and first not in replicas())


def test_rows_are_read_although_a_job_fails_and_a_gpu_is_lost(records: Path) -> None:
    import ray_data
    from tests.ray.predictors import Failing, Losing

    ray.data.DataContext.get_current().enable_progress_bars = False
    given = ray_data.parse(["--rows", "1000", "--gpus", "0", "--output", str(records)])
    with pytest.raises(Exception, match=r"there is no column 'image' for input 0 of forward \(float32\[1, 8, 8\]\)"):
        ray_data.read(given, Failing)
    import pandas

    done = len(pandas.read_parquet(records / "digits"))
    assert 0 < done < 1000
    assert (1000, 988) == ray_data.read(given, Losing)
    assert (records / "lost").exists()
    assert 1000 - done == sum(int(path.read_text()) for path in records.glob("rows *"))
    found = pandas.read_parquet(records / "digits").sort_values("id")
    assert list(range(1000)) == list(found["id"])
    sample = np.arange(0, 1000, 37)
    image = ray_data.images({"id": sample})["image"].astype(np.float32)
    with ptegpu.load(ray_data.DEMO / "digits.pte") as program:
        digits = [int(program(x[None]).argmax()) for x in image]
    assert digits == list(found["digit"].iloc[sample])
