"""The tree of errors is as drawn, and the same on both sides of the wire."""

import asyncio
import re

import grpc
import pytest

from hansa.common.rpc.errors import KIND, translate, translated
from hansa.common.values import errors
from hansa.common.values.errors import HansaError, InvalidJob, Unreachable, by_code, family, one_line

OURS = {name: cls for name, cls in family().items() if cls.__module__ == errors.__name__}
LINE = re.compile(r"^((?:│   |    )*)(?:├── |└── )?(\w+)(?: .*?([A-Z_]{5,})\s+(\d))?(?: .*)?$")


def _drawn() -> dict[str, tuple[str | None, str | None, str | None]]:
    """Parse the docstring's tree: parent, status and exit code by name, inherited where they are missing."""
    found: dict[str, tuple[str | None, str | None, str | None]] = {}
    above: list[str] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines()[2:]:
        match = LINE.match(line)
        if not match or not line.strip():
            continue
        depth = 0 if "── " not in line else len(match[1]) // 4 + 1
        above = [*above[:depth], match[2]]
        found[match[2]] = (above[depth - 1] if depth else None, match[3], match[4])
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn = _drawn()
    assert set(drawn) == set(OURS)
    for name, (parent, status, code) in drawn.items():
        cls = OURS[name]
        assert cls.__base__ is (OURS[parent] if parent else Exception)
        if status:
            assert (cls.code, str(cls.exit_code)) == (status, code)
        elif parent:
            assert (cls.code, cls.exit_code) == (OURS[parent].code, OURS[parent].exit_code)


def _rpc_error(code: grpc.StatusCode, text: str, kind: str | None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*([(KIND, kind)] if kind else []))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=text)


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_error_is_raised_again_on_the_other_side(name: str) -> None:
    original = OURS[name]("what happened")
    back = translate(_rpc_error(original.code, str(original), name))
    assert type(back) is OURS[name]
    assert str(back) == "what happened"
    assert back.exit_code == original.exit_code


def test_the_problems_of_a_job_survive_the_wire() -> None:
    original = InvalidJob(["a: wrong", "b: wrong, too"])
    back = translate(_rpc_error(original.code, str(original), "InvalidJob"))
    assert isinstance(back, InvalidJob)
    assert str(back) == "a: wrong\nb: wrong, too"
    assert back.problems == original.problems


@pytest.mark.parametrize("name", sorted(set(OURS) - {"HansaError"}))
def test_a_status_without_a_name_still_leads_to_an_error_of_that_status(name: str) -> None:
    found = by_code(OURS[name].code)
    assert found.code == OURS[name].code
    assert issubclass(OURS[name], found)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE]
)
def test_silence_means_unreachable(code: grpc.StatusCode) -> None:
    assert isinstance(translate(_rpc_error(code, "", None)), Unreachable)


def test_an_unknown_name_falls_back_to_the_status() -> None:
    back = translate(_rpc_error(grpc.StatusCode.NOT_FOUND, "gone", "FromTheFuture"))
    assert type(back) is errors.NotFound


def test_an_unused_status_is_still_one_of_ours() -> None:
    back = translate(_rpc_error(grpc.StatusCode.UNIMPLEMENTED, "", None))
    assert type(back) is HansaError
    assert str(back) == "UNIMPLEMENTED"


async def test_grpcs_errors_become_ours_and_others_pass() -> None:
    with pytest.raises(errors.Taken, match="site a"), translated():
        raise _rpc_error(grpc.StatusCode.ALREADY_EXISTS, "site a", "Taken")
    with pytest.raises(KeyError), translated():
        raise KeyError("x")


def test_an_unforeseen_error_is_described_in_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"


async def test_an_error_of_grpc_while_we_are_being_cancelled_is_our_cancellation() -> None:
    """Otherwise Ctrl-C looks like a lost connection, and the command connects again."""

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with translated():
                raise _rpc_error(
                    grpc.StatusCode.CANCELLED, "Locally cancelled by application!", None
                ) from None

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
