"""The only room that knows slime: hooks made from a method, and the launch command made from a preset."""
