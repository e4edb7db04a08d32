"""An agent in a few lines that knows nothing of Singletree: as any does, it reads OPENAI_BASE_URL and OPENAI_API_KEY."""

import json
import os

from openai import OpenAI

ADD = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
}
messages: list = [{"role": "user", "content": os.environ["TASK_PROMPT"]}]
client, tools = OpenAI(), [{"type": "function", "function": ADD}]

for _turn in range(4):
    reply = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=tools)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        total = sum(json.loads(call.function.arguments).values())
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
print(messages[-1]["content"])
