"""Makes repair tasks: small Python repositories with tests, and one bug that a mutation of the syntax tree put there.

`functions` draws functions, `mutations` breaks one, `generate` builds the repository around it and checks the task.
"""
