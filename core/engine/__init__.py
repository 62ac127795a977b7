"""The inference engine: it samples from a model in plain PyTorch, in this process or behind a server.

README.md shows what to import. The modules `weights`, `lora`, `varlen`, `scores`, `states`, `footprint` and `heap` are
public as a whole, and so is `server`; that one is not imported here, because only a server needs an HTTP library.
"""

from core.engine import footprint, heap, lora, scores, states, varlen, weights
from core.engine.arithmetic import choose_dtype, flush_subnormals, measure_speeds
from core.engine.engine import Engine
from core.engine.model import CausalLM, ModelConfig
from core.engine.policy import EmbeddedPolicy

__all__ = [
    "CausalLM",
    "EmbeddedPolicy",
    "Engine",
    "ModelConfig",
    "choose_dtype",
    "flush_subnormals",
    "footprint",
    "heap",
    "lora",
    "measure_speeds",
    "scores",
    "server",
    "states",
    "varlen",
    "weights",
]
