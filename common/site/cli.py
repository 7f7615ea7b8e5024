"""The commands that learner and evaluator share."""

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hansa.common.process.clock import iso
from hansa.common.process.state import log_file
from hansa.common.rpc.channel import Endpoint
from hansa.common.torch.installed import require_torch
from hansa.common.torch.threads import wait_without_spinning
from hansa.common.ui.logs import follow_option, lines_option, show_log
from hansa.common.ui.options import (
    LONGEST,
    Measure,
    Site,
    controller_option,
    json_option,
    print_json,
    run_async,
    state_option,
)
from hansa.common.values.errors import HansaError, InvalidData
from hansa.common.values.ids import SiteName
from hansa.common.values.wording.words import plain

if TYPE_CHECKING:
    from hansa.common.site.daemon import SiteDaemon, SiteOptions

log = logging.getLogger(__name__)


personal_option = click.option(
    "--personal",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="HANSA_PERSONAL",
    metavar="DIR",
    help="Folder for the tensors of models that never leave the site; its learner and evaluator must share it"
    " (default: `personal` in the state directory).",
)


def site_group(
    role: str,
    start_daemon: Callable[..., Any],
    split: str | None = None,
    check_launcher: Callable[..., str | None] | None = None,
) -> click.Group:
    """Return the group `hansa learner` or `hansa evaluator`; `start_daemon(options, shelf)` is the daemon."""

    @click.group(name=role, help=f"Start, stop and inspect a site's {role}.")
    def group() -> None:
        pass

    @group.command(
        help=f"Start a site's {role}: it connects to the controller and works until it is stopped."
    )
    @controller_option
    @click.option(
        "--site",
        type=Site(),
        envvar="HANSA_SITE",
        required=True,
        help="The site's name, the same for its learner and evaluator.",
    )
    @click.option(
        "--data",
        type=click.Path(path_type=Path),
        envvar="HANSA_DATA_PATH",
        required=True,
        help="The site's data, for the app's loader (default: .npz, .csv, .parquet or folder of images).",
    )
    @click.option(
        "--app",
        "apps",
        multiple=True,
        required=True,
        envvar="HANSA_APP",
        metavar="REF",
        help="An app that jobs may use here: path/app.py:name or module:name. May be repeated.",
    )
    @click.option(
        "--policy",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="HANSA_POLICY",
        help="TOML file that says what jobs may ask of this site.",
    )
    @click.option(
        "--drain",
        type=Measure(0, LONGEST),
        envvar="HANSA_DRAIN",
        default=30.0,
        show_default=True,
        help="Seconds to finish the task in hand when asked to stop; after that it is given up.",
    )
    @state_option
    @personal_option
    @click.option(
        "--device",
        envvar="HANSA_DEVICE",
        default="cpu",
        show_default=True,
        help="Where PyTorch computes, such as cpu or cuda:0.",
    )
    @click.option(
        "--threads",
        type=click.IntRange(1),
        envvar="HANSA_THREADS",
        help="CPU threads for PyTorch (default: PyTorch's choice).",
    )
    @click.option(
        "--keep-going",
        is_flag=True,
        envvar="HANSA_KEEP_GOING",
        help="Start even if no app can be used with the data, and wait until one can.",
    )
    @click.option("--daemon", is_flag=True, help="Detach, with a pid and a log file in the state directory.")
    def start(
        controller: Endpoint,
        site: str,
        data: Path,
        apps: tuple[str, ...],
        policy: Path | None,
        drain: float,
        state: Path | None,
        personal: Path | None,
        device: str,
        threads: int | None,
        keep_going: bool,
        daemon: bool,
        **more: Any,
    ) -> None:
        from hansa.common.process import logs
        from hansa.common.process.memory import keep_freed_memory
        from hansa.common.process.state import detach, locked

        require_torch(f"hansa {role} start")
        folder = site_folder(state, site)
        if not data.exists() and not keep_going:
            raise InvalidData(f"--data {data}: no such file or folder")
        if daemon:
            click.echo(detach([word for word in sys.argv[1:] if word != "--daemon"], folder, role))
            return
        logs.set_up()
        keep_freed_memory()
        with locked(folder, role):
            from hansa.common.site.connection import Identity
            from hansa.common.site.daemon import SiteOptions

            launcher = more.get("launcher")
            set_up_torch("cpu" if launcher else device, threads)
            options = SiteOptions(
                identity=Identity(controller.address, SiteName(site), role, controller.tls),
                data=data,
                apps=apps,
                state=folder,
                split=more.get("split", "train"),
                device=device,
                threads=threads,
                policy=policy,
                drain=drain,
                personal=personal.expanduser().absolute() if personal else None,
                slow=more.get("slow", 1.0),
                launcher=launcher,
            )
            run_async(_serve(start_daemon, options, keep_going))

    if split is not None:
        click.option(
            "--split",
            type=click.Choice(["validation", "test", "all"]),
            envvar="HANSA_SPLIT",
            default=split,
            show_default=True,
            help="What to evaluate on: validation data, which the learner never sees, test data, or, at a"
            " site that never trains, all data.",
        )(start)

    if role == "learner":
        click.option(
            "--launcher",
            envvar="HANSA_LAUNCHER",
            metavar="COMMAND",
            callback=check_launcher,
            help="Train each task in a process that this command line starts; it has {command} where the"
            ' command to start belongs, such as "srun --gres=gpu:1 {command}".',
        )(start)
        click.option(
            "--slow",
            type=Measure(1, LONGEST),
            envvar="HANSA_SLOW",
            default=1.0,
            show_default=True,
            metavar="FACTOR",
            help="Slow training down by FACTOR, to try fast and slow sites on one machine.",
        )(start)

    @group.command(help=f"Stop a site's {role}.")
    @click.option("--site", type=Site(), envvar="HANSA_SITE", required=True, help="The site's name.")
    @state_option
    def stop(site: str, state: Path | None) -> None:
        from hansa.common.process.state import stop as stop_holder

        folder = site_folder(state, site)
        stopped = stop_holder(folder, role)
        click.echo(f"{role} of {site} stopped" if stopped else f"no {role} is running on {folder}")

    @group.command(
        help=f"Show whether a site's {role} runs on this machine. Exit code 1: it does not run, or the"
        " controller refuses it; 0: it runs, even if the controller is out of reach."
    )
    @click.option("--site", type=Site(), envvar="HANSA_SITE", required=True, help="The site's name.")
    @state_option
    @json_option
    def status(site: str, state: Path | None, as_json: bool) -> None:
        _show_status(role, site, site_folder(state, site), as_json)

    @group.command(help=f"Show the log of a site's {role} that was started with --daemon.")
    @click.option("--site", type=Site(), envvar="HANSA_SITE", required=True, help="The site's name.")
    @state_option
    @lines_option
    @follow_option
    def logs(site: str, state: Path | None, lines: int, following: bool) -> None:
        show_log(log_file(site_folder(state, site), role), lines, following)

    return group


async def _serve(start_daemon: Callable[..., Any], options: "SiteOptions", keep_going: bool) -> None:
    """Load the apps and their data and work until told to stop; without `keep_going`, refuse if no app works.

    A note in the state directory tells `status` what the daemon is doing, or why it ended.
    """
    from hansa.common.data.site_files import loaded_split
    from hansa.common.process.state import announce, write_note
    from hansa.common.site.shelf import Shelf

    folder, role = options.state, options.identity.role
    shelf = Shelf(options.apps, options.data, loaded_split(options.split), options.own_device)
    daemon: SiteDaemon = start_daemon(options, shelf)

    def ready(text: str) -> None:
        unusable, refused = shelf.unusable(), daemon.attendance.refused
        says = f"{text}, but {unusable}" if unusable else text
        write_note(
            folder, role, {"pid": os.getpid(), "drain": options.drain, "says": says, "refused": refused}
        )
        announce(f"ready {says}; state and log in {folder}")

    try:
        if not keep_going:
            daemon.require_usable()
        if shelf.unusable():
            log.error("%s", shelf.unusable())
        await daemon.run(ready)
    except HansaError as error:
        write_note(
            folder, role, {"pid": os.getpid(), "ended": f"ended at {iso(time.time())}: {plain(str(error))}"}
        )
        raise


def _show_status(role: str, site: str, folder: Path, as_json: bool) -> None:
    from hansa.common.process.state import holder, read_note

    pid, note = holder(folder, role), read_note(folder, role)
    says = str(note.get("says", "starting") if pid else note.get("ended", ""))
    refused = pid is not None and bool(note.get("refused"))
    if as_json:
        status = {"site": site, "role": role, "running": pid is not None, "pid": pid, "state": str(folder)}
        print_json(status | {"says": says, "refused": refused})
    else:
        words = f"running (pid {pid}): {says}" if pid else "not running" + (f", {says}" if says else "")
        click.echo(f"{role} of {site}: {words}, state {folder}")
    if pid is None or refused:
        raise SystemExit(1)


def site_folder(state: Path | None, site: str) -> Path:
    """Return the state directory of a site."""
    return (state or Path("~/.hansa/sites") / site).expanduser().absolute()


def set_up_torch(device: str, threads: int | None) -> None:
    """Load PyTorch and refuse a device that it does not have."""
    wait_without_spinning()  # several learners often share a machine
    import torch

    from hansa.common.torch.devices import require_device

    if threads:
        torch.set_num_threads(threads)
    require_device(device)
