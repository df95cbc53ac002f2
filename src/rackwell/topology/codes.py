# SPDX-License-Identifier: Apache-2.0
"""The reference of what a validation can find: ``python -m rackwell.topology.codes docs/codes.md`` writes it.

The table itself is the probe's; ``python -m rackwell.probe codes --json`` prints the same where only the probe is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rackwell.probe.codes import CHECKS, CODES, Code

_HEAD = """# What the validation can find

Generated from the probe's own table (`python -m rackwell.topology.codes docs/codes.md`); a test keeps the two equal. In
the container, `python -m rackwell.probe codes` prints it. A report may say more: its finding names the GPU, the number
and the place. One fault is one finding; what follows from it stands below it. [Validate](validate.md) says how each
check measures.

`VMID` is the container's number; commands run on the Proxmox host unless they say otherwise.
"""


def text() -> str:
    """The page."""
    parts = [_HEAD]
    for check, title in CHECKS.items():
        mine = [code for code in CODES.values() if code.check == check]
        if not mine:
            continue
        parts.append(f"\n## `{check}`: {title}\n")
        parts += [_entry(code) for code in mine]
    return "".join(parts)


def _entry(code: Code) -> str:
    return (
        f"\n### {code.code}\n\n**{code.verdict}**: {code.title}. {_sentence(code.why)}\n\nFix: {_sentence(code.fix)}\n"
    )


def _sentence(words: str) -> str:
    whole = words[:1].upper() + words[1:]
    return whole if whole.endswith((".", "`")) else f"{whole}."


def main(path: Path) -> None:
    """Write the page to `path`."""
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
