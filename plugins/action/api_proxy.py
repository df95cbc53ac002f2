# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's side of api_proxy: files of keys and certificates that lie here, held against each other first."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from ansible.plugins.action import ActionBase
from ansible_collections.rackwell.gpu.plugins.module_utils import proxy_certificate, proxy_keys
from ansible_collections.rackwell.gpu.plugins.module_utils.outcome import failure
from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_certificate import CertificateError

_MODULE = "rackwell.gpu.api_proxy"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reads what lies on the controller, and hands it to the module."""

    def run(self, tmp: Optional[str] = None, task_vars: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
        """See the module's documentation."""
        result: Dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        try:
            if given.get("state", "present") != "absent":
                self._keys(given)
                if given.get("certificate_from", "controller") == "controller":
                    self._certificate(given)
        except CertificateError as error:
            result.update(failed=True, changed=False, **failure(**error.parts))
            return result
        except proxy_keys.ApiKeyError as error:
            where = str(given.get("keys_file") or "api_proxy_keys")
            told = failure("api-key-invalid", str(error), where, "", error.fix)
            result.update(failed=True, changed=False, **told)
            return result
        result.update(self._execute_module(module_name=_MODULE, module_args=given, task_vars=task_vars))
        return result

    def _place(self, path: Any) -> str:
        return str(self._loader.path_dwim(os.path.expanduser(str(path))))

    def _keys(self, given: Dict[str, Any]) -> None:
        keys = {str(name): str(key) for name, key in (given.get("keys") or {}).items()}
        path = given.pop("keys_file", "") or ""
        if path:
            place = self._place(path)
            proxy_certificate.private(place, "the file of the API keys")
            with open(place, encoding="utf-8", errors="replace") as stream:
                more = proxy_keys.read_file(stream.read())
            if twice := sorted(set(keys) & set(more)):
                what = f"{twice[0]} has a key in api_proxy_keys and in api_proxy_keys_file"
                raise proxy_keys.ApiKeyError(what, "name it in one of the two")
            keys.update(more)
        proxy_keys.check(keys)
        given["keys"] = keys

    def _certificate(self, given: Dict[str, Any]) -> None:
        for option in ("certificate", "certificate_key"):
            if not given.get(option):
                raise CertificateError(
                    "missing-option",
                    f"api_proxy_{option} is not set",
                    "",
                    "the certificate is to come from the controller",
                    "name its file, or set api_proxy_certificate_from: self-signed",
                )
        certificate, key = self._place(given["certificate"]), self._place(given["certificate_key"])
        proxy_certificate.private(key, "the key of the certificate")
        found = proxy_certificate.read(certificate, key)
        proxy_certificate.judge(found, certificate, given.get("names") or [], time.time())
        for option, path in (("certificate_text", certificate), ("certificate_key_text", key)):
            with open(path, encoding="utf-8") as stream:
                given[option] = stream.read()
