"""The gateway puts OpenAI's and Anthropic's protocols in front of a policy and keeps the exact tokens of each session.

Agents that others wrote, in any framework, become methods that way. Start with gateway.py; session.py has the idea.
"""
