"""Takes one promise of the gateway away at a time and sees that a test notices: `python -m tests.optional.mutations`.

Each mutation replaces one piece of a source file in a copy of the repository. The test that it names must fail there,
and must pass in the copy as it is. Status 1 if one of them does otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import aiohttp  # noqa: F401 (what the tests import first takes seconds; each test is a fork of this process)
import pytest
import torch
import transformers  # noqa: F401

REPOSITORY = Path(__file__).resolve().parents[2]
FUZZ = "tests/unit/gateway/test_fuzzed_agents.py"
SESSION = "tests/unit/gateway/test_session.py"
HTTP = "tests/unit/gateway/test_gateway.py"
ROWS = "tests/unit/rollout/test_rows.py"


class Mutation(NamedTuple):
    """Names a promise, the file and the piece of it that keeps it, what stands there instead, and the test."""

    promise: str
    file: str
    before: str
    after: str
    test: str


MUTATIONS = (
    Mutation(
        "edited text is not taken for what was sampled",
        "core/gateway/session.py",
        '        if echo == "edited":\n            return None, echo\n',
        "",
        f"{SESSION}::test_how_an_answer_came_back_is_counted",
    ),
    Mutation(
        "an argument that a client adds is an edit, unless it is the schema's default",
        "core/gateway/session.py",
        'repr(arguments[name]) == repr(schemas[name]["default"])',
        "True",
        f"{SESSION}::test_arguments_that_a_client_fills_in_as_the_schema_says_are_no_edit",
    ),
    Mutation(
        "edited thoughts are edits",
        "core/gateway/session.py",
        "if message.reasoning and fold(message.reasoning)",
        "if False and fold(message.reasoning)",
        f"{SESSION}::test_how_an_answer_came_back_is_counted",
    ),
    Mutation(
        "edited calls are edits",
        "core/gateway/session.py",
        "return fold(message.text), tuple(call.canonical() for call in message.calls)",
        "return fold(message.text), ()",
        f"{SESSION}::test_an_echo_with_another_number_of_calls_is_edited",
    ),
    Mutation(
        "an answer is continued only where it was given",
        "core/gateway/session.py",
        "if found is not None and found.parent is node and is_same_lead(found, lead):",
        "if found is not None:",
        f"{SESSION}::test_an_answer_is_continued_only_where_it_was_given",
    ),
    Mutation(
        "an answer is continued only after the messages that it answered",
        "core/gateway/session.py",
        "if found is not None and found.parent is node and is_same_lead(found, lead):",
        "if found is not None and found.parent is node:",
        f"{SESSION}::test_an_answer_is_continued_only_after_the_messages_that_it_answered",
    ),
    Mutation(
        "what led to an answer is taken as known only if its own request had those messages",
        "core/gateway/session.py",
        " or found[0].place.messages != messages[:last]:",
        ":",
        FUZZ,
    ),
    Mutation(
        "without ids, the place of an answer decides among equal texts",
        "core/gateway/session.py",
        "for node in (*here, *equal):",
        "for node in equal:",
        FUZZ,
    ),
    Mutation(
        "results of tools may come back in any order",
        "core/gateway/messages.py",
        "return (*folded, *sorted(results))",
        "return (*folded, *results)",
        FUZZ,
    ),
    Mutation(
        "whitespace around a text is not an edit",
        "core/gateway/messages.py",
        '    return " ".join(text.split())',
        "    return text",
        FUZZ,
    ),
    Mutation(
        "an answer that the client did not get cannot come back by its id",
        "core/gateway/session.py",
        "if (node := self._nodes.get(n)) is not None and node.answered)",
        "if (node := self._nodes.get(n)) is not None)",
        f"{SESSION}::test_an_answer_that_was_lost_is_foreign",
    ),
    Mutation(
        "an answer that the client did not get cannot come back by its text",
        "core/gateway/session.py",
        "if node.answered]",
        "]",
        f"{SESSION}::test_an_answer_that_was_lost_is_foreign",
    ),
    Mutation(
        "an id of another session counts as unknown",
        "core/gateway/session.py",
        'rf"_{self._salt}n(\\d{{1,9}})"',
        'r"_[0-9a-f]{8}n(\\d{1,9})"',
        f"{SESSION}::test_an_id_of_another_session_is_foreign",
    ),
    Mutation(
        "an answer that was lost is not trained",
        "core/gateway/session.py",
        "node.trainable and node.answered and not node.retried",
        "node.trainable and not node.retried",
        FUZZ,
    ),
    Mutation(
        "an answer that was thrown away is not trained",
        "core/gateway/session.py",
        "node.trainable and node.answered and not node.retried",
        "node.trainable and node.answered",
        FUZZ,
    ),
    Mutation(
        "a frozen role is not trained",
        "core/gateway/session.py",
        "            trainable=trainable,",
        "            trainable=True,",
        f"{SESSION}::test_roles_come_from_the_models_name",
    ),
    Mutation(
        "a frozen policy is not trained",
        "core/gateway/session.py",
        "            trainable=trainable,",
        '            trainable=role == "policy",',
        f"{SESSION}::test_a_frozen_policy_is_not_trained",
    ),
    Mutation(
        "a retry after no answer throws none away",
        "core/gateway/session.py",
        "        if self._unanswered[place.key]:",
        "        if False:",
        f"{HTTP}::test_a_retry_untrains_no_sibling_that_the_client_kept",
    ),
    Mutation(
        "a retry throws away no answer that was continued",
        "core/gateway/session.py",
        " and not node.retried and node not in parents:",
        " and not node.retried:",
        f"{SESSION}::test_a_retry_throws_away_no_answer_that_was_continued",
    ),
    Mutation(
        "a completion that was aborted is no answer",
        "core/gateway/session.py",
        'if completion.finish_reason == "abort":',
        "if False:",
        f"{SESSION}::test_an_aborted_call_leaves_no_turn",
    ),
    Mutation(
        "a prompt goes on from stored ids only if the same thoughts stand before them",
        "core/gateway/session.py",
        "and node.kept == kept[:n] and node.tools == tools:",
        "and node.tools == tools:",
        f"{SESSION}::test_thoughts_that_the_template_leaves_out_are_gone_before_an_answer_without_any",
    ),
    Mutation(
        "a prompt goes on from stored ids only if its own thoughts stay",
        "core/gateway/session.py",
        "if kept[n] and node.kept == kept[:n]",
        "if node.kept == kept[:n]",
        f"{SESSION}::test_the_prompt_is_the_templates_own_rendering",
    ),
    Mutation(
        "a prompt goes on from stored ids only if it shows the same tools",
        "core/gateway/session.py",
        "and node.kept == kept[:n] and node.tools == tools:",
        "and node.kept == kept[:n]:",
        f"{SESSION}::test_other_tools_begin_a_new_row",
    ),
    Mutation(
        "an answer that moved keeps its sampled ids",
        "core/gateway/session.py",
        "messages.append(transcriber.encode_sampled(entry.completion, next(keeps_thoughts)))",
        "messages.append(transcriber.encode_message(entry.message))",
        f"{SESSION}::test_an_answer_behind_a_trimmed_head_keeps_its_ids",
    ),
    Mutation(
        "thoughts are cut where the template leaves them out",
        "core/gateway/transcriber.py",
        'return Message("assistant", ids[self._count_thought_ids(ids) :])',
        'return Message("assistant", ids)',
        f"{SESSION}::test_the_prompt_is_the_templates_own_rendering",
    ),
    Mutation(
        "an end token that was sampled is not written twice",
        "core/gateway/transcriber.py",
        "return tail[1:] if ended and tail and tail[0] in self._ends else tail",
        "return tail",
        f"{SESSION}::test_the_prompt_is_the_templates_own_rendering",
    ),
    Mutation(
        "an answer that was cut gets its end token",
        "core/gateway/transcriber.py",
        "return tail[1:] if ended and tail and tail[0] in self._ends else tail",
        "return tail[1:]",
        f"{SESSION}::test_a_call_that_was_cut_is_text",
    ),
    Mutation(
        "names and keys of calls forge no structure",
        "core/gateway/transcriber.py",
        "            if special and special in text:",
        "            if False:",
        f"{SESSION}::test_keys_and_names_of_calls_forge_nothing",
    ),
    Mutation(
        "a closed session answers nothing",
        "core/gateway/session.py",
        "        if self.closed:",
        "        if False:",
        f"{SESSION}::test_limits_and_a_closed_session",
    ),
    Mutation(
        "a session has its turns and no more",
        "core/gateway/session.py",
        "if turns is not None and",
        "if False and",
        f"{SESSION}::test_limits_and_a_closed_session",
    ),
    Mutation(
        "a client that is killed in mid-stream has no answer",
        "core/gateway/gateway.py",
        "            session.mark_lost(node)",
        "            pass",
        f"{HTTP}::test_a_client_that_is_killed_in_mid_stream_has_no_trained_turn",
    ),
    Mutation(
        "a session that ends cancels what still runs",
        "core/gateway/session.py",
        "            call.cancel()",
        "            pass",
        f"{HTTP}::test_a_session_that_ends_cancels_what_still_runs",
    ),
    Mutation(
        "an idle session is finished",
        "core/gateway/gateway.py",
        "if session.idle_s >= limit]",
        "if False]",
        f"{HTTP}::test_an_idle_session_is_finished_and_told",
    ),
    Mutation(
        "a session with a running request is not idle",
        "core/gateway/session.py",
        "return 0.0 if self._running else time.monotonic() - self._used_at",
        "return time.monotonic() - self._used_at",
        f"{HTTP}::test_an_idle_session_is_finished_and_told",
    ),
    Mutation(
        "seeds follow the prompt",
        "core/gateway/session.py",
        "derive_seed(seed, digest.hex(), self._calls_by_prompt[digest])",
        "derive_seed(seed, '', len(self._nodes))",
        f"{SESSION}::test_seeds_follow_the_prompt_and_not_the_order_of_arrival",
    ),
    Mutation(
        "untrained turns make no rows",
        "core/rollout/rows.py",
        "if turn.trained and turn.completion.token_ids]",
        "if turn.completion.token_ids]",
        FUZZ,
    ),
    Mutation(
        "a segment is continued once: no token is trained twice",
        "core/rollout/rows.py",
        "segment = found.pop()",
        "segment = list(found.pop())",
        ROWS,
    ),
    Mutation(
        "a turn joins a segment only if its prompt holds all its ids",
        "core/rollout/rows.py",
        "if length <= len(turn.prompt_ids) and hashes[length] == hash_of_ids:\n"
        "                found = ends[length, hash_of_ids]\n"
        "                if extends(turn.prompt_ids, found[-1][-1]):",
        "if length <= len(turn.prompt_ids):\n"
        "                found = ends[length, hash_of_ids]\n"
        "                if True:",
        FUZZ,
    ),
    Mutation(
        "a turn joins the segment with the longest prefix",
        "core/rollout/rows.py",
        "in sorted(ends, reverse=True):",
        "in sorted(ends):",
        f"{ROWS}::test_a_turn_joins_the_segment_with_the_longest_prefix",
    ),
    Mutation(
        "all segments stay open, not the last one alone",
        "core/rollout/rows.py",
        "in sorted(ends, reverse=True):",
        "in list(ends)[-1:]:",
        f"{ROWS}::test_conversations_that_alternate_make_one_row_each",
    ),
    Mutation(
        "what stands between two answers is not trained",
        "core/rollout/rows.py",
        "mask += [0] * between + [1]",
        "mask += [1] * between + [1]",
        FUZZ,
    ),
)


def apply(mutation: Mutation, folder: Path) -> str:
    """Change a file of the copy; return what it was."""
    path = folder / mutation.file
    text = path.read_text()
    if text.count(mutation.before) != 1:
        raise ValueError(f"{mutation.file} has not exactly one {mutation.before!r}; mend the list of mutations")
    path.write_text(text.replace(mutation.before, mutation.after))
    return text


def run_test(test: str, folder: Path) -> int:
    """Run a test in the copy, in a fork of this process, and return pytest's status."""
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        sys.path[0] = str(folder)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--timeout=0", test])
        os._exit(int(status))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.mutations", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutations whose promise or test holds this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True  # two mutations of one file within a second look the same to its cache
    chosen = [mutation for mutation in MUTATIONS if options.only in f"{mutation.promise} {mutation.test}"]
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("core", "tests"):
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        broken = {test for test in {m.test for m in chosen} if run_test(test, folder) != pytest.ExitCode.OK}
        for test in sorted(broken):
            print(f"FAILS without any mutation: {test}")
        for mutation in chosen:
            before = apply(mutation, folder)
            noticed = mutation.test not in broken and run_test(mutation.test, folder) == pytest.ExitCode.TESTS_FAILED
            (folder / mutation.file).write_text(before)
            survived += not noticed
            print(f"{'noticed ' if noticed else 'SURVIVED'}  {mutation.promise}  ({mutation.test})", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutations make their test fail")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
