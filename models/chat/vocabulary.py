"""Vocabularies that list control tokens among their pieces (Llama 2, Mistral). Imported only for such a one."""


def renamed_pieces(model: dict, names: dict[str, str]) -> dict:
    """Return the "model" of a tokenizer.json with renamed control tokens, and no merges that lead to the old names."""
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])]
    return {
        **model,
        "vocab": {names.get(piece, piece): i for piece, i in model["vocab"].items()},
        "merges": [pair for pair in merges if names.keys().isdisjoint((*pair, "".join(pair)))],
        "unk_token": names.get(model.get("unk_token"), model.get("unk_token")),
    }
