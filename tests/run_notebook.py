"""Run docs/notebook.ipynb and write it back with its outputs: `make notebook`.

Cells run in order, in one namespace and in a folder of their own. Jupyter is not needed: a notebook is JSON
(https://nbformat.readthedocs.io, version 4), and a cell shows the value of its last line if that is an expression.
"""

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


def read() -> dict[str, Any]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def run(notebook: dict[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the notebook with new outputs, and the names that its cells have set. Errors of cells are raised."""
    names, cells, count = {"__name__": "__main__"}, [], 0
    with contextlib.chdir(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                outputs = run_cell("".join(cell["source"]), names, count)
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append(cell)
    return {**notebook, "cells": cells}, names


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; return its outputs: what it printed, and the value of its last line."""
    tree, printed = ast.parse(source), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names) if last else None
    outputs = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if svg := getattr(value, "_repr_svg_", lambda: None)():
            data["image/svg+xml"] = svg.splitlines(keepends=True)
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        notebook, _ = run(read(), Path(folder))
    PATH.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
