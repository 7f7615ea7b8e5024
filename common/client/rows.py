"""Flat rows of results, as files and as tables of pandas."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hansa.common.process.files import write_whole
from hansa.common.values.errors import InvalidInput
from hansa.common.values.views import JobView

CSV, PARQUET = ".csv", ".parquet"


class Rows(list[dict[str, Any]]):
    """Flat rows, which can become a pandas table."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise InvalidInput("a DataFrame needs pandas: pip install pandas") from None
        return pd.DataFrame(list(self))


def version_rows(view: JobView) -> Rows:
    """Return a row for each version of a job, with its metrics; None is what does not exist."""
    metrics = sorted({name for entry in view.history for name in entry.metrics})
    rows, up, down = Rows(), 0, 0
    for entry in view.history:
        up, down = up + entry.bytes_up, down + entry.bytes_down
        row: dict[str, Any] = {
            "version": entry.version,
            "round": entry.round,
            "seconds": entry.seconds,
            "updates": len(entry.updates),
            "steps": sum(update.steps for update in entry.updates),
            "bytes_up": up,
            "bytes_down": down,
            "digest": entry.digest,
        }
        # An app's metric that has the name of a column does not replace it.
        rows.append(row | {name: entry.metrics.get(name) for name in metrics} | row)
    return rows


def check_table(path: Path) -> None:
    """Refuse, before anything runs, a file that could not be written."""
    if path.suffix.lower() not in (CSV, PARQUET):
        raise InvalidInput(f"--table {path}: the name must end in {CSV} or {PARQUET}")
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"--table {path}: there is no folder {path.absolute().parent}")
    if path.suffix.lower() == PARQUET:
        try:
            import pyarrow as pa  # noqa: F401
        except ImportError:
            raise InvalidInput(f"--table {path}: Parquet needs pyarrow: pip install 'hansa[data]'") from None


def write_rows(rows: Rows, path: Path) -> None:
    """Write rows as CSV or Parquet, by the end of the file's name."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    content = _parquet(rows, columns) if path.suffix.lower() == PARQUET else _csv(rows, columns)
    try:
        write_whole(path, content, 0o644, durable=False)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None


def _csv(rows: Rows, columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)  # None is an empty cell
    return text.getvalue().encode()


def _parquet(rows: Rows, columns: Sequence[str]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {name: _column([row.get(name) for row in rows]) for name in columns}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue())


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: an axis may have numbers and words."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or len(kinds) <= 1:
        return [float(v) if kinds == {int, float} and v is not None else v for v in values]
    return [None if value is None else str(value) for value in values]
