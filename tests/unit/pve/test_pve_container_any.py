# SPDX-License-Identifier: Apache-2.0
"""From any declaration to any other: check mode tells what a run then does, and a second run does nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pverig import Module, converge

DEVICES = st.lists(
    st.one_of(
        st.sampled_from(["/dev/null", "/dev/zero", "/dev/full"]),
        st.fixed_dictionaries(
            {"path": st.sampled_from(["/dev/null", "/dev/random"])},
            optional={
                "mode": st.sampled_from(["0600", "0660"]),
                "gid": st.sampled_from([0, 44]),
                "deny_write": st.booleans(),
            },
        ),
    ),
    max_size=4,
)
MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"source": st.sampled_from(["/tmp", "/usr"]), "target": st.sampled_from(["/a", "/b"])},
        optional={
            "read_only": st.booleans(),
            "options": st.sampled_from([{}, {"backup": True}, {"backup": False}, {"mountoptions": "noatime;nosuid"}]),
        },
    ),
    max_size=2,
    unique_by=lambda mount: mount["target"],
)
RAW = st.one_of(
    st.just("keep"),
    st.lists(
        st.sampled_from(["lxc.cap.drop: sys_time", "lxc.cap.drop: mac_admin", "lxc.idmap: u 0 100000 65536"]),
        max_size=3,
    ),
)
DECLARATIONS = st.fixed_dictionaries(
    {
        "memory": st.sampled_from([2048, 4096]),
        "swap": st.sampled_from([0, 512]),
        "cores": st.sampled_from([None, 1]),
        "onboot": st.booleans(),
        "features": st.dictionaries(st.sampled_from(["nesting", "keyctl"]), st.booleans()),
        "devices": DEVICES,
        "mounts": MOUNTS,
        "gateway": st.sampled_from([None, "10.0.0.1"]),
        "nameserver": st.sampled_from([None, "10.0.0.1"]),
        "net_options": st.dictionaries(st.sampled_from(["firewall", "link_down"]), st.booleans()),
        "options": st.sampled_from(
            [{}, {"startup": "order=2"}, {"cpulimit": 2}, {"net1": "name=eth1,bridge=lo,ip=dhcp"}]
        ),
        "cpuset": st.sampled_from([None, "0", "0-1"]),
        "memlock": st.sampled_from([None, "unlimited"]),
        "shm_size": st.sampled_from([None, "1G"]),
        "raw": RAW,
    }
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=DECLARATIONS, second=DECLARATIONS)
def test_any_declaration_is_reached_and_then_kept(host: Module, first: dict[str, Any], second: dict[str, Any]) -> None:
    host.standin.lxc.up.clear()
    if 201 in host.standin.host.vmids():
        host.standin.pct("destroy", "201", "--force", "1")
    converge(host, **first)
    assert not converge(host).changed
    told = converge(host, check_mode=True, allow_restart=True, **second)
    before = host.standin.conf(201)
    made = converge(host)
    assert (made.changed, made.result["changed_keys"]) == (told.changed, told.result["changed_keys"])
    assert made.diffs == told.diffs
    assert made.result["restarted"] == told.result["restart_required"]
    assert (host.standin.conf(201) != before) == bool(told.result["changed_keys"])
    again = converge(host)
    assert (again.changed, again.result["changed_keys"], again.result["pending"]) == (False, [], [])
    assert not [one for one in again.result["drift"] if one["severity"] != "note"]
    # hands and PVE write it otherwise
    file = host.standin.host.configs / "201.conf"
    main, separator, rest = file.read_text().partition("\n[")
    keys = [line for line in main.splitlines() if not line.startswith("lxc.")]
    raw = [line for line in main.splitlines() if line.startswith("lxc.")]
    shuffled = "".join(line + "\n" for line in [*reversed(keys), *raw])
    file.write_text(shuffled.replace("lxc.cap.drop: ", "lxc.cap.drop = ") + separator + rest)
    assert not converge(host).changed
