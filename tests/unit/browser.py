# SPDX-License-Identifier: Apache-2.0
"""A headless browser that reaches no network, for the tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

# scripts/setup installs it; a machine without it must not pass by skipping
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"


def open_page(page: Path, profile: Path, *, size: str = "1280,2400", dark: bool = False) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what came on the console."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={profile}",
            f"--window-size={size}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
