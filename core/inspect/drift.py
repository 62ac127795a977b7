"""Check that what was trained is what was sampled, in recorded rollouts or in dumps of slime, TRL and verl.

DUMP is a run folder, a rollouts.jsonl.gz, a file of `inspect export`, one of slime's --save-debug-rollout-data, or a
batch of TRL or verl that was saved with torch.save (docs/debugging.md). The exit status is 0 without drift, 1 with
drift and 2 when nothing could be read. The kinds of drift are:

  retokenised       a prompt has the text of an earlier turn of its row, but other ids
  not_extended      a prompt does not begin with an earlier turn of its row
  ids, mask         a row has other tokens, or another loss mask, than its turns give
  mask              a token is trained that has no log-prob of the engine, where the trainer's is not near 0; or a
                    turn that is trained stands in no row, or in two
  after_end         a completion goes on after the end token: the mask covers what was not sampled
  logprobs          a row has other log-probs than its turns, or one is missing, not finite or above 0
  shifted           the log-probs are those of the next or of the previous token
  other_weights     the log-probs are not those of the weights that the trainer, or --weights, has
  inconsistent      after the same ids one token has two log-probs, or all tokens together more than 1
  version           weights that are older than those of the turn before, or newer than the step
  special_token     a special token in a prompt stands where a question or a completion had plain text
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from core.hub import resolve
from core.inspect.dumps import is_dump, list_records, read_dump
from core.options import make_command_parser, show_errors
from core.runs.record import RecordedRollout, RecordedTurn, describe_row
from core.runs.run_folder import RunFolder
from core.text.tokenizer import Tokenizer, load_tokenizer, token_bytes
from core.types import POLICY

SHOWN = 10
"""Limits the lines that are printed for one kind of drift."""
CLOSE = 0.1
"""Engine and trainer compute the same log-prob in different ways. A mean difference up to this many nats is theirs."""
FAR = 0.5
"""A larger mean difference, in nats, is not rounding: the weights are others."""
SAME = 1.0
"""Bounds how much two log-probs of the same token after the same ids may differ in bfloat16, in nats."""
WHOLE = 1.5
"""Bounds the probability of all tokens after the same ids, which rounding may lift above 1."""

Score = Callable[[Sequence[int], Sequence[int]], Sequence[float]]
"""Maps prompt and completion to the log-probs of the completion."""


class Drift(NamedTuple):
    """One fault: its kind, the turn (from 0) if it has one, and what is wrong."""

    kind: str
    turn: int | None
    text: str


class DriftChecker:
    """Checks rollouts one after the other. `scores` computes log-probs again for the weight versions that it names."""

    def __init__(self, tokenizer: Tokenizer, scores: Mapping[str, Score] | None = None):
        self._tokenizer = tokenizer
        self._scores = scores or {}
        special = {i: tokenizer.convert_ids_to_tokens(i) for i in tokenizer.all_special_ids}
        self._special = frozenset(special)
        self._special_text = re.compile("|".join(re.escape(text) for text in special.values()) or r"(?!)")
        self._step: tuple[str, int] | None = None
        # For the ids before a token, by their hash: the log-prob of each token that followed, and in which rollout.
        self._followers: dict[int, dict[int, tuple[float, str]]] = {}

    def check(self, rollout: RecordedRollout, name: str, newest: int | None = None) -> Iterator[Drift]:
        """Yield the drift of a rollout; `name` tells it apart, and `newest` is the newest weight version there was."""
        yield from self._check_rows(rollout)
        yield from self._check_versions(rollout, newest)
        for place, turn in enumerate(rollout.turns):
            current = newest is None or turn.versions == [str(newest)]
            found = self._check_turn(rollout, place, turn, name, current)
            yield from (Drift(kind, place, text) for kind, text in found)
        yield from self._check_special_tokens(rollout)

    def _check_rows(self, rollout: RecordedRollout) -> Iterator[Drift]:
        held = Counter(place for row in rollout.rows for place in row.turns)
        for place, turn in enumerate(rollout.turns if rollout.rows else ()):
            if turn.trained and turn.sampled and held[place] != 1:
                yield Drift("mask", place, f"it is trained, and stands in {held[place]} rows")
        for row in rollout.rows:
            whole = [[*rollout.prompts[i], *rollout.turns[i].sampled] for i in row.turns]
            faults = [] if row.joined else list(self._check_extension(rollout, row.turns, whole))
            yield from faults
            if faults or not row.turns:
                continue
            # Where each turn's sampled tokens are among the tokens of the row.
            turns = [rollout.turns[i] for i in row.turns]
            if row.joined:
                tokens = [*rollout.prompts[row.turns[0]], *(token for turn in turns for token in turn.sampled)]
                ends = list(
                    accumulate((len(turn.sampled) for turn in turns), initial=len(rollout.prompts[row.turns[0]]))
                )
                starts = ends[:-1]
            else:
                tokens = whole[-1]
                starts = [len(rollout.prompts[i]) for i in row.turns]
            mask, logprobs = [0] * len(tokens), [0.0] * len(tokens)
            for start, turn in zip(starts, turns, strict=True):
                end = start + len(turn.sampled)
                mask[start:end] = [int(turn.trained)] * len(turn.sampled)
                logprobs[start:end] = [math.nan if x is None else x for x in turn.logprobs]
            expected = describe_row(tokens, mask[starts[0] :], logprobs[starts[0] :], row.turns)
            last = row.turns[-1]
            if (row.length, row.ids_crc32) != (expected.length, expected.ids_crc32):
                yield Drift("ids", last, f"the row of turns {row.turns} has other tokens than were sampled")
            elif row.trained != expected.trained:
                yield Drift("mask", last, f"trained are the tokens {row.trained}, and sampled {expected.trained}")
            elif row.logprobs_crc32 != expected.logprobs_crc32:
                yield Drift("logprobs", last, f"the row of turns {row.turns} has other log-probs than were sampled")

    def _check_extension(
        self, rollout: RecordedRollout, places: Sequence[int], whole: Sequence[list[int]]
    ) -> Iterator[Drift]:
        """Compare each prompt of a row with all ids of the turn before it, which are in `whole`."""
        for (_, place), (before, _) in zip(pairwise(places), pairwise(whole), strict=True):
            prompt = rollout.prompts[place]
            if prompt[: len(before)] == before:
                continue
            at = next(
                (i for i, pair in enumerate(zip(prompt, before, strict=False)) if pair[0] != pair[1]), len(prompt)
            )
            same_text = self._tokenizer.decode(prompt).startswith(self._tokenizer.decode(before))
            was, now = (repr(self._tokenizer.decode(ids[at : at + 4])) for ids in (before, prompt))
            kind = "retokenised" if same_text else "not_extended"
            yield Drift(kind, place, f"at token {at} the turn before has {was}, and this prompt {now}")

    def _check_versions(self, rollout: RecordedRollout, newest: int | None) -> Iterator[Drift]:
        last = 0
        for place, turn in enumerate(rollout.turns):
            versions = [int(version) for version in turn.versions if version.isdecimal()]
            if not turn.trained or not versions:
                continue
            # Turns are in the order of their ends, so only the weights of their last tokens are.
            if versions != sorted(versions) or versions[-1] < last:
                yield Drift("version", place, f"sampled by weights {versions}, after a turn of weights {last}")
            elif newest is not None and versions[-1] > newest:
                yield Drift("version", place, f"sampled by weights {versions[-1]}, and the newest were {newest}")
            last = versions[-1]

    def _check_turn(
        self, rollout: RecordedRollout, place: int, turn: RecordedTurn, name: str, current: bool
    ) -> Iterator[tuple[str, str]]:
        """Yield kind and text of the drift of one turn; `current` weights are those that the trainer began with."""
        end = self._tokenizer.eos_token_id
        if turn.trained and end in turn.sampled[:-1]:
            yield "after_end", f"token {turn.sampled.index(end)} of {len(turn.sampled)} is the end token"
        wrong = [i for i, value in enumerate(turn.logprobs) if value is None or value > 1e-3]
        if wrong:
            yield "logprobs", f"the log-prob of token {wrong[0]} is {turn.logprobs[wrong[0]]}"
            return
        logprobs = [value for value in turn.logprobs if value is not None]
        score = None
        if not turn.earlier_versions:
            yield from self._check_followers(rollout, place, turn, logprobs, name)
        if is_scored(rollout, turn):
            score = self._scores.get(turn.weight_version)
        scored = score(rollout.prompts[place], turn.sampled) if score else None
        for reference, same_weights in ((turn.trainer_logprobs, current), (scored, True)):
            fault = None if reference is None else compare_logprobs(logprobs, reference)
            at = None if reference is None else find_unsampled(logprobs, reference)
            if at is not None and (fault is None or fault[0] != "shifted"):
                fault = "mask", f"token {at} is trained, and has the log-prob 0 of what was not sampled"
            # Older weights than the trainer's have other log-probs, and should.
            if fault and (same_weights or fault[0] != "other_weights"):
                yield fault
                return

    def _check_followers(
        self, rollout: RecordedRollout, place: int, turn: RecordedTurn, logprobs: Sequence[float], name: str
    ) -> Iterator[tuple[str, str]]:
        """Compare with the turns of the same step whose prompts are equal."""
        if self._step != (rollout.stage, rollout.step):
            self._step = rollout.stage, rollout.step
            self._followers.clear()
        before = hash((turn.role, turn.weight_version, *rollout.prompts[place]))
        for i, (token, logprob) in enumerate(zip(turn.sampled, logprobs, strict=True)):
            known = self._followers.setdefault(before, {})
            earlier, where = known.setdefault(token, (logprob, name))
            if abs(earlier - logprob) > SAME:
                yield "inconsistent", f"token {i} has the log-prob {logprob:.3f} here, and {earlier:.3f} in {where}"
                return
            if (total := sum(math.exp(value) for value, _ in known.values())) > WHOLE:
                names = ", ".join(dict.fromkeys(where for _, where in known.values()))
                yield "inconsistent", f"the tokens {sorted(known)} have the probability {total:.2f} together: {names}"
                return
            before = hash((before, token))

    def _check_special_tokens(self, rollout: RecordedRollout) -> Iterator[Drift]:
        """Look for texts that hold the text of a special token, where a prompt has the token itself."""
        plain = [rollout.question] if self._special_text.search(rollout.question) else []
        for place, turn in enumerate(rollout.turns):
            found = self._find_special(rollout.prompts[place], plain) if plain else None
            if found is not None:
                text = self._tokenizer.convert_ids_to_tokens(rollout.prompts[place][found])
                yield Drift(
                    "special_token", place, f"token {found} of the prompt is {text}, which came from plain text"
                )
            body = turn.sampled
            while body and body[-1] in self._special:
                body = body[:-1]
            if body and not self._special.intersection(body):
                written = self._tokenizer.decode(body)
                if self._special_text.search(written):
                    plain.append(written)

    def _find_special(self, prompt: Sequence[int], texts: Iterable[str]) -> int | None:
        """Return the place of a special token in `prompt` that lies inside of one of `texts`."""
        pieces = token_bytes(self._tokenizer, prompt)
        whole, starts = b"".join(pieces), list(accumulate(map(len, pieces), initial=0))
        for text in texts:
            begin = whole.find(text.encode())
            while begin >= 0:
                end = begin + len(text.encode())
                for place, token in enumerate(prompt):
                    if token in self._special and begin <= starts[place] < end:
                        return place
                begin = whole.find(text.encode(), begin + 1)
        return None


def find_unsampled(logprobs: Sequence[float], reference: Sequence[float | None]) -> int | None:
    """Return the first token with the log-prob 0, which frameworks write beside a tool's text, that is not certain."""
    pairs = enumerate(zip(logprobs, reference, strict=True))
    return next((i for i, (ours, theirs) in pairs if ours == 0.0 and theirs is not None and theirs < -SAME), None)


def compare_logprobs(logprobs: Sequence[float], reference: Sequence[float | None]) -> tuple[str, str] | None:
    """Return the kind of drift between log-probs and others of the same tokens, and the numbers; None without drift."""

    def distance(ours: Sequence[float], theirs: Sequence[float | None]) -> float:
        differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True) if b is not None]
        return sum(differences) / len(differences) if differences else 0.0

    apart = distance(logprobs, reference)
    if len(logprobs) > 2 and apart > CLOSE:
        for ours, theirs, which in ((logprobs[1:], reference[:-1], "previous"), (logprobs[:-1], reference[1:], "next")):
            if (shifted := distance(ours, theirs)) < apart / 4:
                return (
                    "shifted",
                    f"they differ by {apart:.3f} on average, and by {shifted:.3f} from the {which} token's",
                )
    return ("other_weights", f"they differ by {apart:.3f} on average") if apart > FAR else None


def is_scored(rollout: RecordedRollout, turn: RecordedTurn) -> bool:
    """Say whether `--weights` of this turn's version computes its log-probs again."""
    return turn.trained and rollout.stage == "train" and turn.policy == POLICY and not turn.earlier_versions


def make_score(model: str, temperature: float) -> Score:
    """Return a function that scores completions with the model of a folder, in float32 on the CPU."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def score(prompt: Sequence[int], sampled: Sequence[int]) -> list[float]:
        # The logits of a token predict the next one: those of the completion begin with the prompt's last token.
        logits = network(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        values: list[float] = logprobs.gather(1, torch.tensor(sampled)[:, None]).squeeze(1).tolist()
        return values

    return score


def check_dump(path: Path, checker: DriftChecker) -> Iterator[tuple[RecordedRollout, str, list[Drift]]]:
    """Yield each rollout of a file with its name and its drift. Raises ValueError for a broken file."""
    for number, rollout in enumerate(read_dump(path)):
        name = f"{path} {rollout.stage} step {rollout.step} task {rollout.task_id!r} rollout {number}"
        # Other frameworks count the weights from the start of their servers, and a gateway knows no steps.
        unknown = is_dump(path) or (rollout.stage, rollout.step) == ("train", 0)
        newest = None if unknown else rollout.step - (rollout.stage == "train")
        yield rollout, name, list(checker.check(rollout, name, newest))


@dataclass
class DriftReport:
    """Holds what was found: how much was read, how often each kind, and a line for each of the first ones."""

    rollouts: int = 0
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = ", ".join(f"{count} x {kind}" for kind, count in self.counts.most_common()) or (
            "no drift" if self.tokens else "nothing to check"
        )
        return f"{self.rollouts:,} rollouts with {self.tokens:,} sampled tokens: {verdict}"


def check_dumps(
    dumps: Iterable[Path], tokenizer: Tokenizer, weights: Mapping[str, str] | None = None, temperature: float = 1.0
) -> DriftReport:
    """Check run folders and files. `weights` maps weight versions to folders of models.

    Raises:
        ValueError: a file is broken, or there is none, or no turn is of one of the `weights`; the message names it.
    """
    report, weights = DriftReport(), weights or {}
    files = []
    for dump in dumps:
        if not (found := list_records(dump)):
            raise ValueError(f"{dump}: there is no record; a run writes it with run.record_every above 0")
        files += [file for _, file in found]
    if weights:  # it is known before the first model is loaded
        rollouts = (rollout for path in files for rollout in read_dump(path))
        sampled = {turn.weight_version for r in rollouts for turn in r.turns if is_scored(r, turn)}
        if unused := weights.keys() - sampled:
            raise ValueError(
                f"--weights {min(unused)}: no turn was sampled by this version that training took, so there is nothing "
                "to compare"
            )
    scores = {version: make_score(model, temperature) for version, model in weights.items()}
    for path in files:
        for rollout, name, drifts in check_dump(path, DriftChecker(tokenizer, scores)):
            report.rollouts += 1
            report.tokens += sum(len(turn.sampled) for turn in rollout.turns)
            for kind, turn, text in drifts:
                report.counts[kind] += 1
                if report.counts[kind] <= SHOWN:
                    report.lines.append(f"{kind}: {name}{'' if turn is None else f' turn {turn + 1}'}: {text}")
    return report


def find_run(dump: Path) -> RunFolder | None:
    """Return the run that a dump belongs to: the folder itself, or that of a record in it."""
    known = (folder for folder in (dump, *dump.absolute().parents[:2]) if (folder / "config.yaml").is_file())
    return next(map(RunFolder, known), None)


def find_tokenizer(runs: Sequence[RunFolder | None]) -> Path:
    """Return the folder of the model that runs start from. Raises ValueError if they name none, or several."""
    found = set()
    for run in runs:
        if run is None or "model" not in run.config:
            raise ValueError("a dump lies in no run folder that names its model; give --tokenizer PATH, the model's")
        warm_start = run.path / "warm_start"
        found.add(warm_start if warm_start.is_dir() else resolve(run.config["model"]["path"], weights=False))
    if len(found) > 1:
        raise ValueError(f"the dumps are of {len(found)} models; check one run at a time, or give --tokenizer PATH")
    return found.pop()


@show_errors(OSError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    runs = [find_run(dump) for dump in options.dumps]
    tokenizer = load_tokenizer(options.tokenizer or find_tokenizer(runs), for_chat=False)
    sampled_at = runs[0].config.get("rollout", {}).get("temperature", 1.0) if runs[0] else 1.0
    temperature = sampled_at if options.temperature is None else options.temperature
    report = check_dumps(options.dumps, tokenizer, dict(options.weights), temperature)
    print("\n".join([*report.lines, str(report)]))
    return int(bool(report.counts)) if report.tokens else 2


def read_weights(text: str) -> tuple[str, str]:
    version, separator, model = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: write VERSION=FOLDER, such as 2=checkpoints/step-000002")
    return version, model


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect drift", __doc__)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--tokenizer", metavar="PATH", help="the model's folder or hub id (default: that of the run)")
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        type=read_weights,
        metavar="VERSION=MODEL",
        help="compute the log-probs of this weight version again, with this model (training steps and `policy` alone)",
    )
    parser.add_argument(
        "--temperature", type=float, help="of the rollouts, for --weights (default: that of the run, or 1)"
    )
    return parser
