# SPDX-License-Identifier: Apache-2.0
"""A certificate and its key: whether they belong together, until when and for whom they hold."""

from __future__ import annotations

import os
import ssl
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class CertificateError(Exception):
    """It cannot be used. `parts` are those of an error: code, what, where, why, fix."""

    def __init__(self, code: str, what: str, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.parts = {"code": code, "what": what, "where": where, "why": why, "fix": fix}


class Certificate(NamedTuple):
    """What a certificate says. Times are seconds since 1970."""

    names: tuple[str, ...]
    begins: float
    ends: float
    der: bytes

    def days_left(self, now: float) -> int:
        """Whole days until it ends; negative when it has."""
        return int((self.ends - now) // 86400)

    def covers(self, name: str) -> bool:
        """Whether clients that ask for `name`, or an address, take it."""
        wanted = name.lower().rstrip(".")
        for one in (known.lower() for known in self.names):
            if one == wanted or (one.startswith("*.") and wanted.partition(".")[2] == one[2:]):
                return True
        return False


def private(path: str, what: str) -> None:
    """Refuse a file that others than its owner can read.

    Raises:
        CertificateError: they can, or it is not there.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise CertificateError("file-missing", "%s is not there" % what, path, error.strerror or str(error)) from None
    if not stat.S_ISREG(mode):
        raise CertificateError("file-missing", "%s is not a plain file" % what, path)
    if stat.S_IMODE(mode) & 0o077:
        why = "its mode is %04o" % stat.S_IMODE(mode)
        raise CertificateError("secret-readable", "%s can be read by others" % what, path, why, "chmod 0600 " + path)


def read(certificate: str, key: str) -> Certificate:
    """Read files, and hold them against each other.

    Raises:
        CertificateError: one cannot be read, or the key is another certificate's.
    """
    found = _decoded(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def password() -> str:
        raise _EncryptedError

    try:
        context.load_cert_chain(certificate, key, password)
    except _EncryptedError:
        fix = "store it without a passphrase, in a file of mode 0600"
        raise CertificateError("key-encrypted", "the key of the certificate has a passphrase", key, "", fix) from None
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            what = "the key is not that of the certificate"
            why = "%s has another public key" % certificate
            fix = "give the key that the certificate was asked for with"
            raise CertificateError("certificate-mismatch", what, key, why, fix) from None
        why = "OpenSSL: %s" % (error.reason or "it is no PEM file of a certificate or a key")
        raise CertificateError("certificate-unreadable", "certificate or key cannot be read", key, why) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CertificateError("certificate-unreadable", "certificate or key cannot be read", key, why) from None
    return found


def judge(found: Certificate, where: str, names: Sequence[str], now: float) -> None:
    """Refuse what clients would refuse.

    Raises:
        CertificateError: it has ended, has not begun, or is for other names.
    """
    fix = "bring a new one"
    if found.ends <= now:
        raise CertificateError("certificate-expired", "the certificate has ended", where, _date(found.ends), fix)
    if found.begins > now:
        why = "it begins on %s; by this machine's clock it is %s" % (_date(found.begins), _date(now))
        raise CertificateError("certificate-not-yet", "the certificate does not hold yet", where, why, fix)
    for name in names:
        if not found.covers(name):
            why = "it is for %s" % (", ".join(found.names) or "no name at all")
            what = "the certificate is not for %s" % name
            raise CertificateError("certificate-name", what, where, why, "correct api_proxy_names, or " + fix)


def from_text(certificate: str, key: str) -> Certificate:
    """As `read`, of what is not in a file yet. Raises CertificateError."""
    folder = tempfile.mkdtemp()  # 0700
    paths = [os.path.join(folder, name) for name in ("certificate.pem", "key.pem")]
    try:
        for path, text in zip(paths, (certificate, key)):
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as stream:
                stream.write(text)
        return read(*paths)
    finally:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)
        os.rmdir(folder)


class _EncryptedError(Exception):
    pass


def _decoded(path: str) -> Certificate:
    # the only decoder that Python brings; there for its own tests since 2.6
    decode: Callable[[str], dict[str, Any]] = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009
    try:
        with open(path, encoding="ascii") as stream:
            text = stream.read()
        told = decode(path)
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        der = ssl.PEM_cert_to_DER_cert(begin + text.partition(begin)[2].partition(end)[0] + end + "\n")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or "it is no PEM file with a certificate"
        raise CertificateError("certificate-unreadable", "the certificate cannot be read", path, why) from None
    names = [value for kind, value in told.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    return Certificate(
        tuple(names),
        float(ssl.cert_time_to_seconds(told["notBefore"])),
        float(ssl.cert_time_to_seconds(told["notAfter"])),
        der,
    )


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))
