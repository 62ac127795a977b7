"""This module reads the fields of one record, and remembers which it read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from core.data.files import SourceLocation
from core.rewards.answer_grader import is_accepted
from core.rewards.answers import count_words, unwrap

Chat = tuple[tuple[Mapping[str, str], ...], str, str | None]
"""Holds the messages before the last question, that question, and the reply after it, if there is one."""

_SOLUTION = re.compile(r"(?:\A|\s)####\s*(\S.*)\Z")
"""Finds the final answer that ends a solution of GSM8K."""
_CHAT_AS_TEXT = re.compile(r"""\s*\[\s*\{(?=.*["']role["']\s*:)(?=.*["']content["']\s*:).*\}\s*\]\s*""", re.DOTALL)
"""Finds what pandas or a CSV file makes of messages."""
_ENVIRONMENT = re.compile(r"\\begin\{(\w+)\}.*\\end\{\1\}", re.DOTALL)
"""Finds a matrix or the like, whose rows may be lines."""
MAX_WORDS = 100
"""Limits the words of a final answer; the longest of MATH, DeepMath, HotpotQA and MuSiQue have about 20."""
MESSAGE_KEYS = ("role", "content", "tool_calls")
MESSAGE = '{"role": "user", "content": "..."}'
ALONE = (
    'write the final answer alone, such as "72", or end the text with a line "#### 72"; what only a reward of your own '
    "reads belongs in `metadata`"
)
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Fields:
    """Reads an object of a record; every wrong value is an error that names file, record and field.

    `prefix` names the object within its record, `used` the fields that were read. `notes` tell what was dropped or
    guessed within a field.
    """

    values: Mapping[str, Any]
    location: SourceLocation
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)

    def take(self, name: str) -> Any:
        """Return the value of a field as it is; None if it is missing."""
        self.used.add(self.prefix + name)
        return self.values.get(name)

    def text(self, name: str) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, f"must be a non-empty string, is {value!r:.60}", "write the text there")
        return value

    def name(self, name: str) -> str | None:
        """Return what names the record, a text or an integer, as text; None if it is missing or null."""
        value = self.take(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of integers with gaps is read as floats
        if value is not None and type(value) not in (str, int):
            raise self.error(name, f"must be a text or an integer, is {value!r:.60}", "write that, or leave it out")
        return None if value is None or not str(value).strip() else str(value)

    def keep(self, *names: str) -> dict[str, Any]:
        """Return those of the fields that hold something, as metadata; NaN is a gap in a column of numbers."""
        return {name: value for name in names if (value := self.take(name)) is not None and value == value}

    def open(self, name: str) -> Fields:
        """Return the reader of an object, also of JSON text, as in CSV; of an empty one if the field has nothing."""
        value = self.values.get(name)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            with suppress(ValueError):
                value = json.loads(self.take(name))
        if value not in (None, "") and not isinstance(value, Mapping):
            raise self.error(name, f"must be an object, is a {type(value).__name__}", "write it as a JSON object")
        return Fields(value or {}, self.location, f"{self.prefix}{name}.", self.used, self.notes)

    def all(self) -> dict[str, Any]:
        """Return all fields of this object."""
        self.used.update(self.prefix + name for name in self.values)
        return dict(self.values)

    def context(self, name: str = "context") -> str:
        """Return the document, "" without one."""
        value = self.take(name)
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, list) and value and isinstance(value[0], int):
            problem = "holds document numbers (MemAgent's format above 10,000 documents) and not their text"
            fix = (
                "`tokentrue data ruler --task hqa --num-docs 12800 --hotpotqa FILE --tokenizer MODEL --count 9 --out F`"
            )
            raise self.error(name, problem, f"build the tasks with {fix}")
        raise self.error(name, f"must be a string, is a {type(value).__name__}", "join the documents into one text")

    def answers(self, name: str, *, short: bool, numbers: bool = False, empty: bool = False) -> tuple[str, ...]:
        """Return the accepted answers, at least one unless the task may have none (`empty`).

        `short` refuses what no final answer can equal, such as a whole solution. GSM8K's solutions end in `#### 72`,
        which is the answer. `numbers` says that a number is an answer too, as in mathematics.
        """
        value = self.take(name)
        if empty and (value is None or value == "" or value == []):
            return ()
        answers = value if isinstance(value, list) else [value]
        if not answers or answers == [None] or isinstance(value, Mapping):
            raise self.error(name, f"must be one or more texts, is {value!r:.60}", 'write "72", or ["Bob", "Robert"]')
        return tuple(self.read_answer(answer, name, short, numbers) for answer in answers)

    def messages(self, name: str) -> tuple[Mapping[str, str], ...]:
        """Return a list of messages; an empty one if the field is missing or null."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, f"must be a list of messages, is {value!r:.60}", f"write [{MESSAGE}]")
        return tuple(self._read_message(message, f"{name}.{i}") for i, message in enumerate(value or ()))

    def chat(self, name: str, *, may_reply: bool = False) -> Chat:
        """Read a question: a text, or messages, of which the user's last one is the question."""
        if not isinstance(self.take(name), list):
            if _CHAT_AS_TEXT.fullmatch(text := self.text(name)):
                raise self.error(name, f"holds messages written as text: {text!r:.60}", "write a list, in JSON lines")
            return (), text, None
        messages, reply = list(self.messages(name)), None
        if may_reply and messages and messages[-1]["role"] == "assistant":
            reply = messages.pop()["content"]
        if not messages or messages[-1]["role"] != "user":
            raise self.error(name, "does not end with a message of the user", f"end it with the question: {MESSAGE}")
        question = Fields(messages.pop(), self.location, f"{self.prefix}{name}.{len(messages)}.").text("content")
        return tuple(messages), question, reply

    def first(self, names: Sequence[str]) -> str | None:
        """Return the first of the fields that has a value, else the first that is there; None if none is."""
        there = [name for name in names if name in self.values]
        return next((name for name in there if self.values[name] is not None), there[0] if there else None)

    def find_unused(self) -> Iterator[str]:
        """Yield the names of fields that hold something and were not read."""
        for name, value in self.values.items():
            full = f"{self.prefix}{name}"
            if full in self.used or value is None or value == "" or value == [] or value == {}:
                continue
            if isinstance(value, Mapping) and any(used.startswith(f"{full}.") for used in self.used):
                yield from Fields(value, self.location, f"{full}.", self.used).find_unused()
            else:
                yield full

    def read_answer(self, answer: Any, name: str, short: bool, numbers: bool = False) -> str:
        """Return one accepted answer, as `answers` does."""
        if isinstance(answer, str) and answer.strip():
            if match := _SOLUTION.search(answer.rstrip()):
                self.notes.add(f"what stands before #### in {self.prefix}{name} is not used")
                answer = (
                    match[1].replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", match[1]) else match[1]
                )
            if short and (kind := _describe_solution(answer.strip())):
                problem = f"is {kind}, and no final answer equals it: {answer.strip()!r:.60}"
                raise self.error(name, problem, ALONE)
            if re.fullmatch(r"""\[\s*(["'])(?s:.*)\1\s*\]""", answer.strip()):
                self.notes.add(f"the list written as text in {self.prefix}{name} is read as one answer")
            return answer
        fix = 'write the final answer as a text, such as "72"'
        if isinstance(answer, int | float | Decimal) and not isinstance(answer, bool) and math.isfinite(answer):
            number = Decimal(str(answer))
            written = str(int(number)) if number == number.to_integral_value() else f"{number:f}"
            if numbers:
                return written
            fix = f'write it as a text: "{written}"'
        raise self.error(name, f"must hold texts that are not empty, holds {answer!r:.60}", fix)

    def _read_message(self, message: Any, name: str) -> dict[str, str]:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, Mapping) else message
            raise self.error(f"{name}.role", f"is {role!r:.60}, none of {', '.join(ROLES)}", f"write {MESSAGE}")
        content: Any = message.get("content")
        parts = content if isinstance(content, list) else [content]
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
        if not all(isinstance(part, str) for part in parts):
            raise self.error(f"{name}.content", f"must be a text, is {content!r:.60}", "write text; leave pictures out")
        if message.get("tool_calls"):
            raise self.error(f"{name}.tool_calls", "calls of tools cannot be kept", "leave this message out")
        others = (key for key in message if key not in MESSAGE_KEYS and message[key])
        self.notes.update(f"{key} of a message is not used" for key in others)
        return {"role": message["role"], "content": "".join(map(str, parts))}

    def error(self, name: str, problem: str, fix: str) -> Exception:
        return self.location.error(self.prefix + name, problem, fix)


def _describe_solution(answer: str) -> str | None:
    """Say why a text cannot be a final answer; None if it can."""
    lines, words = len(_ENVIRONMENT.sub("", answer).splitlines()), count_words(answer)
    if lines > 1 or words > MAX_WORDS:
        return f"a text of {lines} lines" if lines > 1 else f"a text of {words} words"
    if "\\boxed" in unwrap(answer):
        return "a box with text around it"
    return None if is_accepted(answer, [answer]) else "nothing once normalised"
