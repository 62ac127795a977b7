"""This module brings files of a git repository at one commit, and computes git's own ids of files."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from core.data.files import DataError


def check_out(repository: str, commit: str, paths: Collection[str], folder: Path) -> None:
    """Write the files or folders `paths` of a repository into `folder`, by a sparse, shallow checkout.

    Raises:
        DataError: git is missing or failed, such as without a network.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        ["init", "--quiet"],
        ["sparse-checkout", "set", "--no-cone", *(f"/{path}" for path in paths)],
        ["config", "remote.origin.url", repository],
        ["fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", commit],
        ["-c", "advice.detachedHead=false", "-c", "core.autocrlf=false", "checkout", "--quiet", "FETCH_HEAD"],
    ):
        try:
            subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            problem = " ".join(str(getattr(error, "stderr", error)).split())
            raise DataError(
                f"{repository}: cannot be fetched ({problem}). Fix: check the network, or clone it elsewhere, with "
                f"{', '.join(paths)} in it, and name that with --from PATH."
            ) from None


def hash_blob(content: bytes) -> str:
    """Return git's id of a file."""
    return _hash("blob", content)


def hash_tree(files: Mapping[str, bytes]) -> str:
    """Return git's id of a folder that has just these files, none of them executable."""
    entries = (
        b"100644 %s\0%s" % (name.encode(), bytes.fromhex(hash_blob(content))) for name, content in sorted(files.items())
    )
    return _hash("tree", b"".join(entries))


def _hash(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0%s" % (kind.encode(), len(content), content), usedforsecurity=False).hexdigest()
