"""What the clients of a bench ask: short questions that want long answers, and a text to make prompts of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.text.chat import ChatPrompt, Message, Role, Thinking
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

QUESTIONS: Final = (
    "Tell me a short story about a fox and a lantern.",
    "Write a short e-mail to Anna that moves our meeting to Tuesday.",
    "How do I make a cup of tea?",
    "Give me a list of five animals that live in the forest.",
    "Write a simple poem about the sea.",
    "What are you, and what can you do?",
    "Tell me a fable about a crow and a river.",
    "How do I plant a tree?",
)

_NOTES: Final = (
    "On day {day} of the trip we met {name} near the old mill and walked along the river until the evening; "
    "{name} told us about year {year}, when the water was {day} metres higher.\n"
)
_NAMES: Final = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Ida", "Jack", "Karl", "Lucy")


def questions(tokenizer: Tokenizer, template: ChatTemplate) -> list[tuple[int, ...]]:
    """Eight chats of one line as token ids, the thinking left out where the template allows it."""
    thinking = Thinking(enabled=False)
    asked = [ChatPrompt(messages=(Message(role=Role.USER, content=text),), thinking=thinking) for text in QUESTIONS]
    return [template.render(prompt).ids for prompt in asked]


def long_prompt(tokenizer: Tokenizer, length: int, *, number: int = 0) -> tuple[int, ...]:
    """Exactly `length` tokens of notes that do not repeat; different for each `number` from the first token on."""
    ids: list[int] = []
    day = 1000 * number
    while len(ids) < length:
        day += 1
        text = _NOTES.format(day=day, name=_NAMES[day % len(_NAMES)], year=1500 + 7 * day % 500)
        ids += tokenizer.encode(text)
    return tuple(ids[:length])


def fitting(lengths: Sequence[int], *, max_tokens: int) -> list[int]:
    """The lengths that a conversation of `max_tokens` has room for, with one token to answer."""
    return [length for length in lengths if length < max_tokens]
