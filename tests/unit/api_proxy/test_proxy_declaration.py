# SPDX-License-Identifier: Apache-2.0
"""A proxy in a declaration: what `rackwell check` refuses, with its place, and what it never says."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_certificate

sys.path.insert(0, str(Path(__file__).parents[1] / "site"))
from sitemaker import SiteMaker

from rackwell.build import load_build
from rackwell.build.routes import Inventories
from rackwell.errors import Problem
from rackwell.provision import declared, linting, proxying
from rackwell.site import proxychecks
from rackwell.site.node import Node

KEY = "sk-MARKED-0123456789abcdefghijkl"
ALICE = f"alice {KEY}\n"
PROXY = """\
api_proxy_state: present
api_proxy_certificate_from: self-signed
api_proxy_keys_file: "{{ inventory_dir }}/keys"
"""


def one_more(made: SiteMaker, name: str, text: str) -> None:
    """A container with a declaration of its own, beside all others: Ansible reads the site once for all of them."""
    number = len(list((made.root / "host_vars").iterdir())) + 1
    made.edit("hosts.yml", "        glm5-01:\n", f"        glm5-01:\n        {name}:\n")
    own = (made.root / "host_vars/glm5-01.yml").read_text().partition("api_proxy")[0]
    own = own.replace("201", str(200 + number)).replace("0.2.21/", f"0.2.{20 + number}/").replace("glm5-01", name)
    made.write(f"host_vars/{name}.yml", own + text)


def of(found: list[Problem], made: SiteMaker, name: str) -> list[Problem]:
    """The problems in a container's own file; those of GPUs and disks are the site's."""
    return [problem for problem in found if problem.where.startswith(str(made.root / f"host_vars/{name}.yml"))]


@pytest.fixture
def site(tmp_path: Path) -> SiteMaker:
    made = SiteMaker(tmp_path / "site")
    made.add("host_vars/glm5-01.yml", PROXY)
    made.write("keys", f"# who may ask\n{ALICE}").chmod(0o600)
    return made


REFUSED = {
    "undeclared": (("api_proxy_state: present\n", ""), "proxy-undeclared", "api_proxy_certificate_from"),
    "keyless": (('api_proxy_keys_file: "{{ inventory_dir }}/keys"\n', ""), "missing-variable", "api_proxy_state"),
    "fileless": (("inventory_dir }}/keys", "inventory_dir }}/none"), "file-missing", "api_proxy_keys_file"),
    "relative": (("{{ inventory_dir }}/keys", "keys"), "path-relative", "api_proxy_keys_file"),
    "certless": (("api_proxy_certificate_from: self-signed\n", ""), "missing-variable", "api_proxy_state"),
    "port": (("self-signed", "self-signed\napi_proxy_port: 30000"), "port-taken", "api_proxy_port"),
    "typo": (("self-signed", "self-signed\napi_proxy_adress: '::'"), "unknown-variable", "api_proxy_adress"),
    "dots": (
        ("self-signed", "self-signed\napi_proxy_routes: [{path: /v1/../x, methods: [GET]}]"),
        "wrong-value",
        "api_proxy_routes",
    ),
    "twice": (
        ("self-signed", "self-signed\napi_proxy_routes: [{path: /a, methods: [GET]}, {path: /a, methods: [PUT]}]"),
        "duplicate-route",
        "api_proxy_routes",
    ),
    "clear": (("self-signed", f"self-signed\napi_proxy_keys:\n  bob: {KEY}x"), "key-in-clear", "  bob:"),
}
KEYS = {
    "modes": (ALICE, 0o640, "secret-readable"),
    "empty": ("# none yet\n\n", 0o600, "api-key-invalid"),
    "short": ("alice short\n", 0o600, "api-key-invalid"),
    "parts": (f"alice {KEY} more\n", 0o600, "api-key-invalid"),
    "names": (f"alice {KEY}\nalice {KEY}x\n", 0o600, "api-key-invalid"),
    "cases": (f"alice {KEY}\nbob {KEY.lower()}\n", 0o600, "api-key-invalid"),
    "marks": ("alice 'quoted-0123456789-0123456789'\n", 0o600, "api-key-invalid"),
    "braces": ("alice {{lookup('env','HOME')}}0123456789\n", 0o600, "api-key-invalid"),
}
SEALED = "api_proxy_keys:\n  bob: !vault |\n    $ANSIBLE_VAULT;1.1;AES256\n    6162\n"


def test_what_is_refused_and_where(site: SiteMaker) -> None:
    for name, (change, _, _) in REFUSED.items():
        one_more(site, name, PROXY.replace(*change))
    for name, (text, mode, _) in KEYS.items():
        site.write(f"keys-{name}", text).chmod(mode)
        one_more(site, name, PROXY.replace("/keys", f"/keys-{name}"))
    one_more(site, "sealed", PROXY.replace('api_proxy_keys_file: "{{ inventory_dir }}/keys"\n', SEALED))
    one_more(site, "none", "")
    loaded = site.load()
    found = [p for p in loaded.problems_of() if p.code not in {"gpu-shared", "weights-not-mounted"}]
    assert KEY not in str(found)
    for name, (_, code, at) in REFUSED.items():
        told = of(found, site, name)
        assert [problem.code for problem in told] == [code], name
        assert told[0].where == site.line(f"host_vars/{name}.yml", at), name
        assert told[0].fix or code == "wrong-value", name
    for name, (_, _, code) in KEYS.items():
        assert [problem.code for problem in of(found, site, name)] == [code], name
    for name in ("glm5-01", "sealed", "none"):
        assert of(found, site, name) == []
    assert proxychecks.declared(loaded.containers["glm5-01"])
    assert not proxychecks.declared(loaded.containers["none"])


def test_an_engine_that_clients_reach_past_it(site: SiteMaker) -> None:
    site.edit("profiles/toy.yml", "server:\n", "server:\n  host: 0.0.0.0\n")
    found = site.problems()
    assert [problem.code for problem in found] == ["engine-exposed"]
    assert found[0].where == site.line("profiles/toy.yml", "host: 0.0.0.0")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("one", "other"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"), "-subj", f"/CN={name}"]
        subprocess.run([*command, "-days", "30", *files], check=True, capture_output=True)
        (folder / f"{name}.key").chmod(0o600)
    locked = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(folder / "one.key")]
    subprocess.run([*locked, "-out", str(folder / "locked.key")], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "code"),
    [
        ("one.pem", "one.key", None),
        ("one.pem", "other.key", "certificate-mismatch"),
        ("one.pem", "locked.key", "key-encrypted"),
        ("one.key", "one.pem", "certificate-unreadable"),
        ("none.pem", "one.key", "certificate-unreadable"),
    ],
)
def test_pairs_on_this_machine_and_in_the_container_alike(
    certificates: Path, certificate: str, key: str, code: str | None
) -> None:
    pair = certificates / certificate, certificates / key
    told = proxychecks.pair_problem(*pair)
    assert (told and told[0]) == code
    if code is None:
        assert proxy_certificate.read(*map(str, pair)).days_left(time.time()) in {29, 30}
        return
    with pytest.raises(proxy_certificate.CertificateError) as caught:
        proxy_certificate.read(*map(str, pair))
    assert caught.value.parts["code"] == code


def test_a_certificate_that_has_ended(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = certificates / "one.pem", certificates / "one.key"
    later = time.time() + 31 * 86400
    found = proxy_certificate.read(*map(str, pair))
    assert found.days_left(later) < 0
    for now, code in ((later, "certificate-expired"), (found.begins - 1, "certificate-not-yet")):
        with pytest.raises(proxy_certificate.CertificateError) as caught:
            proxy_certificate.judge(found, "x", [], now)
        assert caught.value.parts["code"] == code
    monkeypatch.setattr(proxychecks.time, "time", lambda: later)
    told = proxychecks.pair_problem(*pair)
    assert told is not None
    assert told[0] == "certificate-expired"


# ---- the list of routes against the engine ---------------------------------------------------------------------

LISTS = {
    "nothing": ("/v1/nothing", "GET", "server", "proxy-route-missing"),
    "method": ("/v1/models", "POST", "server", "proxy-route-missing"),
    "profile": ("/start_profile", "POST", "server", "proxy-route-dangerous"),
    "info": ("/server_info", "GET", "server", "proxy-route-dangerous"),
    "lora": ("/load_lora_adapter_from_tensors", "POST", "server", "proxy-route-dangerous"),
    "fine": ("/v1/embeddings", "POST", "server", None),
}


def test_the_list_is_held_against_the_engine(site: SiteMaker) -> None:
    site.write("builds/between.yml", (site.root / "builds/server.yml").read_text().replace("0.5.9", "0.5.12"))
    routes = "api_proxy_routes:\n  - {path: %s, methods: [%s]}\nrelease_build: %s\n"
    for name, (path, method, build, _) in LISTS.items():
        one_more(site, name, PROXY + routes % (path, method, build))
    one_more(site, "unsure", PROXY + routes % ("/v1/nothing", "GET", "between"))
    # a later release has it
    one_more(site, "later", PROXY + routes % ("/ready", "GET", "between"))
    checked = declared.check(site.load())
    told = {
        name: {
            (finding.code, finding.severity)
            for finding in checked.findings
            if finding.where.startswith(str(site.root / f"host_vars/{name}.yml")) and finding.code.startswith("proxy-")
        }
        for name in [*LISTS, "glm5-01", "unsure", "later"]
    }
    for name, (_, _, _, code) in LISTS.items():
        assert told[name] == ({(code, "error")} if code else set()), name
    assert told["glm5-01"] == set()
    assert told["unsure"] == {("proxy-route-missing", "warning"), ("proxy-routes-unknown", "note")}
    assert told["later"] == {("proxy-routes-unknown", "note")}
    refused = [problem.code for problem in checked.problems if problem.code.startswith("proxy-")]
    assert sorted(refused) == ["proxy-route-dangerous"] * 3 + ["proxy-route-missing"] * 2


class NewEngine(linting.Lint):
    """A build of a release that nobody knows, with its wheel at hand."""

    wheel: Path

    def engine(self, spec: object) -> tuple[str, object, Path | None]:  # type: ignore[override]
        class Locked:
            filename, sha256 = self.wheel.name, "0" * 64

        return "9.9", Locked, self.wheel


def test_new_routes_of_a_new_release_are_told(site: SiteMaker, tmp_path: Path) -> None:
    from rackwell import shipped

    wheel = tmp_path / "sglang-9.9-py3-none-any.whl"
    source = "app = FastAPI(openapi_url=None)\n" + "".join(
        f'@app.{method}("{path}")\ndef f(): ...\n'
        for method, path in (
            ("post", "/v1/completions"),
            ("get", "/v1/models"),
            ("get", "/health"),
            ("post", "/v9/new"),
        )
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/srt/entrypoints/http_server.py", source)
    loaded = site.load()
    lint = NewEngine(loaded)
    spec = load_build(site.root / "builds/server.yml")
    lint.wheel = wheel
    proxies = proxying.Proxies(loaded, lint, Inventories(shipped.catalog()))
    node: Node = loaded.containers["glm5-01"]
    for _ in range(2):  # once from the wheel, once as it was kept; told once
        proxies.check(node, lambda: spec)
    told = {(finding.code, finding.severity): finding.what for finding in proxies.findings}
    assert set(told) == {("proxy-route-missing", "error"), ("proxy-routes-new", "note")}
    assert "POST /v9/new" in told["proxy-routes-new", "note"]
    assert "POST /v1/chat/completions" in told["proxy-route-missing", "error"]
    assert len(proxies.findings) == 2
    assert (loaded.state / "routes" / f"{'0' * 64}.json").is_file()
