"""Write recorded rollouts as traces: to MLflow, to Weights & Biases, or into a file in OpenTelemetry's format.

A rollout is a trace. Below it is a span for each turn, and one for each call of a tool or an expert that the method has
put into its log. Token counts stand under OpenTelemetry's names for generative models (gen_ai.usage.*). Times of spans
tell their order only: the record's clock (`seconds` of a turn) is in the viewer's timeline. Without --step the last
recorded training step is written.

    mlflow  RUN/seed-N/mlflow/mlflow.db, beside what run.trackers=[mlflow] writes; a rollout is written once.
            See it with: mlflow ui --backend-store-uri sqlite:///RUN/seed-N/mlflow/mlflow.db
    wandb   an offline run in RUN/seed-N/wandb, with a table of the rollouts and one of their spans
    file    RUN/seed-N/traces.jsonl: OTLP as JSON, one rollout a line, as OpenTelemetry's collector reads it
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from core.inspect.view import choose_rollouts
from core.options import make_command_parser, show_errors
from core.runs.files import jsonable, write_text
from core.runs.record import RecordedRollout, read_rollouts
from core.runs.run_folder import RunFolder
from core.runs.trackers import TrackerError, open_mlflow, require_package

NAMESPACE = "tokentrue."
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"


class TraceSpan(NamedTuple):
    """One span of a rollout. The first one is the rollout, and the parent of all others."""

    name: str
    kind: str
    attributes: dict[str, Any]
    inputs: str = ""
    outputs: str = ""


def make_spans(rollout: RecordedRollout) -> list[TraceSpan]:
    """Return the rollout's own span, then those of its turns and of its calls of tools."""
    turns = [
        TraceSpan(
            f"turn {turn.role}",
            "turn",
            {
                "gen_ai.operation.name": "text_completion",
                INPUT_TOKENS: len(prompt),
                OUTPUT_TOKENS: len(turn.sampled),
                "gen_ai.response.finish_reasons": [turn.finish_reason],
                f"{NAMESPACE}role": turn.role,
                f"{NAMESPACE}trained": turn.trained,
                f"{NAMESPACE}weight_version": turn.weight_version,
            },
            rollout.decode(prompt),
            rollout.decode(turn.sampled),
        )
        for prompt, turn in zip(rollout.prompts, rollout.turns, strict=True)
    ]
    names = ("task_id", "stage", "step", "group", "status", "failure", "reward", "advantage")
    facts = {name: getattr(rollout, name) for name in names}
    whole = {
        INPUT_TOKENS: sum(map(len, rollout.prompts)),
        OUTPUT_TOKENS: sum(len(turn.sampled) for turn in rollout.turns),
        **{f"{NAMESPACE}{name}": value for name, value in facts.items() if value is not None},
    }
    answer = str(rollout.log.get("answer", turns[-1].outputs if turns else ""))
    return [TraceSpan("rollout", "rollout", whole, rollout.question, answer), *turns, *_make_call_spans(rollout)]


def _make_call_spans(rollout: RecordedRollout) -> list[TraceSpan]:
    spans = []
    for name, call in rollout.calls:
        numbers = {f"{NAMESPACE}{key}": value for key, value in call.items() if isinstance(value, (int, float))}
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **numbers}
        spans.append(TraceSpan(f"tool {name}", "tool", attributes, "", json.dumps(jsonable(call), ensure_ascii=False)))
    return spans


class Trace(NamedTuple):
    """A rollout as spans. `name` tells it apart within its run; `began` is in nanoseconds."""

    name: str
    rollout: RecordedRollout
    spans: list[TraceSpan]
    began: int

    def times(self, place: int) -> tuple[int, int]:
        """Return begin and end of a span: spans follow each other, and the rollout's own holds them all."""
        last = self.began + 1000 * len(self.spans)
        return (self.began, last) if place == 0 else (self.began + 1000 * (place - 1), self.began + 1000 * place)


def make_traces(rollouts: Sequence[RecordedRollout], ended: int) -> list[Trace]:
    """Return the traces of rollouts, in their order; the last one ends at `ended`, in nanoseconds."""
    spans = [make_spans(rollout) for rollout in rollouts]
    lengths = [1000 * (len(each) + 1) for each in spans]
    begins = accumulate(lengths, initial=ended - sum(lengths))
    groups = Counter[str]()
    traces = []
    for rollout, of_rollout, began in zip(rollouts, spans, begins, strict=False):
        # A selection has whole groups, so a place in a group does not depend on it.
        group = f"{rollout.stage} step {rollout.step} group {rollout.group}"
        traces.append(Trace(f"{group} rollout {groups[group]}", rollout, of_rollout, began))
        groups[group] += 1
    return traces


def make_otlp(trace: Trace, run_name: str) -> dict[str, Any]:
    trace_id = hashlib.blake2b(f"{run_name}/{trace.name}".encode(), digest_size=16).hexdigest()
    ids = [hashlib.blake2b(f"{trace_id}/{i}".encode(), digest_size=8).hexdigest() for i in range(len(trace.spans))]
    spans = []
    for place, span in enumerate(trace.spans):
        begin, end = trace.times(place)
        texts = {f"{NAMESPACE}input": span.inputs, f"{NAMESPACE}output": span.outputs}
        spans.append(
            {
                "traceId": trace_id,
                "spanId": ids[place],
                **({"parentSpanId": ids[0]} if place else {}),
                "name": span.name,
                "kind": 1,
                "startTimeUnixNano": str(begin),
                "endTimeUnixNano": str(end),
                "attributes": _as_attributes(span.attributes | texts),
            }
        )
    resource = {"attributes": _as_attributes({"service.name": "tokentrue", f"{NAMESPACE}run": run_name})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "tokentrue"}, "spans": spans}]}]}


def _as_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    def wrap(value: Any) -> dict[str, Any]:
        match value:
            case bool():
                return {"boolValue": value}
            case int():
                return {"intValue": str(value)}
            case float():
                return {"doubleValue": value}
            case list():
                return {"arrayValue": {"values": [wrap(item) for item in value]}}
            case _:
                return {"stringValue": str(value)}

    return [{"key": key, "value": wrap(value)} for key, value in values.items()]


def log_to_mlflow(folder: Path, traces: Sequence[Trace], run_name: str, project: str) -> int:
    """Write traces into the store of the `mlflow` tracker, but for those that are there; return how many."""
    import mlflow

    client, experiment, run = open_mlflow(folder, run_name, project)
    known: set[str | None] = set()
    page = None
    while True:
        found = client.search_traces(locations=[experiment], max_results=500, page_token=page, include_spans=False)
        known.update(trace.info.tags.get("rollout") for trace in found)
        page = found.token
        if not page:
            break
    new = [trace for trace in traces if trace.name not in known]
    with mlflow.start_run(run_id=run):
        for trace in new:
            root, *spans = trace.spans
            begin, end = trace.times(0)
            opened = client.start_trace(
                root.name,
                inputs=root.inputs,
                attributes=root.attributes,
                tags={"rollout": trace.name},
                experiment_id=experiment,
                start_time_ns=begin,
            )
            for place, span in enumerate(spans, start=1):
                first, last = trace.times(place)
                child = client.start_span(
                    span.name,
                    opened.trace_id,
                    opened.span_id,
                    span_type={"turn": "LLM", "tool": "TOOL"}[span.kind],
                    inputs=span.inputs,
                    attributes=span.attributes,
                    start_time_ns=first,
                )
                client.end_span(opened.trace_id, child.span_id, outputs=span.outputs, end_time_ns=last)
            client.end_trace(opened.trace_id, outputs=root.outputs, end_time_ns=end)
    mlflow.flush_trace_async_logging()
    return len(new)


def log_to_wandb(folder: Path, traces: Sequence[Trace], run_name: str, project: str) -> None:
    """Log a table of the rollouts, and one of all their spans, in an offline run."""
    import wandb

    columns: list[str | int] = [
        *("rollout", "task_id", "reward", "advantage", "turns", "input_tokens", "output_tokens", "question", "answer")
    ]
    rows = []
    for name, rollout, of_rollout, _ in traces:
        root = of_rollout[0]
        tokens = [root.attributes[INPUT_TOKENS], root.attributes[OUTPUT_TOKENS]]
        numbers = [rollout.reward, rollout.advantage, len(rollout.turns), *tokens]
        rows.append([name, rollout.task_id, *numbers, root.inputs, root.outputs])
    span_columns: list[str | int] = [
        *("rollout", "span", "kind", "input_tokens", "output_tokens", "input", "output", "attributes")
    ]
    spans = [
        [
            *(name, span.name, span.kind, span.attributes.get(INPUT_TOKENS), span.attributes.get(OUTPUT_TOKENS)),
            *(span.inputs, span.outputs, json.dumps(jsonable(span.attributes), ensure_ascii=False)),
        ]
        for name, _, of_rollout, _ in traces
        for span in of_rollout
    ]
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True)
    run = wandb.init(dir=str(folder), name=f"{run_name} traces", project=project, mode="offline", settings=settings)
    tables = {"rollouts": (columns, rows), "spans": (span_columns, spans)}
    run.log({name: wandb.Table(columns=list(titles), data=data) for name, (titles, data) in tables.items()})
    run.finish()


@show_errors(OSError, TrackerError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    count = 0
    folder = RunFolder(options.run_dir)
    if options.to != "file":
        require_package(options.to)
    for seed in folder.seeds:
        path = folder.rollouts_path(seed)
        rollouts, _ = choose_rollouts(read_rollouts(path), None, options.step)
        if not rollouts:
            continue
        traces = make_traces(rollouts, path.stat().st_mtime_ns)
        target, name = folder.seed_path(seed), f"{folder.path.name}-seed-{seed}"
        if options.to == "mlflow":
            log_to_mlflow(target / "mlflow", traces, name, folder.config["method"])
        elif options.to == "wandb":
            log_to_wandb(target, traces, name, folder.config["method"])
        else:
            lines = [json.dumps(make_otlp(trace, name), ensure_ascii=False) for trace in traces]
            write_text(target / "traces.jsonl", "".join(f"{line}\n" for line in lines))
        count += len(traces)
    print(f"{count} rollouts as traces to {options.to}")
    return 0 if count else 1


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect traces", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that a run has left")
    parser.add_argument("--to", choices=("mlflow", "wandb", "file"), required=True)
    parser.add_argument("--step", type=int, metavar="N", help="the rollouts of this step (default: the last one)")
    return parser
