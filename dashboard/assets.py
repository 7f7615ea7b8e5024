"""The style, the script and the icon: small, our own, and served from here."""

from functools import partial
from hashlib import sha256
from importlib.resources import files

from aiohttp import web

from hansa.common.drawing.markup import svg_file
from hansa.common.drawing.style import PICTURES, THEMES
from hansa.dashboard.pages.layout import logo

ICON = ".sail { fill: #0b6fae; } .hull { fill: #c2321d; }"


def assets() -> list[web.RouteDef]:
    """Return what answers for them."""
    static = files("hansa.dashboard") / "static"
    style = "\n".join([THEMES, PICTURES, (static / "dashboard.css").read_text("utf-8")])
    made = {
        "dashboard.css": ("text/css", style),
        "dashboard.js": ("text/javascript", (static / "dashboard.js").read_text("utf-8")),
        "icon.svg": ("image/svg+xml", svg_file(logo(), ICON)),
    }
    return [
        web.get(
            f"/assets/{name}", partial(_send, kind, text.encode(), sha256(text.encode()).hexdigest()[:16])
        )
        for name, (kind, text) in made.items()
    ]


async def _send(kind: str, body: bytes, mark: str, request: web.Request) -> web.Response:
    """Send an asset, unless the browser has it."""
    headers = {"ETag": f'"{mark}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == f'"{mark}"':
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
