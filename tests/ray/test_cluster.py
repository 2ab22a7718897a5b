"""The examples for Ray on a small local cluster: replicas and actors that die cost their callers nothing but time."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'ptegpu[ray]'")

from tests.ray.predictors import RECORDS
from tests.serve.conftest import wait_until

import ptegpu
from ptegpu.serve import bind

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ptegpu[ray]'")

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
ROOT = Path(__file__).resolve().parent.parent.parent
TOKENS = 150  # enough that requests still run when a replica is killed
PATHS = [str(ROOT / name) for name in ("examples", "src", ".")]


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Run a cluster without a GPU, whose processes record what they do in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*PATHS, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))  # otherwise Ray writes one to the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # keeps a full machine from killing its processes first
        patch.setenv("RAY_worker_oom_score_adjustment", "0")
        patch.setenv(RECORDS, str(folder))
        sockets = tempfile.mkdtemp(prefix="ray")  # their paths must be short
        try:
            ray.init(
                num_cpus=3, num_gpus=0, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False,
                logging_level="ERROR", _temp_dir=sockets,
            )  # fmt: skip
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(sockets, ignore_errors=True)


def test_what_dies_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Both parts share one test, and thus one cluster."""
    with cluster(tmp_path):
        a_replica_dies()
        a_job_fails_and_a_gpu_is_lost(tmp_path)


@contextmanager
def two_replicas() -> Iterator[openai.OpenAI]:
    """Yield a client of two replicas, each of which runs two requests at once."""
    import ray_serve

    with bind(port=0) as bound:
        port = bound.getsockname()[1]
    options = ["--replicas", "2", "2", "--gpus", "0", "--sequences", "2", "--port", str(port)]
    try:
        ray_serve.start(ray_serve.parse(options), precision="exact")
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=120)
    finally:
        ray.serve.shutdown()


def replicas() -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if "#ptegpu#" in a["name"]]


def a_replica_dies() -> None:
    request: dict[str, Any] = {"model": "tales", "prompt": "The Wolf and the Fox\n", "max_tokens": TOKENS, "seed": 1}
    with two_replicas() as client, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.completions.create(**request | {"max_tokens": 2}), range(4)))  # kernels compile
        expected = client.completions.create(**request).choices[0]
        assert "length" == expected.finish_reason
        with pytest.raises(openai.NotFoundError, match="there is no model 'other' here: take tales"):
            client.completions.create(**request | {"model": "other"})

        first, second = replicas()
        tries: list[object] = []
        patient = client.with_options(max_retries=5)
        patient._client.event_hooks["request"].append(tries.append)
        waiting = pool.submit(patient.completions.create, **request)
        wait_until(lambda: tries)
        streams = [client.completions.create(stream=True, **request) for _ in range(3)]  # four requests: two on each
        texts = [next(iter(stream)).choices[0].text for stream in streams]
        tries.clear()
        ray.kill(ray.get_actor(first, namespace="serve"))
        cut = 0
        for text, stream in zip(texts, streams):
            try:
                assert expected.text == text + "".join(chunk.choices[0].text for chunk in stream)
            except openai.APIError:
                cut += 1
        assert expected.text == waiting.result().choices[0].text
        assert 2 == cut + len(tries), "each of its requests was cut or repeated, and no other"
        wait_until(lambda: len(replicas()) == 2 and first not in replicas() and second in replicas())


def a_job_fails_and_a_gpu_is_lost(folder: Path) -> None:
    import pandas
    import ray_data
    from tests.ray.predictors import Failing, Losing

    ray.data.DataContext.get_current().enable_progress_bars = False
    options = ray_data.parse(["--rows", "1000", "--gpus", "0", "--output", str(folder)])
    with pytest.raises(Exception, match=r"there is no column 'image' for input 0 of forward \(float32\[1, 8, 8\]\)"):
        ray_data.read(options, Failing)
    done = len(pandas.read_parquet(folder / "digits"))
    assert 0 < done < 1000

    assert (1000, 988) == ray_data.read(options, Losing)
    assert (folder / "lost").exists()
    assert 1000 - done == sum(int(path.read_text()) for path in folder.glob("rows *"))
    table = pandas.read_parquet(folder / "digits").sort_values("id")
    assert list(range(1000)) == list(table["id"])
    some = np.arange(0, 1000, 37)
    with ptegpu.load(ray_data.DEMO / "digits.pte") as program:
        images = ray_data.images({"id": some})["image"].astype(np.float32)
        assert [program(x[None]).argmax() for x in images] == list(table["digit"].iloc[some])
