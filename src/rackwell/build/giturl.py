# SPDX-License-Identifier: Apache-2.0
"""URLs of git repositories: which ones are taken, and what a submodule's relative one leads to."""

from __future__ import annotations

import posixpath
import re
import urllib.parse

SCHEMES = ("https", "ssh", "git", "file")
"""Transports that are allowed, in a build and behind its back (submodules, redirections)."""


def checked(url: str) -> str:
    """`url`, if it is one that git can be given without surprise.

    Raises:
        ValueError: no scheme or another one, a host or path that git or ssh could take for an option, or a credential.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must be a URL of printable ASCII characters without spaces")
    scheme, found, _ = url.partition("://")
    if not found or scheme not in SCHEMES:
        if re.fullmatch(r"[\w.-]+@[\w.-]+:[^:]+", url):
            user, path = url.split(":", 1)
            raise ValueError(f"must be a URL with a scheme: write ssh://{user}/{path}")
        raise ValueError(f"must be a URL that begins with {', '.join(f'{name}://' for name in SCHEMES)}")
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"must be a URL ({error})") from None
    if parts.password is not None or (parts.username is not None and scheme != "ssh"):
        raise ValueError("must not hold a credential: leave it to git's credential helper or to ssh")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query or a fragment")
    host = parts.hostname or ""
    if (scheme == "file") == bool(host):
        raise ValueError("must be file:///path" if host else "names no host")
    if host.startswith("-") or (parts.username or "").startswith("-") or parts.path.startswith("/-"):
        raise ValueError("must not have a part that begins with a dash, as an option does")
    if not parts.path.strip("/"):
        raise ValueError("names no repository")
    return url


def resolved(url: str, parent: str) -> str:
    """A submodule's `url`, which may be relative to that of the repository it is in. Raises ValueError as `checked`."""
    if not url.startswith(("./", "../")):
        return checked(url)
    parts = urllib.parse.urlsplit(parent)
    path = posixpath.normpath(posixpath.join(parts.path.rstrip("/"), url))
    return checked(parts._replace(path=path).geturl())
