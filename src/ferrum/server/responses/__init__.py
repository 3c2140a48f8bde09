"""The dialect of OpenAI's Responses API: bodies, tools, history, events and route."""
