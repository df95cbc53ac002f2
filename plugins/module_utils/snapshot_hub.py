# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face hub, or a mirror of it, as a source of a snapshot. huggingface_hub does the work.

Runs in the environment of the build ``weights``. Facts of huggingface_hub 2.4 that decide the form: `hf_hub_download`
drops what had arrived when its process ends, so `http_get` is called with a part that stays; it compares sizes only, so
hashes are compared by the caller; its warnings hold signed addresses, so only its errors are logged.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Optional
from urllib.parse import urlsplit

from ansible_collections.rackwell.gpu.plugins.module_utils.snapshot_store import (
    Entry,
    Place,
    SnapshotError,
    entry,
)

_NETWORK = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"}


class Hub:
    """A repository at a commit."""

    def __init__(self, place: Place, endpoint: str, token: str, xet: bool, piece: int) -> None:
        from huggingface_hub import HfApi, constants

        # what a connection brought of a piece (10 MB) is lost when it breaks
        constants.DOWNLOAD_CHUNK_SIZE = piece
        self.place = place
        self.xet = xet
        # False, not None: no token of whoever made this environment is ever sent
        self.token: Any = token or False
        self.api: Any = HfApi(endpoint=endpoint or None, token=self.token)
        self.endpoint = str(self.api.endpoint)

    def listing(self) -> list[Entry]:
        """Every file of the repository at the commit, with size and hash. Raises SnapshotError."""
        from huggingface_hub.hf_api import RepoFile

        repository, revision = self.place.repository, self.place.revision
        try:
            commit = self.api.model_info(repository, revision=revision).sha
            if commit != revision:
                raise SnapshotError(
                    "revision-moved",
                    "the hub has another commit under that revision",
                    self._where(),
                    "it leads to %s: a branch or a tag has that name" % commit,
                    "give the commit: model.revision in the profile",
                )
            tree = list(self.api.list_repo_tree(repository, revision=revision, recursive=True))
        except SnapshotError:
            raise
        except Exception as error:  # noqa: BLE001 (its kinds differ between releases of huggingface_hub)
            raise self.explained(error) from None
        files = []
        for one in tree:
            if isinstance(one, RepoFile):
                lfs = one.lfs
                raw = {"path": one.path, "size": lfs.size if lfs else one.size}
                raw.update({"sha256": lfs.sha256} if lfs else {"git_sha1": one.blob_id})
                files.append(entry(raw))
        return files

    def get(self, one: Entry, part: str) -> None:
        """Bring a file into `part`, going on where it ends. Raises SnapshotError, or what the transfer raised."""
        from huggingface_hub import file_download, utils
        from huggingface_hub.utils._runtime import is_xet_available

        url = file_download.hf_hub_url(
            self.place.repository, one.path, revision=self.place.revision, endpoint=self.endpoint
        )
        try:
            told: Any = file_download.get_hf_file_metadata(url, token=self.token, endpoint=self.endpoint)
        except Exception as error:
            if _status(error) is None or _status(error) in (408, 429) or (_status(error) or 0) >= 500:
                raise
            raise self.explained(error, one.path) from None
        if told.commit_hash != self.place.revision:
            why = "it says commit %s" % told.commit_hash if told.commit_hash else "it does not say which: a mirror must"
            raise SnapshotError(
                "revision-moved", "the hub serves another commit", self._where(one.path), why, "run again"
            )
        tools: Any = utils
        headers: Any = tools.build_hf_headers(token=self.token)
        if urlsplit(told.location).netloc != urlsplit(url).netloc:
            # a signed address of somebody else: it works without the token, and must not learn it
            headers.pop("authorization", None)
        if self.xet and told.xet_file_data is not None and is_xet_available():
            from pathlib import Path

            file_download.xet_get(
                incomplete_path=Path(part), xet_file_data=told.xet_file_data, headers=headers, expected_size=one.size
            )
            return
        with open(part, "ab") as stream:
            file_download.http_get(
                told.location, stream, resume_size=stream.tell(), headers=headers, expected_size=one.size
            )
            stream.flush()
            os.fsync(stream.fileno())

    def explained(self, error: BaseException, path: str = "") -> SnapshotError:
        """What an error of huggingface_hub means."""
        from huggingface_hub import errors

        said = " ".join(str(error).split())[:500]
        where, status = self._where(path), _status(error)
        if isinstance(error, errors.GatedRepoError):
            fix = "accept its terms on %s/%s with the account of the token, then run again" % (
                self.endpoint,
                self.place.repository,
            )
            if not self.token:
                fix += "; no token was given: model_weights_token"
            return SnapshotError("weights-gated", "the repository is gated", where, said, fix)
        if status in (401, 403):
            if self.token:
                what = "the hub refuses the token"
                why = "it is wrong, has expired, or may not read this repository; the hub says: " + said
                fix = "put a token that may read it into model_weights_token (ansible-vault encrypt_string)"
            else:
                what = "the hub asks for a token"
                why = "the repository is private, or does not exist; the hub says: " + said
                fix = "correct model.repository in the profile, or set model_weights_token"
            return SnapshotError("weights-unauthorized", what, where, why, fix)
        if isinstance(error, errors.RevisionNotFoundError):
            fix = "correct model.revision in the profile; a commit that was rewritten is gone for good"
            return SnapshotError("revision-unknown", "the repository has no such commit", where, said, fix)
        if isinstance(error, errors.EntryNotFoundError):
            return SnapshotError(
                "weights-missing", "the hub lists a file and does not have it", where, said, "run again"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            fix = "correct model.repository in the profile"
            return SnapshotError("repository-unknown", "there is no such repository", where, said, fix)
        if status is not None:
            fix = "run again later; it goes on where it ended"
            return SnapshotError("hub-failed", "the hub answered with %d" % status, where, said, fix)
        if _is_network(error):
            fix = (
                "check name service, proxy (model_weights_environment) and the hub's state from the Proxmox host: "
                "curl -I %s; then run again, it goes on where it ended" % self.endpoint
            )
            return SnapshotError("hub-unreachable", "the hub does not answer", where, said, fix)
        why = "%s: %s" % (type(error).__name__, said)
        return SnapshotError("hub-failed", "huggingface_hub failed", where, why, "run again; it goes on where it ended")

    def passing(self, error: BaseException) -> bool:
        """Whether it may be over after a while: a broken connection, a short answer, a busy hub, an address too old."""
        if isinstance(error, SnapshotError):
            return False
        lasting = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
        return not (isinstance(error, OSError) and error.errno in lasting)

    def _where(self, path: str = "") -> str:
        text = "%s/%s at %s" % (self.endpoint, self.place.repository, self.place.revision[:12])
        return "%s, %s" % (text, path) if path else text


def _status(error: BaseException) -> Optional[int]:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _is_network(error: Optional[BaseException]) -> bool:
    """Whether it, or what caused it, is of the library below huggingface_hub."""
    while error is not None:
        if any(kind.__module__.split(".")[0] in _NETWORK for kind in type(error).__mro__) or isinstance(
            error, (ConnectionError, TimeoutError)
        ):
            return True
        error = error.__cause__
    return False
