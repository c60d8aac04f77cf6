"""Models behind a server of OpenAI's protocol, such as vLLM's: evaluation, and episodes that it samples."""
