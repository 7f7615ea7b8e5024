"""LoRA on a frozen network, as `benchmarks/adapters.py` runs it, with two layers: what crosses the wire."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from hansa.common.app import load_app
from hansa.common.client.asynchronous import AsyncClient
from hansa.common.job.spec import JobSpec
from hansa.common.torch import networks
from tests.cutting_proxy import CuttingProxy
from tests.e2e.conftest import ROOT, hansa
from tests.real_sites import attending, daemon
from tests.support import serving

APP = f"{ROOT / 'benchmarks' / 'adapter_app.py'}:small"
SITES = ("site-1", "site-2")
ROUNDS, SEED, PIECE = 3, 1990, 64
ALLOWANCE = 64 << 10  # bytes of a site's messages in a round, besides 1 % of what travels


async def test_only_adapters_cross_the_wire_and_the_whole_model_can_be_joined(tmp_path: Path) -> None:
    network = networks.build(load_app(APP), SEED, "cpu")
    assert isinstance(network, nn.Module)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    adapters = {name for name in before if ".lora_" in name}
    travelling = sum(before[name].nbytes for name in adapters)
    assert sum(tensor.nbytes for tensor in before.values()) > 10 * travelling
    async with serving(tmp_path / "controller") as served, AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(CuttingProxy(served.address).listening())
        proxy.record = bytearray()
        daemons = [daemon(proxy.address, tmp_path, APP, name, "learner") for name in SITES]
        await stack.enter_async_context(attending(daemons))
        client = await stack.enter_async_context(AsyncClient(served.address))
        job = {
            "app": APP,
            "seed": SEED,
            "rule": "fedavg",
            "pace": {"rounds": ROUNDS},
            "layers": {"kind": "trainable"},
            "train": {"batch_size": 2},
            "validation": {"fraction": 0.0},
            "sites": {"min": 2},
        }
        view = (await client.submit(JobSpec.model_validate(job))).view
        async for _ in client.views(view.job):
            pass
        view = await client.show(view.job)
        assert view.status == "completed", view.reason
        most = travelling * 1.01 + ALLOWANCE
        uploads = [entry.bytes_up for entry in view.history[2:]]  # the first round also has version 0
        assert len(uploads) == ROUNDS - 1
        assert all(bytes_up <= len(SITES) * most for bytes_up in uploads)
        assert proxy.sent <= (len(SITES) * ROUNDS + 1) * most
        assert proxy.received <= len(SITES) * ROUNDS * most
        passed = bytes(proxy.record)
        assert (
            before["blocks.0.attention.lora_a"].numpy().tobytes()[:PIECE] in passed
        )  # what travels is found
        for name in before.keys() - adapters:
            start = before[name].numpy().tobytes()[:PIECE]
            # Every new normalisation has the same ones and zeros, as fresh factors B have.
            assert "norm" in name or start not in passed, name
        model = ("job", "model", view.job, "--controller", served.address)
        words = (*model, "--whole", "-o", "whole.safetensors")
        done = await asyncio.to_thread(hansa, *words, cwd=tmp_path)  # the controller is in this process
        assert done.returncode == 0, done.stderr
    whole = load_file(tmp_path / "whole.safetensors")
    network.load_state_dict(whole)
    changed = {name for name, tensor in whole.items() if not tensor.equal(before[name])}
    assert changed == adapters
