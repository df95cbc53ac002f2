# SPDX-License-Identifier: Apache-2.0
"""A certificate that nobody vouches for, for whoever asks for one by name."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from collections.abc import Sequence

from ansible_collections.rackwell.gpu.plugins.module_utils.proxy_certificate import Certificate, CertificateError, read

DAYS = 397
"""What clients take at most."""


class SelfSigned:
    """``FOLDER/certificate.pem`` and ``key.pem``, kept over runs: clients may have been told to trust it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.certificate = os.path.join(folder, "certificate.pem")
        self.key = os.path.join(folder, "key.pem")

    def fits(self, names: Sequence[str], days: int, now: float) -> bool:
        """Whether there is one, for all of `names`, that holds for more than `days`."""
        try:
            found: Certificate = read(self.certificate, self.key)
        except CertificateError:
            return False
        return all(found.covers(name) for name in names) and found.days_left(now) > days

    def make(self, names: Sequence[str]) -> None:
        """Make one anew.

        Raises:
            CertificateError: openssl cannot.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        os.chmod(self.folder, 0o700)
        partial = self.key + ".new", self.certificate + ".new"
        # it exists with its mode before there is anything in it
        for path in partial:
            if os.path.lexists(path):
                os.unlink(path)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", str(DAYS), "-subj", "/CN=" + names[0], "-keyout", partial[0], "-out", partial[1]]
        command += ["-addext", "subjectAltName=" + ",".join(_alternative(name) for name in names)]
        command += ["-addext", "extendedKeyUsage=serverAuth"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise CertificateError("openssl-missing", "openssl cannot be run", "", error.strerror or "") from None
        if done.returncode != 0:
            why = " ".join(done.stderr.split())[-300:]
            raise CertificateError("certificate-failed", "openssl made no certificate", self.folder, why)
        os.replace(partial[0], self.key)
        os.replace(partial[1], self.certificate)


def _alternative(name: str) -> str:
    try:
        return "IP:%s" % ipaddress.ip_address(name)
    except ValueError:
        return "DNS:" + name
