"""Plays tau2-bench conversations for another process, over JSON lines. The only module that imports tau2.

The Python that has tau2 (3.12, and a hundred packages) runs this file, which imports nothing of ours. tau2's own
Orchestrator, user simulator and evaluator play and grade. The agent's messages come from the other process, and so do
the replies of the LLMs that tau2 would ask (the simulated user, the judge of assertions). So tau2 opens no connection.

| in | out |
|---|---|
| about | reply: version, commit, git blob ids of the data |
| tasks domain split | reply: tasks as tau2 stores them |
| start id domain task_id solo judge max_steps ... | begun: system prompt, policy, tools, ticket; then asks |
| say id message | the next ask (who: agent, user, judge), or end: the graded SimulationRun |
| stop id reason | end: graded 0, as tau2 grades what ends too early |
| save path info tasks simulations | reply: an official results file |

Each conversation has a thread, which waits most of the time; grading is CPU, so there are several such processes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIN = "tau2 @ git+https://github.com/sierra-research/tau2-bench@a2c024725189473d2d7cea3a5cfdbcc67478e41f"
"""Names tau2-bench v1.0.1. It is not on PyPI, where `tau2` is a package for magnetic relaxation."""

DATA_FILES = (
    *(f"domains/*/{name}" for name in ("db.json", "db.toml", "user_db.toml", "tasks.json", "split_tasks.json", "*.md")),
    "user_simulator/*.md",
)


class Stopped(Exception):
    """The other process ended the conversation."""


class Channel:
    """Writes one line for each event. Whatever tau2 prints goes to stderr instead."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields})
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()


def check_package() -> None:
    """Raise ImportError with the fix unless the installed `tau2` is tau2-bench."""
    fix = (
        "make an environment for tau2-bench as benchmarks/tau2/README.md says, and name its Python (3.12) with "
        "--tau2-python, or in a recipe with toolorchestra.environment.options.python"
    )
    try:
        summary = importlib.metadata.metadata("tau2")["Summary"] or ""
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{sys.executable} has no tau2-bench; {fix}") from None
    if "tau-bench" not in summary:
        raise ImportError(
            f"the package `tau2` here is not tau2-bench but {summary!r}, a chemistry package of the same name on PyPI; "
            f"pip uninstall tau2, then {fix}"
        )


def commit() -> str | None:
    """Return the git commit that pip installed; None if it came from a folder."""
    record = importlib.metadata.distribution("tau2").read_text("direct_url.json")
    found: str | None = json.loads(record or "{}").get("vcs_info", {}).get("commit_id")
    return found


def about() -> dict[str, Any]:
    from tau2.utils import DATA_DIR

    root = Path(DATA_DIR) / "tau2"
    files = sorted(file for pattern in DATA_FILES for file in root.glob(pattern))
    return {
        "version": importlib.metadata.version("tau2"),
        "commit": commit(),
        "data": str(DATA_DIR),
        "blobs": {str(file.relative_to(root)): git_blob(file.read_bytes()) for file in files},
    }


def git_blob(content: bytes) -> str:
    """Compute the id that `git hash-object` prints."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@functools.lru_cache
def load_tasks(domain: str, split: str | None) -> dict[str, Any]:
    from tau2.runner import load_tasks

    return {task.id: task for task in load_tasks(domain, split)}


class UserDialogue(threading.Thread):
    """Runs tau2's Orchestrator once; its agent and LLMs are asked over the channel."""

    def __init__(self, channel: Channel, request: dict[str, Any], others: dict[str, UserDialogue]):
        super().__init__(daemon=True)
        self.channel = channel
        self.request = request
        self.others = others
        self.replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def ask(self, who: str, **fields: Any) -> Any:
        """Ask the other side and return its answer as an AssistantMessage."""
        from tau2.data_model.message import AssistantMessage

        self.channel.send("ask", id=self.request["id"], who=who, **fields)
        reply = self.replies.get()
        if "stop" in reply:
            raise Stopped(reply["stop"])
        return AssistantMessage(role="assistant", **reply["message"])

    def run(self) -> None:
        LOCAL.conversation = self
        try:
            self.channel.send("end", id=self.request["id"], simulation=self.play().model_dump(mode="json"))
        except Exception as error:
            self.channel.send("error", id=self.request["id"], message=f"{type(error).__name__}: {error}")
        finally:
            self.others.pop(self.request["id"], None)

    def play(self) -> Any:
        from tau2.evaluator.evaluator import EvaluationType
        from tau2.orchestrator.orchestrator import Orchestrator
        from tau2.runner import run_simulation
        from tau2.user.user_simulator import DummyUser, UserSimulator

        request = self.request
        task = load_tasks(request["domain"], None)[request["task_id"]]
        environment, agent = make_agent(self, task, request["domain"], request["solo"])
        user = DummyUser()
        if not request["solo"]:
            tools = environment.get_user_tools(include=task.user_tools) if environment.user_tools else None
            user = UserSimulator(llm="user", instructions=str(task.user_scenario), tools=tools or None)
        orchestrator = Orchestrator(
            domain=request["domain"],
            agent=agent,
            user=user,
            environment=environment,
            task=task,
            solo_mode=request["solo"],
            max_steps=request["max_steps"],
            max_errors=request["max_errors"],
            seed=request["seed"],
            simulation_id=request["id"],
        )
        self.channel.send(
            "begun",
            id=request["id"],
            system=agent.system_prompt,
            policy=environment.get_policy(),
            ticket=task.ticket,
            tools=[tool.openai_schema for tool in agent.tools],
        )
        unjudged = needs_judge(task) and not request["judge"]
        try:
            simulation = run_simulation(
                orchestrator, evaluation_type=EvaluationType.ENV if unjudged else EvaluationType.ALL
            )
        except Stopped as stopped:
            simulation = grade_early_end(orchestrator, str(stopped))
        simulation.info = {"assertions_not_judged": unjudged}
        return simulation


def needs_judge(task: Any) -> bool:
    from tau2.data_model.tasks import RewardType

    criteria = task.evaluation_criteria
    return bool(criteria and criteria.nl_assertions and RewardType.NL_ASSERTION in criteria.reward_basis)


def grade_early_end(orchestrator: Any, reason: str) -> Any:
    """Grade the conversation so far as a run that ended too early and scores 0."""
    from tau2.data_model.simulation import SimulationRun, TerminationReason
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.utils.utils import get_now

    simulation = SimulationRun(
        id=orchestrator.simulation_id,
        task_id=orchestrator.task.id,
        start_time=get_now(),
        end_time=get_now(),
        duration=0.0,
        termination_reason=TerminationReason(reason),
        messages=orchestrator.get_trajectory(),
        seed=orchestrator.seed,
    )
    simulation.reward_info = evaluate_simulation(
        simulation, orchestrator.task, EvaluationType.ALL, orchestrator.solo_mode, orchestrator.domain
    )
    return simulation


def make_agent(conversation: UserDialogue, task: Any, domain: str, solo: bool) -> tuple[Any, Any]:
    """Make the environment, and an agent with tau2's own prompt whose messages come from the other process."""
    from tau2.agent.llm_agent import LLMAgent, LLMSoloAgent
    from tau2.data_model.message import AssistantMessage
    from tau2.runner import build_environment
    from tau2.utils.llm_utils import to_litellm_messages

    def next_message(message: Any) -> Any:
        parts = getattr(message, "tool_messages", None) or ([] if message is None else [message])
        errors = [bool(getattr(part, "error", False)) for part in parts]
        return conversation.ask("agent", messages=to_litellm_messages(parts), errors=errors)

    class Agent(LLMAgent):
        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            return next_message(message), state

    class SoloAgent(LLMSoloAgent):
        def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
            reply = next_message(message)
            if any(call.name == self.STOP_FUNCTION_NAME for call in reply.tool_calls or ()):
                reply = AssistantMessage(role="assistant", content=self.STOP_TOKEN)
            return reply, state

    environment = build_environment(domain, solo_mode=solo)
    policy = environment.get_policy()
    if not solo:
        return environment, Agent(environment.get_tools(), policy, llm="agent")
    tools = environment.get_tools() + environment.get_user_tools()
    return environment, SoloAgent(tools, policy, task, llm="agent")


LOCAL = threading.local()


def ask_instead(who: str, messages: list[Any], tools: Any = None, **_: Any) -> Any:
    """Replace tau2's `generate`, which would call litellm."""
    from tau2.utils.llm_utils import to_litellm_messages

    schemas = [tool.openai_schema for tool in tools or ()]
    return LOCAL.conversation.ask(who, messages=to_litellm_messages(messages), tools=schemas)


def save(path: str, info: dict[str, Any], tasks: list[str], simulations: list[dict[str, Any]]) -> dict[str, Any]:
    """Write an official results file. `info` has domain, num_trials, max_steps, max_errors, seed, agent, user and
    git_commit."""
    from tau2.data_model.simulation import AgentInfo, Info, Results, SimulationRun, UserInfo
    from tau2.runner import get_environment_info
    from tau2.user.user_simulator import get_global_user_sim_guidelines

    domain, agent, user = info.pop("domain"), info.pop("agent"), info.pop("user")
    known = load_tasks(domain, None)
    Results(
        info=Info(
            **info,
            agent_info=AgentInfo(**agent),
            user_info=UserInfo(**user, global_simulation_guidelines=get_global_user_sim_guidelines()),
            environment_info=get_environment_info(domain, include_tool_info=False),
        ),
        tasks=[known[task] for task in tasks],
        simulations=[SimulationRun.model_validate(simulation) for simulation in simulations],
    ).save(Path(path))
    return {"path": path, "simulations": len(simulations)}


def serve(channel: Channel) -> None:
    """Serve requests until stdin ends. The conversations that still run end with the process."""
    from tau2.evaluator import evaluator_nl_assertions
    from tau2.user import user_simulator

    user_simulator.generate = functools.partial(ask_instead, "user")
    evaluator_nl_assertions.generate = functools.partial(ask_instead, "judge")
    calls: dict[str, Callable[..., Any]] = {"about": about, "tasks": list_tasks, "save": save}
    conversations: dict[str, UserDialogue] = {}
    channel.send("ready")
    for line in sys.stdin:
        request = json.loads(line)
        op, key = request.pop("op"), request["id"]
        try:
            if op == "start":
                conversations[key] = UserDialogue(channel, request, conversations)
                conversations[key].start()
            elif op == "say":
                conversations[key].replies.put(request)
            elif op == "stop":
                if conversation := conversations.get(key):
                    conversation.replies.put({"stop": request["reason"]})
            else:
                del request["id"]
                channel.send("reply", id=key, value=calls[op](**request))
        except Exception as error:
            channel.send("error", id=key, message=f"{op}: {type(error).__name__}: {error}")


def list_tasks(domain: str, split: str | None) -> list[dict[str, Any]]:
    return [task.model_dump(mode="json") for task in load_tasks(domain, split).values()]


def main() -> int:
    channel = Channel()
    try:
        check_package()
        from loguru import logger

        logger.remove()
    except Exception as error:
        channel.send("fatal", message=f"{type(error).__name__}: {error}")
        return 1
    serve(channel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
