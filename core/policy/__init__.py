"""Samples completions of prompts as token ids: what a policy is, policies behind servers, and servers as processes."""
