"""GRPO as pure functions on tensors: rewards -> advantages -> loss per token -> loss of a batch; slime's formulas."""
