"""Evaluate routers between a weak and a strong model on RouteLLM's data, on subjects kept out of training.

    tokentrue evaluate routing --data data/routellm                     # what needs no language model
    tokentrue evaluate routing --data data/routellm --folds 0 --run runs/toolorchestra-desk

--run names the run of each fold, in the order of --folds. Its rows are what `tokentrue evaluate heldout` saved there
for the data `test`: the score of a prompt is the probability of `strong`, averaged over the four prices; a reply that
named no model counts as 0. Prompts that the heldout evaluation did not reach are left out of every row, and counted.

A value is the mean over the folds. Its interval, and that of the difference to `ridge`, are bootstrapped over prompts.
The table goes to --out as table.md, with all values and curves as routing.json.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from agentic.toolorchestra.routellm import FOLDS, GSM8K, draw_agreeing, read_routes, split_routes
from benchmarks.harness.plan import EvaluationError
from benchmarks.harness.samples import samples_path
from benchmarks.routing.baselines import BASELINES, Prompts, gains, score_by_ridge
from benchmarks.routing.curve import SHARES, Measured, Numbers, Outcomes, average, measure_router
from core.data import DataError
from core.options import show_errors
from core.report.stats import bootstrap
from core.report.table import markdown
from core.runs.evaluation import EvalResult, file_name
from core.runs.files import write_json
from core.runs.record import RecordedRollout, read_rollouts
from core.runs.run_folder import RunFolder

PUBLISHED = Path(__file__).with_name("published.yaml")
REFERENCE = "ridge"
SETS = ("mmlu", GSM8K)
HEAD = ("router", "APGR", "above ridge", "CPT(50), %", "CPT(80), %", "quality at 25, 50, 75 % of calls")


@show_errors(DataError, EvaluationError, OSError, ValueError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.run and len(options.run) != len(options.folds):
        raise EvaluationError(f"{len(options.run)} runs for {len(options.folds)} folds; give one run for each fold")
    records = read_routes(options.data)
    rows: dict[str, dict[str, list[Measured]]] = {name: defaultdict(list) for name in SETS}
    notes: list[str] = []
    for place, fold in enumerate(options.folds):
        parts = split_routes(records, fold)
        found = read_scores(RunFolder(options.run[place]), predict_gains(parts), notes) if options.run else {}
        parts["drawn"] = draw_agreeing(parts["train"])
        for name in SETS:
            train, drawn, test = ([r for r in parts[part] if (r["set"] == GSM8K) == (name == GSM8K)] for part in PARTS)
            for router, measured in measure_routers(train, drawn, test, found, seed=fold):
                rows[name][router].append(measured)
            print(f"fold {fold}, {name}: {len(train):,} prompts of training, {len(test):,} kept out", flush=True)
            if (reached := sum(all(r["prompt"] in scores for scores in found.values()) for r in test)) < len(test):
                notes.append(f"Fold {fold}, {name}: only {reached:,} of {len(test):,} prompts have a score of the run.")
    for router, found_in in ((router, of) for name in SETS for router, of in rows[name].items()):
        if len(found_in) != len(options.folds):
            raise EvaluationError(f"{router} is missing in a fold; evaluate it in the run of every fold")
    text = "\n\n".join([*(write_table(name, rows[name], options) for name in SETS), *notes])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(f"{text}\n", encoding="utf-8")
    averages = {name: {router: average(of).to_json() for router, of in rows[name].items()} for name in SETS}
    write_json(options.out / "routing.json", averages)
    print(f"\n{text}\n\n{options.out / 'table.md'}, {options.out / 'routing.json'}")
    return 0


PARTS = ("train", "drawn", "test")


def measure_routers(
    train: Prompts, drawn: Prompts, test: Prompts, found: Mapping[str, Mapping[str, float]], seed: int
) -> Iterator[tuple[str, Measured]]:
    """Yield each router, measured on those prompts of `test` that all of `found`, variant -> prompt -> score, have.

    `drawn` are the prompts of `train` that a policy is trained on.

    Raises:
        EvaluationError: a variant has scores of no such prompt.
    """
    for variant, scores in found.items():
        test = [r for r in test if r["prompt"] in scores]
        if not test:
            raise EvaluationError(f"variant {variant} has no prompt of this fold's test; is --folds that of its data?")
    outcomes = Outcomes(*(np.array([float(r[model]) for r in test]) for model in ("weak", "strong")))
    scored: dict[str, Numbers] = {name: score(train, test) for name, score in BASELINES.items()}
    scored["ridge, prompts of the policy"] = score_by_ridge(drawn, test)
    scored |= {variant: np.array([scores[r["prompt"]] for r in test]) for variant, scores in found.items()}
    for name, values in scored.items():
        yield name, measure_router(values, outcomes, seed)


def predict_gains(parts: Mapping[str, Prompts]) -> dict[str, float]:
    """Return for each prompt that is kept out the gain that ridge regression on all prompts of training predicts."""
    scores = score_by_ridge(parts["train"], parts["test"]) + gains(parts["train"]).mean()
    return dict(zip([r["prompt"] for r in parts["test"]], scores, strict=True))


def read_scores(folder: RunFolder, predicted: Mapping[str, float], notes: list[str]) -> dict[str, dict[str, float]]:
    """Return variant -> prompt -> mean probability of `strong`, from the saved results; note what each price bought.

    `predicted` is the gain of each prompt that is kept out.

    Raises:
        EvaluationError: the run has no result of the data `test`, or one of replies without a probability.
    """
    results = [result for result in folder.evaluations() if result.data == "test"]
    if not results:
        raise EvaluationError(
            f"{folder.path}: no result of the data `test`; run tokentrue evaluate heldout toolorchestra --run "
            f"{folder.path} --data test.jsonl --by set price"
        )
    found: dict[str, dict[str, list[float]]] = {}
    has_seeds = len({result.seed for result in results}) > 1  # else each fold may have another one
    for result in results:
        file = file_name(result.variant, result.data, result.length, result.seed)
        samples = list(read_rollouts(samples_path(folder, file)))
        questions = {sample.task_id: sample.question for sample in samples}
        failed = {sample.task_id for sample in samples if sample.status == "failed"}
        router = f"{result.variant}, seed {result.seed}" if has_seeds else result.variant
        prompts = found.setdefault(f"{router} (policy)", defaultdict(list))
        unnamed = [None] * result.n  # where no reply named a model
        named, weak, malformed = (result.measures.get(name, unnamed) for name in ("p_strong", "p_weak", "malformed"))
        if any(bad == 0 and not (p or q) for p, q, bad in zip(named, weak, malformed, strict=True)):
            raise EvaluationError(
                f"{folder.path}: {result.variant} named a model in more than one token, of which no probability is "
                "known; train and evaluate with toolorchestra.max_tokens=1 and names of one token"
            )
        for task_id, p in zip(result.notes["task_ids"], named, strict=True):
            if task_id not in failed:
                prompts[questions[task_id]].append(p or 0.0)
        # Without one of its prices a prompt's mean is of another scale.
        most = max(map(len, prompts.values()), default=0)
        lost = [prompts.pop(prompt) for prompt in list(prompts) if len(prompts[prompt]) < most]
        if failed or lost:
            counts = f"{len(failed)} rollouts failed; {len(lost)} prompts lack a price and have no score"
            notes.append(f"{result.variant}, seed {result.seed}: {counts}.")
        notes.append(describe_prices(result, [sample for sample in samples if sample.task_id not in failed], predicted))
    return {variant: {prompt: float(np.mean(ps)) for prompt, ps in of.items()} for variant, of in found.items()}


def describe_prices(result: EvalResult, samples: Sequence[RecordedRollout], predicted: Mapping[str, float]) -> str:
    """Return a table of the rewards at each price, all sets together, beside those of choices that need no policy.

    `ridge` takes the strong model where the `predicted` gain of the prompt is above the price. Below the table stands
    what the policy earns above it, and above one choice for all prompts of a price. Intervals are over prompts.
    """
    of = {sample.task_id: sample for sample in samples if sample.question in predicted}
    at = [i for i, name in enumerate(result.notes["task_ids"]) if name in of]
    title = f"{result.variant}, seed {result.seed}, {len(at):,} choices"
    if not at:
        return f"{title} of prompts of this fold's test"
    found = [of[result.notes["task_ids"][i]] for i in at]
    price = np.array([float(result.labels["price"][i]) for i in at])
    weak, strong = (np.array([float(sample.log["right"][model]) for sample in found]) for model in ("weak", "strong"))
    paid, gain = strong - price, np.array([predicted[sample.question] for sample in found])
    measured = [result.measures[name] for name in ("malformed", "calls_strong", "reward")]
    malformed, calls, reward, right = (
        np.array([column[i] for i in at], dtype=float) for column in (*measured, result.scores["official"])
    )
    best, ridge = np.zeros_like(price), np.where(gain > price, paid, weak)
    places = {f"{each:g}": price == each for each in sorted(set(price))}
    for here in places.values():
        best[here] = max(weak[here], paid[here], key=np.mean)
    columns = {"strong calls, %": 100 * calls, "right, %": 100 * right, "reward": reward, "always weak": weak}
    columns |= {"always strong": paid, "ridge": ridge, "oracle": np.maximum(weak, paid)}
    rows = [
        [name, *(f"{column[here].mean():.{1 if '%' in head else 3}f}" for head, column in columns.items())]
        for name, here in {**places, "mean": np.full(len(at), True)}.items()
    ]
    title = f"{title}, {100 * malformed.mean():.1f} % malformed:"
    beside = {"the better of weak and strong at each price": best, "ridge": ridge}
    gaps = [f"above {name}: {compare(found, reward - other)}" for name, other in beside.items()]
    return "\n\n".join([title, markdown(("price of strong", *columns), *rows), "; ".join(gaps)])


def compare(samples: Sequence[RecordedRollout], differences: Numbers) -> str:
    """Return the mean difference, with its interval over prompts."""
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for sample, difference in zip(samples, differences, strict=True):
        by_prompt[sample.question].append(difference)
    means = [float(np.mean(each)) for each in by_prompt.values()]
    low, high = bootstrap(means)
    return f"{np.mean(means):+.3f} ({low:+.3f} to {high:+.3f})"


def write_table(name: str, rows: Mapping[str, Sequence[Measured]], options: argparse.Namespace) -> str:
    """Return the table of one set: our rows, then the published ones."""
    kept = "subjects kept out" if name == "mmlu" else "prompts kept out"
    lines, reference = list[list[str]](), average(rows[REFERENCE])
    for router, measured in rows.items():
        row = average(measured)
        quality = ", ".join(f"{100 * np.interp(share, SHARES, row.quality):.1f}" for share in (0.25, 0.5, 0.75))
        above = row.draws[:, 0] - reference.draws[:, 0]
        low, high = np.quantile(above, [0.025, 0.975])
        difference = row.values[0] - reference.values[0]
        beside = "" if router == REFERENCE else f"{difference:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append([router, show(row, 0, 1, 3), beside, show(row, 1, 100, 1), show(row, 2, 100, 1), quality])
    for found in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")):
        if found["set"] == name:
            router = f"published: {found['router']}{', ' if found['data'] else ''}{found['data']}"
            lines.append([router, f"{found['apgr']:.3f}", "", f"{found['cpt_50']:.1f}", f"{found['cpt_80']:.1f}", ""])
    title = f"{name}: {kept}, folds {', '.join(map(str, options.folds))}; in brackets the 95 % interval"
    return f"{title}\n\n{markdown(HEAD, *lines)}"


def show(measured: Measured, place: int, factor: float, digits: int) -> str:
    numbers = (measured.values[place], *measured.interval(place))
    value, low, high = (f"{factor * number:.{digits}f}" for number in numbers)
    return f"{value} ({low} to {high})"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue evaluate routing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="PATH", help="of tokentrue data download routellm")
    parser.add_argument("--folds", type=int, nargs="+", choices=range(FOLDS), default=[0, 1, 2], metavar="N")
    parser.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN_DIR", help="one for each fold")
    parser.add_argument("--out", type=Path, default=Path("runs/routing"), metavar="DIR")
    return parser
