# SPDX-License-Identifier: Apache-2.0
"""A profile as it stands in systemd's files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.rackwell.gpu.plugins.filter.server_unit import FilterModule, exec_quote, server_flags
from ansible_collections.rackwell.gpu.plugins.module_utils.sandbox_options import Needs, groups, lines

ROLE = Path(__file__).parents[3] / "roles" / "inference_server"
PROFILE: dict[str, Any] = {
    "model": {"path": "/srv/models/toy", "served_name": "glm-5"},
    "server": {"host": "0.0.0.0", "port": 31000},
    "flags": {
        "tp-size": 8,
        "disable-cuda-graph": True,
        "disable-radix-cache": False,
        "cuda-graph-bs": [1, 2],
        "model-loader-extra-config": '{"num_threads": 16}',
        "chat-template": "50% $HOME",
    },
    "environment": {"NCCL_P2P_LEVEL": "SYS", "QUOTED": 'a "b" $c', "N": 8},
    "limits": {"stop_timeout": 30},
    "sane": {"prompt": "p", "expect": "e"},
}


REQUIRE = ["/opt/rackwell/probe/env/bin/python", "-I", "-m", "rackwell.probe", "require", "--container", "glm5-01"]


def render(name: str, profile: dict[str, Any], condition: list[str] | None = None) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLE / "templates"), trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update({f"rackwell.gpu.{key}": value for key, value in FilterModule().filters().items()})
    environment.undefined = jinja2.StrictUndefined
    return environment.get_template(name).render(
        __inference_server_profile=profile,
        inference_server_user="rackwell",
        inference_server_release_root="/opt/rackwell",
        __inference_server_condition=condition or [],
        __inference_server_sandbox_lines=lines(
            [option for group in groups(Needs("rackwell")) for option in group.options]
        ),
        __inference_server_credentials=True,
    )


def test_flags() -> None:
    assert server_flags(PROFILE) == [
        '--chat-template "50%% $$HOME"',
        "--cuda-graph-bs 1 2",
        "--disable-cuda-graph",
        "--host 0.0.0.0",
        r'--model-loader-extra-config "{\"num_threads\": 16}"',
        "--model-path /srv/models/toy",
        "--port 31000",
        "--served-model-name glm-5",
        "--tp-size 8",
    ]


def test_defaults_of_the_server() -> None:
    flags = server_flags({"model": {"path": "/m", "served_name": "x"}})
    assert flags == ["--host 127.0.0.1", "--model-path /m", "--port 30000", "--served-model-name x"]


@pytest.mark.parametrize(
    ("value", "word"),
    [("plain-1.0", "plain-1.0"), ("a b", '"a b"'), ("", '""'), (";", '";"'), ("a\\b", '"a\\\\b"'), ("it's", '"it\'s"')],
)
def test_words(value: str, word: str) -> None:
    assert exec_quote(value) == word


def test_a_line_break_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="line break"):
        server_flags({**PROFILE, "flags": {"x": "a\nUser=root"}})


def test_the_unit_lists_one_flag_a_line() -> None:
    text = render("rackwell-inference.service.j2", PROFILE)
    lines = text.splitlines()
    start = lines.index("ExecStart=/opt/rackwell/current/env/bin/python -m sglang.launch_server \\")
    flags = lines[start + 1 : start + 1 + len(server_flags(PROFILE))]
    assert [line.strip().removesuffix(" \\") for line in flags] == server_flags(PROFILE)
    assert not flags[-1].endswith("\\")
    assert "TimeoutStopSec=30" in lines
    assert "LimitNOFILE=1048576" in lines
    assert lines[-1] == "WantedBy=multi-user.target"


def test_the_gate_is_wanted_and_asked_before_the_start() -> None:
    lines = render("rackwell-inference.service.j2", PROFILE, REQUIRE).splitlines()
    assert "After=network-online.target local-fs.target rackwell-gpu-gate.service" in lines
    assert "Wants=rackwell-gpu-gate.service" in lines
    # a Requires would take a serving server down with a gate that is run again
    assert not [line for line in lines if line.startswith(("Requires=", "BindsTo=", "PartOf="))]
    condition = lines.index("ExecCondition=" + " ".join(REQUIRE))
    assert lines[condition + 1].startswith("ExecStart=")


def test_without_a_gate_the_unit_knows_of_none() -> None:
    text = render("rackwell-inference.service.j2", PROFILE)
    assert "gate" not in text
    assert "ExecCondition" not in text


def test_the_environment_file() -> None:
    lines = render("inference.env.j2", PROFILE).splitlines()
    assert lines[1:] == ['N="8"', 'NCCL_P2P_LEVEL="SYS"', 'QUOTED="a \\"b\\" \\$c"']
    bare = {key: value for key, value in PROFILE.items() if key != "environment"}
    assert len(render("inference.env.j2", bare).splitlines()) == 1


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("condition", [[], REQUIRE])
def test_systemd_takes_the_unit(tmp_path: Path, condition: list[str]) -> None:
    unit = tmp_path / "rackwell-inference.service"
    text = render("rackwell-inference.service.j2", PROFILE, condition).replace(REQUIRE[0], "/bin/true")
    # the program, its user and its files are not on this machine: only the words of the unit are looked at
    unit.write_text(text.replace("/opt/rackwell/current/env/bin/python", "/bin/true").replace("User=rackwell\n", ""))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "rackwell-inference.service" not in done.stderr, done.stderr
