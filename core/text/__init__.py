"""This package turns text into token ids and back into structure: tokenizers, templates, conversations, tool calls."""
