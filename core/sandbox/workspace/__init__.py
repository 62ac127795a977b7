"""Gives an agent a repository in a sandbox: it runs commands there, and what it changed comes back as a diff.

Two backends have one protocol (start, exec, put, get, diff, stop): processes in namespaces of their own, and Docker.
"""

from typing import TYPE_CHECKING

from core.options import open_later

if TYPE_CHECKING:
    from core.sandbox.workspace.base import (
        BASH,
        GIT,
        CommandResult,
        PreparedRepository,
        RepositoryWorkspace,
        WorkspaceError,
        WorkspaceLimits,
        WorkspaceUnavailable,
        check_paths,
        find_bad_path,
        pack_files,
        shorten,
    )
    from core.sandbox.workspace.docker import DockerWorkspace
    from core.sandbox.workspace.isolated import IsolatedWorkspace, choose_backend

__all__ = [
    "BASH",
    "GIT",
    "CommandResult",
    "DockerWorkspace",
    "IsolatedWorkspace",
    "PreparedRepository",
    "RepositoryWorkspace",
    "WorkspaceError",
    "WorkspaceLimits",
    "WorkspaceUnavailable",
    "check_paths",
    "choose_backend",
    "find_bad_path",
    "pack_files",
    "shorten",
]
__getattr__ = open_later(__name__)
