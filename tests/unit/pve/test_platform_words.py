# SPDX-License-Identifier: Apache-2.0
"""The IOMMU's words of a kernel's command line."""

from __future__ import annotations

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_platform_words as words


@pytest.mark.parametrize(
    ("policy", "vendor", "there", "wanted"),
    [
        ("pt", "amd", "", "iommu=pt"),
        ("pt", "intel", "", "intel_iommu=on iommu=pt"),
        ("off", "amd", "iommu=pt", "amd_iommu=off iommu=off"),
        ("off", "intel", "", "intel_iommu=off iommu=off"),
        # how it works is the operator's; whether it does is the policy's
        ("pt", "amd", "amd_iommu=pgtbl_v2 iommu=nopt", "amd_iommu=pgtbl_v2 iommu=pt"),
        ("pt", "intel", "intel_iommu=off,sm_on", "intel_iommu=on,sm_on iommu=pt"),
    ],
)
def test_a_policy_has_its_words(policy: str, vendor: str, there: str, wanted: str) -> None:
    assert words.wanted(policy, vendor, there.split()) == wanted.split()
    # what it made it leaves alone
    assert words.wanted(policy, vendor, wanted.split()) == wanted.split()


@pytest.mark.parametrize(
    ("line", "vendor", "told"),
    [
        ("iommu=pt", "amd", 0),
        ("amd_iommu=off iommu=off", "amd", 0),
        ("amd_iommu=off iommu=pt", "amd", 1),
        ("intel_iommu=on iommu=off", "intel", 1),
        ("iommu=pt iommu.passthrough=0", "amd", 1),
        ("intel_iommu=on iommu=pt", "amd", 1),
        ("intel_iommu=on iommu=pt", "intel", 0),
    ],
)
def test_words_that_contradict_each_other_are_told(line: str, vendor: str, told: int) -> None:
    assert len(words.conflicts(line.split(), vendor)) == told


def test_what_people_set_for_p2p_in_vain() -> None:
    found = words.mistaken(["quiet", "pcie_acs_override=downstream,multifunction", "pci=noacs", "pci=realloc"])
    assert [word for word, _ in found] == ["pcie_acs_override=downstream,multifunction", "pci=noacs"]
