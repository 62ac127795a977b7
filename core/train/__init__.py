"""Trains a model: GRPO and supervised steps on packed rows, the loop of a run, its memory plan and its checkpoints.

README.md shows what to import. The modules `checkpoint` and `memory` are public as a whole. So is `command`, which is
`tokentrue train`.
"""

from core.train import checkpoint, memory
from core.train.learner import make_trainer
from core.train.loop import GRPOLoop, SampledBatch
from core.train.packing import pack_rows
from core.train.rollout_engine import open_frozen_model
from core.train.trainer import Trainer

__all__ = [
    "GRPOLoop",
    "SampledBatch",
    "Trainer",
    "checkpoint",
    "command",
    "make_trainer",
    "memory",
    "open_frozen_model",
    "pack_rows",
]
