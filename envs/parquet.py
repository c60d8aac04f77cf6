"""Rows of a Parquet file, the form of data sets on Hugging Face; needs the package pyarrow, or a conversion."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from envs.refusal import Refusal

ENDING = ".parquet"
MOST_BYTES = 1 << 30  # of a file's columns, not compressed


def read(path: str | Path) -> list[dict]:
    """Return the rows. Raise ValueError, one line, if pyarrow is missing, or if the file is damaged or too large."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        line = f"import pandas; pandas.read_parquet('{path}').to_json('rows.jsonl', orient='records', lines=True)"
        raise Refusal(f'data: {path} is Parquet: pip install pyarrow, or where pandas is: python -c "{line}"') from None
    try:
        with ParquetFile(path) as file:
            size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            if size > MOST_BYTES:
                raise Refusal(f"data: {path} has more than {MOST_BYTES:,} bytes")
            return [{name: _without_padding(value) for name, value in row.items()} for row in file.read().to_pylist()]
    except (ArrowException, OSError) as error:
        raise Refusal(f"data: {path} is not Parquet: {' '.join(str(error).split())}") from None


def _without_padding(value: Any) -> Any:
    """Return a value without the None that Parquet gives an object for each key that another row's has.

    A decimal number becomes its text, which keeps all its digits.
    """
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return {name: _without_padding(part) for name, part in value.items() if part is not None}
    return [_without_padding(part) for part in value] if isinstance(value, list) else value
