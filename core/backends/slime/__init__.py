"""The only package that knows slime: a method's hooks, and the launch command of a preset."""
