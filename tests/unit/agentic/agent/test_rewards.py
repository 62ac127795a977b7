"""The rewards that a recipe may name."""

from agentic.agent.rewards import token_f1
from core.types import Task


def test_f1_reads_the_last_box_and_takes_the_best_accepted_answer() -> None:
    task = Task("t", "Who?", ("Lord Byron", "George Gordon Byron"))
    replies = (r"\boxed{George Byron}", r"Byron? \boxed{Ada}", "the poet lord byron", "")
    assert [round(token_f1(task, reply), 3) for reply in replies] == [0.8, 0.0, 0.8, 0.0]
