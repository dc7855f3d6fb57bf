"""The tokenizer: ids, bytes, special texts, and tables that contradict each other."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ModelFileError
from appliance.text.pretokenizers import byte_alphabet
from appliance.text.tokenizer import Tokenizer
from tests.builders.text import SPECIALS, UNUSED, builtin_tokenizer, byte_tokenizer, text_metadata

CASES = json.loads(Path("tests/data/strata-tiny-expected.json").read_text(encoding="utf-8"))["cases"]
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize("case", CASES, ids=[case["prompt"][:24] for case in CASES])
def test_ids_of_the_builtin_model(case):
    tokenizer = builtin_tokenizer()
    assert tokenizer.encode(TURN.format(case["prompt"]), special=True) == case["prompt_ids"]
    assert tokenizer.decode(case["output_ids"]) == case["output"]
    ends = {tokenizer.special_id("<|im_end|>"), tokenizer.special_id("<|endoftext|>")}
    joined = b"".join(tokenizer.token_bytes(i) for i in case["output_ids"] if i not in ends)
    assert joined.decode() == case["output"]


SPLITS = [
    ("it's", ["it", "'s"]),
    ("IT'S", ["IT", "'S"]),
    ("a1234", ["a", "1", "2", "3", "4"]),
    ("hello world", ["hello", " world"]),
    ("x  y", ["x", " ", " y"]),
    ("a\n\n  b", ["a", "\n\n", " ", " b"]),
    ("end!!\n\nnext", ["end", "!!\n\n", "next"]),
    ("ก็ดี", ["ก็ดี"]),
    ("naïve", ["naïve"]),
    ("ab_cd", ["ab", "_cd"]),
    ("  ", ["  "]),
    ("你好，世界！", ["你好", "，世界", "！"]),
]


@pytest.mark.parametrize(("text", "pieces"), SPLITS, ids=[repr(text) for text, _ in SPLITS])
def test_words_are_cut_as_qwen35_cuts(text, pieces):
    pipeline = builtin_tokenizer()._pipeline
    alphabet = {character: byte for byte, character in enumerate(byte_alphabet())}
    found = [piece for piece, _ in pipeline.pre_tokenizer.pre_tokenize_str(text)]
    assert [bytes(alphabet[c] for c in piece).decode() for piece in found] == pieces


def test_text_is_composed_first():
    tokenizer = builtin_tokenizer()
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


TEXTS = st.text(max_size=40) | st.lists(
    st.sampled_from([*(text for text, _ in SPECIALS), "a", " ", "\n", "<", ">", "|", "é", "😀"]), max_size=12
).map("".join)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(TEXTS)
def test_round_trip_and_no_special_id_from_text(text):
    """SEC-03: any text comes back as it was, and holds no special id."""
    tokenizer = builtin_tokenizer()
    ids = tokenizer.encode(text)
    assert not [i for i in ids if tokenizer.is_special(i) or tokenizer.is_control(i)]
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_special_texts_become_ids_only_when_asked():
    tokenizer = byte_tokenizer()
    text = "a<|im_end|><think>b"
    marked = tokenizer.encode(text, special=True)
    assert marked == [*tokenizer.encode("a"), 258, 260, *tokenizer.encode("b")]
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(marked) == "a<think>b"
    assert tokenizer.split_special(text) == [("a", None), ("<|im_end|>", 258), ("<think>", 260), ("b", None)]


def test_longest_special_text_wins():
    tokenizer = Tokenizer.from_metadata(text_metadata(specials=[("<a>", 4), ("<a><b>", 4)]))
    assert tokenizer.encode("<a><b><a>", special=True) == [257, 256]


def test_a_merge_cannot_reach_a_special_token():
    """SEC-03: a word that is spelled like a tag by the file's own merges is refused."""
    tokens = {"words": ["ta", "tag"], "merges": ["t a", "ta g"], "specials": [("<x>", 4)]}
    assert Tokenizer.from_metadata(text_metadata(**tokens)).encode("tag") == [257]
    hostile = {**tokens, "words": ["ta"], "specials": [("tag", 4)]}
    with pytest.raises(ModelFileError, match=r"merges\[1\].*'tag'.*not an ordinary token"):
        Tokenizer.from_metadata(text_metadata(**hostile))


@pytest.mark.parametrize(
    "text", ["\ud83d", "a\udc00b", "\ud83d\ude00"], ids=["lone high", "lone low", "pair in two halves"]
)
def test_half_characters_do_not_break_encoding(text):
    decoded = byte_tokenizer().decode(byte_tokenizer().encode(text))
    assert decoded == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


ALPHABET = byte_alphabet()
BAD = [
    ("model", {"model": "llama"}, r"tokenizer\.ggml\.model is 'llama'; only \"gpt2\""),
    ("pre", {"pre": "llama-bpe"}, r"tokenizer\.ggml\.pre is 'llama-bpe'; .*qwen35"),
    ("one half", {"merges": ["ab"]}, r"merges\[0\] is 'ab'; it must be two tokens"),
    ("three parts", {"merges": ["a b c"]}, r"merges\[0\].*two tokens"),
    ("nothing left", {"merges": [" a"]}, r"merges\[0\].*two tokens"),
    ("unknown part", {"merges": ["a zz"]}, r"merges\[0\].*needs the token 'zz'"),
    ("unknown join", {"merges": ["a b"]}, r"merges\[0\].*needs the token 'ab'"),
    ("types short", {"types": [1] * 5}, r"token_type has 5 entries and tokenizer\.ggml\.tokens 266"),
    ("type 9", {"types": [1] * 265 + [9]}, r"token_type\[265\] is 9"),
    ("word twice", {"words": ["ab", "ab"]}, r"tokens\[257\] 'ab' equals token 256"),
    ("special twice", {"specials": [("<a>", 3), ("<a>", 4)]}, r"tokens\[257\] '<a>' equals token 256"),
    ("special empty", {"specials": [("", 3)]}, r"tokens\[256\] '' is empty"),
    ("special of one character", {"specials": [("x", 4)]}, r"tokens\[256\] 'x' is a single character"),
    ("byte missing", {"tokens": ALPHABET[1:], "types": [1] * 255}, r"no token for 1 bytes, first 0x00"),
    ("empty", {"tokens": ("a",), "types": [1, 1]}, "both must have one per id"),
]


@pytest.mark.parametrize(("change", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_tables_are_refused(change, message):
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_metadata(text_metadata(**change))


def test_unused_ids_may_repeat_anything():
    tokenizer = Tokenizer.from_metadata(text_metadata(specials=[("<a>", 4), ("<a>", UNUSED), ("", UNUSED)]))
    assert tokenizer.encode("<a>", special=True) == [256]
    assert tokenizer.is_control(257)
    assert tokenizer.vocabulary == 259


@pytest.mark.parametrize("token_id", [-1, 266], ids=["negative", "beyond"])
def test_ids_outside_are_refused(token_id):
    with pytest.raises(ValueError, match="outside the vocabulary of 266"):
        byte_tokenizer().token_bytes(token_id)


def test_a_full_vocabulary_builds_quickly():
    """248,000 tokens in seconds, since every start waits for it."""
    pairs = [f"{left} {right}" for left in ALPHABET for right in ALPHABET]
    threes = [f"{pair.replace(' ', '')} {right}" for pair in pairs for right in ALPHABET[65:68]]
    merges = (pairs + threes)[:247_587]
    tokens = [*ALPHABET, *(merge.replace(" ", "") for merge in merges)]
    metadata = text_metadata(tokens=tokens, types=[1] * len(tokens), merges=merges)
    start = time.process_time()
    tokenizer = Tokenizer.from_metadata(metadata)
    assert time.process_time() - start < 6
    assert tokenizer.decode(tokenizer.encode("hello, world")) == "hello, world"


@pytest.mark.parametrize(
    "text",
    [" " * 200_000, "a" * 200_000, "\t \n" * 70_000, "<" * 200_000],
    ids=["spaces", "letters", "mixed blanks", "tag starts"],
)
def test_long_runs_are_not_slow(text):
    start = time.process_time()
    assert builtin_tokenizer().decode(builtin_tokenizer().encode(text, special=True)) == text
    assert time.process_time() - start < 5
