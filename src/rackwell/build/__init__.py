# SPDX-License-Identifier: Apache-2.0
"""Builds: from declared inputs to a content-addressed release.

`load_build` reads a build file, `make_release` turns it into a release under ``SITE/.rackwell``, and
`patch_requirements` tells which server flags the build's patches need.
"""

from __future__ import annotations

from rackwell.build.model import BuildSpec, load_build
from rackwell.build.release import Release, make_release
from rackwell.build.series import PatchRequirement, patch_requirements

__all__ = ["BuildSpec", "PatchRequirement", "Release", "load_build", "make_release", "patch_requirements"]
