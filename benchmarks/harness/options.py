"""Defines the command-line options that evaluators share, and the types of their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from core.options import Share, argparse_type
from core.policy.server_process import Backend

positive, seed = argparse_type(PositiveInt), argparse_type(NonNegativeInt)
temperature, share, seconds = argparse_type(NonNegativeFloat), argparse_type(Share), argparse_type(PositiveFloat)

OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "models": {
        "run": {"type": Path, "metavar": "RUN_DIR", "help": "a training run: its seeds, its recipe, its folder"},
        "model": {"metavar": "ID_OR_PATH", "help": "a model by folder or hub id"},
        "untrained": {"metavar": "ID_OR_PATH", "help": "the model it started from: the variant `untrained`"},
        "policy_url": {"metavar": "URL", "help": "a server that holds --model (SGLang, ours; vllm+URL: vLLM)"},
        "policy_key_file": {"type": Path, "metavar": "FILE", "help": "holds the API key of that server"},
        "serve": {"choices": get_args(Backend), "help": "start a server for --model, and stop it at the end"},
        "serve_args": {"default": "", "metavar": "ARGS", "help": 'for that server, such as --serve-args="--tp 2"'},
        "serve_python": {"default": sys.executable, "metavar": "PYTHON", "help": "of the server's environment"},
        "preset": {"help": "recipe of --model (default: paper)"},
        "published_as": {"metavar": "NAME", "help": "the published model that --model stands for"},
        "set": {"dest": "overrides", "action": "append", "default": [], "metavar": "KEY=VALUE"},
        "context": {"type": positive, "metavar": "TOKENS", "help": "the models' context, if not config.json's"},
        "out": {"type": Path, "metavar": "DIR", "help": "folder of the results (default: one in runs/)"},
    },
    "what and how": {
        "variants": {"nargs": "+", "metavar": "VARIANT", "help": "default: all that there is a model for"},
        "tasks": {"type": positive, "metavar": "N"},
        "seeds": {"nargs": "+", "type": seed, "metavar": "N", "help": "default: those of the run, or 0 1 2"},
        "temperature": {"type": temperature, "default": 0.7},
        "top_p": {"type": share, "default": 0.95},
        "retry_failed": {"action": "store_true", "help": "sample again what failed, such as with a dead server"},
        "accept_changes": {"action": "store_true", "help": "go on although the method's code has changed"},
        "concurrency": {"type": positive, "default": 16, "metavar": "N", "help": "samples at once"},
        "deadline": {"type": seconds, "default": 3600.0, "metavar": "SECONDS", "help": "for each sample"},
        "kv_tokens": {"type": positive, "metavar": "N", "help": "at most so many tokens in the KV cache"},
        "threads": {"type": positive, "metavar": "N", "help": "of PyTorch"},
    },
}
RARE = {"run", "untrained", "published_as", "context", "seeds", "kv_tokens"}
"""Options that an evaluator has only if it names them."""


def make_evaluator_parser(
    name: str, description: str | None, *rare: str, **changes: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """Return a parser with the shared options, and those of RARE that it is given.

    `changes` maps options to what differs from OPTIONS. The first line of `description` is shown.
    """
    first, _, _ = (description or "").partition("\n")
    parser = argparse.ArgumentParser(prog=f"tokentrue evaluate {name}", description=first)
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option, settings in options.items():
            if option not in RARE or option in rare or option in changes:
                group.add_argument(f"--{option.replace('_', '-')}", **{**settings, **changes.get(option, {})})
    return parser
