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
SESSION = "core/gateway/session.py"
HISTORY = "core/gateway/history.py"
ECHOES = "core/gateway/echoes.py"
MESSAGES = "core/gateway/messages.py"
TRANSCRIBER = "core/gateway/transcriber.py"
GATEWAY = "core/gateway/gateway.py"
ROWS = "core/rollout/rows.py"
FUZZ_TEST = "tests/unit/gateway/test_fuzzed_agents.py"
SESSION_TESTS = "tests/unit/gateway/test_session.py"
HTTP_TESTS = "tests/unit/gateway/test_gateway.py"
ROW_TESTS = "tests/unit/rollout/test_rows.py"


class Mutation(NamedTuple):
    """Names a promise, the file that keeps it, the test, the piece of the file, and what stands there instead."""

    promise: str
    file: str
    test: str
    before: str
    after: str


# fmt: off
MUTATIONS = (
    Mutation("edited text is not taken for what was sampled",
        HISTORY, f"{SESSION_TESTS}::test_how_an_answer_came_back_is_counted",
        '        if kind == "edited":\n            return None, kind\n', ""),
    Mutation("an argument that a client adds is an edit, unless it is the schema's default",
        ECHOES, f"{SESSION_TESTS}::test_arguments_that_a_client_fills_in_as_the_schema_says_are_no_edit",
        'repr(arguments[name]) == repr(schemas[name]["default"])', "True"),
    Mutation("edited thoughts are edits",
        ECHOES, f"{SESSION_TESTS}::test_how_an_answer_came_back_is_counted",
        "if message.reasoning and collapse_whitespace(message.reasoning)",
        "if False and collapse_whitespace(message.reasoning)"),
    Mutation("edited calls are edits",
        ECHOES, f"{SESSION_TESTS}::test_an_echo_with_another_number_of_calls_is_edited",
        "return collapse_whitespace(message.text), tuple(call.canonical() for call in message.calls)",
        "return collapse_whitespace(message.text), ()"),
    Mutation("an answer is continued only where it was given",
        HISTORY, f"{SESSION_TESTS}::test_an_answer_is_continued_only_where_it_was_given",
        "if found is not None and is_answer_to(found, parent, new):", "if found is not None:"),
    Mutation("an answer is continued only after the messages that it answered",
        HISTORY, f"{SESSION_TESTS}::test_an_answer_is_continued_only_after_the_messages_that_it_answered",
        "return given.new_messages == tuple(new_messages) or given.key == make_request_key(parent, new_messages)",
        "return True"),
    Mutation("what led to an answer is taken as known only if its own request had those messages",
        HISTORY, FUZZ_TEST,
        " or found[0].continuation.messages != messages[:last]:", ":"),
    Mutation("without ids, the place of an answer decides among equal texts",
        HISTORY, FUZZ_TEST,
        "for answer in (*here, *equal):", "for answer in equal:"),
    Mutation("results of tools may come back in any order",
        MESSAGES, FUZZ_TEST,
        "return (*canonical, *sorted(results))", "return (*canonical, *results)"),
    Mutation("whitespace around a text is not an edit",
        MESSAGES, FUZZ_TEST,
        '    return " ".join(text.split())', "    return text"),
    Mutation("an answer that the client did not get cannot come back by its id",
        HISTORY, f"{SESSION_TESTS}::test_an_answer_that_was_lost_is_foreign",
        "if (found := self.answers.get(n)) is not None and found.delivered)",
        "if (found := self.answers.get(n)) is not None)"),
    Mutation("an answer that the client did not get cannot come back by its text",
        HISTORY, f"{SESSION_TESTS}::test_an_answer_that_was_lost_is_foreign",
        "if answer.delivered]", "]"),
    Mutation("an id of another session counts as unknown",
        HISTORY, f"{SESSION_TESTS}::test_an_id_of_another_session_is_foreign",
        'rf"_{self._salt}n(\\d{{1,9}})"', 'r"_[0-9a-f]{8}n(\\d{1,9})"'),
    Mutation("an answer that was lost is not trained",
        SESSION, FUZZ_TEST,
        "each.trainable and each.delivered and not each.retried", "each.trainable and not each.retried"),
    Mutation("an answer that was thrown away is not trained",
        SESSION, FUZZ_TEST,
        "each.trainable and each.delivered and not each.retried", "each.trainable and each.delivered"),
    Mutation("a frozen role is not trained",
        SESSION, f"{SESSION_TESTS}::test_roles_come_from_the_models_name",
        "            trainable=trainable,", "            trainable=True,"),
    Mutation("a frozen policy is not trained",
        SESSION, f"{SESSION_TESTS}::test_roles_come_from_the_models_name",
        "            trainable=trainable,", '            trainable=role == "policy",'),
    Mutation("a retry after no answer throws none away",
        SESSION, f"{HTTP_TESTS}::test_a_retry_untrains_no_sibling_that_the_client_kept",
        "        if self._unanswered[continuation.key]:", "        if False:"),
    Mutation("a retry throws away no answer that was continued",
        HISTORY, f"{SESSION_TESTS}::test_a_retry_throws_away_no_answer_that_was_continued",
        " and not answer.retried and answer not in parents:", " and not answer.retried:"),
    Mutation("a completion that was aborted is no answer",
        SESSION, f"{SESSION_TESTS}::test_an_aborted_call_leaves_no_turn",
        'if completion.finish_reason == "abort":', "if False:"),
    Mutation("a prompt goes on from stored ids only if the same thoughts stand before them",
        TRANSCRIBER,
        f"{SESSION_TESTS}::test_thoughts_that_the_template_leaves_out_are_gone_before_an_answer_without_any",
        "and answer.kept == kept[:n] and answer.tools == tools:", "and answer.tools == tools:"),
    Mutation("a prompt goes on from stored ids only if its own thoughts stay",
        TRANSCRIBER, f"{SESSION_TESTS}::test_the_prompt_is_the_templates_own_rendering",
        "if kept[n] and answer.kept == kept[:n]", "if answer.kept == kept[:n]"),
    Mutation("a prompt goes on from stored ids only if it shows the same tools",
        TRANSCRIBER, f"{SESSION_TESTS}::test_other_tools_begin_a_new_row",
        "and answer.kept == kept[:n] and answer.tools == tools:", "and answer.kept == kept[:n]:"),
    Mutation("an answer that moved keeps its sampled ids",
        TRANSCRIBER, f"{SESSION_TESTS}::test_an_answer_behind_a_trimmed_head_keeps_its_ids",
        "messages.append(self.encode_sampled(entry.completion, i not in hidden))",
        "messages.append(self.encode_message(entry.message))"),
    Mutation("thoughts are cut where the template leaves them out",
        TRANSCRIBER, f"{SESSION_TESTS}::test_the_prompt_is_the_templates_own_rendering",
        'return Message("assistant", ids[self._count_thought_ids(ids) :])',
        'return Message("assistant", ids)'),
    Mutation("an end token that was sampled is not written twice",
        TRANSCRIBER, f"{SESSION_TESTS}::test_the_prompt_is_the_templates_own_rendering",
        "return tail[1:] if ended and tail and tail[0] in self._ends else tail", "return tail"),
    Mutation("an answer that was cut gets its end token",
        TRANSCRIBER, f"{SESSION_TESTS}::test_a_call_that_was_cut_is_text",
        "return tail[1:] if ended and tail and tail[0] in self._ends else tail", "return tail[1:]"),
    Mutation("names and keys of calls forge no structure",
        TRANSCRIBER, f"{SESSION_TESTS}::test_keys_and_names_of_calls_forge_nothing",
        "            if special and special in text:", "            if False:"),
    Mutation("a closed session answers nothing",
        SESSION, f"{SESSION_TESTS}::test_limits_and_a_closed_session",
        "        if self.closed:", "        if False:"),
    Mutation("a session has its turns and no more",
        SESSION, f"{SESSION_TESTS}::test_limits_and_a_closed_session",
        "if turns is not None and", "if False and"),
    Mutation("a client that is killed in mid-stream has no answer",
        GATEWAY, f"{HTTP_TESTS}::test_a_client_that_is_killed_in_mid_stream_has_no_trained_turn",
        "            session.mark_lost(answer)", "            pass"),
    Mutation("a session that ends cancels what still runs",
        SESSION, f"{HTTP_TESTS}::test_a_session_that_ends_cancels_what_still_runs",
        "            call.cancel()", "            pass"),
    Mutation("an idle session is finished",
        GATEWAY, f"{HTTP_TESTS}::test_an_idle_session_is_finished_and_told",
        "if session.idle_s >= limit]", "if False]"),
    Mutation("a session with a running request is not idle",
        SESSION, f"{HTTP_TESTS}::test_an_idle_session_is_finished_and_told",
        "return 0.0 if self._running else time.monotonic() - self._used_at",
        "return time.monotonic() - self._used_at"),
    Mutation("seeds follow the prompt",
        SESSION, f"{SESSION_TESTS}::test_seeds_follow_the_prompt_and_not_the_order_of_arrival",
        "derive_seed(seed, digest.hex(), self._calls_by_prompt[digest])",
        "derive_seed(seed, '', len(self._tree.answers))"),
    Mutation("untrained turns make no rows",
        ROWS, FUZZ_TEST,
        "if turn.trained and turn.completion.token_ids]", "if turn.completion.token_ids]"),
    Mutation("a segment is continued once: no token is trained twice",
        ROWS, ROW_TESTS,
        "segment = found.pop()", "segment = list(found.pop())"),
    Mutation("a turn joins a segment only if its prompt holds all its ids",
        ROWS, FUZZ_TEST,
        "if length <= len(turn.prompt_ids) and hashes[length] == hash_of_ids:\n"
        "                found = ends[length, hash_of_ids]\n"
        "                if extends(turn.prompt_ids, turns[found[-1][-1]]):",
        "if length <= len(turn.prompt_ids):\n"
        "                found = ends[length, hash_of_ids]\n"
        "                if True:"),
    Mutation("a turn joins the segment with the longest prefix",
        ROWS, f"{ROW_TESTS}::test_a_turn_joins_the_segment_with_the_longest_prefix",
        "in sorted(ends, reverse=True):", "in sorted(ends):"),
    Mutation("all segments stay open, not the last one alone",
        ROWS, f"{ROW_TESTS}::test_conversations_that_alternate_make_one_row_each",
        "in sorted(ends, reverse=True):", "in list(ends)[-1:]:"),
    Mutation("what stands between two answers is not trained",
        ROWS, FUZZ_TEST,
        "mask += [0] * between + [1]", "mask += [1] * between + [1]"),
)
# fmt: on


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
        for name in ("core", "scripts", "tests"):
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
