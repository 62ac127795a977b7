"""An agent in a few lines of Python's own library: it asks OpenAI's Chat protocol, and runs what it is told to run."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

BASH = {
    "name": "bash",
    "description": "Runs a shell command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def ask(messages: list[dict]) -> dict:
    body = {"model": os.environ["MODEL"], "messages": messages, "tools": [{"type": "function", "function": BASH}]}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    try:
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        sys.exit(f"status {error.code}: {error.read().decode()}")


messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = ask(messages)
    messages.append(answer)
    if not answer.get("tool_calls"):
        break
    for call in answer["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        if command == "crash":
            sys.exit("the agent has crashed")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
print(answer["content"])
