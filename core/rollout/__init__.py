"""Runs methods: what a method is, its turns and roles, many rollouts at once, and the rows that they become."""
