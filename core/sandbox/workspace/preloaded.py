"""Imports what code that runs in workspaces asks for, so that no fork of the server has to."""

import importlib  # noqa: F401
import json  # noqa: F401
