"""Holds what the methods share: types, policies, rollouts, algorithms, engines and reports. README.md draws the imports."""
