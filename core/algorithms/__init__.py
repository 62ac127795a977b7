"""Computes GRPO by slime's formulas, in pure functions: rewards -> advantages -> loss per token -> loss of a batch.

Tensor suffixes: T has one entry per response token, all rows one after the other; R has only those with mask 1.
"""
