# SPDX-License-Identifier: Apache-2.0
"""How every module of the collection ends: a result for programs, or an error that says how to mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule


def failure(code: str, what: str, where: str = "", why: str = "", fix: str = "") -> dict[str, Any]:
    """What a failure returns: ``msg`` for people, ``rackwell_error`` for programs. Arguments as of :func:`fail`."""
    message = what
    if where:
        message += " (" + where + ")"
    if why:
        message += ": " + why
    if not message.endswith((".", "!", "?")):
        message += "."
    if fix:
        message += " Fix: " + fix
    return {"msg": message, "rackwell_error": {"code": code, "what": what, "where": where, "why": why, "fix": fix}}


def fail(
    module: AnsibleModule, code: str, what: str, where: str = "", why: str = "", fix: str = "", **extra: Any
) -> NoReturn:
    """End the module with an error.

    Args:
        code: stable kebab-case name. what: one line. where: host, path or option. why: found against expected.
        fix: the command or edit that mends it.
        extra: further return values (``rolled_back``, ``log``, …).
    """
    module.fail_json(**failure(code, what, where, why, fix), **extra)
    raise AssertionError("fail_json returned")


def done(module: AnsibleModule, changed: bool, result: dict[str, Any] | None = None, **extra: Any) -> NoReturn:
    """End the module well. ``result`` is the part that the command line collects; it names its schema."""
    if result is not None:
        extra["rackwell_result"] = result
    module.exit_json(changed=changed, **extra)
    raise AssertionError("exit_json returned")
