"""Turn a case file into a folder and back: verdict as JSON, frames and map as plain arrays, no pickle, no log text but what events quote."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.casefile.model import UTC, Activity, CaseFile
from workbench.errors import ParseError, SourceUnavailable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from workbench.casefile.reading import Marks

__all__ = ["FORMAT", "open_case", "save"]

FORMAT = "workbench.case/1"
_FRAMES = ("ranks", "events", "metrics", "conditions", "placement", "documents", "problems")
_FIELDS = ("id", "name", "source", "job", "impact", "queries")
_LEVEL = 1  # of deflate: more takes four times as long for a tenth less


def save(case: CaseFile, folder: str | os.PathLike[str]) -> Path:
    """
    Write a case file, whole or not at all.

    Parameters
    ----------
    case : CaseFile
    folder : path
        It is made, and replaced when it holds a case.

    Returns
    -------
    Path
        The folder: ``verdict.json`` (byte for byte what ``workbench triage --output json`` prints), ``case.json`` (what is told in words)
        and ``frames.zip`` (columns of the frames and the map, as ``.npy``).

    Raises
    ------
    SourceUnavailable
        The folder holds something that is no case.
    """
    from workbench.report.verdict_json import dumps

    target = Path(folder)
    if target.exists() and not (target / "case.json").is_file() and any(target.iterdir()):
        raise SourceUnavailable(f"{target}: it holds something else than a case", hint="give a folder that is new or empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        about: dict[str, Any] = {"format": FORMAT, **{name: _plain(getattr(case, name)) for name in _FIELDS}, "frames": {}}
        with zipfile.ZipFile(partial / "frames.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for name in _FRAMES:
                about["frames"][name] = _write_frame(archive, name, getattr(case, name))
            about["activity"] = _write_activity(archive, case.activity)
            about["marks"] = _write_marks(archive, getattr(case.logs, "marks", {}))
        (partial / "verdict.json").write_text(dumps(case.verdict, indent=2) + "\n", encoding="ascii")
        (partial / "case.json").write_text(dumps(about) + "\n", encoding="ascii")
        old = None
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
            os.replace(target, old / "case")
        os.replace(partial, target)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def open_case(folder: str | os.PathLike[str], *, source: str | None = None) -> CaseFile:
    """
    Read a case file that `save` wrote.

    Parameters
    ----------
    folder : path
    source : str, optional
        Where its evidence lies now, when it was moved.

    Raises
    ------
    SourceUnavailable
        There is no case in the folder.
    ParseError
        It is damaged, or of a format that this release does not know.
    """
    from workbench.casefile.logs import EvidenceLogs

    place = Path(folder)
    try:
        about = json.loads((place / "case.json").read_bytes())
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ParseError(
                f"{place}: a case of another format ({about.get('format') if isinstance(about, dict) else 'none'})",
                hint="open its evidence again: workbench triage PATH",
            )
        verdict = json.loads((place / "verdict.json").read_bytes())
        with zipfile.ZipFile(place / "frames.zip") as archive:
            frames = {name: _read_frame(archive, name, about["frames"][name]) for name in _FRAMES}
            activity = _read_activity(archive, about["activity"])
            marks = _read_marks(archive, about["marks"])
    except FileNotFoundError as error:
        raise SourceUnavailable(f"{place}: there is no case ({error.strerror})", hint="workbench triage PATH makes one") from None
    except ParseError:
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        NotImplementedError,
        zipfile.BadZipFile,
        RuntimeError,
    ) as error:
        raise ParseError(
            f"{place}: the case is damaged: {str(error) or type(error).__name__}",
            hint="open its evidence again: workbench triage PATH",
        ) from error
    told: dict[str, Any] = {name: about[name] for name in _FIELDS}
    if source is not None:
        told["source"] = source
    ranks = own_files(frames["ranks"])
    logs = EvidenceLogs(told["source"], frames["documents"], ranks, verdict, marks, frames["events"])
    return CaseFile(verdict=verdict, activity=activity, logs=logs, **{**told, **frames})


def own_files(ranks: pd.DataFrame) -> dict[str, int]:
    """Return the documents that are one rank's alone: document → rank."""
    own = ranks[ranks["file"].notna() & ranks["rank"].notna()]
    single = own[~own["file"].duplicated(keep=False)]
    return dict(zip(single["file"].tolist(), (int(rank) for rank in single["rank"]), strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value.item() if hasattr(value, "item") else value


# -- frames: each column as one or two arrays ------------------------------------------------------------------------------


def _write_frame(archive: zipfile.ZipFile, name: str, frame: pd.DataFrame) -> dict[str, Any]:
    import pandas as pd

    columns = {}
    for number, column in enumerate(frame.columns):
        values = frame[column]
        key = f"{name}/{number}"
        dtype = "category" if isinstance(values.dtype, pd.CategoricalDtype) else str(values.dtype)
        columns[str(column)] = dtype
        _ENCODE[_kind(dtype)](archive, key, values)
    return {"columns": columns, "rows": len(frame), "attrs": _plain(dict(frame.attrs))}


def _read_frame(archive: zipfile.ZipFile, name: str, about: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    made = {
        column: _DECODE[_kind(dtype)](archive, f"{name}/{number}", dtype)
        for number, (column, dtype) in enumerate(about["columns"].items())
    }
    if any(len(values) != about["rows"] for values in made.values()):
        raise ValueError(f"columns of {name} differ in length")
    frame = pd.DataFrame({column: pd.Series(values) for column, values in made.items()}, columns=list(made))
    frame.attrs.update(about["attrs"])
    return frame


def _kind(dtype: str) -> str:
    if dtype in ("Int64", "Float64", "boolean"):
        return "masked"
    if dtype in ("string", "category"):
        return "text"
    if dtype == UTC:
        return "time"
    if dtype in ("float64", "int64", "float32", "uint8", "uint32"):
        return "number"
    raise ValueError(f"no column of {dtype} is written")


def _put(archive: zipfile.ZipFile, key: str, values: np.ndarray) -> None:
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(values), allow_pickle=False)
    archive.writestr(f"{key}.npy", stream.getbuffer())


def _get(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    import numpy as np

    made: np.ndarray = np.lib.format.read_array(io.BytesIO(archive.read(f"{key}.npy")), allow_pickle=False)
    return made


def _put_number(archive: zipfile.ZipFile, key: str, values: pd.Series) -> None:
    _put(archive, key, values.to_numpy())


def _get_number(archive: zipfile.ZipFile, key: str, dtype: str) -> Any:
    return _get(archive, key).astype(dtype, copy=False)


def _put_time(archive: zipfile.ZipFile, key: str, values: pd.Series) -> None:
    _put(archive, key, values.dt.tz_localize(None).to_numpy("datetime64[us]").view("int64"))


def _get_time(archive: zipfile.ZipFile, key: str, dtype: str) -> Any:
    import pandas as pd

    return pd.Series(_get(archive, key).view("datetime64[us]")).dt.tz_localize("UTC")


def _put_masked(archive: zipfile.ZipFile, key: str, values: pd.Series) -> None:
    kind = {"Int64": "int64", "Float64": "float64", "boolean": "bool"}[str(values.dtype)]
    _put(archive, key, values.to_numpy(kind, na_value=0))
    _put(archive, f"{key}-na", values.isna().to_numpy())


def _get_masked(archive: zipfile.ZipFile, key: str, dtype: str) -> Any:
    import pandas as pd

    values, missing = _get(archive, key), _get(archive, f"{key}-na")
    if dtype == "Int64":
        return pd.arrays.IntegerArray(values.astype("int64", copy=False), missing)
    if dtype == "Float64":
        return pd.arrays.FloatingArray(values.astype("float64", copy=False), missing)
    return pd.arrays.BooleanArray(values.astype("bool", copy=False), missing)


def _put_text(archive: zipfile.ZipFile, key: str, values: pd.Series) -> None:
    import numpy as np
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        codes, words = values.cat.codes.to_numpy(), [str(word) for word in values.cat.categories]
    else:
        numbers, unique = pd.factorize(values)  # missing is -1
        codes, words = numbers, [str(word) for word in unique]
    raw = [word.encode("utf-8", "surrogatepass") for word in words]
    _put(archive, key, codes.astype(np.int32))
    _put(archive, f"{key}-ends", np.cumsum([len(word) for word in raw], dtype=np.int64))
    _put(archive, f"{key}-words", np.frombuffer(b"".join(raw), np.uint8))


def _get_text(archive: zipfile.ZipFile, key: str, dtype: str) -> Any:
    import numpy as np
    import pandas as pd

    codes, ends = _get(archive, key), _get(archive, f"{key}-ends").tolist()
    raw = _get(archive, f"{key}-words").tobytes()
    words = [raw[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *ends], ends, strict=False)]
    if len(codes) and (codes.min() < -1 or codes.max() >= len(words)):
        raise ValueError("a code without its word")
    if dtype == "category":
        return pd.Categorical.from_codes(codes, categories=pd.Index(words, dtype="object"))
    table = np.empty(len(words) + 1, dtype=object)
    table[:-1] = words
    table[-1] = pd.NA
    return pd.array(table[codes], dtype="string")


_ENCODE = {"masked": _put_masked, "text": _put_text, "time": _put_time, "number": _put_number}
_DECODE = {"masked": _get_masked, "text": _get_text, "time": _get_time, "number": _get_number}


# -- the map ---------------------------------------------------------------------------------------------------------------


def _write_activity(archive: zipfile.ZipFile, activity: Activity | None) -> list[str] | None:
    if activity is None:
        return None
    names = [name for name in ("ranks", "edges", "states", "steps", "lines") if getattr(activity, name) is not None]
    for name in names:
        _put(archive, f"activity/{name}", getattr(activity, name))
    return names


def _read_activity(archive: zipfile.ZipFile, names: list[str] | None) -> Activity | None:
    if names is None:
        return None
    made = {name: _get(archive, f"activity/{name}") for name in names if name in ("ranks", "edges", "states", "steps", "lines")}
    shape = (len(made["ranks"]), len(made["edges"]) - 1)
    if any(made[name].shape != shape for name in made if name not in ("ranks", "edges")):
        raise ValueError("the map is not of the shape of its ranks and times")
    return Activity(**made)


# -- the index of large logs -----------------------------------------------------------------------------------------------


def _write_marks(archive: zipfile.ZipFile, marks: Mapping[str, Marks]) -> list[list[Any]]:
    import numpy as np

    for number, each in enumerate(marks.values()):
        _put(archive, f"marks/{number}", np.asarray([each.offsets, each.lines], np.int64))
    return [[name, each.size, each.mtime] for name, each in marks.items()]


def _read_marks(archive: zipfile.ZipFile, about: list[list[Any]]) -> dict[str, Marks]:
    from workbench.casefile.reading import Marks

    found = {}
    for number, (name, size, mtime) in enumerate(about):
        offsets, lines = _get(archive, f"marks/{number}").tolist()
        found[str(name)] = Marks(int(size), float(mtime), offsets, lines)
    return found
