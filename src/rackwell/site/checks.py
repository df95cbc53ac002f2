# SPDX-License-Identifier: Apache-2.0
"""What must hold in a site's declaration before anything is touched."""

from __future__ import annotations

import contextlib
import ipaddress
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pydantic

from rackwell.errors import Problem, RackwellError
from rackwell.site import files, shipping, validation, yamlsource
from rackwell.site import variables as role_variables
from rackwell.site.benchfile import BenchProfile
from rackwell.site.inventory import Inventory, Sources, Unresolved, is_template
from rackwell.site.node import CONTAINER_GROUP, PLACEHOLDER, PVE_GROUP, ROUTER_GROUP, Node
from rackwell.site.profile import Model, Profile
from rackwell.site.proxychecks import ProxyChecks
from rackwell.site.routerchecks import RouterChecks, Served
from rackwell.site.yamlsource import Pointer

_Model = TypeVar("_Model", bound=pydantic.BaseModel)


class _Problems:
    """Problems by place and code: what a group variable does wrong is said once, not once a host."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[set[str], Problem]] = {}

    def add(self, concerned: set[str], problem: Problem) -> None:
        key = (problem.where, problem.code, problem.what)
        self._found.setdefault(key, (set(), problem))[0].update(concerned)

    def items_in_order(self) -> Iterator[tuple[frozenset[str], Problem]]:
        for concerned, problem in self._found.values():
            yield frozenset(concerned), problem


class Checker:
    """Turns merged variables into typed nodes and collects what does not hold, within each and between them."""

    def __init__(self, path: Path, inventory: Inventory, sources: Sources) -> None:
        self.path = path
        self.inventory = inventory
        self.sources = sources
        self.problems = _Problems()
        self.hosts: dict[str, Node] = {}
        self.containers: dict[str, Node] = {}
        self.routers: dict[str, Node] = {}
        self._on_host: Counter[str | None] = Counter()
        self._models: dict[Path, pydantic.BaseModel | RackwellError] = {}
        self._documents: dict[Path, yamlsource.Document | RackwellError] = {}
        self._near: dict[tuple[str, bool, tuple[str, ...]], str] = {}
        self._known_hosts: dict[Path, frozenset[str]] = {}

    def run(self) -> None:
        self._groups()
        pve = self.inventory.groups.get(PVE_GROUP, [])
        containers = self.inventory.groups.get(CONTAINER_GROUP, [])
        self.hosts = {name: self._node(name, role_variables.HOST_ROLES) for name in pve}
        self.containers = {
            name: self._node(name, role_variables.CONTAINER_ROLES) for name in containers if name not in pve
        }
        self._on_host = Counter(node.text("pve_container_host") for node in self.containers.values())
        for node in [*self.hosts.values(), *self.containers.values()]:
            self._connection(node)
        for node in self.containers.values():
            self._placement(node)
            self._driver(node)
            self._expected_gpus(node)
            self._controller_files(node)
            self._token(node)
            self._profile(node)
            self._bench(node)
        self._sweeps()
        self.routers = {
            name: self._node(name, role_variables.ROUTER_ROLES) for name in self.inventory.groups.get(ROUTER_GROUP, [])
        }
        for node in self.routers.values():
            if node.name not in self.hosts and node.name not in self.containers:
                self._connection(node)
        RouterChecks(self.containers, self._served, self._where, self.problems.add).check(self.routers.values())
        ProxyChecks(self._served, self._where, self.inventory.raw, self._add, self.problems.add).check(
            self.containers.values(), self.routers
        )
        self._unique()
        self._gpus()

    # ---- what is reported, and where -------------------------------------------------------------------------

    def _add(
        self, node: str, variable: str, code: str, what: str, why: str = "", fix: str = "", inside: Pointer = ()
    ) -> None:
        where = self.sources.find(node, variable, self.inventory, inside)
        self.problems.add({node}, Problem(code, what, where, why, fix))

    def _where(self, node: str, variable: str, inside: Pointer) -> str:
        return self.sources.find(node, variable, self.inventory, inside)

    def _served(self, name: str) -> Served | None:
        """What a container serves; None where `_profile` tells that it does not hold."""
        node = self.containers[name]
        path = self._file(node, "inference_server_profile_file", "profiles", "inference_server_profile")
        if path is not None and "inference_server_profile_file" not in node.variables:
            path = shipping.profile_file(path)
        document = self._document(path) if path is not None and files.is_file(path) else None
        if document is None:
            return None
        try:
            return Served(self._valid(Profile, document, "profile"), document)
        except RackwellError:
            return None

    # ---- the parts -------------------------------------------------------------------------------------------

    def _groups(self) -> None:
        where = self.sources.hosts.where()
        for group, meaning in ((PVE_GROUP, "the Proxmox hosts"), (CONTAINER_GROUP, "the containers")):
            if not self.inventory.groups.get(group):
                hint = validation.suggest(group, self.inventory.groups, 0.6)
                self.problems.add(
                    set(),
                    Problem(
                        "empty-group",
                        f"the group '{group}' has no hosts",
                        where,
                        f"it holds {meaning}; {hint}".rstrip("; "),
                        f"add `{group}:` with `hosts:`",
                    ),
                )
        both = set(self.inventory.groups.get(PVE_GROUP, [])) & set(self.inventory.groups.get(CONTAINER_GROUP, []))
        for name in sorted(both):
            self.problems.add(
                {name},
                Problem(
                    "both-groups",
                    f"'{name}' is a Proxmox host and a container",
                    self.sources.declared_at(name),
                    "",
                    "take it out of one of the two groups",
                ),
            )

    def _node(self, name: str, roles: tuple[str, ...]) -> Node:
        given = self.inventory.variables[name]
        held = self._placeholders(name, given) | {key for key, value in given.items() if _has_unresolved(value)}
        held |= self._unknown(name, given, roles)
        checked = {key: value for key, value in given.items() if key not in held}
        models: dict[str, role_variables.RoleVariables] = {}
        for role in roles:
            model = role_variables.ROLES[role]
            try:
                models[role] = model.model_validate(checked)
            except pydantic.ValidationError as error:
                self._findings(name, role, model, error, checked, held)
        return Node(name, {k: v for k, v in given.items() if k not in held}, models)

    def _placeholders(self, name: str, given: Mapping[str, Any]) -> set[str]:
        found = set()
        for key, value in given.items():
            if isinstance(value, str) and value.startswith(PLACEHOLDER):
                found.add(key)
                if is_template(self.inventory.raw[name].get(key)):
                    continue  # made from one that is named at its own place
                example = value.removeprefix(PLACEHOLDER).strip()
                self._add(
                    name,
                    key,
                    "fill-in",
                    f"'{key}' is still to be filled in",
                    "",
                    f"put the real value, like: {example}" if example else "put the real value",
                )
        return found

    def _unknown(self, name: str, given: Mapping[str, Any], roles: tuple[str, ...]) -> set[str]:
        """Tell of variables that no role has, and return those that were likely meant."""
        prefixes = tuple(f"{role}_" for role in role_variables.ROLES)
        mine = [variable for variable, role in role_variables.KNOWN.items() if role in roles]
        meant = set()
        for key in given:
            if key in role_variables.KNOWN:
                continue
            prefixed = key.startswith(prefixes)
            near = self._near.get((key, prefixed, roles))
            if near is None:
                near = validation.near(key, role_variables.KNOWN if prefixed else mine, 0.75 if prefixed else 0.92)
                self._near[key, prefixed, roles] = near
            if not prefixed and not near:
                continue
            meant.add(near)
            self._add(
                name,
                key,
                "unknown-variable",
                f"unknown variable '{key}'",
                "no role has it, so it would be ignored",
                f"did you mean '{near}'?" if near else "remove it",
            )
        return meant

    def _findings(
        self,
        name: str,
        role: str,
        model: type[pydantic.BaseModel],
        error: pydantic.ValidationError,
        checked: dict[str, Any],
        held: set[str],
    ) -> None:
        def where(pointer: Pointer) -> str:
            return self.sources.find(name, str(pointer[0]), self.inventory, pointer[1:])

        for problem in validation.problems(error, model, checked, where, "declaration"):
            variable = problem.what.split("'")[1]
            if problem.code == "missing-key" and variable in model.model_fields:
                if variable not in held:
                    self.problems.add(
                        {name},
                        Problem(
                            "missing-variable",
                            f"'{variable}' is not set for {name}",
                            self.sources.declared_at(name),
                            f"role {role} needs it",
                            f"set it in host_vars/{name}.yml or group_vars/",
                        ),
                    )
                continue
            self.problems.add({name}, problem)

    def _connection(self, node: Node) -> None:
        if str(node.variables.get("ansible_connection", "ssh")) not in {"ssh", "smart", "ansible.builtin.ssh"}:
            return
        key = node.variables.get("ansible_ssh_private_key_file")
        if isinstance(key, str) and not files.exists(files.place(key)):
            self._add(
                node.name,
                "ansible_ssh_private_key_file",
                "ssh-key-missing",
                "the private ssh key does not exist",
                key,
                "correct the path, or make a key: ssh-keygen -t ed25519",
            )
        # a container's key is put there when the container is created
        if node.name not in self.hosts or "ansible_host" not in node.variables:
            return
        known = self.path / "known_hosts"
        if str(known) not in str(node.variables.get("ansible_ssh_common_args", "")):
            return
        port = node.variables.get("ansible_port", 22)
        target = node.address if str(port) == "22" else f"[{node.address}]:{port}"
        if target not in self._names_in(known) and not _host_key_known(target, known):
            self.problems.add(
                {node.name},
                Problem(
                    "host-key-missing",
                    f"no ssh host key of {node.name} is known",
                    str(known),
                    f"it has no entry for {target}, and unknown keys are refused",
                    f"ssh-keyscan -p {port} {node.address} >> {known}, then compare `ssh-keygen -lf {known}` with "
                    "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host's own console",
                ),
            )

    def _placement(self, node: Node) -> None:
        host = node.text("pve_container_host")
        if host and host not in self.hosts:
            hint = validation.suggest(host, self.hosts, 0.5) or f"it has: {', '.join(sorted(self.hosts)) or 'no hosts'}"
            self._add(
                node.name, "pve_container_host", "unknown-host", f"'{host}' is not in the group {PVE_GROUP}", "", hint
            )
        address = node.text("pve_container_ip") or ""
        interface, gateway = _interface(address), _interface(node.text("pve_container_gateway"))
        if interface and gateway and "/" in address and gateway.ip not in interface.network:
            self._add(
                node.name,
                "pve_container_gateway",
                "gateway-outside",
                "the gateway is not in the container's network",
                f"{gateway.ip} is not in {interface.network}",
                "correct one of the two",
            )

    def _driver(self, node: Node) -> None:
        host = self.hosts.get(node.text("pve_container_host") or "")
        kernel = host.text("pve_host_driver_version") if host else None
        user = node.text("nvidia_userspace_version")
        if host and kernel and user and kernel != user:
            declared = self.sources.find(host.name, "pve_host_driver_version", self.inventory)
            self._add(
                node.name,
                "nvidia_userspace_version",
                "driver-mismatch",
                f"{node.name} and its host declare different driver versions",
                f"{node.name} has {user}, the kernel module of {host.name} is {kernel} ({declared})",
                "make them equal: user space and kernel module work only in the same version",
            )

    def _expected_gpus(self, node: Node) -> None:
        """The check inside the container would fail only after everything was installed."""
        gets, expected = self._gpu_count(node), node.value("gpu_probe_gpus")
        shared = self._on_host[node.text("pve_container_host")] > 1
        if shared and node.value("pve_container_gpus") == "all":
            return  # that is the mistake, and is told as such
        if gets and isinstance(expected, int) and gets != expected:
            self._add(
                node.name,
                "gpu_probe_gpus",
                "gpu-count-mismatch",
                f"{node.name} gets {gets} GPUs, and its check expects {expected}",
                "pve_container_gpus (for 'all': pve_host_gpus of its host) and gpu_probe_gpus must agree",
                f"set `gpu_probe_gpus: {gets}`",
            )

    def _controller_files(self, node: Node) -> None:
        key = node.text("pve_container_ssh_public_key_file")
        if key:
            path = files.place(key)
            if not files.is_file(path):
                self._add(
                    node.name,
                    "pve_container_ssh_public_key_file",
                    "ssh-key-missing",
                    "the public ssh key does not exist",
                    key,
                    "correct the path, or make a key: ssh-keygen -t ed25519",
                )
            elif not _looks_public(path):
                self._add(
                    node.name,
                    "pve_container_ssh_public_key_file",
                    "ssh-key-wrong",
                    "that is not a public ssh key",
                    key,
                    "name the .pub file",
                )
        run_file = node.text("nvidia_userspace_run_file")
        if run_file and "://" not in run_file and not files.is_file(files.place(run_file)):
            self._add(
                node.name,
                "nvidia_userspace_run_file",
                "run-file-missing",
                "the driver's .run file does not exist",
                run_file,
                "download it from NVIDIA, or correct the path (an http(s) URL is fine too)",
            )
        if run_file and "://" in run_file and not run_file.startswith(("http://", "https://")):
            self._add(
                node.name,
                "nvidia_userspace_run_file",
                "run-file-scheme",
                "the driver's .run file has an unknown kind of address",
                run_file,
                "give a path, or a URL that begins with https:// or http://",
            )
        version = node.text("nvidia_userspace_version")
        name = (run_file or "").rsplit("/", 1)[-1]
        if version and name.startswith("NVIDIA-Linux-") and version not in name:
            self._add(
                node.name,
                "nvidia_userspace_run_file",
                "run-file-version",
                "the driver's .run file is of another version",
                f"{name} is not {version}",
                f"give the file of {version}",
            )

    def _profile(self, node: Node) -> None:
        if not node.text("inference_server_profile") and not node.text("inference_server_profile_file"):
            return
        path = self._file(node, "inference_server_profile_file", "profiles", "inference_server_profile")
        if path is not None and "inference_server_profile_file" not in node.variables:
            path = shipping.profile_file(path)
        if path is None or not self._exists(node, "inference_server_profile", path, "profile"):
            return
        document = self._document(path)
        if document is None:
            return
        try:
            profile = self._valid(Profile, document, "profile")
        except RackwellError as error:
            for problem in error.problems:
                self.problems.add({node.name}, problem)
            return
        weights = node.text("model_weights_path")
        if weights and weights.rstrip("/") != profile.model.path.rstrip("/"):
            declared = self.sources.find(node.name, "model_weights_path", self.inventory)
            self.problems.add(
                {node.name},
                Problem(
                    "weights-mismatch",
                    "the profile serves other weights than those that are checked",
                    document.where(("model", "path")),
                    f"{profile.model.path} here, {weights} at {declared}",
                    "make them equal",
                ),
            )
        if profile.model.repository:
            self._snapshot(node, profile.model, document)
        gpus = self._gpu_count(node)
        if gpus is not None and profile.tensor_parallel > gpus:
            flag = next(f for f in ("tp-size", "tensor-parallel-size", "tp") if f in profile.flags)
            self.problems.add(
                {node.name},
                Problem(
                    "too-few-gpus",
                    f"the profile needs {profile.tensor_parallel} GPUs, {node.name} gets {gpus}",
                    document.where(("flags", flag)),
                    "",
                    "lower the flag, or give the container more GPUs",
                ),
            )

    def _snapshot(self, node: Node, model: Model, document: yamlsource.Document) -> None:
        """The snapshot on the host must be what the container sees under the profile's path."""
        if node.text("model_weights_from") == "directory" and not node.text("model_weights_source"):
            fix = "set `model_weights_source: DIRECTORY`, where the files lie on the Proxmox host"
            what = "model_weights_source is not set"
            self._add(node.name, "model_weights_from", "missing-variable", what, "the model is to come from there", fix)
        directory = node.text("model_weights_directory")
        mounts = node.value("pve_container_mounts")
        if directory is None or not isinstance(mounts, list):
            return
        wanted = PurePosixPath(directory) / model.snapshot
        places = []
        for mount in mounts:
            source = PurePosixPath(mount.source)
            # the snapshot itself is not there before it is whole, and a mount does not follow its revision
            if wanted.is_relative_to(source) and wanted != source:
                places.append(PurePosixPath(mount.target) / wanted.relative_to(source))
        if not places:
            self._add(
                node.name,
                "pve_container_mounts",
                "weights-not-mounted",
                f"{node.name} does not mount the directory of its model",
                f"the model is brought to {wanted} on {node.text('pve_container_host') or 'the host'}",
                f"mount the directory of all snapshots: {{source: {directory}, target: {directory}}}",
            )
        elif PurePosixPath(model.path) not in places:
            self.problems.add(
                {node.name},
                Problem(
                    "weights-path",
                    "the profile's path is not where the model is brought",
                    document.where(("model", "path")),
                    f"{model.repository} at {model.revision} is at {places[0]} in {node.name}",
                    f"set `path: {places[0]}`",
                ),
            )

    def _token(self, node: Node) -> None:
        """A token in clear is in every copy of the site, and in its history."""
        given = self.inventory.raw.get(node.name, {}).get("model_weights_token")
        if type(given) is not str or not given or is_template(given):
            return
        where = self.sources.find(node.name, "model_weights_token", self.inventory)
        path = Path(where.rpartition(":")[0])
        if files.is_file(path) and given in path.read_text(encoding="utf-8", errors="replace"):
            self._add(
                node.name,
                "model_weights_token",
                "token-in-clear",
                "the token for the hub stands there in clear",
                "whoever reads the site can use it",
                "revoke it, then put a new one: ansible-vault encrypt_string --stdin-name model_weights_token",
            )

    def _bench(self, node: Node) -> None:
        path = self._file(node, "bench_client_profile_file", "bench", "bench_client_profile")
        if path is None or not self._exists(node, "bench_client_profile", path, "bench file"):
            return
        document = self._document(path)
        if document is None:
            return
        try:
            self._valid(BenchProfile, document, "bench file")
        except RackwellError as error:
            for problem in error.problems:
                self.problems.add({node.name}, problem)

    def _sweeps(self) -> None:
        """The sweeps that no container declares; `rackwell bench --profile` names them."""
        for name in files.stems(self.path / "bench"):
            path = self.path / "bench" / f"{name}.yml"
            if path in self._documents:
                continue
            try:
                validation.validate(BenchProfile, yamlsource.load(path), "bench file")
            except RackwellError as error:
                for problem in error.problems:
                    # of no container, so that it keeps none from being provisioned
                    self.problems.add({f"bench/{name}.yml"}, problem)

    def _document(self, path: Path) -> yamlsource.Document | None:
        """The file, read once however many containers name it."""
        if path not in self._documents:
            try:
                self._documents[path] = yamlsource.load(path)
            except RackwellError as error:
                self._documents[path] = error
        found = self._documents[path]
        if isinstance(found, RackwellError):
            for problem in found.problems:
                self.problems.add(set(), problem)
            return None
        return found

    def _valid(self, model: type[_Model], document: yamlsource.Document, label: str) -> _Model:
        """`document` as `model`, validated once. Raises RackwellError, each time anew."""
        if document.path not in self._models:
            try:
                self._models[document.path] = validation.validate(model, document, label)
            except RackwellError as error:
                self._models[document.path] = error
        found = self._models[document.path]
        if isinstance(found, RackwellError):
            raise RackwellError(found.problems, found.exit_code)
        return found if isinstance(found, model) else validation.validate(model, document, label)

    def _names_in(self, known_hosts: Path) -> frozenset[str]:
        """The hosts that stand in `known_hosts` by their plain names; the rest is left to ssh-keygen."""
        if known_hosts not in self._known_hosts:
            names: set[str] = set()
            with contextlib.suppress(OSError, UnicodeDecodeError):
                # a pipe has no end
                text = known_hosts.read_text(encoding="utf-8") if files.is_file(known_hosts) else ""
                for line in text.splitlines():
                    fields = line.split()
                    # a mark such as @revoked changes what the line means
                    if len(fields) >= 3 and not line.startswith(("#", "@", "|")):
                        names.update(fields[0].split(","))
            self._known_hosts[known_hosts] = frozenset(names)
        return self._known_hosts[known_hosts]

    def _file(self, node: Node, variable: str, folder: str, name_variable: str) -> Path | None:
        if variable in node.variables:
            given = node.text(variable)
            return Path(given) if given else None
        name = node.text(name_variable)
        return self.path / folder / f"{name}.yml" if name else None

    def _exists(self, node: Node, variable: str, path: Path, label: str) -> bool:
        if files.is_file(path):
            return True
        ship = shipping.profile_names() if path.parent.name == shipping.FOLDER else []
        there = sorted({*files.stems(path.parent), *ship})
        hint = validation.suggest(path.stem, there, 0.5) or (
            f"there is: {', '.join(there)}" if there else f"write {path}"
        )
        self._add(node.name, variable, "file-missing", f"the {label} '{path.stem}' does not exist", str(path), hint)
        return False

    def _gpu_count(self, node: Node) -> int | None:
        gpus = node.value("pve_container_gpus")
        if isinstance(gpus, list):
            return len(gpus)
        host = self.hosts.get(node.text("pve_container_host") or "")
        count = host.value("pve_host_gpus") if host else None
        return count if isinstance(count, int) else None

    def _unique(self) -> None:
        vmids: dict[tuple[str, int], str] = {}
        addresses: dict[str, str] = {}
        for node in self.containers.values():
            host, vmid = node.text("pve_container_host"), node.value("pve_container_vmid")
            if host and isinstance(vmid, int):
                other = vmids.setdefault((host, vmid), node.name)
                if other != node.name:
                    self._twice(
                        node.name,
                        other,
                        "pve_container_vmid",
                        "duplicate-vmid",
                        f"vmid {vmid} on {host}",
                        "give each container its own",
                    )
            if interface := _interface(node.text("pve_container_ip")):
                other = addresses.setdefault(str(interface.ip), node.name)
                if other != node.name:
                    self._twice(
                        node.name,
                        other,
                        "pve_container_ip",
                        "duplicate-address",
                        f"the address {interface.ip}",
                        "give each its own",
                    )
        for host_node in self.hosts.values():
            if holder := addresses.get(host_node.address):
                self._twice(
                    holder,
                    host_node.name,
                    "pve_container_ip",
                    "duplicate-address",
                    f"the address {host_node.address}",
                    "give each its own",
                    "ansible_host",
                )

    def _twice(
        self, node: str, other: str, variable: str, code: str, what: str, fix: str, other_variable: str = ""
    ) -> None:
        where = self.sources.find(node, variable, self.inventory)
        there = self.sources.find(other, other_variable or variable, self.inventory)
        self.problems.add(
            {node, other},
            Problem(code, f"{what} is used by {other} and {node}", where, f"{other} has it at {there}", fix),
        )

    def _gpus(self) -> None:
        taken: dict[tuple[str, str], str] = {}
        whole: dict[str, list[str]] = {}
        for node in self.containers.values():
            host = node.text("pve_container_host")
            gpus = node.value("pve_container_gpus")
            if not host or gpus is None:
                continue
            whole.setdefault(host, []).append(node.name)
            for gpu in [str(gpu) for gpu in gpus] if isinstance(gpus, list) else []:
                other = taken.setdefault((host, gpu.lower()), node.name)
                if other != node.name:
                    self._twice(
                        node.name,
                        other,
                        "pve_container_gpus",
                        "gpu-shared",
                        f"GPU {gpu} of {host}",
                        "give each GPU to one container",
                    )
        for host, names in whole.items():
            for name in names:
                if self.containers[name].value("pve_container_gpus") == "all" and len(names) > 1:
                    others = ", ".join(other for other in names if other != name)
                    self._add(
                        name,
                        "pve_container_gpus",
                        "gpu-shared",
                        f"{name} takes all GPUs of {host}",
                        f"{others} is on the same host",
                        "list the GPUs of each container: pve_container_gpus",
                    )


def _has_unresolved(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_unresolved(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_unresolved(item) for item in value)
    return isinstance(value, Unresolved)


def _host_key_known(target: str, known_hosts: Path) -> bool:
    """Whether ssh would find a key of `target`; true when that cannot be told here."""
    if not files.is_file(known_hosts):
        return False
    if shutil.which("ssh-keygen") is None:
        return True
    command = ["ssh-keygen", "-F", target, "-f", str(known_hosts)]
    try:
        found = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except (OSError, ValueError):  # no address at all
        return False
    return found.returncode == 0


def _interface(text: str | None) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    """An address, with or without its network; None when it is none."""
    try:
        return ipaddress.ip_interface(text) if text else None
    except ValueError:
        return None


def _looks_public(path: Path) -> bool:
    try:
        first = path.read_text(encoding="utf-8").split(maxsplit=1)[0]
    except (OSError, UnicodeDecodeError, IndexError):
        return False
    return first.startswith(("ssh-", "ecdsa-", "sk-"))
