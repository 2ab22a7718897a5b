"""Tokenizers of models, text piece by piece as tokens arrive, and stop strings.

Nothing here knows a GPU. `Detokenizer` returns complete characters only; `StopStrings` holds back any text that may be
the beginning of a stop string.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..files import check_regular, read, read_object, read_text
from .checkpoints import is_checkpoint
from .tokenizer_bounds import check_growth

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .template import ChatTemplate, Message

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
CONTEXT = 8  # tokens of the prompt that affect how the first new tokens are written, such as with a leading space
INCOMPLETE = "\ufffd"  # the decoded text of an incomplete character
FROM_BUFFER = "Cannot instantiate Tokenizer from buffer: "  # the prefix of the library's errors
BYTE = re.compile("<0x([0-9A-F]{2})>")  # the name of a token for one byte
PROBE = "Hello, a1 \u00e9\n"  # any text, to test whether a tokenizer works


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character in the names of byte-level tokens: printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


BYTES = _bytes_of_characters()


class Tokenizer:
    """A `tokenizer.json`, with the special tokens and the chat template of `tokenizer_config.json`."""

    def __init__(self, path: Path, prefix: str = "") -> None:
        """Read the tokenizer in `path`. The names of the files beside it begin with `prefix`."""
        import tokenizers

        self.path, self._name = path, str(path)
        content = read(path, InvalidInput)
        check_growth(path, content)
        with _silent():  # the library mostly panics here, if it does
            self._tokenizer = self._call("is not a tokenizer", lambda: tokenizers.Tokenizer.from_buffer(content))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self.decode(self._encode(PROBE))
        self._is_byte_level = "ByteLevel" in str(self._tokenizer.decoder)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._bytes: dict[int, bytes | None] = {}  # of tokens that texts contained
        self.config_path = path.with_name(prefix + CONFIG)
        config = read_object(self.config_path, InvalidInput) if self.config_path.exists() else {}
        template = path.with_name(prefix + TEMPLATE)
        chat = read_text(template, InvalidInput) if template.exists() else config.get("chat_template")
        texts = {name: v.get("content") if isinstance(v, dict) else v for name, v in config.items()}
        special = {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}
        self._chat = None
        if chat:
            from .template import ChatTemplate  # slow to import, and only chats need it

            self._chat = ChatTemplate(chat, special)
        self._adds_bos = bool(config.get("add_bos_token"))
        self.bos = self.id_of(special.get("bos_token"))
        self.eos = self.id_of(special.get("eos_token"))
        self._name = path.name  # for later errors: the clients of a server must not learn its folders

    @property
    def chat(self) -> ChatTemplate:
        """Return the chat template. Raise InvalidInput for a model without one."""
        if self._chat is None:
            missing = f"no chat_template in {self.config_path} and no {TEMPLATE} next to it"
            raise InvalidInput(f"this model cannot chat: there is {missing}; use generate to continue a text")
        return self._chat

    @property
    def has_chat(self) -> bool:
        return self._chat is not None

    @property
    def vocabulary(self) -> dict[str, int]:
        """All tokens with their ids, special ones included."""
        tokens: dict[str, int] = self._call("fails", self._tokenizer.get_vocab)
        return tokens

    def id_of(self, token: str | None) -> int | None:
        """Return the id of the token with this text."""
        return None if token is None else self._call("has no such token", lambda: self._tokenizer.token_to_id(token))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with the special ones that the tokenizer puts around it."""
        ids = self._encode(text)
        return [self.bos, *ids] if self._adds_bos and self.bos is not None and ids[:1] != [self.bos] else ids

    def encode_pair(self, text: str, pair: str | None, limit: int) -> Encoding:
        """Return a text, or two, as at most `limit` tokens, with their types, offsets and which of them are special."""
        self._call("fails", lambda: self._tokenizer.enable_truncation(limit))
        try:
            return self._call("fails", lambda: self._tokenizer.encode(text, pair))
        finally:
            self._tokenizer.no_truncation()

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to the beginning of the model's next message."""
        return self.encode_rendered(self.chat.render(messages))

    def encode_rendered(self, text: str) -> list[int]:
        """Return the tokens of a text that already contains all special ones."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without special ones. An incomplete character becomes U+FFFD."""
        return self._call("fails", lambda: self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def decode_token(self, token: int) -> str:
        """Return the text of one token, special or not."""
        return self._call("fails", lambda: self._tokenizer.id_to_token(token)) or ""

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes of a byte-level token, possibly a part of a character; None for tokens that are text."""
        if token not in self._bytes:
            self._bytes[token] = self._bytes_of(token)
        return self._bytes[token]

    def _bytes_of(self, token: int) -> bytes | None:
        name = self.decode_token(token)
        if byte := BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        if not self._is_byte_level or token in self._added or not all(c in BYTES for c in name):
            return None
        return bytes(BYTES[c] for c in name)

    def _encode(self, text: str, **options: bool) -> list[int]:
        return self._call("fails", lambda: self._tokenizer.encode(text, **options).ids)

    def _call(self, failure: str, call: Callable[[], Any]) -> Any:
        """Call the library. Its errors are plain exceptions, or panics, which are a `BaseException`."""
        try:
            return call()
        except BaseException as e:
            if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
                raise
            raise InvalidInput(f"{self._name} {failure}: {e}".replace(FROM_BUFFER, "")) from None


def find_tokenizer(model: Path | None, tokenizer: str | os.PathLike[str] | None) -> Tokenizer:
    """Open the tokenizer in a file or a folder, or by default the one beside the model."""
    return Tokenizer(*find_files(model, tokenizer))


def find_files(model: Path | None, tokenizer: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """Return the path of that tokenizer, and the prefix of the files beside it."""
    if tokenizer is not None:
        path = Path(tokenizer)
        path = path / FILE if path.is_dir() else path
        if not path.exists():
            raise InvalidInput(f"no tokenizer: {path} does not exist")
        check_regular(path, InvalidInput)
        return path, path.name.removesuffix(FILE) if path.name.endswith(FILE) else ""
    if model is None:
        raise InvalidInput("no tokenizer: the model is not a file, so pass one (--tokenizer, tokenizer=)")
    prefix = f"{model.stem}."
    inside = [(model / FILE, "")] if model.is_dir() else []
    candidates = [*inside, (model.with_name(prefix + FILE), prefix), (model.with_name(FILE), "")]
    for path, start in candidates:
        if path.is_file():
            return path, start
    paths = " and ".join(str(path) for path, _ in candidates)
    raise InvalidInput(f"no tokenizer: looked for {paths}; pass one (--tokenizer, tokenizer=)")


def check_tokenizer(model: Path, tokenizer: str | os.PathLike[str] | None) -> None:
    """Raise InvalidInput unless a program or a checkpoint folder has a tokenizer. Call it before slow work."""
    if tokenizer is not None or not is_checkpoint(model):
        find_files(model, tokenizer)
    elif not (model / FILE).is_file():
        raise InvalidInput(f"no tokenizer: looked for {model / FILE}; pass one (--tokenizer, tokenizer=)")


_redirecting = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Hold back the output on stderr: write it at the end, or drop it after an error, which has the same text."""
    with _redirecting, tempfile.TemporaryFile() as buffer:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            stderr = os.dup(2)
        except OSError:  # stderr is closed
            yield
            return
        os.dup2(buffer.fileno(), 2)
        try:
            yield
            buffer.seek(0)
            os.write(stderr, buffer.read())
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


class Detokenizer:
    """Text from tokens that arrive one by one. The joined results of `push` are the text of all tokens."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._tokens = list(prompt[-CONTEXT:])
        if self._decode(self._tokens).endswith(INCOMPLETE):
            self._tokens = []
        self._done = len(self._tokens)  # tokens whose text was returned
        self._text = self._decode(self._tokens)  # of those

    def push(self, token: int) -> str:
        """Return the characters that this token completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        return "" if text.endswith(INCOMPLETE) else self._new(text)

    def finish(self) -> str:
        """Return the remaining text, complete or not."""
        return self._new(self._decode(self._tokens))

    def _new(self, text: str) -> str:
        new = text[len(self._text) :]
        self._tokens = self._tokens[self._done :] if new else self._tokens  # enough to write the next token correctly
        self._done, self._text = len(self._tokens), self._decode(self._tokens)
        return new


class StopStrings:
    """A filter that passes text until one of the stop strings is complete. No part of that string passes."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [s for s in stops if s]
        self._pending = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Add text, and return the text that is certainly before any stop string."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        self._pending += text
        matches = [(k + len(s), k) for s in self._stops if (k := self._pending.find(s)) >= 0]
        if matches:
            self.stopped = True
            return self._pop(min(matches)[1])
        return self._pop(len(self._pending) - max(_overlap(self._pending, s) for s in self._stops))

    def finish(self) -> str:
        """Return the pending text: no more will be added."""
        return "" if self.stopped else self._pop(len(self._pending))

    def _pop(self, count: int) -> str:
        text, self._pending = self._pending[:count], self._pending[count:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that may be the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
