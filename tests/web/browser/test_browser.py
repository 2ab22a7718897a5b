"""Results from Chromium, compared with those of ptegpu here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.serve.fake import encode, words
from tests.web.browser.conftest import Job
from tests.web.browser.sites import SERVED, SIZES

from ptegpu.site.pages import QUESTIONS

PROGRAMS = ("digits", "cond", "encoder", "state", "ints", "methods", "mobilenet")
ERRORS = (
    "NoWebGPU", "NoAdapter", "MissingFeature", "OutOfMemory", "DeviceLost", "BadShard", "BadBundle", "InvalidInput",
    "IndexOutOfRange", "UnsupportedProgram", "ExecutionError", "AbortError",
)  # fmt: skip


def array(encoded: dict[str, Any]) -> np.ndarray:
    return np.array(encoded["data"], encoded["dtype"]).reshape(encoded["shape"])


def compare(got: Any, expected: Any, what: str, tolerance: float = 1e-5) -> None:
    """Compare a result with the native one: exactly, or floats within a share of the largest."""
    if not isinstance(got, dict):
        assert got == expected, what
        return
    actual, expected = array(got), np.asarray(expected)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
    if expected.dtype.kind == "f":
        worst = np.abs(actual - expected).max(initial=0.0)
        assert worst <= tolerance * max(1.0, np.abs(expected).max(initial=0.0)), f"{what}: {worst}"
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_are_those_of_ptegpu_here(job: Job, name: str) -> None:
    value, program = job[f"program {name}"], job.programs[name]
    assert len(program.calls) == len(value["outputs"])
    for k, (got, expected) in enumerate(zip(value["outputs"], program.expected, strict=True)):
        assert len(got) == len(expected), f"call {k}"
        for n, (g, w) in enumerate(zip(got, expected, strict=True)):
            compare(g, w, f"call {k}, output {n}")
    assert value["adapter"]["software"] and value["variant"]


def test_programs_show_what_they_are_for(job: Job) -> None:
    branches = [np.asarray(outputs[2]) for outputs in job.programs["cond"].expected]
    inputs = [np.asarray(call.inputs[0]) for call in job.programs["cond"].calls]
    assert [True, False, False, True] == [bool(x.sum() > 0) for x in inputs]
    assert all(b.size for b in branches)
    assert [4.0, 5.0, 6.0, 7.0] == [float(outputs[3][0]) for outputs in job.programs["cond"].expected]  # its state
    assert list(SIZES) == [call.inputs[0].shape for call in job.programs["encoder"].calls]
    first, *_, last = job.programs["state"].expected
    assert job.programs["state"].calls[-1].reset
    np.testing.assert_array_equal(first[0], last[0])


def test_tokens_are_those_of_ptegpu_here(job: Job) -> None:
    value = job["language model"]
    assert len(job.generations) == len(value["found"])
    for k, (got, expected) in enumerate(zip(value["found"], job.generations, strict=True)):
        what = f"request {k}"
        assert list(expected.tokens) == got["tokens"], what
        assert (expected.text, expected.finish_reason) == (got["text"], got["finishReason"]), what
        np.testing.assert_allclose(got["logprobs"], expected.logprobs, atol=1e-4, err_msg=what)
        timings = expected.timings
        counts = (timings.reused_tokens, timings.prefill_tokens, timings.decode_tokens)
        assert counts == tuple(got["timings"][key] for key in ("reusedTokens", "prefillTokens", "decodeTokens")), what


@pytest.mark.parametrize("name", [*(f"program {name}" for name in PROGRAMS), "language model"])
def test_a_site_checks_itself(job: Job, name: str) -> None:
    assert job[name]["check"]["ok"], job[name]["check"]


def test_a_second_visit_fetches_no_weights(job: Job) -> None:
    first, second, spoiled, third = job["visits"]
    total = first["weights"]["bytes"]
    assert first["weights"]["requests"] >= 1 and total > 20_000
    assert {"requests": 0, "bytes": 0, "ranges": 0} == second["weights"] == third["weights"]
    assert spoiled["spoiled"] >= first["weights"]["requests"] and spoiled["weights"] == first["weights"]
    assert first["last"]["done"] == first["last"]["total"] == total == second["last"]["done"]
    assert "plan" == first["order"][0] and {"weights", "kernels"} == set(first["order"][1:])  # side by side
    for visit in (first, second, spoiled, third):
        compare(visit["outputs"][0], job.programs["digits"].expected[0][0], visit["name"])


def test_a_failing_cache_is_no_failure(job: Job) -> None:
    for visit in job["failing cache"]:
        compare(visit["outputs"][0], job.programs["digits"].expected[0][0], visit["how"])


def test_a_reload_while_loading_goes_on_where_it_was(job: Job) -> None:
    value = job["reload while loading"]
    everything = sorted(path.name for path in (job.folder / "sites" / "sharded").glob("shard-*.bin"))
    fetched = [path.rpartition("/")[2] for path in value["shards"]]
    assert everything[3] in fetched and not set(everything[:3]) & set(fetched)
    compare(value["outputs"][0], job.programs["digits"].expected[0][0], "after the reload")


def test_a_broken_connection_is_continued(job: Job) -> None:
    value = job["broken connection"]
    count = len(list((job.folder / "sites" / "sharded").glob("shard-*.bin")))
    assert (count + 1, 1) == (value["weights"]["requests"], value["weights"]["ranges"])
    compare(value["outputs"][0], job.programs["digits"].expected[0][0], "after the break")


@pytest.mark.parametrize("code", ERRORS)
def test_each_error_has_its_class_and_says_what_to_do(job: Job, code: str) -> None:
    errors = {name: e for name, e in job["errors"].items() if name.split(",")[0] == code}
    assert errors
    for name, error in errors.items():
        assert error is not None, f"{name}: nothing was raised"
        assert code == error["code"], name
        assert 20 < len(error["message"]) < 300 and "\n" not in error["message"], error["message"]


def test_after_an_error_a_program_runs(job: Job) -> None:
    assert job["errors"]["still runs"] is None
    assert job["errors"]["encoder still runs"] is None


def test_a_hundred_programs_leave_no_memory_behind(job: Job) -> None:
    first, *_, last = job["rounds"]
    for part in job["rounds"]:
        assert {"buffers": 0, "bytes": 0, "devices": 0} == part["left"]
        assert part["most"] == 0  # after each round
    assert last["memory"]["heap"] - first["memory"]["heap"] < 2e6
    assert last["memory"]["gpu"] - first["memory"]["gpu"] < 30e6


def test_a_worker_does_the_same_and_leaves_the_page_alone(job: Job) -> None:
    value = job["worker"]
    assert list(job.generations[0].tokens) == value["tokens"] == value["again"]
    assert (2, "BadBundle", "InvalidInput") == (value["heard"], value["failed"]["code"], value["refused"]["code"])
    assert {"plan", "weights", "kernels"} >= set(value["stages"]) >= {"weights"}
    for part in ("loading", "generating"):  # the log has frame times; a page that hangs draws none
        assert value[part]["longest"] < max(100, 0.8 * value[part]["milliseconds"]), value[part]


@pytest.mark.parametrize(
    ("site", "shows"), [("tales", "Once upon a time"), ("digits", "7"), ("encoder", "1 × 12 × 16")]
)
def test_a_page_works_and_can_be_used_by_everyone(job: Job, site: str, shows: str) -> None:
    value = job[f"page {site}"]
    assert [] == value["problems"]
    assert shows in value["text"]


def test_the_page_of_a_server_asks_it(job: Job) -> None:
    value, prompt = job["served page"], SERVED["prompt"]
    assert [] == value["problems"]
    assert ["Failed to load resource: the server responded with a status of 401 (Unauthorized)"] == value["heard"]
    shown, note = value["stopped"]
    endless = SERVED["endless"]
    endless_text = words(encode(f"<user> {QUESTIONS[0]}"), endless["seed"], endless["maxTokens"])
    assert " w7 " not in endless_text and endless_text.startswith(shown) and len(shown) > 20  # token 7 would end it
    assert " · stopped by you" in note
    assert ["The owl"] == value["offers"]
    tale, note, context, title = value["tale"]
    assert prompt + words(encode(prompt), 3, 5) == tale
    assert ("5 tokens · seed 3", "7 of 64", "tales") == (note, context, title)
    assert "tales" == value["again"]
    assert ["ptegpu-key HERE"] == value["stored"]  # under the address of the page


def test_a_lost_gpu_is_taken_again_and_the_tale_goes_on(job: Job) -> None:
    value = job["lost GPU"]
    assert ["loading", "ready"] == value["states"] and not value["errors"]
    assert value["whole"] == value["continued"] and "40 tokens · seed 5" == value["whole"][1]


def test_a_page_shows_its_own_site_and_reaches_no_other(job: Job) -> None:
    value = job["another site"]
    tales, encoder, unbuilt = value["titles"]
    assert ("tales", "encoder") == (tales, encoder)
    assert "other.test" in unbuilt and "of its own host" in unbuilt
    assert [False] * 3 == value["fetched"]  # by their Content-Security-Policy
    assert [] == value["asked"]


def test_other_states_of_pages(job: Job) -> None:
    value = job["pages with fake models"]
    assert 9 == len(value)
    assert {name: [] for name in value} == value


def test_pages_run_without_a_build(job: Job) -> None:
    value = job["unbuilt page"]
    assert value["text"].startswith("Once upon a time") and len(value["text"]) > 40
    assert {"/web/src/plan.js", "/web/src/llm.js", "/web/pages/ui.js"} <= set(value["fetched"])
