"""Kinds of values that the evaluators' options take, as argparse types."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from core.options import Share, checked

positive, seed = checked(PositiveInt), checked(NonNegativeInt)
temperature, share, seconds = checked(NonNegativeFloat), checked(Share), checked(PositiveFloat)
