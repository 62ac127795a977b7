"""Holds what the policy is told, and what a program reads in place of an answer. The texts are ours."""

INSTRUCTIONS = """

The text that this question is about is not shown here. It has {characters:,} characters and is the variable `context` \
of a Python interpreter, as a string. Write a program in a ```repl block, and you will read the beginning of what it \
prints, at most {shown:,} characters. Variables stay from one program to the next. A program may use:

- `context` and `question`, two strings;
- `llm_query(prompt)`: a model reads the prompt, of at most about {tokens:,} tokens, and its answer is returned as a \
string. It sees nothing but the prompt, so put the question and a part of the text into it;
- `llm_query_batched(prompts)`: the same for a list, at once; it returns a list. There are {subcalls} calls in all;
- `FINAL(value)`: answers the question with this value, and ends.

First look at the text: search for words, print pieces. Give parts that are too long to print to `llm_query`, large \
parts in few calls. Write one program in each reply, without randomness or the time. When you know the answer, write \
it as \\boxed{{answer}} without a program, or call FINAL."""
"""Follows the question, unless the policy was trained without."""

NOTHING = "The program printed nothing."
CUT = " ... ({characters:,} characters in all)"
"""Ends an output of which the beginning alone is shown."""

ENDED = "The program ended with {status}. Its variables are gone."
"""Is what the policy reads of a program that the sandbox stopped."""

LAST = "\nNo further program is run. Answer now."
"""Follows the output of the last program that a rollout may run."""

TOO_LONG = "[not answered: the prompt has {tokens} tokens, and {limit} fit]"
