"""OpenAI's own client against a server: its requests, and the errors that it raises."""

from __future__ import annotations

import base64
import struct
from typing import Any

import httpx2
import openai
import pytest
from tests.serve.conftest import Running, Start
from tests.serve.fake import encode, token_at, words

from ptegpu.errors import DeviceLost

PROMPT = "the fox and the owl"
CHAT: list[Any] = [{"role": "system", "content": "be short"}, {"role": "user", "content": PROMPT}]
CHAT_TOKENS = encode(f"<system> be short <user> {PROMPT}")


def test_a_completion(server: Running) -> None:
    response = server.openai().completions.create(model="fake", prompt=PROMPT, max_tokens=5, temperature=0)
    assert words(encode(PROMPT), 0, 5) == response.choices[0].text
    assert "length" == response.choices[0].finish_reason
    assert ("text_completion", "fake", None) == (response.object, response.model, response.choices[0].logprobs)
    assert response.usage is not None
    assert (5, 5, 10) == (response.usage.prompt_tokens, response.usage.completion_tokens, response.usage.total_tokens)


def test_a_completion_has_16_tokens_unless_told_otherwise(server: Running) -> None:
    response = server.openai().completions.create(model="fake", prompt=PROMPT, temperature=0)
    assert words(encode(PROMPT), 0, 16) == response.choices[0].text


def test_several_prompts_as_text_or_as_tokens(server: Running) -> None:
    client, prompts = server.openai(), [PROMPT, "an owl"]
    response = client.completions.create(model="fake", prompt=prompts, max_tokens=3, temperature=0)
    expected = [words(encode(p), 0, 3) for p in prompts]
    assert expected == [c.text for c in response.choices]
    assert response.usage is not None and (7, 6) == (response.usage.prompt_tokens, response.usage.completion_tokens)
    tokens = [encode(p) for p in prompts]
    response = client.completions.create(model="fake", prompt=tokens, max_tokens=3, temperature=0)
    assert expected == [c.text for c in response.choices]
    response = client.completions.create(model="fake", prompt=tokens[0], max_tokens=3, temperature=0)
    assert expected[:1] == [c.text for c in response.choices]


def test_a_chat(server: Running) -> None:
    response = server.openai().chat.completions.create(model="fake", messages=CHAT, max_completion_tokens=4, seed=3)
    assert words(CHAT_TOKENS, 3, 4) == response.choices[0].message.content
    assert ("assistant", "length") == (response.choices[0].message.role, response.choices[0].finish_reason)


def test_a_chat_goes_on_to_the_end_of_the_context(server: Running) -> None:
    response = server.openai().chat.completions.create(model="fake", messages=CHAT, temperature=0)
    assert words(CHAT_TOKENS, 0, 65 - len(CHAT_TOKENS)) == response.choices[0].message.content
    assert "length" == response.choices[0].finish_reason


def test_content_in_parts(server: Running) -> None:
    parts: list[Any] = [{"type": "text", "text": "the fox "}, {"type": "text", "text": "and the owl"}]
    messages: list[Any] = [{"role": "developer", "content": "be short"}, {"role": "user", "content": parts}]
    response = server.openai().chat.completions.create(model="fake", messages=messages, max_tokens=4, temperature=0)
    assert words(CHAT_TOKENS, 0, 4) == response.choices[0].message.content


def test_a_stream_of_a_chat(server: Running) -> None:
    stream = server.openai().chat.completions.create(
        model="fake", messages=CHAT, max_tokens=4, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    *pieces, usage = chunks
    assert 1 == len({c.id for c in chunks})
    assert {"chat.completion.chunk"} == {c.object for c in chunks}
    assert "assistant" == pieces[0].choices[0].delta.role
    assert words(CHAT_TOKENS, 0, 4) == "".join(c.choices[0].delta.content or "" for c in pieces)
    assert [None] * (len(pieces) - 1) + ["length"] == [c.choices[0].finish_reason for c in pieces]
    assert all(c.usage is None for c in pieces)
    assert usage.usage is not None and [] == usage.choices
    assert (len(CHAT_TOKENS), 4) == (usage.usage.prompt_tokens, usage.usage.completion_tokens)


def test_a_stream_of_completions(server: Running) -> None:
    stream = server.openai().completions.create(
        model="fake", prompt=[PROMPT, "an owl"], n=2, max_tokens=3, seed=5, stream=True
    )
    texts, ends = [""] * 4, [None] * 4
    for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason or ends[choice.index]  # type: ignore[call-overload]
        assert chunk.usage is None
    assert [words(encode(p), seed, 3) for p in (PROMPT, "an owl") for seed in (5, 6)] == texts
    assert ["length"] * 4 == ends


def test_stop_strings(server: Running) -> None:
    stop = words(encode(PROMPT), 0, 4)[-4:]
    for stream in (False, True):
        response: Any = server.openai().completions.create(
            model="fake", prompt=PROMPT, temperature=0, max_tokens=8, stop=["nothing", stop], stream=stream
        )
        chunks = list(response) if stream else [response]
        text = words(encode(PROMPT), 0, 4)[:-4]
        assert text == "".join(c.choices[0].text for c in chunks)
        assert "stop" == chunks[-1].choices[0].finish_reason


def test_the_same_seed_gives_the_same_text(server: Running) -> None:
    def ask(seed: int, n: int = 1) -> list[str]:
        response = server.openai().completions.create(model="fake", prompt=PROMPT, seed=seed, n=n, max_tokens=6)
        return [c.text for c in response.choices]

    assert ask(1) == ask(1) != ask(2)
    assert [ask(1)[0], ask(2)[0], ask(3)[0]] == ask(1, n=3)
    assert ask(2**32 + 1) == ask(1)
    assert ask(-1) == ask(2**32 - 1)


def test_logprobs_are_those_of_the_tokens_that_were_chosen(server: Running) -> None:
    client, tokens = server.openai(), [token_at(CHAT_TOKENS, 0, k) for k in range(3)]
    options: dict[str, Any] = {"model": "fake", "temperature": 0, "max_tokens": 3}
    chat = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **options)
    assert chat.choices[0].logprobs is not None and chat.choices[0].logprobs.content is not None
    entries = chat.choices[0].logprobs.content
    assert [(f" w{t}", -t / 100) for t in tokens] == [(e.token, e.logprob) for e in entries]
    assert [list(e.token.encode()) for e in entries] == [e.bytes for e in entries]
    assert [[(e.token, e.logprob)] for e in entries] == [
        [(t.token, t.logprob) for t in e.top_logprobs] for e in entries
    ]
    stream = client.chat.completions.create(messages=CHAT, logprobs=True, stream=True, **options)
    streamed = [e for c in stream if c.choices[0].logprobs for e in c.choices[0].logprobs.content or ()]
    assert [(e.token, e.logprob, []) for e in entries] == [(e.token, e.logprob, e.top_logprobs) for e in streamed]
    choice = client.completions.create(prompt=CHAT_TOKENS, logprobs=0, **options).choices[0]
    assert choice.logprobs is not None and choice.logprobs.text_offset is not None
    assert [e.logprob for e in entries] == choice.logprobs.token_logprobs
    assert [choice.text.index(e.token) for e in entries] == choice.logprobs.text_offset
    parts = client.completions.create(prompt=CHAT_TOKENS, logprobs=1, stream=True, **options)
    logs = [c.choices[0].logprobs for c in parts if c.choices[0].logprobs]
    assert choice.logprobs.text_offset == [x for log in logs for x in log.text_offset or ()]
    assert [{e.token: e.logprob} for e in entries] == [x for log in logs for x in log.top_logprobs or ()]


def test_models(server: Running) -> None:
    client = server.openai()
    assert ["fake", "rows"] == [m.id for m in client.models.list()]
    assert "ptegpu" == client.models.retrieve("fake").owned_by
    with pytest.raises(openai.NotFoundError, match="there is no model 'other' here: take fake or rows"):
        client.models.retrieve("other")


def test_embeddings(server: Running) -> None:
    client, texts = server.openai(), [PROMPT, "an owl"]
    rows = [[float(len(t)), t[0] / 8, -0.5] for t in map(encode, texts)]
    response = client.embeddings.create(model="rows", input=texts)  # the client requests base64
    assert rows == [d.embedding for d in response.data]
    assert (7, 7) == (response.usage.prompt_tokens, response.usage.total_tokens)
    assert rows[:1] == [d.embedding for d in client.embeddings.create(model="rows", input=encode(PROMPT)).data]
    plain = server.post("/v1/embeddings", {"model": "rows", "input": PROMPT}).json()
    assert rows[0] == plain["data"][0]["embedding"]
    packed = server.post("/v1/embeddings", {"model": "rows", "input": PROMPT, "encoding_format": "base64"}).json()
    assert rows[0] == list(struct.unpack("<3f", base64.b64decode(packed["data"][0]["embedding"])))
    with pytest.raises(openai.BadRequestError, match="rows is an encoder and writes no text: ask /v1/embeddings"):
        client.completions.create(model="rows", prompt=PROMPT)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty is not supported: leave it out"),
        ({"presence_penalty": -1}, "presence_penalty", "presence_penalty is not supported: leave it out"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias is not supported: leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format is not supported: leave"),
        ({"tools": [{"type": "function"}]}, "tools", "tools is not supported: leave it out"),
        ({"extra_body": {"magic": 1}}, "magic", "there is no parameter 'magic': leave it out"),
        ({"temperature": 3}, "temperature", "temperature must be a number from 0 to 2"),
        ({"top_p": 0}, "top_p", "top_p must be a number above 0 and at most 1"),
        ({"n": 0}, "n", "n must be an int from 1 to 128"),
        ({"n": 17}, "n", "17 choices are too many: ask for 16 at most"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be an int from 1 to"),
        ({"max_tokens": 5000}, "max_tokens", "max_tokens is 4096 at most on this server"),
        ({"stop": [""]}, "stop", "stop must be a text, or a list of 16 at most, and none of them empty"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs: true"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options is an object, and needs"),
        ({"messages": []}, "messages", "messages must be a list with one message at least"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "messages[0] must be an object whose role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]", "messages[0].content must be a text, or"),
        ({"messages": [{"role": "user", "content": "w " * 64}]}, "messages", "messages has 65 tokens, the context"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, None, "the chat template refuses this conversation"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(server: Running, options: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        server.openai().chat.completions.create(**{"model": "fake", "messages": CHAT} | options)
    assert param == raised.value.param
    assert message in raised.value.message
    assert "invalid_request_error" == raised.value.type


def test_what_asks_for_nothing_is_accepted(server: Running) -> None:
    response = server.openai().chat.completions.create(
        model="fake", messages=CHAT, max_tokens=2, temperature=0, frequency_penalty=0, presence_penalty=0.0, tools=[],
        logit_bias={}, response_format={"type": "text"}, user="me", extra_body={"top_k": 5, "min_p": 0.1},
    )  # fmt: skip
    assert words(CHAT_TOKENS, 0, 2) == response.choices[0].message.content


def test_the_only_model_needs_no_name(start: Start) -> None:
    single, both = start(encoder=False), start()
    assert "fake" == single.post("/v1/completions", {"prompt": PROMPT}).json()["model"]
    refused = both.post("/v1/completions", {"prompt": PROMPT})
    assert (404, "model_not_found") == (refused.status_code, refused.json()["error"]["code"])


def test_models_that_cannot_do_it(start: Start) -> None:
    client = start(has_chat=False).openai()
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here: take fake or rows") as raised:
        client.chat.completions.create(model="gpt-9", messages=CHAT)
    assert "model_not_found" == raised.value.code
    with pytest.raises(openai.BadRequestError, match="fake has no chat template: ask /v1/completions"):
        client.chat.completions.create(model="fake", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="fake is a language model and gives no embeddings: serve an enc"):
        client.embeddings.create(model="fake", input=PROMPT)


def test_an_engine_that_fails(start: Start) -> None:
    server = start(fail=DeviceLost("the GPU device is lost (gone)"), fail_at=2)
    client = server.openai()
    with pytest.raises(
        openai.InternalServerError, match=r"the model failed: the GPU device is lost \(gone\)"
    ) as raised:
        client.completions.create(model="fake", prompt=PROMPT)
    assert ("engine_failed", "server_error") == (raised.value.code, raised.value.type)
    pieces = []
    with pytest.raises(openai.APIError, match="the model failed: the GPU device is lost"):
        for chunk in client.completions.create(model="fake", prompt=PROMPT, temperature=0, stream=True):
            pieces.append(chunk.choices[0].text)
    assert words(encode(PROMPT), 0, 2) == "".join(pieces)
    server.engine.fail = RuntimeError("a secret")
    with pytest.raises(openai.InternalServerError, match="the model failed: see the server's log"):
        client.completions.create(model="fake", prompt=PROMPT)
    assert 0 == server.engine.running == server.serving.slots["fake"].taken


@pytest.mark.parametrize("prompt", ["w " * 65, [1] * 65])
def test_a_prompt_that_is_too_long_has_a_code(server: Running, prompt: Any) -> None:
    error = server.post("/v1/completions", {"model": "fake", "prompt": prompt}).json()["error"]
    assert ("prompt", "context_length_exceeded") == (error["param"], error["code"])
    assert "has 65 tokens" in error["message"]


def test_no_model_promises_more_tokens_than_its_context_holds(server: Running) -> None:
    model = httpx2.get(f"{server.url}/v1/models/fake").json()
    assert (64, 64) == (model["context"], model["max_tokens"])


def test_the_bytes_of_a_token_may_be_a_part_of_a_character(start: Start) -> None:
    client = start(raw=b"\xf0\x9f").openai()
    response = client.chat.completions.create(model="fake", messages=CHAT, logprobs=True, max_tokens=2, temperature=0)
    assert response.choices[0].logprobs is not None and response.choices[0].logprobs.content is not None
    assert [[0xF0, 0x9F]] * 2 == [e.bytes for e in response.choices[0].logprobs.content]
