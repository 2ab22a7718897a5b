"""Replicas of Ray without a cluster: their health checks, and the options of their deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.serve.fake import FakeEncoder, FakeEngine

from ptegpu.errors import DeviceLost, ExecutionError, InvalidInput

pytest.importorskip("ray", reason="ray is not installed: pip install 'ptegpu[ray]'")

from ptegpu.runtime import LoadOptions
from ptegpu.serve import ServeLimits
from ptegpu.serve.models import EngineLimits
from ptegpu.serve.ray import deployment, serving


def test_health_fails_when_an_engine_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: dict[str, Any] = {"a": FakeEngine(), "b": FakeEncoder()}
    closed: list[str] = []
    for name, engine in engines.items():
        monkeypatch.setattr(engine, "close", lambda name=name: closed.append(name))
    monkeypatch.setattr("ptegpu.serve.models.open_model", lambda path, name, *_: engines[name])
    replica = serving.Replica({"a": "a.pte", "b": "b.pte"}, None, EngineLimits(), LoadOptions(), None, ServeLimits())
    replica.check_health()
    engines["a"].fail = DeviceLost("it is gone")
    with pytest.raises(ExecutionError, match="a can run nothing more: it is gone"):
        replica.check_health()
    del replica
    assert ["b", "a"] == closed


def test_what_ray_is_asked_for() -> None:
    limits, more = ServeLimits(queue=3, drain=7), {"upscale_delay_s": 2}
    deployed = deployment("m.pte", replicas=(1, 4), gpus=0.5, sequences=8, limits=limits, autoscaling_config=more)
    deployed = deployed._bound_deployment
    scaling = deployed._deployment_config.autoscaling_config
    assert (1, 4, 8) == (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests)
    assert 2 == scaling.upscale_delay_s
    assert (8, 3) == (deployed.max_ongoing_requests, deployed.max_queued_requests)
    assert 0.5 == deployed.ray_actor_options["num_gpus"]
    assert 12 == deployed._deployment_config.graceful_shutdown_timeout_s
    more = deployment({"a": "a.pte", "b": "b.pte"}, replicas=3, name="x", ray_actor_options={"num_cpus": 2})
    deployed = more._bound_deployment
    assert ("x", 3, 128) == (deployed.name, deployed.num_replicas, deployed.max_ongoing_requests)
    assert {"num_gpus": 1, "num_cpus": 2} == deployed.ray_actor_options


def test_what_cannot_be_deployed() -> None:
    with pytest.raises(InvalidInput, match="a replica runs on one GPU or on a part of it, not on 2"):
        deployment("a.pte", gpus=2)
    with pytest.raises(InvalidInput, match="tokenizer is for one model"):
        deployment({"a": "a.pte", "b": "b.pte"}, tokenizer=Path("t.json"))
