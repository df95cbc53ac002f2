# SPDX-License-Identifier: Apache-2.0
"""Text of logs as it may be printed: no escape, no control character, no character that turns text around."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)


def shown(text: str, most: int = 300) -> str:
    """`text` in one line of at most `most` characters."""
    plain = _UNSAFE.sub(lambda found: " " if found[0] in "\n\r\x0b\x0c" else "\ufffd", text).replace("\t", "    ")
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
