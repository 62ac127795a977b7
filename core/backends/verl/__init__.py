"""The only package that knows verl: its agent loop runs any method, and its trainer counts rollouts instead of rows.

verl imports two modules by path: `loop`, named in the YAML of `agent_loop_config_path`, and `trainer`, named in the
environment variable VERL_USE_EXTERNAL_MODULES. Nothing else but `loss` needs verl; `launch` renders and starts a job.
"""

__all__ = ["launch", "loop", "trainer"]
