# SPDX-License-Identifier: Apache-2.0
"""A server that is started with secrets: they stand on no command line and in nothing that it writes."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from ansible_collections.rackwell.gpu.plugins.filter.server_unit import server_flags, server_secrets
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_launcher as launcher
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_log
from ansible_collections.rackwell.gpu.plugins.module_utils import inference_preflight as preflight

from rackwell.provision.scrubbing import Scrubber

#: quotes, characters of regular expressions, of templates and of systemd, no ASCII, and one that is another's beginning
NASTY = [
    'it\'s-"quoted"-key',
    "a.*b[c]{2}(d)+^e|f\\g",
    "$HOME-%n-${x}-{{y}}",
    "schlüssel-ключ-鍵",
    "prefix-of-another",
    "prefix-of-another-one",
    "--api-key-of-its-own",
]
ENGINE = """\
import logging, multiprocessing, sys

def child(queue):
    queue.put((__name__, sys.argv[1:], open("/proc/self/cmdline").read()))

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    key = next(one for one in sys.argv if one.startswith("--api-key=")).partition("=")[2]
    logging.info(f"server_args=ServerArgs(api_key={key!r}, port=1)")
    print("said", key, flush=True)
    queue = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(queue,))
    process.start()
    name, argv, line = queue.get()
    process.join()
    assert name == "__mp_main__" and argv == sys.argv[1:], (name, argv)
    assert key not in line + open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
    open("key", "w").write(key)
"""


def start(folder: Path, credential: str | None) -> subprocess.CompletedProcess[str]:
    (folder / "engine.py").write_text(ENGINE)
    credentials = folder / "credentials"
    credentials.mkdir()
    if credential is not None:
        (credentials / "flags").write_text(credential)
    environment = {**os.environ, "CREDENTIALS_DIRECTORY": str(credentials), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(Path(launcher.__file__)), "engine", "--port", "1"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_engine_gets_the_key_and_nobody_else(tmp_path: Path) -> None:
    key = NASTY[0]
    done = start(tmp_path, json.dumps({"api-key": key}))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "key").read_text() == key
    assert "server_args=ServerArgs(api_key=" in done.stderr
    assert "port=1" in done.stderr
    assert key not in done.stdout + done.stderr
    assert "said ***" in done.stdout


@pytest.mark.parametrize("credential", [None, "", "{}\n{", '{"api-key": ""}'])
def test_without_a_sound_credential_nothing_is_started(tmp_path: Path, credential: str | None) -> None:
    done = start(tmp_path, credential)
    assert done.returncode == launcher.WRONG_USAGE
    assert "rackwell: error: credential flags" in done.stderr
    assert "rackwell provision" in done.stderr


@pytest.mark.parametrize("key", NASTY)
def test_what_is_written_does_not_hold_it(key: str) -> None:
    stream = io.StringIO()
    masked = launcher.Masked(stream, [*NASTY, "x"])
    masked.write(f"{key} {key!r} {json.dumps(key)} x\n")
    masked.writelines([f"<{key}>"])
    assert key not in stream.getvalue()
    assert json.dumps(key)[1:-1] not in stream.getvalue()
    # what is short would be blotted out in the middle of words: it is hidden where its name stands
    masked.write("server_args=ServerArgs(api_key='x', x=1)")
    assert " x\n" in stream.getvalue()
    assert stream.getvalue().endswith("(api_key='***', x=1)")


@pytest.mark.parametrize("key", NASTY)
def test_a_key_comes_through_the_file_as_it_is(key: str) -> None:
    profile = {"model": {"path": "/m", "served_name": "x"}, "flags": {"api-key": key, "tp-size": 8}}
    assert json.loads(server_secrets(profile)) == {"api-key": key}
    assert key not in "".join(server_flags(profile))
    assert not [flag for flag in server_flags(profile) if "api-key" in flag]
    assert not preflight.bad_secrets(server_secrets(profile))


@pytest.mark.parametrize(
    ("key", "code"), [("", "credential-empty"), ("a\nb", "credential-invalid"), ("two words", "credential-invalid")]
)
def test_a_key_that_cannot_be_one_is_refused_and_not_told(key: str, code: str) -> None:
    lacks = preflight.bad_secrets(server_secrets({"flags": {"api-key": key}}))
    assert [lack.code for lack in lacks] == [code]
    assert not key or key not in " ".join(lacks[0])


def test_a_profile_without_secrets_needs_no_credential() -> None:
    assert server_secrets({"flags": {"tp-size": 8, "api-key": None}}) == ""
    assert not preflight.bad_secrets("")


@pytest.mark.parametrize("key", NASTY)
def test_the_log_is_shown_without_it(key: str) -> None:
    for line in (
        f"server_args=ServerArgs(model_path='/m', api_key={key!r}, port=1)",
        f"python -m sglang.launch_server --api-key {shlex.quote(key)} --port 1",
    ):
        shown = inference_log.redact(line)
        assert key not in shown
        assert repr(key)[1:-1] not in shown
        assert "***" in shown
        assert shown.endswith(("port=1)", "--port 1"))


@pytest.mark.parametrize("key", NASTY)
def test_a_bundle_does_not_hold_it_in_any_form(key: str) -> None:
    forms = {key, json.dumps(key)[1:-1], repr(key)[1:-1], urllib.parse.quote(key, ""), urllib.parse.quote_plus(key)}
    forms |= {base64.b64encode(key.encode()).decode(), base64.urlsafe_b64encode(key.encode()).decode()}
    shown = Scrubber(values=set(NASTY)).scrub("\n".join(f"before {form} after" for form in sorted(forms)))
    assert [form for form in forms if form in shown] == []
    # longest first: of one that begins with another nothing is left over
    assert "-one" not in shown
    assert shown.count("before") == shown.count("after") == len(forms)
