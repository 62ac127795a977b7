"""Says how a Ray cluster is started for a job, whether one answers, and what its processes get as environment."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from core.backends.checks import PATIENCE_S
from core.policy.server_process import find_url_problem

PORT = 6379
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_ADD_SECRETS = """
import json, os, sys
environment = json.loads(sys.argv[1])
environment["env_vars"].update((name, os.environ[name]) for name in sys.argv[2:])
print(json.dumps(environment))
""".strip()


@dataclass(frozen=True)
class RayCluster:
    """Describes the Ray cluster of one job: nodes that are alike, of which the first is the head."""

    head: str
    dashboard_port: int
    nodes: int
    gpus_per_node: int

    @property
    def url(self) -> str:
        """Return where the dashboard takes jobs. Whoever reaches it can run code, so it listens on `head` alone."""
        return f"http://{self.head}:{self.dashboard_port}"

    @property
    def start_head(self) -> str:
        """Return the command that starts Ray on the head node, once and by hand."""
        return (
            f"ray start --head --node-ip-address={self.head} --port={PORT} {self._options} "
            f"--dashboard-host={self.head} --dashboard-port={self.dashboard_port}"
        )

    @property
    def _options(self) -> str:
        return f"--num-gpus={self.gpus_per_node} --disable-usage-stats"

    def describe_start(self) -> list[str]:
        """Say on which node which command is run, a line for each kind of node."""
        lines = [f"on the head node: {self.start_head}"]
        if self.nodes > 1:
            join = f"ray start --address={self.head}:{PORT} {self._options}"
            lines.append(f"on each of the {self.nodes - 1} other nodes: {join}")
        return lines

    def find_setup_problems(self, key: str, framework: str) -> Iterator[str]:
        """Name what keeps Ray from being used at all. `key` is the recipe's section of Ray."""
        if shutil.which("ray") is None:
            yield f"no command `ray`. Run inside {framework}'s image, or pip install ray"
        if self.nodes > 1 and self.head in LOOPBACK:
            yield f"{key}.head is {self.head}, which other nodes cannot reach; --set {key}.head=ADDRESS"

    def find_problem(self, key: str, framework: str) -> str | None:
        """Say why no Ray answers, with the commands that start it by the Python of `framework`; None if one does."""
        if error := find_url_problem(f"{self.url}/api/version", PATIENCE_S):
            commands = "\n".join(f"    {line}" for line in self.describe_start())
            return (
                f"no Ray cluster answers at {self.url} ({error}). Start one, with {framework}'s Python:\n"
                f"{commands}\n"
                f"  or give --start-ray, which starts the head; or name a running one: --set {key}.head=HOST"
            )
        return None

    def find_running_job(self, entry: Path) -> str | None:
        """Name a Ray job that still trains by the file `entry`; a second one would write the same checkpoints.

        Ctrl-C ends the launcher but not its job, so the lock of the run folder cannot tell.
        """
        with urlopen(f"{self.url}/api/jobs/", timeout=PATIENCE_S) as reply:
            jobs = json.load(reply)
        for job in jobs:
            if job["status"] in ("PENDING", "RUNNING") and str(entry) in (job["entrypoint"] or ""):
                name, address = job["submission_id"] or job["job_id"], f"--address={self.url}"
                return (
                    f"the Ray job {name} trains in {entry.parent} already. Watch it: ray job logs {address} --follow "
                    f"{name}; or end it first: ray job stop {address} {name}"
                )
        return None


def quote_environment(variables: Mapping[str, str], secrets: Sequence[str]) -> str:
    """Write a job's environment as one word of a shell script, the value of `--runtime-env-json`.

    The variables named in `secrets` are taken from the script's own environment, so that no file holds them.
    """
    word = shlex.quote(json.dumps({"env_vars": dict(variables)}))
    return f'"$(python3 -c {shlex.quote(_ADD_SECRETS)} {word} {shlex.join(secrets)})"' if secrets else word
