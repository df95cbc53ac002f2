# SPDX-License-Identifier: Apache-2.0
"""Looks at some of the measured answers for garbage, before their text is thrown away.

The prompts are random tokens, so nobody knows the right answer; what a broken build gives is known: nothing, or one
character for ever.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

#: shorter answers are not judged by their variety
SHORT = 6
_EXAMPLE = 80


def problem(text: str) -> str:
    """What is wrong with an answer; empty when nothing is."""
    bare = text.strip()
    if not bare:
        return "it is empty"
    if len(bare) >= SHORT and len(set("".join(bare.split()))) == 1:
        return "it is one character repeated"
    if len(bare) >= SHORT and bare.count("\ufffd") > len(bare) / 2:
        return "it is no text"
    return ""


def spread(count: int, wanted: int) -> Sequence[int]:
    """At most ``wanted`` places, evenly over ``count``."""
    if count <= wanted:
        return range(count)
    return [int((i + 0.5) * count / wanted) for i in range(wanted)]


def check(line: Mapping[str, Any], wanted: int) -> Dict[str, Any]:
    """Of the client's line with its texts: ``{"checked", "bad", "example", "why"}``. Failed requests are left out."""
    texts, errors = line.get("generated_texts") or [], line.get("errors") or []
    good = [str(text) for i, text in enumerate(texts) if not (i < len(errors) and errors[i]) and isinstance(text, str)]
    bad, example, why = 0, None, None
    chosen = spread(len(good), max(wanted, 0))
    for i in chosen:
        found = problem(good[i])
        if found:
            bad += 1
            if example is None:
                example, why = good[i][:_EXAMPLE], found
    return {"checked": len(chosen), "bad": bad, "example": example, "why": why}
