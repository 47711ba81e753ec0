"""Datasets from Parquet files, as historians and data lakes export them: one row for each sample.

What the columns mean is said as for CSV files, and rows are made in the same way; see
`worldloom.replay.dataset_csv`. Times may be those of Parquet, or written as in a CSV file.
"""

from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.names import one_line, shown, suggest
from worldloom.replay.dataset_csv import RewardFunction, Table, read_seconds, rows_of
from worldloom.replay.dataset_files import Logged
from worldloom.replay.dataset_mapping import ColumnMapping


def read_parquet(
    path: str | Path, mapping: ColumnMapping, reward: RewardFunction | None = None, **options: Any
) -> Logged:
    """A Parquet file's rows; options: those of `rows_of`."""
    path = Path(path)
    columns = parquet_columns(path, mapping.columns)
    lines = np.arange(1, len(next(iter(columns.values()))) + 1)
    numbers = {
        n: _numbers(path, n, columns[n]) for n in mapping.number_columns if n != mapping.time
    }
    time = None if mapping.time is None else _seconds(path, mapping, columns[mapping.time], lines)
    episode = None
    if mapping.episode is not None:
        episode = np.asarray(columns[mapping.episode].to_pylist(), object)
    return rows_of(path, mapping, Table(numbers, time, episode, lines), reward, **options)


def parquet_columns(path: Path, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Columns of a Parquet file as pyarrow has them, by name; None: all of them."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError(
            f"{path}: reading Parquet needs pyarrow; pip install 'worldloom[plant]'"
        ) from None
    try:
        known = parquet.read_schema(path).names
        for name in names or ():
            if name not in known:
                raise KeyError(f"there is no column {shown(name)}; {suggest(name, known)}")
        table = parquet.read_table(path, columns=None if names is None else list(names))
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]}") from None
    except Exception as error:  # pyarrow has many words for a damaged file
        raise ValueError(f"{path} cannot be read as Parquet: {one_line(error, 150)}") from None
    if not table.num_rows:
        raise ValueError(f"{path}: there are no rows")
    return {name: table.column(name) for name in table.column_names}


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    """A column as float64 (L,), NaN where it is null."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(
            f"{path}: column {shown(name)} holds {kind}, not numbers; convert it, or name another"
        )
    return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)


def _seconds(path: Path, mapping: ColumnMapping, column: Any, lines: np.ndarray) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        whole = column.cast(pa.timestamp("ns", column.type.tz), safe=False).cast(pa.int64())
        return whole.cast(pa.float64(), safe=False).to_numpy() * 1e-9
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return read_seconds(
            path, mapping, ["" if t is None else t for t in column.to_pylist()], lines
        )
    return _numbers(path, str(mapping.time), column)
