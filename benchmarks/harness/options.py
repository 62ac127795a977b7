"""The command-line options that evaluators share, and the types of their values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from core.options import Share, argparse_type
from core.policy.server_process import Backend

positive, seed = argparse_type(PositiveInt), argparse_type(NonNegativeInt)
temperature, share, seconds = argparse_type(NonNegativeFloat), argparse_type(Share), argparse_type(PositiveFloat)

SERVER = ("policy_url", "serve", "serve_args", "serve_python")

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "run": {"type": Path, "metavar": "RUN_DIR", "help": "a training run: its seeds, its recipe, its folder"},
    "model": {"metavar": "ID_OR_PATH", "help": "a model by folder or hub id"},
    "baseline": {"metavar": "ID_OR_PATH", "help": "the model it started from: the variant `untrained`"},
    "policy_url": {"metavar": "URL", "help": "a server that holds --model (SGLang, or our own)"},
    "serve": {"choices": get_args(Backend), "help": "start a server for --model, and stop it at the end"},
    "serve_args": {"default": "", "metavar": "ARGS", "help": 'for that server, such as --serve-args="--tp 2"'},
    "serve_python": {"default": sys.executable, "metavar": "PYTHON", "help": "of the environment that has SGLang"},
    "preset": {"help": "recipe of --model (default: paper)"},
    "set": {"dest": "overrides", "action": "append", "default": [], "metavar": "KEY=VALUE"},
    "context": {"type": positive, "metavar": "TOKENS", "help": "the models' context, if not config.json's"},
    "out": {"type": Path, "metavar": "DIR", "help": "folder of the results of --model"},
    "variants": {"nargs": "+", "metavar": "VARIANT"},
    "tasks": {"type": positive, "metavar": "N"},
    "seeds": {"nargs": "+", "type": seed, "metavar": "N", "help": "default: those of the run, or 0 1 2"},
    "temperature": {"type": temperature},
    "top_p": {"type": share},
    "retry_failed": {"action": "store_true", "help": "sample again what failed, such as with a dead server"},
    "concurrency": {"type": positive, "help": "samples at once"},
    "deadline": {"type": seconds, "metavar": "SECONDS", "help": "for each sample"},
    "kv_tokens": {"type": positive, "metavar": "N", "help": "at most so many tokens in the KV cache"},
    "threads": {"type": positive, "metavar": "N", "help": "of PyTorch"},
}


def add_options(parser: Any, *names: str, **changes: Mapping[str, Any]) -> None:
    """Add the options `names` to a parser or a group of one; `changes` maps names to what differs from OPTIONS."""
    for name in (*names, *changes):
        parser.add_argument(f"--{name.replace('_', '-')}", **{**OPTIONS[name], **changes.get(name, {})})
