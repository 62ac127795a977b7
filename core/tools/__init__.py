"""Holds tools that a method calls: the protocol, Python in the sandbox, search, and a text generator."""
