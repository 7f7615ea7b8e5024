"""A job on its way to the controller: read from a file or a dict, and sent with the models that it names."""

import json
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hansa.common.job.file import change_fields, check_job, load_job
from hansa.common.job.spec import JobSpec
from hansa.common.models.checkpoints import load_checkpoint
from hansa.common.models.frames import cut
from hansa.common.rpc import codec
from hansa.common.values.errors import InvalidInput
from hansa.common.values.ids import submission_key
from hansa.common.values.wording.words import plain
from hansa.protos import operator_pb2 as operator

Source = str | Path | Mapping[str, Any] | JobSpec
# What stays here: files (they travel as models), what only `hansa run` reads, and what the controller writes.
NOT_SENT = {"init", "reference", "data", "simulate", "operator", "made_with", "key"}


def read_source(source: Source, changes: Mapping[str, Any] | None = None) -> JobSpec:
    """Read a job file, or take what such a file says; apply changes by dotted path and check the result."""
    if isinstance(changes, str) or not all(isinstance(path, str) for path in changes or ()):
        raise InvalidInput('set: write a dict of dotted paths, for example set={"train.epochs": 2}')
    if isinstance(source, JobSpec):
        if changes:
            raise InvalidInput("set: a JobSpec has been checked already; change a job file or a dict instead")
        return source
    if isinstance(source, Mapping):
        data = deepcopy(dict(source))
        change_fields(data, changes or {})
        return check_job(data, {}, Path("job"))
    if not isinstance(source, str | Path):
        raise InvalidInput(f"job: write the path of a job file, or a dict, not {type(source).__name__}")
    return load_job(Path(source), changes or {})


class Submission:
    """A job with the models that it brings: version 0 and the reference."""

    def __init__(self, spec: JobSpec, key: str = "") -> None:
        document = spec.model_dump(mode="json", exclude=NOT_SENT)
        header = operator.SubmitHeader(operator=_user(), key=submission_key(key))
        self._payloads: list[Any] = []
        if spec.init:
            manifest, payload = load_checkpoint(Path(spec.init))
            header.manifest.MergeFrom(codec.manifest_to_wire(manifest))
            self._payloads.append(payload)
        if spec.reference:
            manifest, payload = load_checkpoint(Path(spec.reference))
            header.reference.MergeFrom(codec.manifest_to_wire(manifest))
            # An older controller then refuses the job because of an unknown field.
            document["reference"] = manifest.digest.hex()
            self._payloads.append(payload)
        header.job_json = json.dumps(document)
        self._header = header

    @property
    def brings_models(self) -> bool:
        """Whether it may take long to send."""
        return bool(self._payloads)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the header and the frames of all models."""
        yield self._header.SerializeToString()
        for payload in self._payloads:
            for frame in cut(payload):
                yield frame.tobytes()


def _user() -> str:
    """Return the user's name; with TLS the controller takes the name in the certificate instead."""
    import getpass

    try:
        return plain(getpass.getuser())
    except (OSError, KeyError):
        return ""
