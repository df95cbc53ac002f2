# SPDX-License-Identifier: Apache-2.0
"""STAND-IN engine: what it says. The same prompt gives the same text, token for token."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import re
from pathlib import Path

# what a known-answer prompt may ask; anything else gets deterministic nonsense
_CAPITALS = {"france": "Paris", "germany": "Berlin", "italy": "Rome", "spain": "Madrid", "japan": "Tokyo"}
_CAPITAL = re.compile(r"\bcapital\b.*?\bof\s+(\w+)", re.IGNORECASE | re.DOTALL)
_PIECE = re.compile(r"\w{1,6}|[^\w\s]")
_WORDS = re.findall(
    r"\w+",
    "the of and to in is that it for was on are as with they be at one have this from or had by hot but some what "
    "there we can out other were all your when up use how said an each she which do their time if will",
)


@functools.cache
def vocabulary(model_path: Path) -> tuple[str, ...]:
    """Words to speak with, each with its leading space.

    They come from the model's own tokenizer.json where there is one: a client that counts the tokens of the text again
    then gets about the same number.
    """
    try:
        model = json.loads((model_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        tokens = model["vocab"] if isinstance(model["vocab"], dict) else [entry[0] for entry in model["vocab"]]
    except (OSError, ValueError, KeyError, TypeError):
        tokens = []
    # "Ġ" and "▁" are how byte-level and SentencePiece vocabularies write the leading space
    spaced = sorted({" " + t[1:] for t in tokens if t[:1] in ("Ġ", "▁") and t[1:].isascii() and t[1:].isalpha()})
    if len(spaced) < 16:
        spaced = sorted({" " + t for t in tokens if t.isascii() and t.isalpha() and t.islower()})
    return tuple(spaced) if len(spaced) >= 16 else tuple(" " + word for word in _WORDS)


def count_tokens(prompt: str | list[int]) -> int:
    """About how many tokens a prompt has (exactly, when it comes as token ids)."""
    return len(prompt) if isinstance(prompt, list) else max(1, len(_PIECE.findall(prompt)))


def answer(prompt: str) -> list[str]:
    """Tokens of the answer to a prompt that asks for a known one; empty for any other."""
    asked = _CAPITAL.findall(prompt)
    known = [_CAPITALS[country.lower()] for country in asked if country.lower() in _CAPITALS]
    return [" " + known[-1], "."] if known else []


def generate(
    prompt: str | list[int], length: int, model_path: Path, *, ignore_eos: bool, fault: str
) -> tuple[list[str], bool]:
    """The text for a prompt, as tokens.

    Args:
        length: greatest number of tokens. fault: see Faults.output.

    Returns:
        The tokens, and whether the end was the model's own (else the length ended it).
    """
    if fault == "garbage":
        return ["!"] * length, False
    if fault == "empty":
        return [""] * length, False
    seed = hashlib.sha256(json.dumps(prompt).encode()).digest()
    dice = random.Random(seed)
    words = vocabulary(model_path)
    tokens = answer(prompt) if isinstance(prompt, str) and fault != "wrong" else []
    if tokens and not ignore_eos:
        return tokens[:length], len(tokens) <= length
    while len(tokens) < length:
        tokens.append(dice.choice(words))
    if fault == "short" and length > 1:
        return tokens[: length // 2], True
    return tokens[:length], False
