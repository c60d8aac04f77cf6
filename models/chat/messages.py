"""Say what is wrong with a message. Imported only for one that is not a plain role and content."""


def explain(i: int, message: dict, roles: tuple[str, ...]) -> None:
    """Raise ValueError with one line for message number i of a conversation, unless it is a role and a text."""
    role, content = message.get("role"), message.get("content")
    if role not in roles:
        raise ValueError(f"message {i}: role {role!r} is not one of {', '.join(roles)}")
    if message.get("tool_calls"):
        raise ValueError(f"message {i}: tool_calls are not supported; write the call into the content, as text")
    if not isinstance(content, str):
        raise ValueError(f"message {i}: content must be a text, not {str(content)[:60]}")
    if others := message.keys() - {"role", "content", "tool_calls"}:
        raise ValueError(f"message {i}: only role and content are read, not {min(others)}")
