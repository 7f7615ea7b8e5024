"""Federations that are killed on purpose."""

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hansa.common.values.receipts import Receipt
from hansa.controller.storage.redis.space import key_below
from tests.e2e.conftest import Site
from tests.redis_server import RedisServer

RECEIPT = re.compile(r"receipt (\d+) for task (\S+): ([0-9a-f]{64})")


class Federation(Site):
    """A controller, three learners and an evaluator that are restarted whenever they die."""

    grace = 60.0  # a killed daemon comes back in time, and no site is left out

    def __init__(self, folder: Path, redis: RedisServer | None) -> None:
        super().__init__(folder)
        self.redis = redis
        self.store = f"{redis.url}?prefix=faults" if redis else ""
        self.lives: dict[str, int] = {}
        self.kills = 0

    def begin(self) -> None:
        self.bring_up("controller")
        for role, site in (("learner", "a"), ("learner", "b"), ("learner", "c"), ("evaluator", "a")):
            self.bring_up(f"{role}-{site}")

    def bring_up(self, name: str, kill_at: str = "", **more: str) -> str:
        """Start the next life of a process; return the name of that life."""
        self.lives[name] = self.lives.get(name, 0) + 1
        life = f"{name}.{self.lives[name]}"
        env = more | ({"HANSA_KILL_AT": kill_at} if kill_at else {})
        if name == "controller":
            self.controller(life, listen=self.address, store=self.store, **env)
        else:
            role, _, site = name.partition("-")
            self.daemon(role, site, name=life, state=name, pause=0.004, **env)
        return life

    def alive(self, name: str) -> bool:
        return self.nursery.processes[f"{name}.{self.lives[name]}"].exitcode is None

    def strike(self, name: str) -> None:
        """Kill a process now and restart it, which takes a moment."""
        self.kill(f"{name}.{self.lives[name]}")
        self.kills += 1
        self.bring_up(name)

    def strike_redis(self) -> None:
        assert self.redis
        self.redis.kill()
        self.kills += 1
        self.redis.start()

    def receipts(self, job: str) -> list[Receipt]:
        """Return the receipts in the job's journal."""
        if self.redis:
            client = self.redis.client()
            stream: Any = client.xrange(key_below("faults", "journal", job))
            rows = [fields[b"receipt"].decode() for _, fields in stream]
            client.close()
        else:
            db = sqlite3.connect(self.folder / "state" / "controller" / "journal.sqlite")
            rows = [
                row[0]
                for row in db.execute("select receipt from entries where job = ? order by sequence", (job,))
            ]
            db.close()
        return [Receipt.model_validate_json(text) for text in rows if text]

    def acknowledged(self, job: str) -> dict[str, str]:
        """Return the receipts that learners have for a job: task -> hash."""
        found: dict[str, str] = {}
        for log in self.folder.glob("learner-*.log"):
            for _, task, digest in RECEIPT.findall(log.read_text()):
                if task.startswith(job):
                    assert found.setdefault(task, digest) == digest, f"two receipts for {task}"
        return found

    def check(self, job: str) -> None:
        """Check what must hold however often anything was killed."""
        shown = self.json("job", "show", job)
        assert shown["status"] == "completed", shown["reason"]
        receipts = self.receipts(job)
        updates = [receipt for receipt in receipts if receipt.task]
        assert len({receipt.task for receipt in updates}) == len(updates), "an update was counted twice"
        committed = {str(receipt.task): receipt.hash for receipt in updates}
        for task, digest in self.acknowledged(job).items():
            assert committed.get(task) == digest, f"the acknowledged update of {task} is not in the journal"
        verified = self.verify(job)
        assert verified["sound"], verified["faults"]
        assert verified["version"] == shown["version"]

    def verify(self, job: str) -> Any:
        state = str(self.folder / "state" / "controller")
        words = ["--store", self.store] if self.redis else ["--state", state]
        done = self.cli("job", "verify", job, *words, "--json")
        return json.loads(done.stdout)

    def leftovers(self, job: str) -> list[str]:
        """Return everything that should not be left after a clean stop: drafts, and unneeded models."""
        if self.redis:
            client: Any = self.redis.client()
            drafts = [key.decode() for key in client.hkeys(key_below("faults", "drafts"))]
            models = sorted(key.decode().partition(":model:")[2] for key in client.keys("faults:*:model:*"))
            named = {key.decode() for key in client.smembers(key_below("faults", "models"))}
            frames = len(client.keys("faults:*:frame:*"))
            client.close()
            assert frames == len(models), "frames without a model"
            assert named >= set(models), "a model that nobody finds"
        else:
            store = self.folder / "state" / "controller" / "store"
            drafts = [path.name for place in ("drafts", "spares") for path in (store / place).iterdir()]
            models = sorted(
                str(path.relative_to(store / "models")) for path in (store / "models").glob("*/*")
            )
        return drafts + [model for model in models if model.startswith(job)]


@pytest.fixture(params=["disk", "redis"])
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Federation]:
    server = RedisServer(tmp_path / "redis").start() if request.param == "redis" else None
    made = Federation(tmp_path, server)
    try:
        yield made
    finally:
        made.close()
        if server:
            server.kill()
