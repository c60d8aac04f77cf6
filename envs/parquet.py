"""Rows of a Parquet file, the form of data sets on Hugging Face; needs the package pyarrow, or a conversion."""

from pathlib import Path

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
            return file.read().to_pylist()
    except (ArrowException, OSError) as error:
        raise Refusal(f"data: {path} is not Parquet: {' '.join(str(error).split())}") from None
