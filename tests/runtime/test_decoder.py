"""A decoder with a KV cache: every length and position on one loaded program, and decode steps that plan nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
import torch
from tests.cases import close
from torch.export import Dim

import ptegpu
from ptegpu.export import lower, trace
from ptegpu.export.config import read_config
from ptegpu.export.decoder import Decoder

CONTEXT, LONGEST = 520, 24


CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


class Reference:
    """The decoder in plain PyTorch, without a cache."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        self.decoder.reset()
        with torch.no_grad():
            return self.decoder(tokens, torch.tensor([0]))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    decoder = Decoder(read_config(folder), CONTEXT)
    torch.manual_seed(3)
    for owner in list(decoder.modules()):
        for name, parameter in list(owner.named_parameters(recurse=False)):
            value = torch.ones(parameter.shape) if parameter.ndim == 1 else torch.randn(parameter.shape) * 0.2
            setattr(owner, name, torch.nn.Parameter(value))
    return Reference(decoder.eval())


@pytest.fixture(scope="module")
def loaded(module: Reference) -> Iterator[ptegpu.Program]:
    example = (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    lowered = lower(trace(module.decoder, example, ({1: Dim("length", min=1, max=LONGEST)}, None)))
    assert lowered.partitions == 1
    with ptegpu.load(lowered.data) as program:
        yield program


@pytest.fixture
def program(loaded: ptegpu.Program) -> ptegpu.Program:
    loaded.reset()
    return loaded


def call(program: ptegpu.Program, tokens: torch.Tensor, first: int, end: int) -> torch.Tensor:
    return program(tokens[:, first:end], torch.tensor([first]))


def test_the_whole_decoder_is_one_plan(program: ptegpu.Program) -> None:
    assert len(program.method("forward").plans) == 1


def test_every_prompt_length_in_any_order(module: Reference, program: ptegpu.Program) -> None:
    rng = random.Random(0)
    lengths = [1, LONGEST, *(rng.randint(2, LONGEST - 1) for _ in range(10))]
    rng.shuffle(lengths)
    for length in lengths:
        tokens = torch.randint(0, 64, (1, length + 2))
        got = call(program, tokens, 0, length)
        close(got, module.logits(tokens[:, :length]), 1e-4)
        for end in (length + 1, length + 2):  # decode goes on from there
            got = call(program, tokens, end - 1, end)
            close(got, module.logits(tokens[:, :end]), 1e-4)
        with pytest.raises(ptegpu.InvalidInput):
            call(program, torch.zeros(1, LONGEST + 1, dtype=torch.int64), 0, LONGEST + 1)


def test_chunks_of_a_prompt_give_what_the_whole_gives(module: Reference, program: ptegpu.Program) -> None:
    tokens = torch.randint(0, 64, (1, 60))
    want = module.logits(tokens)
    for chunk in (1, 7, LONGEST):
        for first in range(0, 60, chunk):
            got = call(program, tokens, first, min(first + chunk, 60))
        close(got, want, 1e-4)


def test_500_decode_steps_plan_create_and_allocate_nothing(module: Reference, program: ptegpu.Program) -> None:
    tokens = torch.randint(0, 64, (1, 512))
    call(program, tokens, 0, 8)
    call(program, tokens, 8, 9)
    (engine,) = program._methods["forward"].runners.values()
    before = program.device.counters.snapshot()
    for position in range(9, 509):
        got = call(program, tokens, position, position + 1)
    done = program.device.counters.snapshot().since(before)
    assert engine.extended == 0
    assert (done.buffers_created, done.bind_groups_created, done.pipelines_created) == (0, 0, 0)
    assert (done.submits, done.readbacks) == (500, 500)
    close(got, module.logits(tokens[:, :509]), 1e-4)


def test_a_reset_forgets(program: ptegpu.Program) -> None:
    tokens = torch.randint(0, 64, (1, 9))
    over_nothing = call(program, tokens, 4, 5)
    program.reset()
    call(program, tokens, 0, 9)
    assert not torch.equal(call(program, tokens, 4, 5), over_nothing)
    program.reset()
    assert torch.equal(call(program, tokens, 4, 5), over_nothing)
