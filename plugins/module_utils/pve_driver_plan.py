# SPDX-License-Identifier: Apache-2.0
"""What has to be done to bring a host to a pair of driver and kernel, from what it shows alone. Touches nothing."""

from __future__ import annotations

import dataclasses

from ansible_collections.rackwell.gpu.plugins.module_utils import pve_driver_apt, pve_driver_parameters
from ansible_collections.rackwell.gpu.plugins.module_utils.nvidia_driver import DriverError
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_facts import LOAD, META_HEADERS, OPTIONS, Facts
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_driver_use import Use

CONSENT = "pve_host_allow_reboot: true (or rackwell ... --allow-reboot)"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The pair. ``kernel``: empty takes the one that is pinned, else the one that runs. ``parameters``: of the modules.
    ``packages``: they bring the driver; none means the ``.run`` file. ``remove_vfio``: leftovers may be taken out."""

    version: str
    kernel: str = ""
    disable_hmm: bool = True
    parameters: pve_driver_parameters.Parameters = ()
    packages: tuple[str, ...] = ()
    remove_vfio: bool = False

    @property
    def files(self) -> dict[str, str]:
        """What rackwell's files have to say: which driver may have the GPUs, how it is loaded, and that it is."""
        first = "# Written by rackwell. Changes made here are undone by its next run."
        lines = [
            first,
            "blacklist nouveau",
            "options nouveau modeset=0",
            "blacklist nova_core",
        ]
        if self.disable_hmm:
            lines.append("options nvidia_uvm uvm_disable_hmm=1")
        lines += [pve_driver_parameters.line(*each) for each in self.parameters]
        return {
            OPTIONS: "\n".join(lines) + "\n",
            LOAD: first + "\nnvidia\nnvidia_uvm\nnvidia_modeset\n",
            # empty: no such file
            pve_driver_apt.PREFERENCES: pve_driver_apt.preferences(self.version) if self.packages else "",
        }


@dataclasses.dataclass(frozen=True)
class Todo:
    """What has to be done.

    Attributes:
        kernel: the one that is to boot. run: the ``.run`` file has to be run, or the packages be installed. build:
            kernels that DKMS builds for. vfio: leftovers have to be taken out.
        options: rackwell's files have to be written. initramfs: it has to be made anew.
        pin: the kernel has to be pinned. packages: what has to be installed first.
        reboot: why the host has to be rebooted; empty when it has not.
    """

    kernel: str
    run: bool = False
    build: tuple[str, ...] = ()
    options: bool = False
    initramfs: bool = False
    pin: bool = False
    packages: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ()
    vfio: bool = False

    @property
    def anything(self) -> bool:
        """Whether the host is not as wanted."""
        some = self.run or self.build or self.options or self.initramfs or self.pin or self.packages or self.vfio
        return bool(some or self.reboot)


def plan(facts: Facts, want: Wanted) -> Todo:
    """Compare."""
    kernel = want.kernel or facts.pinned or facts.running
    wrong = tuple(each.release for each in facts.kernels if each.wrong(want.version, facts.signed))
    run = facts.userspace != want.version or want.version not in facts.firmware
    # without its sources DKMS has nothing to build from
    run = run or bool(wrong and want.version not in facts.sources)
    if want.packages:
        run = run or not pve_driver_apt.fits(facts.owner.rpartition(" ")[2], want.version)
    options = facts.files != want.files
    # what the kernel's command line said at this boot is no file
    vfio = any(each.first for each in facts.leftovers)
    packages = list(facts.packages) if run or wrong or META_HEADERS in facts.packages else []
    if facts.kernel(kernel) is None:
        packages += ["proxmox-kernel-%s-signed" % kernel, "proxmox-headers-" + kernel]
        wrong = (*wrong, kernel)
    return Todo(
        kernel=kernel,
        run=run,
        build=wrong,
        options=options,
        initramfs=run or bool(wrong) or options or vfio or bool(facts.stale),
        pin=facts.pinned != kernel or bool(facts.next_pin and facts.next_pin != kernel),
        packages=tuple(dict.fromkeys(packages)),
        reboot=_reboot(facts, want, kernel),
        vfio=vfio,
    )


def _reboot(facts: Facts, want: Wanted, kernel: str) -> tuple[str, ...]:
    reasons = []
    if facts.loaded and facts.loaded != want.version:
        reasons.append("the loaded module is %s, and %s is loaded at a boot" % (facts.loaded, want.version))
    elif facts.flavour == "proprietary":
        reasons.append("the proprietary module is loaded, and the open one at a boot")
    if facts.running != kernel:
        reasons.append("kernel %s runs, and %s at a boot" % (facts.running, kernel))
    if facts.foreign:
        reasons.append("%s holds the GPUs until a boot" % ", ".join(facts.foreign))
    if want.disable_hmm and facts.hmm:
        reasons.append("nvidia_uvm was loaded with HMM on, which only a boot takes away")
    reasons += ["%s, until a boot" % each.told for each in facts.leftovers if each.now]
    if facts.loaded:
        # one that the driver does not have would not come with a boot either
        reasons += [
            "%s is %s, and %s at a boot" % (name, found or "empty", value)
            for name, value, found in pve_driver_parameters.difference(want.parameters, facts.parameters)
            if found is not None
        ]
    return tuple(reasons)


def check_consent(todo: Todo, facts: Facts, use: Use, allowed: bool, node: str) -> None:
    """A reboot that is needed is allowed.

    Raises:
        DriverError: it is not; nothing was touched. ``nouveau-loaded``, ``module-in-use`` or ``reboot-needed``.
    """
    if allowed or not todo.reboot:
        return
    code, what = "reboot-needed", "this host has to be rebooted"
    if use.holders and facts.loaded:
        code, what = "module-in-use", "the driver's module is in use, and this host has to be rebooted"
    if facts.foreign:
        code, what = "nouveau-loaded", "another driver holds the GPUs, and this host has to be rebooted"
    raise DriverError(
        code,
        what,
        node,
        "; ".join([*todo.reboot, "what it disturbs: " + use.told(), "nothing was changed"]),
        "when that is acceptable: " + CONSENT,
        held=True,
        reboot_required=True,
        disturbs={"guests": list(use.guests), "holders": [dataclasses.asdict(holder) for holder in use.holders]},
    )


def check_before(todo: Todo, facts: Facts, want: Wanted, machines: list[str]) -> None:
    """Nothing stands against an installation.

    Args:
        machines: virtual machines that have PCI devices of the host.

    Raises:
        DriverError: ``vfio-leftovers``, ``module-signature`` or ``driver-form``; nothing was touched.
    """
    if facts.leftovers and not want.remove_vfio:
        raise leftovers(facts, machines)
    if (todo.run or todo.build) and facts.secure.problem:
        why = facts.secure.problem + "; the module would be built and not loaded. Nothing was touched"
        what = "this machine would refuse the driver's module"
        raise DriverError("module-signature", what, facts.secure.key, why, facts.secure.fix)
    other = pve_driver_apt.other_form(bool(want.packages), {"uninstaller": facts.uninstaller, "owner": facts.owner})
    if todo.run and other:
        remove = "nvidia-uninstall --silent" if want.packages else "apt purge '*nvidia*' 'libcuda1*'"
        fix = "end the guests that use the GPUs, then: %s; and run again. Or declare the form that is here" % remove
        raise DriverError("driver-form", "the driver here is of the other form", OPTIONS, other, fix)


def leftovers(facts: Facts, machines: list[str]) -> DriverError:
    """The leftovers of a passthrough, told."""
    lines = [each.told for each in facts.leftovers]
    why = "; ".join(lines[:12]) + (" and %d more" % (len(lines) - 12) if len(lines) > 12 else "")
    if machines:
        why += "; virtual machines with PCI devices of this host: " + ", ".join(machines)
    return DriverError(
        "vfio-leftovers",
        "what is left of a passthrough into virtual machines keeps the driver away from the GPUs",
        facts.leftovers[0].path,
        why,
        "when no virtual machine is to have these GPUs: pve_host_remove_vfio: true makes these lines comments, and "
        "with pve_host_allow_reboot: true a boot gives the GPUs back. Or take the lines out by hand, then "
        "update-initramfs -u -k all",
        held=True,
        leftovers=lines,
    )


def check_packages(todo: Todo) -> None:
    """What building needs is there.

    Raises:
        DriverError: ``kernel-headers-missing``, ``kernel-missing`` or ``packages-missing``; nothing was touched.
    """
    if not todo.packages:
        return
    headers = [name for name in todo.packages if "headers" in name]
    kernels = [name for name in todo.packages if name.startswith("proxmox-kernel-")]
    code, what = "packages-missing", "packages that building the module needs are not installed"
    if headers:
        code, what = "kernel-headers-missing", "kernel headers are not installed: DKMS would leave the kernel out"
    if kernels:
        code, what = "kernel-missing", "the declared kernel is not installed"
    meta = "; without the meta package the next kernel comes without its headers" if META_HEADERS in headers else ""
    raise DriverError(
        code, what, "/boot, /lib/modules", ", ".join(todo.packages) + meta, "apt install " + " ".join(todo.packages)
    )
