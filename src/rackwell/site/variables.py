# SPDX-License-Identifier: Apache-2.0
"""The variables of the collection's roles, typed.

Each role's ``meta/argument_specs.yml`` says the same; a test compares the two. A field's name is the variable's.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Self

import pydantic

from rackwell.site.validation import Real, Whole


class RoleVariables(pydantic.BaseModel):
    """Base: other variables of the host are Ansible's business; unknown ones with a role's prefix are found apart."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


Text = Annotated[str, pydantic.Field(min_length=1)]
Absolute = Annotated[str, pydantic.Field(pattern=r"^/[^\n]*$")]
DriverVersion = Annotated[str, pydantic.Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
Sha256 = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[Whole, pydantic.Field(ge=1)]
NotNegative = Annotated[Whole, pydantic.Field(ge=0)]
PlainPath = Annotated[str, pydantic.Field(pattern=r"^[^\s;{}\"$\\]*$")]
UnixUser = Annotated[str, pydantic.Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]


KernelRelease = Annotated[str, pydantic.Field(pattern=r"^([0-9][A-Za-z0-9.+~-]*)?$")]


class DriverPair(pydantic.BaseModel):
    """A driver that may be installed on a host, by a file or packages, and the kernel that is pinned with it."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    version: DriverVersion
    run_file: str = ""
    sha256: Annotated[str, pydantic.Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    packages: list[Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]] = []
    kernel: KernelRelease = ""

    @pydantic.model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.run_file or self.sha256) == bool(self.packages):
            raise ValueError(f"{self.version} needs either run_file and sha256, or packages")
        if bool(self.run_file) != bool(self.sha256):
            raise ValueError(f"{self.version} needs run_file and sha256")
        return self


def _off(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


DriverModule = Literal["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"]
# what community lines carry among the registry's keys, and is an option of the module
MODULE_OPTIONS = ("EnableResizableBar", "GrdmaPciTopoCheckOverride", "DmaRemapPeerMmio")


class PveHost(RoleVariables):
    """Role pve_host: what must hold on the Proxmox host."""

    pve_host_driver_version: DriverVersion
    pve_host_gpus: Positive = 8
    pve_host_modules: list[Text] = ["nvidia", "nvidia_uvm", "nvidia_modeset"]
    pve_host_disable_hmm: bool = True
    pve_host_nodes_unit: bool = True
    pve_host_manage_driver: bool = False
    pve_host_drivers: list[DriverPair] = []
    pve_host_kernel: KernelRelease = ""
    pve_host_module_options: dict[DriverModule, dict[str, str | int | bool]] = {}
    pve_host_registry: dict[str, str | int] = {}
    pve_host_remove_vfio: bool = False
    pve_host_persistence: bool = False
    pve_host_power_limit: NotNegative = 0
    pve_host_iommu: Annotated[Literal["keep", "off", "pt"], pydantic.BeforeValidator(_off)] = "keep"
    pve_host_acs: Literal["keep", "clear"] = "keep"
    pve_host_link_generation: NotNegative = 0
    pve_host_link_width: NotNegative = 0
    pve_host_clock_limit: Positive = 60
    pve_host_allow_reboot: bool = False
    pve_host_reboot_timeout: Positive = 1800

    @pydantic.model_validator(mode="after")
    def _declared(self) -> Self:
        versions = [pair.version for pair in self.pve_host_drivers]
        if len(set(versions)) != len(versions):
            raise ValueError("pve_host_drivers names a version twice")
        for name in self.pve_host_registry:
            if name.removeprefix("NVreg_") in MODULE_OPTIONS:
                option = "NVreg_" + name.removeprefix("NVreg_")
                raise ValueError(
                    f"{name} is no key of the registry: pve_host_module_options: {{nvidia: {{{option}: 1}}}}"
                )
        if self.pve_host_manage_driver and self.pve_host_driver_version not in versions:
            there = ", ".join(versions) or "none"
            raise ValueError(
                f"pve_host_manage_driver needs {self.pve_host_driver_version} in pve_host_drivers (there: {there})"
            )
        return self


def _mount_path(value: str) -> str:
    """A path that can be a part of Proxmox VE's `mpN`, which commas separate."""
    if not value.startswith("/"):
        raise ValueError("must be an absolute path")
    if "," in value:
        raise ValueError("a path with a comma cannot be mounted: Proxmox VE separates options by it")
    if not value.isprintable():
        raise ValueError("a path with a line break or another control character cannot be mounted")
    return value


MountPath = Annotated[str, pydantic.AfterValidator(_mount_path)]

# options of Proxmox VE that may be declared by their own name, and parts of those that are lists of parts
CONTAINER_OPTIONS = (
    *("cpulimit", "cpuunits", "startup", "protection", "hookscript", "searchdomain", "timezone", "description"),
    *("console", "tty", "cmode", "debug", "entrypoint", "env"),
)
NET_OPTIONS = (
    *("name", "firewall", "gw6", "host-managed", "hwaddr", "ip6", "link_down", "mtu", "rate", "tag", "trunks", "type"),
)
MOUNT_OPTIONS = ("acl", "backup", "idmap", "keepattrs", "mountoptions", "quota", "replicate", "shared", "size")


def _parts(known: tuple[str, ...]) -> pydantic.AfterValidator:
    """Parts of a property string: of these names, and no value that would be read as another part."""

    def check(given: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if name not in known:
                raise ValueError(f"'{name}' is not known here; known are {', '.join(known)}")
            text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
            if not text or "," in text or not text.isprintable():
                raise ValueError(f"the value of '{name}' must be a word without commas and line breaks")
        return given

    return pydantic.AfterValidator(check)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in CONTAINER_OPTIONS and not re.fullmatch(r"net([1-9]|[12]\d|3[01])", name):
            known = ", ".join(CONTAINER_OPTIONS)
            raise ValueError(f"'{name}' is not declared so; known here are {known}, and net1 to net31")
    return given


class Mount(pydantic.BaseModel):
    """A directory of the host that the container sees."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    source: MountPath
    target: MountPath
    read_only: bool = True
    options: Annotated[dict[str, Any], _parts(MOUNT_OPTIONS)] = {}


class Device(pydantic.BaseModel):
    """A device node that the container gets with parts of its own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, pydantic.Field(pattern=r"^/dev/[^,\s]+$")]
    mode: Annotated[str, pydantic.Field(pattern=r"^0[0-7]{3}$")] | None = None
    uid: NotNegative | None = None
    gid: NotNegative | None = None
    deny_write: bool | None = None


RawLine = Annotated[str, pydantic.Field(pattern=r"^lxc\.[A-Za-z0-9_.-]+\s*[:=][^\n]*$")]
CpuSet = Annotated[str, pydantic.Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


class PveContainer(RoleVariables):
    """Role pve_container: the container on its Proxmox host."""

    pve_container_host: Text
    pve_container_vmid: Annotated[Whole, pydantic.Field(ge=100, le=999_999_999)]
    pve_container_hostname: Annotated[
        str, pydantic.Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*$")
    ]
    pve_container_template: Annotated[str, pydantic.Field(pattern=r"^[^:\s]+:vztmpl/\S+$")]
    pve_container_template_sha256: Sha256 | None = None
    pve_container_adopted: bool = False
    pve_container_ostype: Text = "debian"
    pve_container_storage: Text = "local"
    pve_container_disk_size: Positive = 32
    pve_container_unprivileged: bool = True
    pve_container_cores: Positive | None = None
    pve_container_memory: Annotated[Whole, pydantic.Field(ge=16)] = 8192
    pve_container_swap: NotNegative = 0
    pve_container_cpuset: CpuSet | None = None
    pve_container_numa_nodes: list[NotNegative] = []
    pve_container_memlock: Annotated[str, pydantic.Field(pattern=r"^(unlimited|\d+)(:(unlimited|\d+))?$")] | None = None
    pve_container_shm_size: Annotated[str, pydantic.Field(pattern=r"^\d+[KMGkmg%]?$")] | None = None
    pve_container_raw: Literal["keep"] | list[RawLine] = "keep"
    pve_container_options: Annotated[dict[str, Any], pydantic.AfterValidator(_options)] = {}
    pve_container_features: dict[str, Any] = {"nesting": True}
    pve_container_gpus: Literal["all"] | list[Text] = "all"
    pve_container_devices: list[Absolute | Device] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    pve_container_device_mode: Annotated[str, pydantic.Field(pattern=r"^0[0-7]{3}$")] = "0666"
    pve_container_mounts: list[Mount] = []
    pve_container_bridge: Text = "vmbr0"
    pve_container_ip: Text
    pve_container_gateway: Text | None = None
    pve_container_net_options: Annotated[dict[str, Any], _parts(NET_OPTIONS)] = {}
    pve_container_nameserver: Text | None = None
    pve_container_onboot: bool = True
    pve_container_ssh_public_key_file: Text
    pve_container_allow_restart: bool = False
    pve_container_start_timeout: Positive = 120

    @pydantic.field_validator("pve_container_ip")
    @classmethod
    def _cidr(cls, value: str) -> str:
        if "/" not in value:
            raise ValueError("needs the length of the network too, like 192.0.2.21/24")
        ipaddress.ip_interface(value)
        return value

    @pydantic.field_validator("pve_container_gateway")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            ipaddress.ip_address(value)
        return value


class NvidiaUserspace(RoleVariables):
    """Role nvidia_userspace: the driver's user space in the container."""

    nvidia_userspace_version: DriverVersion
    nvidia_userspace_run_file: Text
    nvidia_userspace_sha256: Sha256
    nvidia_userspace_pin: bool = True
    nvidia_userspace_remove_others: bool = False


LinkClass = Literal["nvlink", "same-switch", "same-root-complex", "cross-socket", "unknown"]


class Floor(pydantic.BaseModel):
    """What a link class must reach at least: GB/s (1e9 bytes) one way, and microseconds of a remote read at most."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    gb_per_s: Annotated[Real, pydantic.Field(gt=0)] | None = None
    latency_us: Annotated[Real, pydantic.Field(gt=0)] | None = None


class GpuProbe(RoleVariables):
    """Role gpu_probe: the validation of the GPUs, and the boot gate."""

    gpu_probe_build: Text = "probe"
    gpu_probe_bundle: Text = "{{ inventory_dir }}/.rackwell/builds/{{ gpu_probe_build }}"
    gpu_probe_user: UnixUser = "rackwell"
    gpu_probe_gpus: Positive = 8
    gpu_probe_timeout: Positive = 600
    gpu_probe_mode: Literal["quick", "full"] = "full"
    gpu_probe_size: Positive = 256
    gpu_probe_floors: dict[LinkClass, Floor] = {}
    gpu_probe_environment: dict[Text, str | Whole] = {}
    gpu_probe_nccl_library: Absolute | None = None
    gpu_probe_gate: bool = True
    gpu_probe_gate_hold_on: Literal["fail", "degraded"] = "fail"
    gpu_probe_baseline_file: Text = "{{ inventory_dir }}/.rackwell/baselines/{{ inventory_hostname }}.json"


class Release(RoleVariables):
    """Role release: the server's release in the container."""

    release_build: Text
    release_bundle: Text = "{{ inventory_dir }}/.rackwell/builds/{{ release_build }}"
    release_allowed_signers: str = ""
    release_verify: bool = True
    release_compiler_packages: list[Text] = ["g++", "python3-dev"]
    release_caches: str = "{{ inventory_dir }}/.rackwell/caches"
    release_root: Absolute = "/opt/rackwell"
    release_user: UnixUser = "rackwell"


class ModelWeights(RoleVariables):
    """Role model_weights: the weights are there, are those of the commit, and can be read."""

    model_weights_path: Absolute = (
        "{{ (lookup('ansible.builtin.file', model_weights_profile_file) | from_yaml).model.path }}"
    )
    model_weights_files: list[Text] = ["config.json"]
    model_weights_user: UnixUser = "rackwell"
    model_weights_profile_file: Text = (
        "{{ inference_server_profile_file"
        " | default(inference_server_profile | rackwell.gpu.profile_file(inventory_dir)) }}"
    )
    model_weights_directory: Annotated[MountPath, pydantic.Field(pattern=r"^/[^\s\"'\\]+$")] = "/srv/models"
    model_weights_from: Literal["host", "directory"] = "host"
    model_weights_source: Annotated[str, pydantic.Field(pattern=r"^(/[^\n]*)?$")] = ""
    model_weights_endpoint: Annotated[str, pydantic.Field(pattern=r"^(https?://[^\s?#@]+)?$")] = ""
    model_weights_token: Annotated[str, pydantic.Field(repr=False)] = ""
    model_weights_environment: dict[Text, str | Whole] = {}
    model_weights_workers: Annotated[Whole, pydantic.Field(ge=1, le=64)] = 8
    model_weights_xet: bool = False
    model_weights_verify: Literal["size", "sha256"] = "size"
    model_weights_host_user: UnixUser = "rackwell-weights"
    model_weights_build: Text = "weights"
    model_weights_bundle: Text = "{{ inventory_dir }}/.rackwell/builds/{{ model_weights_build }}"
    model_weights_python: Annotated[str, pydantic.Field(pattern=r"^3\.(9|[1-9][0-9])$")] = "3.11"


class InferenceServer(RoleVariables):
    """Role inference_server: the unit that serves."""

    inference_server_profile: Text
    inference_server_profile_file: Text = "{{ inference_server_profile | rackwell.gpu.profile_file(inventory_dir) }}"
    inference_server_user: UnixUser = "rackwell"
    inference_server_release_root: Absolute = "/opt/rackwell"
    inference_server_gate: bool = True
    inference_server_writable: list[Absolute] = []


class BenchClient(RoleVariables):
    """Role bench_client: the benchmark's client and its sweep."""

    bench_client_build: Text = "bench-client"
    bench_client_bundle: Text = "{{ inventory_dir }}/.rackwell/builds/{{ bench_client_build }}"
    bench_client_profile: Text = "quick"
    bench_client_profile_file: Text = "{{ inventory_dir }}/bench/{{ bench_client_profile }}.yml"
    bench_client_run_id: Text = "manual"
    bench_client_client: str = ""
    bench_client_points: list[dict[str, Whole]] = []
    bench_client_expected: dict[Text, Any] = {}
    bench_client_collect: str = ""


Port = Annotated[Whole, pydantic.Field(ge=1, le=65535)]

ROUTER_OWN_FLAGS = {
    "host": "router_address",
    "port": "router_port",
    "prometheus-host": "",
    "prometheus-port": "router_metrics_port",
    "policy": "router_policy",
    "worker-urls": "router_workers",
    "api-key": "the profile's api-key",
    "control-plane-api-keys": "",
}
"""Options of the router that have a place of their own, and where; empty: rackwell's alone."""


class Router(RoleVariables):
    """Role router: what spreads requests over the servers of several containers."""

    router_build: Text = "router"
    router_bundle: Text = "{{ inventory_dir }}/.rackwell/builds/{{ router_build }}"
    router_python: Annotated[str, pydantic.Field(pattern=r"^3\.(9|[1-9][0-9])$")] = "3.11"
    router_workers: list[Text] = []
    router_address: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_.:-]+$")] = "127.0.0.1"
    router_port: Port = 30080
    router_metrics_port: Port = 29000
    router_policy: Literal["cache_aware", "power_of_two", "round_robin", "random"] = "cache_aware"
    router_flags: dict[Text, Any] = {}
    router_drain_timeout: Positive = 300
    router_user: UnixUser = "rackwell-router"

    @pydantic.field_validator("router_flags")
    @classmethod
    def _flags(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in ROUTER_OWN_FLAGS:
                place = ROUTER_OWN_FLAGS[name]
                raise ValueError(f"'{name}' is not set as a flag" + (f": set {place}" if place else ""))
            if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
                raise ValueError(f"'{name}' must be the option's long name without dashes in front")
        return value


RoutePath = Annotated[str, pydantic.Field(pattern=r"^/([A-Za-z0-9_-][A-Za-z0-9_./-]*)?$")]


class ProxyRoute(pydantic.BaseModel):
    """A route that the proxy lets through: a path to the letter, and its methods."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    path: RoutePath
    methods: Annotated[
        list[Literal["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]], pydantic.Field(min_length=1)
    ]
    key: bool = True

    @pydantic.field_validator("path")
    @classmethod
    def _plain(cls, value: str) -> str:
        if "//" in value or {".", ".."} & set(value.split("/")):
            raise ValueError("must be a path to the letter, without '//' and '..'")
        return value


PROXY_ROUTES: list[dict[str, Any]] = [
    {"path": "/v1/chat/completions", "methods": ["POST"]},
    {"path": "/v1/completions", "methods": ["POST"]},
    {"path": "/v1/models", "methods": ["GET"]},
    {"path": "/health", "methods": ["GET"]},
]
"""What the proxy lets through unless another list is declared."""


class ApiProxy(RoleVariables):
    """Role api_proxy: nginx in front of the engine."""

    api_proxy_state: Literal["present", "absent"] = "present"
    api_proxy_address: Annotated[str, pydantic.Field(pattern=r"^[0-9A-Fa-f.:]+$")] = "0.0.0.0"  # noqa: S104 - declared
    api_proxy_port: Port = 443
    api_proxy_names: list[Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9*]([A-Za-z0-9.:-]*)$")]] = []
    api_proxy_certificate_from: Literal["controller", "container", "self-signed"] = "controller"
    api_proxy_certificate: PlainPath = ""
    api_proxy_certificate_key: PlainPath = ""
    api_proxy_certificate_days: NotNegative = 21
    api_proxy_keys: Annotated[dict[str, Any], pydantic.Field(repr=False)] = {}
    api_proxy_keys_file: str = ""
    api_proxy_routes: list[ProxyRoute] = pydantic.Field(
        default=PROXY_ROUTES,
        validate_default=True,
        min_length=1,
    )
    api_proxy_body_mib: Annotated[Whole, pydantic.Field(ge=1, le=4096)] = 32
    api_proxy_header_timeout: Positive = 10
    api_proxy_body_timeout: Positive = 30
    api_proxy_answer_timeout: Positive = 600
    api_proxy_rate: Positive = 50
    api_proxy_rate_address: Positive = 100
    api_proxy_connections: Positive = 512
    api_proxy_connections_address: Positive = 512
    api_proxy_workers: Annotated[Whole, pydantic.Field(ge=1, le=64)] = 4


ROLES: dict[str, type[RoleVariables]] = {
    "pve_host": PveHost,
    "pve_container": PveContainer,
    "nvidia_userspace": NvidiaUserspace,
    "gpu_probe": GpuProbe,
    "release": Release,
    "model_weights": ModelWeights,
    "inference_server": InferenceServer,
    "api_proxy": ApiProxy,
    "bench_client": BenchClient,
    "router": Router,
}
"""Every role with variables of its own."""

HOST_ROLES = ("pve_host",)
ROUTER_ROLES = ("router",)
CONTAINER_ROLES = tuple(role for role in ROLES if role not in (*HOST_ROLES, *ROUTER_ROLES))

KNOWN = {name: role for role, model in ROLES.items() for name in model.model_fields}
"""Variable -> role."""
