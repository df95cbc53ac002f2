#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A GPU container on a Proxmox VE host, from its declaration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_container
short_description: Create, change and start a GPU container on a Proxmox VE host
version_added: 0.1.0
description:
  - Runs on the Proxmox VE host as root, by delegation, and uses C(pct) and C(pvesh) only. Device entries can be set by
    root on the host alone, no API token may.
  - Creates the container when it does not exist, else compares it with the declaration by meaning and sets what
    differs. Entries are matched by what they are, the path of a device and the target of a mount, not by their number.
  - In a container of rackwell every C(dev) entry and every C(mp) entry that binds a directory of the host belongs to
    the declaration, and is removed when it is not declared any more. Mount points that are volumes are never touched.
    Of C(net0) the name, the bridge, the address and the gateway belong to the declaration, and what O(net_options) has.
    Other keys, and raw C(lxc.*) lines unless O(raw) lists them, are the operator's and stay.
  - A change that a running container takes at its next start only is refused without O(allow_restart), before
    anything is touched. In check mode it is told instead.
  - Every change names the digest of the file that it was decided for, so that it is refused when somebody else was
    faster. Raw lines are edited in the file under Proxmox VE's own lock, and nothing else in it is touched.
  - A container without the tag C(rackwell), unless O(adopted), or with another hostname, is somebody else's and stays
    as it is.
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  hostname:
    description: Hostname of the container.
    type: str
    required: true
  template:
    description:
      - Volume of the template, such as V(local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst). Used at creation.
    type: str
    required: true
  template_sha256:
    description: What the template's file must be when a container is made of it; not looked at when it is not given.
    type: str
  adopted:
    description: The container was made by somebody else and is taken over; it needs no tag, only the hostname.
    type: bool
    default: false
  ostype:
    description: Kind of the operating system in the template. Cannot be changed later.
    type: str
    default: debian
  storage:
    description: Storage of the root file system. Cannot be changed later.
    type: str
    default: local
  disk_size:
    description: Size of the root file system in GiB. Cannot be changed here later.
    type: int
    default: 32
  unprivileged:
    description: Whether root in the container is an ordinary user on the host. Cannot be changed later.
    type: bool
    default: true
  cores:
    description: Number of CPU cores; all of the host's when it is not given.
    type: int
  memory:
    description: Memory in MiB.
    type: int
    default: 8192
  swap:
    description: Swap in MiB.
    type: int
    default: 0
  cpuset:
    description: Processors of the host that it may use, such as V(0-31,64-95). C(cores) alone picks them at random.
    type: str
  numa_nodes:
    description: NUMA nodes of the host whose memory it may use; and their processors, when O(cpuset) is not given.
    type: list
    elements: int
    default: []
  memlock:
    description: Limit of locked memory in bytes, or V(unlimited). The host's when it is not given.
    type: str
  shm_size:
    description: Size of C(/dev/shm), such as V(64G). Half of the host's memory when it is not given.
    type: str
  raw:
    description:
      - V(keep), the raw C(lxc.*) lines of the file that no other option declares are the operator's and stay;
        or a list of all of them, each the key, a colon and the value, and then others are removed.
    type: raw
    default: keep
  options:
    description:
      - Further options of Proxmox VE by their own name, such as C(startup), C(cpulimit), C(hookscript), C(protection),
        C(timezone), C(searchdomain), and further network cards C(net1). C(null) means absent.
    type: dict
    default: {}
  features:
    description: Feature flags of Proxmox VE and whether they are on. C(nesting) is what systemd needs.
    type: dict
    default: {nesting: true}
  gpus:
    description: V(all), or a list of PCI bus ids and GPU UUIDs.
    type: raw
    default: all
  devices:
    description:
      - Device nodes of the host besides those of the GPUs. A path; or a mapping with C(path) and C(mode), C(uid),
        C(gid), C(deny_write), which may name the node of a GPU as well.
    type: list
    elements: raw
    default: [/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools]
  device_mode:
    description: Mode of the device nodes in the container. Proxmox VE's own default, 0660, locks services out.
    type: str
    default: "0666"
  mounts:
    description: Directories of the host to bind into the container.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: Directory on the host.
        type: str
        required: true
      target:
        description: Where it appears in the container.
        type: str
        required: true
      read_only:
        description: Whether the container may only read it.
        type: bool
        default: true
      options:
        description: Further parts by Proxmox VE's name, such as C(mountoptions), C(backup), C(quota), C(acl).
        type: dict
        default: {}
  bridge:
    description: Bridge of the host for the first network card.
    type: str
    default: vmbr0
  ip:
    description: Address with prefix length, such as V(192.0.2.11/24).
    type: str
    required: true
  gateway:
    description: Default gateway.
    type: str
  net_options:
    description: Further parts of the first network card, such as C(firewall), C(mtu), C(tag), C(rate), C(ip6), C(gw6).
    type: dict
    default: {}
  nameserver:
    description: Name server; the host's when it is not given.
    type: str
  onboot:
    description: Whether the host starts the container at boot.
    type: bool
    default: true
  ssh_public_key:
    description: Public key that may log in as root, as it stands in its file.
    type: str
    required: true
  allow_restart:
    description: Consent to restart the running container when a change needs it.
    type: bool
    default: false
  start_timeout:
    description: Seconds that the container's systemd may take to finish starting.
    type: int
    default: 120
attributes:
  check_mode:
    description: Says what would change, and whether a restart would be needed.
    support: full
  diff_mode:
    description: Shows the lines of the container's configuration.
    support: full
author:
  - The rackwell founders
"""

EXAMPLES = r"""
- name: A container with two GPUs
  rackwell.gpu.pve_container:
    vmid: 201
    hostname: glm5-01
    template: local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst
    memory: 65536
    ip: 192.0.2.11/24
    gateway: 192.0.2.1
    gpus: ["0000:06:00.0", "0000:07:00.0"]
    mounts:
      - source: /srv/models
        target: /srv/models
    ssh_public_key: "{{ lookup('ansible.builtin.file', '~/.ssh/id_ed25519.pub') }}"
  delegate_to: pve1
"""

RETURN = r"""
rackwell_result:
  description: The container. Schema C(rackwell.pve_container/1).
  returned: success
  type: dict
  contains:
    exists:
      description: Whether it exists now; false in check mode for one that would be created.
      type: bool
    created:
      description: Whether this call created it, or would.
      type: bool
    changed_keys:
      description: Configuration keys that changed, or would.
      type: list
      elements: str
    restart_required:
      description: Whether changes wait for a restart that has not happened.
      type: bool
    restarted:
      description: Whether this call restarted it.
      type: bool
    pending:
      description: Keys with a change that waits for the next start.
      type: list
      elements: str
    systemd:
      description: V(running) or V(degraded).
      type: str
    gpus:
      description: C(bus_id), C(uuid), C(minor), C(model) and C(node) of its GPUs.
      type: list
      elements: dict
    host_keys:
      description: Public host keys of its ssh server, as type and key.
      type: list
      elements: str
    drift:
      description:
        - What was found to differ before anything was changed, with C(code), C(severity), C(side), C(key), C(what),
          C(found), C(declared), C(line), C(number) and C(fix). Empty for a new container.
      type: list
      elements: dict
restart_required:
  description: The same as in the result; also given with the failure C(restart-needed).
  returned: success, or failure for a missing consent
  type: bool
rackwell_error:
  description: What is wrong, as code, what, where, why and fix.
  returned: failure
  type: dict
rolled_back:
  description: Whether the container was set back to what it was, after it did not start with the changes.
  returned: failure, when it was
  type: bool
"""

import dataclasses
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_inside
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_preflight as preflight
from ansible_collections.rackwell.gpu.plugins.module_utils import pve_steps as steps
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_cli import Pve, numa_nodes, numa_of
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_conf import Conf, order
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_drift import Drift, Looked, drift
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_gpu import Gpu, choose, read_gpus
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_plan import Wanted, changes, refused, wanted
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_problem import PveError
from ansible_collections.rackwell.gpu.plugins.module_utils.pve_raw import raw_changes, settled, wanted_raw

SPEC: Dict[str, Dict[str, Any]] = {
    "vmid": {"type": "int", "required": True},
    "hostname": {"type": "str", "required": True},
    "template": {"type": "str", "required": True},
    "template_sha256": {"type": "str"},
    "adopted": {"type": "bool", "default": False},
    "ostype": {"type": "str", "default": "debian"},
    "storage": {"type": "str", "default": "local"},
    "disk_size": {"type": "int", "default": 32},
    "unprivileged": {"type": "bool", "default": True},
    "cores": {"type": "int"},
    "memory": {"type": "int", "default": 8192},
    "swap": {"type": "int", "default": 0},
    "cpuset": {"type": "str"},
    "numa_nodes": {"type": "list", "elements": "int", "default": []},
    "memlock": {"type": "str"},
    "shm_size": {"type": "str"},
    "raw": {"type": "raw", "default": "keep"},
    "options": {"type": "dict", "default": {}},
    "features": {"type": "dict", "default": {"nesting": True}},
    "gpus": {"type": "raw", "default": "all"},
    "devices": {
        "type": "list",
        "elements": "raw",
        "default": ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"],
    },
    "device_mode": {"type": "str", "default": "0666"},
    "mounts": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "source": {"type": "str", "required": True},
            "target": {"type": "str", "required": True},
            "read_only": {"type": "bool", "default": True},
            "options": {"type": "dict", "default": {}},
        },
    },
    "bridge": {"type": "str", "default": "vmbr0"},
    "ip": {"type": "str", "required": True},
    "gateway": {"type": "str"},
    "net_options": {"type": "dict", "default": {}},
    "nameserver": {"type": "str"},
    "onboot": {"type": "bool", "default": True},
    # a public key is no secret; without this the name would make it one
    "ssh_public_key": {"type": "str", "required": True, "no_log": False},
    "allow_restart": {"type": "bool", "default": False},
    "start_timeout": {"type": "int", "default": 120},
}


class Outcome:
    """What the module returns, collected on the way."""

    def __init__(self, args: Dict[str, Any], pve: Pve, gpus: List[Gpu]) -> None:
        self.changed = False
        self.diffs: List[Dict[str, str]] = []
        self.warnings: List[str] = []
        self.result: Dict[str, Any] = {
            "schema": "rackwell.pve_container/1",
            "vmid": args["vmid"],
            "hostname": args["hostname"],
            "node": pve.node,
            "exists": True,
            "created": False,
            "changed_keys": [],
            "restart_required": False,
            "restarted": False,
            "pending": [],
            "systemd": None,
            "gpus": [gpu.as_dict() for gpu in gpus],
            "host_keys": [],
            "drift": [],
        }


def create(pve: Pve, args: Dict[str, Any], want: Wanted, out: Outcome, check_mode: bool) -> None:
    """The container does not exist: make and start it."""
    preflight.check_creation(pve, args["template"], args["storage"], args["disk_size"], args["template_sha256"] or "")
    preflight.check_shared(pve, args["vmid"], gpu_nodes(out))
    preflight.check_quorum(pve, args["vmid"])
    options = steps.creation_options(want, args["storage"], args["disk_size"])
    raw = want.raw.all_lines()
    out.changed = True
    out.diffs.append(steps.diff(pve.node, args["vmid"], None, [], options, ((), raw)))
    out.result.update(created=True, changed_keys=sorted({*options, *(key for key, _ in raw)}), exists=not check_mode)
    if check_mode:
        out.diffs.append(keys_diff(args["vmid"], steps.key_lines(args["ssh_public_key"])))
    else:
        steps.create_and_start(pve, args["vmid"], args["template"], options, want.raw)


def gpu_nodes(out: Outcome) -> List[str]:
    """The device nodes of the declared GPUs."""
    return [str(gpu["node"]) for gpu in out.result["gpus"]]


def update(pve: Pve, args: Dict[str, Any], want: Wanted, out: Outcome, check_mode: bool) -> None:
    """The container exists: bring it to the declaration, and let it run."""
    vmid = args["vmid"]
    conf = pve.conf(vmid)
    preflight.check_ours(conf, vmid, args["hostname"], pve.node, args["adopted"])
    todo = changes(conf, want, pve.hotplugs_devices())
    kept = settled(conf.raw, want.raw)
    raw_todo = raw_changes(conf.raw, kept)
    every = sorted([*todo, *raw_todo], key=lambda change: order(change.key))
    running = pve.running(vmid)
    changing = {change.key for change in every if not change.restart}
    waiting = [key for key in conf.waiting() if key not in changing]
    if running and not raw_todo:
        waiting += pve.not_in_effect(vmid, want.raw)
    restart = running and bool(waiting or any(change.restart for change in every))
    look(
        pve,
        args,
        out,
        Looked(conf, None, want, every, (), waiting, running, gpus={g.node: g.bus_id for g in read_gpus()}),
    )
    preflight.check_fixed(conf, want, vmid, pve.node, args["storage"], args["disk_size"])
    out.changed = bool(every) or restart or not running
    out.result.update(changed_keys=[change.key for change in every], restart_required=restart, pending=waiting)
    if every:
        raw = (conf.raw, [entry.line for entry in kept])
        out.diffs.append(steps.diff(pve.node, vmid, conf.effective(), todo, {}, raw))
    if not running:
        out.diffs.append(
            {
                "before": "stopped\n",
                "after": "running\n",
                "before_header": f"container {vmid}",
                "after_header": f"container {vmid}",
            }
        )
    if check_mode:
        tell(pve, conf, out, vmid, restart, sorted({*waiting, *(change.key for change in every if change.restart)}))
        return
    if restart:
        preflight.check_consent(vmid, pve.node, every, waiting, args["allow_restart"], out.diffs)
    if out.changed:
        preflight.check_lock(conf, vmid, pve.node)
        preflight.check_quorum(pve, vmid)
        new = {str(change.after).split(",")[0] for change in todo if change.before is None and change.after}
        preflight.check_shared(pve, vmid, [node for node in gpu_nodes(out) if node in new or not running])
        steps.change(pve, vmid, todo, running, restart, args["start_timeout"], conf, want.raw if raw_todo else None)
        left = pve.options(vmid).waiting()
        out.result.update(restarted=restart, restart_required=bool(left), pending=left)
        if left:
            out.warnings.append(
                f"container {vmid} took these changes as pending, they need a restart: {', '.join(left)}"
            )


def tell(pve: Pve, conf: Conf, out: Outcome, vmid: int, restart: bool, names: List[str]) -> None:
    """What a run would meet, in check mode."""
    if restart:
        out.warnings.append(f"container {vmid} would have to be restarted for: {', '.join(names)}")
    if out.changed and conf.current.get("lock"):
        out.warnings.append(f"container {vmid} is locked ({conf.current['lock']}): a run now would be refused")
    if out.changed and not pve.quorate():
        out.warnings.append(f"{pve.node} has no quorum: a run now would be refused")


def look(pve: Pve, args: Dict[str, Any], out: Outcome, looked: Looked) -> None:
    """Hold the container against its declaration, for people: every difference with its line."""
    refusals = refused(looked.conf, looked.want, args["storage"], args["disk_size"])
    shared = pve.sharing(args["vmid"], gpu_nodes(out))
    found = drift(dataclasses.replace(looked, file=pve.file(args["vmid"]), refused=refusals, shared=shared))
    out.result["drift"] = [one.as_dict() for one in found]


def check_numa(args: Dict[str, Any], out: Outcome, gpus: List[Gpu]) -> None:
    """Warn of GPUs on another NUMA node than the declared ones: every copy to them crosses the sockets."""
    declared = {int(node) for node in args["numa_nodes"]}
    far = [gpu.bus_id for gpu in gpus if declared and numa_of(gpu.bus_id) not in (*declared, None)]
    if far:
        out.warnings.append(
            f"pve_container_numa_nodes is {sorted(declared)}, and these GPUs are on another node: {', '.join(far)}"
        )


def no_key(count: int) -> Drift:
    """The difference that is not in the container's file."""
    return Drift(
        "ssh-key-missing",
        "error",
        "declaration",
        "ssh_public_key",
        f"root of the container does not have {count} of the declared keys",
        fix="rackwell provision puts it in; or correct pve_container_ssh_public_key_file",
    )


def keys_diff(vmid: int, keys: List[str]) -> Dict[str, str]:
    """The keys that root of the container is given."""
    name = f"container {vmid}:/root/.ssh/authorized_keys"
    after = "".join(line + "\n" for line in keys)
    return {"before": "", "after": after, "before_header": name, "after_header": name}


def open_ssh(pve: Pve, args: Dict[str, Any], want: Wanted, out: Outcome, check_mode: bool) -> None:
    """The container runs: wait for its systemd, see what of its limits holds, put the key in, read its host keys."""
    vmid = args["vmid"]
    out.result["systemd"] = pve.wait_for_systemd(vmid, args["start_timeout"])
    later = {*out.result["pending"], *(out.result["changed_keys"] if check_mode else ())}
    lost = [one.as_dict() for one in pve_inside.drift(want.raw.typed, pve_inside.read(pve, vmid), later)]
    errors = sum(1 for one in out.result["drift"] if one["severity"] == "error")
    out.result["drift"][errors:errors] = lost
    missing = steps.missing_keys(pve, vmid, steps.key_lines(args["ssh_public_key"]))
    if missing:
        out.changed = True
        out.result["drift"].insert(0, no_key(len(missing)).as_dict())
        out.diffs.append(keys_diff(vmid, missing))
        if not check_mode:
            steps.put_keys(pve, vmid, missing)
    out.result["host_keys"] = steps.host_keys(pve, vmid)


def converge(module: AnsibleModule) -> Outcome:
    """All of it."""
    args = module.params
    check_mode = bool(module.check_mode)
    preflight.check_mounts(args["mounts"])  # before pct is called
    pve = Pve(module)
    steps.key_lines(args["ssh_public_key"])  # before anything is touched
    gpus = choose(args["gpus"], read_gpus()) if args["gpus"] else []
    raw = wanted_raw(args, numa_nodes() if args["numa_nodes"] else {})
    want = wanted(args, [gpu.node for gpu in gpus], raw)
    out = Outcome(args, pve, gpus)
    check_numa(args, out, gpus)
    exists = steps.settle_creation(pve, args["vmid"], args["hostname"], args["start_timeout"], check_mode)
    if exists:
        # a foreign container is told before anything else
        preflight.check_ours(pve.options(args["vmid"]), args["vmid"], args["hostname"], pve.node, args["adopted"])
    preflight.check_sources([device["path"] for device in want.devices], args["mounts"], args["bridge"], pve.node)
    if exists:
        try:
            update(pve, args, want, out, check_mode)
        except PveError as error:
            # under a name of its own: it is no report of a container that was brought to its declaration
            kept = {key: out.result[key] for key in ("vmid", "hostname", "node", "drift")}
            error.extra.setdefault("rackwell_result", {"schema": "rackwell.container_drift/1", **kept})
            raise
    else:
        create(pve, args, want, out, check_mode)
    if out.result["exists"] and pve.running(args["vmid"]):
        open_ssh(pve, args, want, out, check_mode)
    return out


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        out = converge(module)
    except PveError as error:
        fail(module, **error.finding.as_dict(), **error.extra)
    for text in out.warnings:
        module.warn(text)
    done(module, out.changed, out.result, diff=out.diffs, restart_required=out.result["restart_required"])


if __name__ == "__main__":
    main()
