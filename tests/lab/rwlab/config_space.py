# SPDX-License-Identifier: Apache-2.0
"""STAND-IN, laboratory only: the configuration space of a PCI Express function, the file `config` of its sysfs entry.

Only what tells a function's place and its access control: header, PCI Express capability, and the extended
capabilities AER and ACS in one chain. Offsets and bits: PCI Express Base Specification, chapter 7.
"""

from __future__ import annotations

import dataclasses
import struct

SIZE = 4096
# device/port type, bits 7:4 of the PCI Express capabilities register
ENDPOINT, LEGACY_ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM = 0, 1, 4, 5, 6
# source validation, translation blocking, request and completion redirect, upstream forwarding, direct translated
ACS_CAPABLE = 0x5F
# what a BIOS or the IOMMU's driver turns on: every request goes up to the root complex and back
ACS_ON = 0x1D

_EXPRESS_AT = 0x40
_AER_AT, _ACS_AT = 0x100, 0x170
_AER, _ACS = 0x0001, 0x000D


@dataclasses.dataclass(frozen=True)
class Function:
    """What the configuration space is made from.

    Attributes:
        class_code: 24 bits. port: one of the port types above. buses: primary, secondary, subordinate of a bridge.
        generation, width: of the link now; ``max_…`` what this end of it can.
        acs: the control register; None for a function without ACS.
        target: Target Link Speed; 0 is ``max_generation``. stays: Hardware Autonomous Speed Disable.
    """

    vendor: int
    device: int
    class_code: int
    port: int
    buses: tuple[int, int, int] | None
    generation: int
    width: int
    max_generation: int
    max_width: int
    acs: int | None
    target: int = 0
    stays: bool = False


def space(function: Function) -> bytes:
    """The 4096 bytes."""
    data = bytearray(SIZE)
    bridge = function.buses is not None
    struct.pack_into("<HH", data, 0x00, function.vendor, function.device)
    struct.pack_into("<HH", data, 0x04, 0x0406 if not bridge else 0x0407, 0x0010)  # memory, bus master; capability list
    data[0x09:0x0C] = function.class_code.to_bytes(3, "little")
    data[0x0E] = 1 if bridge else 0
    if function.buses is not None:
        data[0x18:0x1B] = bytes(function.buses)
    data[0x34] = _EXPRESS_AT
    _express(data, function)
    last = _ACS_AT if function.acs is not None else 0
    # capability id, version 2, next: 20 bits up
    struct.pack_into("<I", data, _AER_AT, _AER | 2 << 16 | last << 20)
    if function.acs is not None:
        struct.pack_into("<IHH", data, _ACS_AT, _ACS | 1 << 16, ACS_CAPABLE, function.acs)
    return bytes(data)


def _express(data: bytearray, function: Function) -> None:
    struct.pack_into("<BBH", data, _EXPRESS_AT, 0x10, 0, 2 | function.port << 4)
    link = function.max_generation | function.max_width << 4
    struct.pack_into("<I", data, _EXPRESS_AT + 0x0C, link)
    struct.pack_into("<H", data, _EXPRESS_AT + 0x12, function.generation | function.width << 4)
    # one bit for each speed that the port knows
    struct.pack_into("<I", data, _EXPRESS_AT + 0x2C, ((1 << function.max_generation) - 1) << 1)
    target = function.target or function.max_generation
    struct.pack_into("<H", data, _EXPRESS_AT + 0x30, target | function.stays << 5)
