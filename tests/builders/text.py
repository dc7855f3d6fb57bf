"""Tiny tokenizers in memory, and the built-in model's own text tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from appliance.gguf.metadata import Metadata, Value, ValueType
from appliance.gguf.reader import open_set
from appliance.text.chat import JsonValue, Tool
from appliance.text.deltas import Answer, Delta, join
from appliance.text.pretokenizers import byte_alphabet
from appliance.text.stream import OutputParser
from appliance.text.tokenizer import Tokenizer

BUILTIN = Path("appliance/data/strata-tiny.gguf")
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
SPECIALS = (
    ("<|endoftext|>", CONTROL),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<|image_pad|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
    ("<tool_call>", USER_DEFINED),
    ("</tool_call>", USER_DEFINED),
    ("<tool_response>", USER_DEFINED),
    ("</tool_response>", USER_DEFINED),
)


def text_metadata(
    *,
    words: Sequence[str] = (),
    merges: Sequence[str] = (),
    specials: Sequence[tuple[str, int]] = SPECIALS,
    types: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    pre: str = "qwen35",
    model: str = "gpt2",
    template: str | None = None,
    more: dict[str, str] | None = None,
) -> Metadata:
    """Ids: 0..255 the byte alphabet, then words, then specials."""
    all_tokens = tuple(tokens or (*byte_alphabet(), *words, *(text for text, _ in specials)))
    all_types = tuple(types or (*[1] * (256 + len(words)), *(kind for _, kind in specials)))
    texts = {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre, **(more or {})}
    if template is not None:
        texts["tokenizer.chat_template"] = template
    values = {key: Value(ValueType.STRING, False, (text,)) for key, text in texts.items()}
    values["tokenizer.ggml.tokens"] = Value(ValueType.STRING, True, all_tokens)
    values["tokenizer.ggml.token_type"] = Value(ValueType.INT32, True, all_types)
    values["tokenizer.ggml.merges"] = Value(ValueType.STRING, True, tuple(merges))
    return Metadata(values, where="tiny.gguf")


@cache
def byte_tokenizer() -> Tokenizer:
    """One token per byte, and the specials: every cut of a text is a cut between tokens."""
    return Tokenizer.from_metadata(text_metadata())


@cache
def builtin_metadata() -> Metadata:
    """Of the built-in model."""
    return open_set(BUILTIN).metadata


@cache
def builtin_tokenizer() -> Tokenizer:
    """Of the built-in model."""
    return Tokenizer.from_metadata(builtin_metadata())


def tool(name: str, **properties: JsonValue) -> Tool:
    """A declared tool; a property is a schema, or the name of its type."""
    schemas: dict[str, JsonValue] = {k: {"type": v} if isinstance(v, str) else v for k, v in properties.items()}
    parameters: dict[str, JsonValue] = {"type": "object", "properties": schemas}
    function: dict[str, JsonValue] = {"name": name, "parameters": parameters}
    return Tool(name=name, parameters=parameters, definition={"type": "function", "function": function})


class Numbered:
    """Call ids "call_0", "call_1", …"""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self) -> str:
        self._next += 1
        return f"call_{self._next - 1}"


def parse(
    ids: Sequence[int],
    *,
    tokenizer: Tokenizer | None = None,
    cuts: Sequence[int] = (),
    stops: Sequence[str] = (),
    thinking_open: bool = False,
    tools: Sequence[Tool] = (),
    plain: bool = False,
) -> tuple[Answer, OutputParser, tuple[Delta, ...]]:
    """Feeds ids in the pieces that cuts make, and finishes."""
    parser = OutputParser(
        tokenizer or byte_tokenizer(),
        stops=stops,
        thinking_open=thinking_open,
        tools=tools,
        plain=plain,
        new_id=Numbered(),
    )
    edges = [0, *cuts, len(ids)]
    deltas: list[Delta] = []
    for start, end in pairwise(edges):
        deltas += parser.feed(ids[start:end])
    deltas += parser.finish()
    return join(deltas), parser, tuple(deltas)


def parse_text(
    text: str,
    *,
    special: bool = True,
    stops: Sequence[str] = (),
    thinking_open: bool = False,
    tools: Sequence[Tool] = (),
    plain: bool = False,
) -> tuple[Answer, OutputParser, tuple[Delta, ...]]:
    """Byte tokens of text one by one; special=True makes tags single tokens."""
    ids = byte_tokenizer().encode(text, special=special)
    return parse(
        ids,
        cuts=range(1, len(ids)),
        stops=stops,
        thinking_open=thinking_open,
        tools=tools,
        plain=plain,
    )
