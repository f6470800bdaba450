"""The OpenAI-compatible API: chat completions in, answers with a receipt out. Only `api.app` imports it."""
