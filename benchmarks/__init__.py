"""Holds the evaluators: a common harness, and the data and scorer of each benchmark."""
