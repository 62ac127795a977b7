"""Tokenizers, and text from outside as token ids.

Text from outside (questions, documents) is encoded with special tokens switched off, so that it cannot forge the
structure of a prompt.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

Ids = tuple[int, ...]

_CUT = "\x00cut\x00"


def load_tokenizer(model: str | Path, *, for_chat: bool = True) -> Any:
    """The tokenizer of a folder or hub id. Raises CheckpointError when it has no chat template and is `for_chat`."""
    from transformers import AutoTokenizer

    from core.hub import CheckpointError, read_json, resolve

    folder = resolve(model, weights=False)
    if (folder / "config.json").is_file():
        read_json(folder / "config.json")  # or transformers would blame the tokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers raises whatever its parsing of a corrupt file trips over
        raise CheckpointError(
            f"{folder}: no usable tokenizer ({error}). Copy the tokenizer files of the base model into it."
        ) from error
    if not for_chat:
        return tokenizer
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{folder}: the tokenizer has no chat template. Use an instruction-tuned model, or put a "
            "chat_template.jinja into the folder."
        )
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"{folder}: the tokenizer has no end token; set eos_token in tokenizer_config.json.")
    return tokenizer


def find_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, or None when it has none. Raises CheckpointError for a broken one."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    return load_tokenizer(folder, for_chat=False)


def encode_text(tokenizer: Any, text: str) -> Ids:
    """Ids of text from outside: what looks like a special token is encoded as the plain characters it is."""
    return encode_texts(tokenizer, [text])[0]


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[Ids]:
    """As `encode_text`, for many texts at once; equal ones are encoded once."""
    added = _added_tokens(tokenizer)
    # An added token in the text is cut after its first character, so that the tokenizer cannot see it whole.
    pieces = {text: added.sub(lambda match: match[0][0] + _CUT + match[0][1:], text).split(_CUT) for text in texts}
    distinct = list(dict.fromkeys(piece for parts in pieces.values() for piece in parts if piece))
    if not distinct:
        return [() for _ in texts]
    encoded = _plain(tokenizer)(distinct, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ids = dict(zip(distinct, encoded, strict=True))
    whole = {text: tuple(i for part in parts if part for i in ids[part]) for text, parts in pieces.items()}
    return [whole[text] for text in texts]


@lru_cache(maxsize=16)
def _plain(tokenizer: Any) -> Any:
    """A copy for text from outside: `split_special_tokens` switches the tokenizer, not the call, and another thread may
    just be encoding a template with the original."""
    return copy.deepcopy(tokenizer)


@lru_cache(maxsize=16)
def _added_tokens(tokenizer: Any) -> re.Pattern[str]:
    """Every token that the tokenizer would match in plain text before it looks at its vocabulary."""
    texts = sorted((str(token) for token in tokenizer.get_added_vocab()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def special_ids(tokenizer: Any) -> frozenset[int]:
    """All ids that stand for structure, not text: none of them may be spliced from a completion into a later prompt."""
    return frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)
