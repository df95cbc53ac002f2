#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Proves that a staged release can compile the kernels that its engine needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_compiler
short_description: Prove that a staged release can compile CUDA kernels
version_added: 0.1.0
description:
  - Engines compile kernels at run time. For a release whose build declares C(cuda), the compiler's version is held
    against the oldest that will do, and a small kernel is compiled and linked as FlashInfer does it.
  - A release whose build does not declare it is passed. Changes nothing.
options:
  release:
    description: Directory of the staged release.
    type: path
    required: true
  state:
    description:
      - V(checked) fails when something is missing. V(asked) only tells which of the container's own packages are
        missing, so that they can be installed.
    type: str
    choices: [asked, checked]
    default: checked
attributes:
  check_mode:
    support: full
    description: Does the same, since nothing is changed.
  diff_mode:
    support: none
    description: Nothing is changed.
author:
  - The rackwell founders (@rackwell)
"""

EXAMPLES = r"""
- name: Prove that the release can compile kernels
  rackwell.gpu.cuda_compiler:
    release: /opt/rackwell/current
"""

RETURN = r"""
rackwell_result:
  description: What was found.
  returned: success
  type: dict
  sample:
    schema: rackwell.cuda_compiler/1
    declared: true
    missing: []
    home: /usr/local/cuda-12.9
    version: "12.9"
    minimum: "12.9"
    architecture: sm_120a
rackwell_error:
  description: What is wrong, where, why, and what mends it.
  returned: failure
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rackwell.gpu.plugins.module_utils.cuda_compiler import Compiler, CompilerError
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import done, fail


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["asked", "checked"], "default": "checked"},
        },
        supports_check_mode=True,
    )
    release = os.path.realpath(module.params["release"])
    result = {"schema": "rackwell.cuda_compiler/1", "declared": False, "missing": []}
    try:
        compiler = Compiler(release)
        if compiler.found is not None:
            result["declared"] = True
            result["missing"] = compiler.packages_missing()
            if module.params["state"] == "checked":
                result.update(compiler.check())
    except CompilerError as error:
        fail(module, **error.parts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(module, "manifest-malformed", "the release cannot be read", release, str(error), "stage the release again")
    done(module, False, result)


if __name__ == "__main__":
    main()
