# SPDX-License-Identifier: Apache-2.0
"""The reference of all rules: ``python -m rackwell.lint.page docs/lint.md`` writes it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rackwell.lint.expression import plain
from rackwell.lint.rules import GROUPS, Rule, load_rules

_HEAD = """# What `rackwell check` finds in profiles and builds

Generated from `catalog/rules/lint` (`python -m rackwell.lint.page docs/lint.md`); a test keeps the two equal.

Before a host is touched, each profile is held, together with its build, against the argument definitions of the very
SGLang that is pinned, and against rules from what is known of SGLang, FlashInfer, NCCL and these GPUs. `error`:
`check` ends with exit code 2, and `provision` refuses. `warning` and `note` are shown and stop nothing. `rackwell
check --json` lists all of them under `result.findings`.

Each rule says how it is known. What is *reported* comes from others and was not measured by us; nothing here was
measured on SM120 by us.

## Take a finding back

    # rackwell: ignore RW502 the other four serve the embedding model
    tp-size: 4

The comment stands above the line, or behind the value, in the profile or in the build file. The reason must be there:
`check` shows it each time, and a comment that is about nothing any more is told.

## What it goes by

- **Flags and variables**: tables of the releases from SGLang 0.5.9 and FlashInfer 0.6.3 on ship in `catalog/flags`.
  They are read from the wheels as syntax trees; nothing of them is run. For any other version the table is read from
  the locked wheel once `rackwell build` has fetched it, and kept in `SITE/.rackwell/flags`.
- **The model**: by the name of its directory, or `facts: NAME` under `model` in the profile; from
  `SITE/models/NAME.yml` or `catalog/models`. A rule that needs to know what is not known says nothing.
- **The GPU**: `gpu: NAME` in the profile; from `SITE/gpus/NAME.yml` or `catalog/gpus`. Without it the profile is
  taken to be written for rtx-pro-6000-blackwell (SM120).
- **The machine**: the number of GPUs, the driver and the template that are declared; how far apart the GPUs are, from
  the newest report of `rackwell verify`.

## Add a rule

A file `catalog/rules/lint/RW###-name.yml`; the number's first digit is the group. `when` is a condition, with
`flag("name")`, `env("NAME")`, `patch("project/name")`, `package("name", ">=1")`, `sglang(">=0.5.9,<0.5.13")`,
`flashinfer(…)`, and `model.`, `gpu.`, `limits.`, `server.`, `machine.`, `kv.dtype`, `attention.any`; what is not
known is `none`, and a comparison with it is false. `check` names a function of `src/rackwell/lint/checks.py` where
that is not enough. `examples` has at least one context that must match and one that must not; the tests run all of
them. Then write this page again.
"""


def text(catalog: Path) -> str:
    """The page."""
    rules = load_rules(catalog)
    parts = [_HEAD]
    for digit, title in GROUPS.items():
        parts.append(f"\n## {digit}xx: {title}\n")
        parts += [_entry(rule) for rule in rules if rule.id[2] == digit]
    return "".join(parts)


def _entry(rule: Rule) -> str:
    wanted = rule.applies
    where = [
        f"SGLang {wanted.sglang}" if wanted.sglang else "",
        f"FlashInfer {wanted.flashinfer}" if wanted.flashinfer else "",
        " or ".join(wanted.gpu).upper(),
        "the build of the benchmark's client" if wanted.role == "bench-client" else "",
    ]
    at = ", ".join(filter(None, where))
    head = f"**{rule.severity}**" + (f" ({at})" if at else "")
    known = "\n".join(f"- {_line(item)}" for item in rule.evidence)
    why, fix = _sentence(rule.page.why or rule.why), _sentence(rule.page.fix or rule.fix)
    return f"\n### {rule.id}: {rule.title}\n\n{head}. {why}\n\nFix: {fix}\n\nKnown from:\n\n{known}\n"


def _line(words: str) -> str:
    return " ".join(plain(words).split())


def _sentence(words: str) -> str:
    whole = _line(words)
    # a word of code begins as it is written
    if not re.match(r"[`']|\S*[-_/.]\S", whole):
        whole = whole[:1].upper() + whole[1:]
    return whole if whole.endswith((".", "?")) else f"{whole}."


def main(path: Path) -> None:
    """Write the page to `path`."""
    from rackwell import shipped

    path.write_text(text(shipped.catalog()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
