# SPDX-License-Identifier: Apache-2.0
"""Which pairs a quick look takes: each GPU sends and receives within its switch and beyond it, and a few more."""

from __future__ import annotations

import random
from collections.abc import Sequence

Pair = tuple[int, int]
_MORE = 4
_TRIES = 50


def all_pairs(count: int) -> list[Pair]:
    """Every ordered pair."""
    return [(source, target) for source in range(count) for target in range(count) if source != target]


def sample(count: int, groups: Sequence[Sequence[int]], chance: random.Random) -> list[Pair]:
    """A choice that is another one each time, sorted.

    Args:
        count: how many GPUs. groups: the GPUs of each switch; those in none stand alone.
    """
    group = {index: number for number, members in enumerate(groups) for index in members}
    for index in range(count):
        group.setdefault(index, -1 - index)
    chosen: set[Pair] = set()
    for within in (True, False):
        partners = {
            index: [other for other in range(count) if other != index and (group[other] == group[index]) is within]
            for index in range(count)
        }
        chosen |= set(_one_each(partners, chance))
    rest = [pair for pair in all_pairs(count) if pair not in chosen]
    return sorted(chosen | set(chance.sample(rest, min(_MORE, len(rest)))))


def _one_each(partners: dict[int, list[int]], chance: random.Random) -> list[Pair]:
    """Pairs in which each GPU that has a partner sends once and receives once, or a little more where that can't be."""
    senders = [index for index, others in partners.items() if others]
    for _ in range(_TRIES):
        chance.shuffle(senders)
        free, pairs = set(senders), []
        for sender in senders:
            open_to = [other for other in partners[sender] if other in free]
            if not open_to:
                break
            receiver = chance.choice(open_to)
            free.remove(receiver)
            pairs.append((sender, receiver))
        else:
            return pairs
    return [pair for index in senders for pair in ((index, chance.choice(partners[index])),)] + [
        (chance.choice(partners[index]), index) for index in senders
    ]
