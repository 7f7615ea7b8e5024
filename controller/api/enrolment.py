"""How a daemon enrols: its first message is checked and becomes a session."""

from hansa import __version__
from hansa.common.rpc import codec
from hansa.common.values.bounds import MOST_NAMED, TEXT
from hansa.common.values.errors import InvalidInput, Refused, TooLarge
from hansa.common.values.ids import PROTOCOL, TaskId, identifier, site_name
from hansa.common.values.wording.words import plain
from hansa.controller.api.messages import parsed
from hansa.controller.fleet.sessions import AppState, DaemonRole, Session
from hansa.protos import fleet_pb2 as fleet

ROLES: dict[int, DaemonRole] = {fleet.LEARNER: "learner", fleet.EVALUATOR: "evaluator"}
MOST_EXAMPLES = 1 << 53  # of a site: doubles are exact only up to this


def enrolled(first: fleet.FromSite, peer: str, now: float) -> Session:
    """Return the session that a daemon's first message asks for, or refuse it."""
    if first.WhichOneof("kind") != "enrol":
        raise InvalidInput("the first message must be an enrolment")
    enrol = first.enrol
    _check(enrol)
    return Session(
        site=site_name(enrol.site),
        role=ROLES[enrol.role],
        instance=identifier(enrol.instance, "process"),
        apps={plain(app.ref): _app_state(app) for app in enrol.apps},
        in_hand={TaskId(identifier(task, "task")) for task in enrol.tasks},
        since=now,
        last_seen=now,
        version=plain(enrol.version, 40),
        peer=peer,
    )


def _check(enrol: fleet.Enrol) -> None:
    if enrol.protocol != PROTOCOL:
        raise Refused(
            f"{plain(enrol.site, 64)} speaks protocol {enrol.protocol} (Hansa {plain(enrol.version, 40)}),"
            f" this controller speaks protocol {PROTOCOL} (Hansa {__version__}): update the older one"
        )
    if enrol.role not in ROLES:
        raise InvalidInput("a daemon enrols as learner or evaluator")
    if max(len(enrol.apps), len(enrol.tasks)) > MOST_NAMED:
        raise TooLarge(f"a daemon may name at most {MOST_NAMED} apps and {MOST_NAMED} tasks in hand")
    if max(map(len, (enrol.instance, *enrol.tasks, *(app.ref for app in enrol.apps)))) > TEXT:
        raise TooLarge(f"the names of instance, apps and tasks may have at most {TEXT} characters each")
    for app in enrol.apps:
        if app.examples >= MOST_EXAMPLES:
            raise InvalidInput(f"{plain(app.ref, 200)}: {app.examples} examples; at most 2^53 can be counted")


def _app_state(wire: fleet.AppState) -> AppState:
    stated = parsed(codec.stated_from_wire, wire, f"app {plain(wire.ref)}: ")
    return AppState(plain(wire.error), wire.examples, stated)
