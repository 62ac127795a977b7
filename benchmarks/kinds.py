"""Kinds of values that the evaluators' options take, as argparse types."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from core.options import Share, argparse_type

positive, seed = argparse_type(PositiveInt), argparse_type(NonNegativeInt)
temperature, share, seconds = argparse_type(NonNegativeFloat), argparse_type(Share), argparse_type(PositiveFloat)
