"""This module loads tokenizers and encodes text from outside, such as questions and documents.

Such text is encoded without special tokens, so that it cannot forge the structure of a prompt. A chat template is
tokenized once, and the changing parts are spliced in as ids.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from core.options import RecipeError

logger = logging.getLogger(__name__)

Ids = tuple[int, ...]

CUT = "\ue002cut\ue002"  # the tojson of transformers leaves it as it is


class Tokenizer(Protocol):
    """Names what the project uses of a Hugging Face tokenizer."""

    @property
    def eos_token_id(self) -> Any: ...
    @property
    def all_special_ids(self) -> list[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    @property
    def backend_tokenizer(self) -> Any: ...
    def get_added_vocab(self) -> dict[str, int]: ...
    def encode(self, text: Any, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> Any: ...
    def convert_ids_to_tokens(self, ids: Any) -> Any: ...
    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def __hash__(self) -> int: ...


def load_tokenizer(model: str | Path, *, for_chat: bool = True) -> Tokenizer:
    """Load the tokenizer of a folder or hub id.

    Raises:
        CheckpointError: the tokenizer is broken or, with `for_chat`, it has no chat template or no end token.
    """
    from transformers import AutoTokenizer

    from core.hub import CheckpointError, read_json, resolve

    folder = resolve(model, weights=False)
    if (folder / "config.json").is_file():
        read_json(folder / "config.json")  # otherwise transformers blames the tokenizer for a broken config
    if missing := _missing_files(folder):
        raise CheckpointError(
            f"{folder}: has no tokenizer: {missing} missing. Copy the tokenizer files of the base model into it."
        )
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # a corrupt file makes transformers raise many types
        raise CheckpointError(
            f"{folder}: no usable tokenizer ({error}). Copy the tokenizer files of the base model into it."
        ) from error
    tokenizer.clean_up_tokenization_spaces = False  # Llama 3's files ask for it; `ls .` would be read as `ls.`
    if not for_chat:
        return tokenizer
    if not tokenizer.chat_template:
        raise CheckpointError(
            f"{folder}: the tokenizer has no chat template. Use an instruction-tuned model, or put a "
            "chat_template.jinja into the folder."
        )
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"{folder}: the tokenizer has no end token; set eos_token in tokenizer_config.json.")
    turn_end = find_turn_end(tokenizer)
    if turn_end not in (None, tokenizer.eos_token_id):
        token = tokenizer.convert_ids_to_tokens(turn_end)
        logger.warning("%s: a turn ends with the chat template's %s, not with %s", folder, token, tokenizer.eos_token)
        tokenizer.eos_token = token
    return tokenizer


def find_turn_end(tokenizer: Any) -> int | None:
    """Return the id of the special token with which the chat template ends an answer; None without one."""
    if not tokenizer.chat_template:
        return None
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": CUT}]
    try:
        _, shown, end = tokenizer.apply_chat_template(chat, tokenize=False).rpartition(CUT)
    except Exception:  # a template may refuse such a chat with any error; then it says nothing about its end
        return None
    specials = special_ids(tokenizer) if shown else ()  # a template may take a list of parts alone
    return next((token for token in tokenizer.encode(end, add_special_tokens=False) if token in specials), None)


def _missing_files(folder: Path) -> str:
    """Name the files that a tokenizer needs and `folder` lacks; transformers would make one of its own instead."""

    def has(name: str) -> bool:
        return (folder / name).is_file()

    lacks = [] if has("tokenizer_config.json") else ["tokenizer_config.json"]
    vocabulary = has("tokenizer.json") or has("tekken.json") or (has("vocab.json") and has("merges.txt"))
    if not vocabulary and not any(folder.glob("*.model")):
        lacks.append("tokenizer.json (or tokenizer.model, or vocab.json with merges.txt)")
    return " and ".join(lacks)


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """Load the tokenizer of a model folder, None when it has none. Raises CheckpointError for a broken one."""
    if _missing_files(folder):
        return None
    tokenizer = load_tokenizer(folder, for_chat=False)
    check_vocabulary(folder, tokenizer)
    return tokenizer


def check_vocabulary(folder: Path, tokenizer: Any) -> None:
    """Raise CheckpointError if the tokenizer of a model folder has tokens that the model does not."""
    from core.hub import CheckpointError, read_json

    config = read_json(folder / "config.json")
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if isinstance(size, int) and largest >= size:
        raise CheckpointError(
            f"{folder}: the tokenizer has the token {token!r} of id {largest}, and config.json says vocab_size={size}, "
            "so the model has no such token. Copy this model's own tokenizer files into the folder, or, if tokens were "
            "added, enlarge the model: model.resize_token_embeddings(len(tokenizer)) of transformers, and save it."
        )


def encode_text(tokenizer: Tokenizer, text: str) -> Ids:
    """Encode text from outside; what looks like a special token becomes plain characters."""
    return encode_texts(tokenizer, [text])[0]


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """Encode many texts like `encode_text`; equal texts are encoded once."""
    # Replies of tools may hold halves of characters (lone surrogates), which a tokenizer refuses.
    texts = [text.encode(errors="replace").decode() for text in texts]
    pieces = {text: cut_added_tokens(tokenizer, text).split(CUT) for text in texts}
    distinct = list(dict.fromkeys(piece for parts in pieces.values() for piece in parts if piece))
    if not distinct:
        return [() for _ in texts]
    encoded = _copy_for_text(tokenizer)(distinct, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    ids = dict(zip(distinct, encoded, strict=True))
    by_text = {text: tuple(chain.from_iterable(ids[p] for p in parts if p)) for text, parts in pieces.items()}
    return [by_text[text] for text in texts]


def cut_added_tokens(tokenizer: Tokenizer, text: str, kept: str = "(?!)") -> str:
    """Put `CUT` behind the first character of each added token in a text, but of those of the form `kept`."""
    cut = _added_tokens(tokenizer).sub
    return cut(lambda m: m[0] if re.fullmatch(kept, m[0]) else m[0][0] + CUT + m[0][1:], text)


@lru_cache(maxsize=16)
def _copy_for_text(tokenizer: Tokenizer) -> Any:
    # `split_special_tokens` changes the tokenizer itself, with which another thread may be encoding a template.
    return copy.deepcopy(tokenizer)


@lru_cache(maxsize=16)
def _added_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return a pattern of all tokens but white space that the tokenizer matches in plain text before all others."""
    texts = sorted(filter(str.strip, map(str, tokenizer.get_added_vocab())), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that stand for structure, not text: they never go from a completion into a prompt built anew."""
    # Gemma and GPT-NeoX add line ends and runs of spaces, which are text.
    added = (token_id for token_id, token in tokenizer.added_tokens_decoder.items() if str(token).strip())
    return frozenset(tokenizer.all_special_ids) | frozenset(added)


def end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that may end a reply and are none of its text, such as Llama's <|eom_id|>, which has no name."""
    marked = (token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(tokenizer.all_special_ids) | frozenset(marked)


def token_bytes(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """Return the bytes that each id stands for. An unknown id gives none.

    Joined, the bytes of a text's ids are its UTF-8, as the tokenizer normalizes it (Qwen's to NFC).
    Byte-level tokenizers write every byte as a character of their own alphabet. Others write a space as a low line, and
    a byte that is no character as <0xE4>.
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_level = type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    added = tokenizer.added_tokens_decoder

    def to_bytes(token_id: int, token: str | None) -> bytes:
        if token is None:
            return b""
        if token_id in added and str(added[token_id]).strip("\u2581"):
            return str(added[token_id]).encode()
        if byte_level:
            return bytes(byte_of[character] for character in token)
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    return [to_bytes(*pair) for pair in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)]


class TokenTemplate:
    """Holds a user message with `{slots}`, which the model's chat template renders and the tokenizer encodes once.

    >>> template = TokenTemplate(tokenizer, "<problem>{problem}</problem>", ["problem"])
    >>> template.render(problem=ids)
    """

    def __init__(self, tokenizer: Tokenizer, message: str, slots: Sequence[str], system: str = ""):
        """Encode the template. Without a `system` message the chat template may put one of its own."""
        marks = {slot: f"@@{slot}@@" for slot in slots}
        for slot, mark in marks.items():
            if f"{{{slot}}}" not in message:
                raise ValueError(f"the message has no slot {{{slot}}}")
            message = message.replace(f"{{{slot}}}", mark)
        messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": message}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if not all(mark in rendered for mark in marks.values()):
            raise RecipeError("model.path: the chat template does not show a message's text; take another model")
        # pieces[0::2] is fixed text, pieces[1::2] the name of the slot between two such texts
        pieces = re.split(f"@@({'|'.join(slots)})@@", rendered)
        self._parts: list[Ids | str] = [
            piece if i % 2 else tuple(tokenizer.encode(piece, add_special_tokens=False))
            for i, piece in enumerate(pieces)
        ]

    @property
    def length(self) -> int:
        """Count the tokens of the template itself, with empty slots."""
        return sum(len(part) for part in self._parts if isinstance(part, tuple))

    def render(self, **slots: Sequence[int]) -> Ids:
        """Return the prompt's ids with every slot filled."""
        ids: list[int] = []
        for part in self._parts:
            ids += slots[part] if isinstance(part, str) else part
        return tuple(ids)
