"""The methods, slime from SLIME_ROOT with the servers that it asks, and verl where it is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core.backends.slime import hooks
from core.backends.slime.samples import to_record
from core.data.files import write_jsonl
from core.policy.server_process import serve
from core.rollout.method import MethodSpec
from core.text.tokenizer import load_tokenizer
from core.types import Task
from core.worlds import TOOL_TEMPLATE
from tests.contract.backends.batch import Tape, record
from tests.contract.backends.case import Case
from tests.contract.backends.serving import Reply, serve_script
from tests.contract.backends.slime_settings import DATA_PARALLEL, rollout_arguments
from tests.kit import SLIME, VERL, require

Arguments = Callable[..., Any]


def find_cases() -> dict[str, Case]:
    """Return the cases of the files `scored_...` and `scripted_...`: `cases()`, or `CASE` by its method's name."""
    found = dict[str, Case]()
    for path in sorted(Path(__file__).parent.glob("s*ed_*.py")):
        module = import_module(f"tests.contract.backends.{path.stem}")
        found |= module.cases() if hasattr(module, "cases") else {module.CASE.spec.name: module.CASE}
    return found


CASES = find_cases()


@pytest.fixture(scope="session")
def tokenizer(memagent_model: Path) -> Any:
    """MemAgent's tokenizer with a chat template that shows tools; a conversation without them reads the same."""
    tokenizer = load_tokenizer(memagent_model)
    tokenizer.chat_template = TOOL_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def model(memagent_model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slime") / "model"
    shutil.copytree(memagent_model, folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def slime() -> Iterator[Any]:
    root = os.environ.get("SLIME_ROOT")
    require(root, SLIME)
    assert root is not None
    from tests.contract.backends.slime_rig import slime_at  # it turns torch.compile off, as slime's losses need

    with slime_at(Path(root)) as imported:
        yield imported


@pytest.fixture(scope="session")
def verl() -> Any:
    """The rig, which imports verl; without verl the test is skipped."""
    require(find_spec("verl"), VERL)
    from tests.optional.verl import rig

    return rig


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each method; `parametrize("case", [names], indirect=True)` chooses."""
    return CASES[request.param]


@pytest.fixture(scope="session")
def servers(
    model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Reply | None], str]]:
    """The URL of a server for a script, or for the model; each is started once."""
    urls: dict[Reply | None, str] = {}
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ExitStack() as stack:

        def url(reply: Reply | None) -> str:
            if reply not in urls:
                server = (
                    serve_script(tokenizer, reply)
                    if reply
                    else serve("embedded", str(model), log=log, args=["--device", "cpu"])
                )
                urls[reply] = stack.enter_context(server)
            return urls[reply]

        yield url


@pytest.fixture
def url(servers: Callable[[Reply | None], str], case: Case) -> str:
    return servers(case.reply)


@pytest.fixture
def tape() -> Tape:
    """The rollouts under slime."""
    return Tape()


@pytest.fixture
def arguments(
    url: str, case: Case, tape: Tape, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Arguments]:
    """slime's arguments for a recipe and tasks. The hooks find the case's own method by its name, or that of `spec`."""

    def make(recipe: dict[str, Any], tasks: list[Task], spec: MethodSpec = case.spec, **more: Any) -> Any:
        recorded = record(spec, tape, lambda roles: str(roles.session))
        monkeypatch.setattr(hooks, "method_spec", {spec.name: recorded}.__getitem__)
        write_jsonl(tmp_path / "train.jsonl", tasks, to_record)
        return rollout_arguments(recipe, url, model, tmp_path / "train.jsonl", **more)

    hooks.open_bridge.cache_clear()
    yield make
    hooks.open_bridge.cache_clear()


@pytest.fixture
def manager(slime: Any) -> Callable[[Any], Any]:
    """A RolloutManager over given arguments; `samples` is what its converter got."""

    def make(args: Any) -> Any:
        slime.sglang_rollout.GenerateState.clear_instances()
        made = slime.rollout_manager(args, None)
        made.set_train_parallel_config(
            {"dp_size": DATA_PARALLEL, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        )
        convert = made.custom_convert_samples_to_train_data_func

        def keep(args: Any, samples: list[Any]) -> Any:
            made.samples = samples
            return convert(args, samples)

        if convert is not None:
            made.custom_convert_samples_to_train_data_func = keep
        return made

    return make
