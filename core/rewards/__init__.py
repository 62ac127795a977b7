"""Grades answers: one grader for each kind of label, by rules or with a judge.

README.md says which forms of an answer are the same. The modules named in `__all__` are public as a whole.
"""

__all__ = ["answer_grader", "answers", "boxed", "judge", "math_grader", "numbers", "qa"]
