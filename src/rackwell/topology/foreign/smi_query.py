# SPDX-License-Identifier: Apache-2.0
"""``nvidia-smi -q`` as text and as XML, and ``nvidia-smi --query-gpu=… --format=csv`` with its header.

Text and XML say the same under other names: both are flattened to paths, and two tables say which path is which field.
A value that a GPU does not have is ``N/A``, ``[Not Supported]`` and the like, and becomes None.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from xml.parsers import expat

from rackwell.topology.foreign import text as texts
from rackwell.topology.foreign.results import SmiGpu, SmiLog

Path = tuple[str, ...]
_START = re.compile(r"^=+NVSMI LOG=+$", re.MULTILINE)
_GPU = re.compile(r"^GPU ([0-9A-Fa-f:.]+)$")
_XML = re.compile(r"<nvidia_smi_log>.*?</nvidia_smi_log>", re.DOTALL)


def _words(text: str) -> str | None:
    value = text.strip()
    return None if value in {"", "N/A", "[N/A]"} or value.startswith("[Not Supp") else value


_TEXT: dict[Path, tuple[str, Callable[[str], Any]]] = {
    ("Product Name",): ("name", str),
    ("GPU UUID",): ("uuid", str),
    ("Minor Number",): ("minor", texts.whole),
    ("Addressing Mode",): ("addressing_mode", _words),
    ("GPU Recovery Action",): ("recovery_action", _words),
    ("Performance State",): ("performance_state", _words),
    ("PCI", "GPU Link Info", "PCIe Generation", "Max"): ("gen_max", texts.whole),
    ("PCI", "GPU Link Info", "PCIe Generation", "Current"): ("gen_now", texts.whole),
    ("PCI", "GPU Link Info", "PCIe Generation", "Device Max"): ("gen_gpu_max", texts.whole),
    ("PCI", "GPU Link Info", "PCIe Generation", "Host Max"): ("gen_host_max", texts.whole),
    ("PCI", "GPU Link Info", "Link Width", "Max"): ("width_max", texts.whole),
    ("PCI", "GPU Link Info", "Link Width", "Current"): ("width_now", texts.whole),
    ("PCI", "Replays Since Reset"): ("replays", texts.whole),
    ("FB Memory Usage", "Total"): ("memory_total", texts.count_bytes),
    ("FB Memory Usage", "Used"): ("memory_used", texts.count_bytes),
    ("BAR1 Memory Usage", "Total"): ("bar1_total", texts.count_bytes),
}
_TAGS: dict[Path, tuple[str, Callable[[str], Any]]] = {
    ("product_name",): ("name", str),
    ("uuid",): ("uuid", str),
    ("minor_number",): ("minor", texts.whole),
    ("addressing_mode",): ("addressing_mode", _words),
    ("gpu_recovery_action",): ("recovery_action", _words),
    ("performance_state",): ("performance_state", _words),
    ("pci", "pci_gpu_link_info", "pcie_gen", "max_link_gen"): ("gen_max", texts.whole),
    ("pci", "pci_gpu_link_info", "pcie_gen", "current_link_gen"): ("gen_now", texts.whole),
    ("pci", "pci_gpu_link_info", "pcie_gen", "max_device_link_gen"): ("gen_gpu_max", texts.whole),
    ("pci", "pci_gpu_link_info", "pcie_gen", "max_host_link_gen"): ("gen_host_max", texts.whole),
    ("pci", "pci_gpu_link_info", "link_widths", "max_link_width"): ("width_max", texts.whole),
    ("pci", "pci_gpu_link_info", "link_widths", "current_link_width"): ("width_now", texts.whole),
    ("pci", "replay_counter"): ("replays", texts.whole),
    ("fb_memory_usage", "total"): ("memory_total", texts.count_bytes),
    ("fb_memory_usage", "used"): ("memory_used", texts.count_bytes),
    ("bar1_memory_usage", "total"): ("bar1_total", texts.count_bytes),
}
_COLUMNS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", texts.whole),
    "name": ("name", str),
    "uuid": ("uuid", str),
    "pcie.link.gen.max": ("gen_max", texts.whole),
    "pcie.link.gen.current": ("gen_now", texts.whole),
    "pcie.link.gen.gpucurrent": ("gen_now", texts.whole),
    "pcie.link.gen.gpumax": ("gen_gpu_max", texts.whole),
    "pcie.link.gen.hostmax": ("gen_host_max", texts.whole),
    "pcie.link.width.max": ("width_max", texts.whole),
    "pcie.link.width.current": ("width_now", texts.whole),
    "memory.total": ("memory_total", texts.count_bytes),
    "memory.used": ("memory_used", texts.count_bytes),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", texts.whole),
    "pstate": ("performance_state", _words),
}


def find(text: str) -> list[SmiLog]:
    """Every such output in `text`."""
    return [*find_text(text), *find_xml(text), *find_csv(text)]


def find_text(text: str) -> list[SmiLog]:
    """Outputs of ``-q``."""
    parts = _START.split(texts.plain(text))[1:]
    return [_log(dict(_flat(part.splitlines())), _gpus(part.splitlines())) for part in parts]


def _log(head: Mapping[Path, str], gpus: list[SmiGpu]) -> SmiLog:
    versions = (head.get((key,)) for key in ("Driver Version", "CUDA Version"))
    driver, cuda = (_words(value) if value else None for value in versions)
    return SmiLog(driver_version=driver, cuda_version=cuda, gpus=gpus)


def _gpus(lines: list[str]) -> list[SmiGpu]:
    starts = [(number, found[1]) for number, line in enumerate(lines) if (found := _GPU.match(line.rstrip()))]
    gpus = []
    for place, (number, bus) in enumerate(starts):
        end = starts[place + 1][0] if place + 1 < len(starts) else len(lines)
        paths = dict(_flat(lines[number + 1 : end]))
        gpus.append(_gpu(bus, paths, _TEXT, place, "Volatile", "ECC Errors", "ncorrectable"))
    return gpus


def _flat(lines: list[str]) -> Iterator[tuple[Path, str]]:
    """Indented ``key : value`` lines as paths; the first of a path's values counts."""
    open_: list[tuple[int, str]] = []
    for line in lines:
        key, colon, value = line.partition(" : ")
        if not key.strip():
            continue
        indent = len(key) - len(key.lstrip())
        while open_ and open_[-1][0] >= indent:
            open_.pop()
        open_.append((indent, key.strip().removesuffix(":").strip()))
        if colon:
            yield tuple(name for _, name in open_), value.strip()


def _gpu(
    bus: str,
    paths: Mapping[Path, str],
    table: Mapping[Path, tuple[str, Callable[[str], Any]]],
    index: int,
    volatile: str,
    errors: str,
    wrong: str,
) -> SmiGpu:
    """A GPU from flattened paths; uncorrected ECC errors are the sum of their kinds since the driver was loaded."""
    fields = {name: read(paths[path]) for path, (name, read) in table.items() if path in paths}
    counts = [
        texts.whole(value) for path, value in paths.items() if path[:2] == (errors, volatile) and wrong in path[-1]
    ]
    known = [count for count in counts if count is not None]
    return SmiGpu(bus_id=texts.bus_id(bus), index=index, ecc_uncorrected=sum(known) if known else None, **fields)


class _Tree:
    """Collects the texts of elements by their path below the root, for each ``<gpu>`` by itself."""

    def __init__(self) -> None:
        self.head: dict[Path, str] = {}
        self.gpus: list[tuple[str, dict[Path, str]]] = []
        self._open: list[str] = []
        self._text = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) == 1 and name == "gpu":
            self.gpus.append((attributes.get("id", ""), {}))
        self._open.append(name)
        self._text = ""

    def data(self, text: str) -> None:
        self._text += text

    def end(self, name: str) -> None:
        del name
        path = tuple(self._open[1:])
        self._open.pop()
        if self._text.strip():
            inside = path[:1] == ("gpu",) and self.gpus
            into, key = (self.gpus[-1][1], path[1:]) if inside else (self.head, path)
            into.setdefault(key, self._text.strip())
        self._text = ""


def find_xml(text: str) -> list[SmiLog]:
    """Outputs of ``-q -x``. Its document type is not looked at: nothing is fetched, and no entity is known."""
    found = []
    for document in _XML.findall(text):
        tree, parser = _Tree(), expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = tree.start, tree.end
        parser.CharacterDataHandler = tree.data
        try:
            parser.Parse(document, True)
        except expat.ExpatError:
            continue
        gpus = [
            _gpu(bus, paths, _TAGS, index, "volatile", "ecc_errors", "uncorrectable")
            for index, (bus, paths) in enumerate(tree.gpus)
        ]
        driver, cuda = tree.head.get(("driver_version",)), tree.head.get(("cuda_version",))
        found.append(SmiLog(driver_version=driver, cuda_version=cuda, gpus=gpus))
    return found


def find_csv(text: str) -> list[SmiLog]:
    """Outputs of ``--query-gpu`` with their header; one without a bus id says of no GPU which it is."""
    lines = texts.plain(text).splitlines()
    found = []
    for number, line in enumerate(lines):
        names = [re.sub(r"\s*\[.*\]$", "", name.strip()) for name in line.split(",")]
        # the command's own line, which a script may have written above, names the same columns
        if "pci.bus_id" not in names or any(" " in name or "=" in name for name in names):
            continue
        rows = list(csv.reader(_until_other(lines[number + 1 :], len(names)), skipinitialspace=True))
        gpus = [gpu for row in rows if (gpu := _row(dict(zip(names, row, strict=True)))) is not None]
        versions = {row[names.index("driver_version")] for row in rows} if "driver_version" in names else set()
        if gpus:
            found.append(SmiLog(driver_version=versions.pop() if len(versions) == 1 else None, gpus=gpus))
    return found


def _until_other(lines: list[str], columns: int) -> Iterator[str]:
    for line in lines:
        if line.count(",") != columns - 1:
            return
        yield line


def _row(row: Mapping[str, str]) -> SmiGpu | None:
    bus = texts.bus_id(row["pci.bus_id"])
    fields = {name: read(row[column]) for column, (name, read) in _COLUMNS.items() if column in row}
    return SmiGpu(bus_id=bus, **fields) if bus else None
