"""Between text and tokens: the tokenizer next to a model, text piece by piece as tokens arrive, stop strings.

Nothing here knows of a GPU. `Detokenizer` gives out whole characters only; `StopStrings` gives out nothing that may
still turn out to be the beginning of a stop string.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..files import check_regular, read, read_object, read_text
from .checkpoints import is_checkpoint

if TYPE_CHECKING:
    from tokenizers import Encoding

    from .template import ChatTemplate, Message

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
CONTEXT = 8  # tokens of the prompt that decide how the first new ones are written: with a space before, say
GROWTH = 64  # times that a normalizer or a decoder may make a text longer
ADDED = 4096  # tokens that may be put around a text
STEPS = 256  # of a normalizer, a pre-tokenizer or a decoder: each takes its time for all of a text
CHARACTER = 4  # bytes of a character at most: what byte-level steps write for it
SPACED = 3  # what a normalizer of BERT's writes for a Chinese character: itself, with spaces around it
INCOMPLETE = "\ufffd"  # what an incomplete character is decoded to
FROM_BUFFER = "Cannot instantiate Tokenizer from buffer: "  # what errors of the library begin with
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a token that is one byte
NEVER_EMPTY = re.compile(  # a pattern of characters and sets of them, none of which may be left out
    r"(?:(?:[^\\()\[\]{}*+?|^$]|\\[nrtsSdDwW\W]|\[[^\\\[\]]+\])(?:\+|\{[1-9]\d*,?\d*\})?)+"
)
PROBE = "Hello, a1 \u00e9\n"  # any text, to see whether a tokenizer works


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character in the names of byte-level tokens: those that print are themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


BYTES = _bytes_of_characters()


class Tokenizer:
    """A `tokenizer.json` with what `tokenizer_config.json` says about special tokens and chats."""

    def __init__(self, path: Path, prefix: str = "") -> None:
        """`prefix` is what the names of the files beside `path` begin with."""
        import tokenizers

        self.path, self._name = path, str(path)
        content = read(path, InvalidInput)
        _check_growth(path, content)
        with _silent():  # where the library panics, it does so here, mostly
            self._tokenizer = self._call("is not a tokenizer", lambda: tokenizers.Tokenizer.from_buffer(content))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self.decode(self._encode(PROBE))
        self._is_byte_level = "ByteLevel" in str(self._tokenizer.decoder)
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.config_path = path.with_name(prefix + CONFIG)
        config = read_object(self.config_path, InvalidInput) if self.config_path.exists() else {}
        template = path.with_name(prefix + TEMPLATE)
        chat = read_text(template, InvalidInput) if template.exists() else config.get("chat_template")
        special = {name: text for name, value in config.items() if (text := _token_text(name, value)) is not None}
        self._chat = _template(chat, special) if chat else None
        self._adds_bos = bool(config.get("add_bos_token"))
        self.bos = self.id_of(special.get("bos_token"))
        self.eos = self.id_of(special.get("eos_token"))
        self._name = path.name  # what errors call it from now on: a server's clients need not know its folders

    @property
    def chat(self) -> ChatTemplate:
        """The chat template; InvalidInput if there is none."""
        if self._chat is None:
            looked = f"no chat_template in {self.config_path} and no {TEMPLATE} next to it"
            raise InvalidInput(f"this model cannot chat: there is {looked}; use generate to continue a text")
        return self._chat

    @property
    def has_chat(self) -> bool:
        return self._chat is not None

    def id_of(self, token: str | None) -> int | None:
        """The id of a token by its text."""
        return None if token is None else self._call("has no such token", lambda: self._tokenizer.token_to_id(token))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with the special ones that the tokenizer puts around it."""
        ids = self._encode(text)
        return [self.bos, *ids] if self._adds_bos and self.bos is not None and ids[:1] != [self.bos] else ids

    def encode_whole(self, text: str, pair: str | None = None, most: int | None = None) -> Encoding:
        """A text, or two, of at most so many tokens, with types, offsets and which tokens are special."""
        if most is not None:
            self._call("fails", lambda: self._tokenizer.enable_truncation(most))
        try:
            return self._call("fails", lambda: self._tokenizer.encode(text, pair))
        finally:
            self._tokenizer.no_truncation()

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the model's next message begins."""
        return self.encode_rendered(self.chat.render(messages))

    def encode_rendered(self, text: str) -> list[int]:
        """The tokens of a text that has all special ones already."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones; an incomplete character is U+FFFD."""
        return self._call("fails", lambda: self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def decode_token(self, token: int) -> str:
        """The text of one token, special or not."""
        return self._call("fails", lambda: self._tokenizer.id_to_token(token)) or ""

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes that a token stands for, which may be a part of a character; None where its text says it."""
        name = self.decode_token(token)
        if found := BYTE.fullmatch(name):
            return bytes([int(found[1], 16)])
        if not self._is_byte_level or token in self._added or not all(c in BYTES for c in name):
            return None
        return bytes(BYTES[c] for c in name)

    def _encode(self, text: str, **how: bool) -> list[int]:
        return self._call("fails", lambda: self._tokenizer.encode(text, **how).ids)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """What the library gives. It raises plain exceptions, and panics, which are no exceptions for Python."""
        try:
            return call()
        except BaseException as e:
            if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
                raise
            raise InvalidInput(f"{self._name} {what}: {e}".replace(FROM_BUFFER, "")) from None


def find_tokenizer(model: Path | None, given: str | os.PathLike[str] | None) -> Tokenizer:
    """The tokenizer that is given, a file or a folder, or the one beside the model."""
    return Tokenizer(*find_files(model, given))


def find_files(model: Path | None, given: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """Where that one is, and what the names of the files beside it begin with."""
    if given is not None:
        path = Path(given)
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
    looked = " and ".join(str(path) for path, _ in candidates)
    raise InvalidInput(f"no tokenizer: looked for {looked}; pass one (--tokenizer, tokenizer=)")


def check_tokenizer(model: Path, given: str | os.PathLike[str] | None) -> None:
    """Raise InvalidInput unless a program or a checkpoint folder has a tokenizer: what loads long asks first."""
    if given is not None or not is_checkpoint(model):
        find_files(model, given)
    elif not (model / FILE).is_file():
        raise InvalidInput(f"no tokenizer: looked for {model / FILE}; pass one (--tokenizer, tokenizer=)")


def _template(chat: object, special: dict[str, str]) -> ChatTemplate:
    """Imported for those who chat: it takes long to load."""
    from .template import ChatTemplate

    return ChatTemplate(chat, special)


def _check_growth(path: Path, content: bytes) -> None:
    """Raise InvalidInput if the steps of a part are more than `STEPS` or may make a text more than `GROWTH` times as
    long, or if a template repeats it or adds more than `ADDED` tokens."""
    try:
        parts = json.loads(content, object_pairs_hook=_object)
    except InvalidInput as e:
        raise InvalidInput(f"{path} is refused: {e}") from None
    except (ValueError, RecursionError):
        return  # the library says what is wrong
    if not isinstance(parts, dict):
        return
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        steps = list(_steps(parts.get(name)))
        if not all(isinstance(step.get("type"), str) for step in steps):  # the library guesses what they do
            raise InvalidInput(f"{path} is refused: a step of its {name} has no type")
        if len(steps) > STEPS:
            raise InvalidInput(f"{path} is refused: its {name} has {len(steps):,} steps, more than {STEPS}")
        if _growth(parts.get(name)) > GROWTH:
            raise InvalidInput(f"{path} is refused: its {name} may make a text more than {GROWTH} times as long")
    repeats, added = _template_cost(parts.get("post_processor"))
    if repeats:
        raise InvalidInput(f"{path} is refused: its post_processor repeats a text")
    if added > ADDED:
        raise InvalidInput(f"{path} is refused: its post_processor adds {added:,} tokens, more than {ADDED:,}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; InvalidInput if it has a key twice, of which the library may take the other value."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise InvalidInput(f"it has the key {twice!r} twice in one object")
    return members


def _steps(root: object) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part in order: a normalizer's, say, with those inside of sequences."""
    stack = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += reversed(part)
        elif isinstance(part, dict):
            yield part
            stack += [part[key] for key in ("normalizers", "pretokenizers", "decoders", "processors") if key in part]


def _growth(root: object) -> float:
    """Return how many times as long chained replacements may make a text, at most.

    A replacement of characters that none before it wrote does not multiply what those wrote, unless a step in between
    makes other characters of them. What is put before a text is put before each part of it, which may be a character.
    """
    growth, changed = 1.0, False
    written: set[str] = set()  # characters of what replaces others so far
    for part in _steps(root):
        kind, replaced, prepended = part.get("type"), _replaced(part), part.get("prepend")
        if replaced is not None:
            old, new, factor = replaced
            again = changed or not old or not written.isdisjoint(old)
            growth = growth * factor if again else max(growth, factor)
            written |= set(new)
        elif kind == "Prepend" and isinstance(prepended, str):
            growth += len(prepended)
            written |= set(prepended)
        elif kind == "Metaspace":
            growth *= 2
            changed = True
        elif kind == "Precompiled":
            texts = _texts(part.get("precompiled_charsmap"))
            growth *= max([1, *map(len, texts)])
            written |= set("".join(texts))
            changed = True
        elif kind == "ByteLevel":
            growth *= CHARACTER
            changed = True
        elif kind not in ("Sequence", "Strip", "Fuse", "ByteFallback"):
            spread = [_spread(kind, c) for c in written]
            growth *= max([SPACED if kind == "BertNormalizer" else 1, *map(len, spread)])
            written |= set("".join(spread))
            changed = changed or bool(written) or kind == "BertNormalizer"
        if growth > GROWTH:
            break
    return growth


def _spread(kind: object, character: str) -> str:
    """Return what a step that works on single characters writes for one, or what is at least as long."""
    if kind == "Lowercase":
        return character.lower()
    if kind == "BertNormalizer":
        return unicodedata.normalize("NFD", character).lower()
    if kind in ("NFC", "NFD"):
        return unicodedata.normalize("NFD", character)
    return unicodedata.normalize("NFKD", character) if kind in ("NFKC", "NFKD") else character


def _replaced(part: dict[str, Any]) -> tuple[str | None, str, float] | None:
    """Return what a step replaces, None for a pattern, with what, and how many times as long that may make a text.

    None for a step that replaces nothing. What may be empty matches between all characters.
    """
    kind, pattern, new = part.get("type"), part.get("pattern"), part.get("content")
    if kind in ("BPEDecoder", "CTC"):
        old, new = part.get("suffix" if kind == "BPEDecoder" else "word_delimiter_token"), " "
    elif kind == "Replace" and isinstance(pattern, dict) and isinstance(new, str):
        old = pattern.get("String")
        if old is None:
            is_never_empty = NEVER_EMPTY.fullmatch(str(pattern.get("Regex")))
            return None, new, max(1, len(new)) if is_never_empty else 1 + len(new)
    else:
        return None
    return (old, new, max(1, len(new) / len(old)) if old else 1 + len(new)) if isinstance(old, str) else None


def _texts(charsmap: object) -> list[str]:
    """Return what a table of SentencePiece writes for characters."""
    try:
        data = base64.b64decode(charsmap)  # type: ignore[arg-type]  # anything may be there
    except (ValueError, TypeError):
        return []  # the library says what is wrong
    start = 4 + int.from_bytes(data[:4], "little")  # behind a trie: texts, each with a zero at its end
    return [text.decode(errors="replace") for text in data[start:].split(b"\0")]


def _template_cost(root: object) -> tuple[bool, int]:
    """Return whether a template has a text more than once, and how many tokens templates add."""
    repeats, added = False, 0
    for part in _steps(root):
        special = part.get("special_tokens")
        for pieces in (part.get("single"), part.get("pair")):
            names: Counter[tuple[str, str]] = Counter()
            for piece in (p for p in pieces if isinstance(p, dict)) if isinstance(pieces, list) else ():
                names.update((kind, str(v.get("id"))) for kind, v in piece.items() if isinstance(v, dict))
            repeats |= any(kind == "Sequence" and n > 1 for (kind, _), n in names.items())
            for (kind, name), n in names.items():
                token = special.get(name) if kind == "SpecialToken" and isinstance(special, dict) else None
                added += n * len(token.get("ids", ())) if isinstance(token, dict) else 0
    return repeats, added


_redirecting = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Without what a native library writes on stderr when it fails: the error says it. All else comes later."""
    with _redirecting, tempfile.TemporaryFile() as held:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            before = os.dup(2)
        except OSError:  # there is no stderr
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
            held.seek(0)
            os.write(before, held.read())
        finally:
            os.dup2(before, 2)
            os.close(before)


def _token_text(name: str, value: object) -> str | None:
    """A special token's text: `"<s>"`, or `{"content": "<s>", …}`."""
    if not name.endswith("_token"):
        return None
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


class Detokenizer:
    """Text from tokens that come one by one. What `push` returns, joined, is what decoding them all at once gives."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._tokens = list(prompt[-CONTEXT:])
        if self._decode(self._tokens).endswith(INCOMPLETE):
            self._tokens = []
        self._known = len(self._tokens)  # tokens whose text was given out
        self._shown = self._decode(self._tokens)

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(INCOMPLETE):
            return ""
        return self._give(text)

    def finish(self) -> str:
        """What is left, complete or not."""
        return self._give(self._decode(self._tokens))

    def _give(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._tokens = self._tokens[self._known :] if new else self._tokens  # enough to write the next one correctly
        self._known, self._shown = len(self._tokens), self._decode(self._tokens)
        return new


class StopStrings:
    """Text passes through until one of the stop strings is complete; neither it nor a part of it does."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is certainly before any stop string."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        self._held += text
        found = [(k + len(s), k) for s in self._stops if (k := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            _, first = min(found)
            return self._take(first)
        kept = max((_overlap(self._held, s) for s in self._stops), default=0)
        return self._take(len(self._held) - kept)

    def finish(self) -> str:
        """What was held back, as nothing comes any more."""
        return "" if self.stopped else self._take(len(self._held))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
