"""Holds what the agent is told. The texts are short, so that a small context still holds several pages."""

INSTRUCTIONS = "\nSay next to read a page, or answer in \\boxed{}."
"""Follows the question in the first message, which every compaction keeps."""

REQUEST = "Sum up: the pages will be gone."
"""Asks for a summary."""

HEADING = "Summary:"
"""Begins the message that holds the summary in the next segment."""

NEXT = "next"
"""Calls the tool: the reply to it is the next page."""

END = "No more pages."
"""Replies to a call after the last page."""
