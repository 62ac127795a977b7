"""Tasksets and harnesses of verifiers: its own client asks the gateway, and its own rewards score the rollout."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from core.environments.sections import AgentEnvironment, VerifiersEntry, bad_task
from core.gateway import Endpoint, Outcome
from core.rollout.method import RolloutError
from core.types import Task

NO_KEY = "TOKENTRUE_NO_KEY"
"""Names a variable that nobody sets: the session's URL says all, so no key of the user's is sent."""

OWN_FAULTS = ("TaskError", "ToolsetError", "EnvError", "Sandbox", "InterceptionError", "TunnelError")
"""Begin the names of its errors that no limit of ours explains, such as those of a reward, which would count as 0."""


class VerifiersEnvironment(AgentEnvironment):
    """Plays a taskset. Its tasks are read once, in order, as far as they are asked for."""

    def __init__(self, entry: VerifiersEntry, max_turns: int):
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import agent_config_fields

        self.entry = entry
        self.name = str(entry.taskset.get("id"))
        [seat, *others] = agent_config_fields(vf.resolve_env_config({"taskset": dict(entry.taskset)}))
        if others:
            raise ValueError(f"{self.name} has several agents ({', '.join([seat, *others])}), and a rollout has one")
        runtime, harness = entry.runtime or {"type": "subprocess"}, dict(entry.harness)
        if entry.runtime is None and vf.load_harness(vf.harness_config_type(harness["id"])(**harness)).EXECUTES_CODE:
            raise ValueError(
                f"the harness {harness['id']} runs what the policy wrote; set runtime: {{type: docker}}, or "
                "{type: subprocess} where it may run unprotected"
            )
        agent = {"harness": harness, "runtime": dict(runtime), "max_turns": max_turns}
        self._environment = vf.load_environment(vf.resolve_env_config({"taskset": dict(entry.taskset), seat: agent}))
        self._stream = iter(self._environment.taskset)
        self._tasks: list[Any] = []
        self._served = AsyncExitStack()
        self._serving: asyncio.Task[None] | None = None
        self._read("", 0)  # here, where data may be loaded for long: no rollout waits yet

    def _read(self, task_id: str, index: int) -> Any:
        while len(self._tasks) <= index:
            try:
                self._tasks.append(next(self._stream))
            except StopIteration:
                problem = f"is {index}, and {self.name} has {len(self._tasks)} tasks"
                raise bad_task(task_id, "metadata.index", problem) from None
        return self._tasks[index]

    async def read_task(self, index: int) -> tuple[str, str]:
        theirs = self._read(f"{index}", index)
        return theirs.data.prompt_text or theirs.data.name or f"{self.name} {index}", theirs.key

    async def __call__(self, task: Task, endpoint: Endpoint) -> Outcome:
        from verifiers.v1 import EvalClientConfig, ModelContext, SamplingConfig

        self.entry.check(task)
        index = task.metadata["index"]
        theirs = self._read(task.task_id, index)
        if (task.question, task.metadata.get("key")) != await self.read_task(index):
            raise bad_task(task.task_id, "question", f"or metadata.key are not those of task {index} of {self.name}")
        if self._serving is None:  # the tool servers that all tasks share
            self._serving = asyncio.create_task(self._served.enter_async_context(self._environment.serving()))
        try:
            await asyncio.shield(self._serving)
        except Exception as error:
            raise RolloutError("environment", f"{self.name}: {type(error).__name__}: {error}") from error
        client = EvalClientConfig(base_url=endpoint.openai_url, api_key_var=NO_KEY)
        episode = await self._environment.run_episode(theirs, ModelContext(endpoint.model, client, SamplingConfig()))
        traces = episode.traces
        faults = [*episode.errors, *(error for trace in traces for error in trace.errors)]
        refused = traces and endpoint.session and endpoint.session.reached_limit
        if not episode.ok and (not refused or any(fault.type.startswith(OWN_FAULTS) for fault in faults)):
            told = "; ".join(f"{fault.type}: {fault.message}" for fault in faults)
            raise RolloutError("environment", f"task {task.task_id}: {self.name}: {told}")
        [trace] = traces
        metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
        metrics |= {f"reward_{name}": one.value for name, one in trace.rewards.items() if one is not None}
        truncated = not episode.ok or (trace.stop_condition or "").startswith(("max_", "context_length"))
        reward = trace.reward if trace.rewards or truncated else None  # it is 0 where the taskset rewards nothing
        return Outcome(trace.last_reply or "", reward, metrics, truncated)

    async def close(self) -> None:
        await self._served.aclose()
        self._serving = None
