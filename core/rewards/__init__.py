"""Grades answers and preferences: one grader for each kind of label, by rules or with a judge."""
