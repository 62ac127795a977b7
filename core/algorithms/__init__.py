"""GRPO as pure functions on tensors: rewards -> advantages -> loss per token -> loss of a batch, by slime's formulas.

Tensor suffixes: T has one entry per response token, all rows one after the other; R has only those with mask 1.
"""
