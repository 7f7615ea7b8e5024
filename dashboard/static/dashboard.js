// Keeps the live parts of a page up to date. Pages are complete without it.
"use strict";
(() => {
  const line = document.getElementById("connection");
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("hansa", { createHTML: (text) => text })
    : { createHTML: (text) => text };

  // Times are written in UTC; show them in the reader's zone, and fully when pointed at.
  function localize(root) {
    for (const each of root.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (isNaN(at)) continue;
      const today = at.toDateString() === new Date().toDateString();
      const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
      const day = { year: "numeric", month: "short", day: "numeric" };
      const shown = today ? at.toLocaleTimeString([], clock) : at.toLocaleString([], { ...day, ...clock });
      if (each.textContent !== shown) each.textContent = shown;
      each.title = each.dateTime;
    }
  }

  // Changes one tree into another and touches only what differs, so that focus, selection, scrolling and what a
  // reader has opened, marked or typed stay.
  function become(now, next) {
    if (now.nodeType !== next.nodeType || now.nodeName !== next.nodeName) {
      now.replaceWith(next);
      return;
    }
    if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
      return;
    }
    for (const { name } of [...now.attributes]) {
      if (!next.hasAttribute(name) && name !== "open" && name !== "title") now.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    }
    children(now, next);
  }

  function children(now, next) {
    const known = new Map();
    for (const each of now.children) if (each.id) known.set(each.id, each);
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      const same = wanted.id ? known.get(wanted.id) : undefined;
      if (same) {
        if (same !== at) now.insertBefore(same, at);
        else at = at.nextSibling;
        become(same, wanted);
      } else if (at && !at.id && !wanted.id) {
        const after = at.nextSibling;
        become(at, wanted);
        at = after;
      } else {
        now.insertBefore(wanted, at);
      }
    }
    while (at) {
      const after = at.nextSibling;
      at.remove();
      at = after;
    }
  }

  function show(parts) {
    for (const [name, text] of Object.entries(parts)) {
      const place = document.getElementById(`live-${name}`);
      if (!place) continue;
      const read = new DOMParser().parseFromString(policy.createHTML(text), "text/html").body;
      localize(read);
      children(place, read);
    }
  }

  function tell(words, lost, why) {
    if (line.textContent !== words) line.textContent = words;
    line.classList.toggle("lost", lost);
    line.title = why || "";
  }

  function follow(address) {
    const source = new EventSource(address);
    source.onmessage = (message) => {
      const { parts, lost } = JSON.parse(message.data);
      show(parts);
      tell(lost ? "reconnecting to the controller …" : "live", Boolean(lost), lost);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        tell("no longer live: reload the page", true, "The dashboard has refused the stream.");
      } else {
        tell("reconnecting to the dashboard …", true, "The dashboard does not answer.");
      }
    };
    window.addEventListener("pagehide", () => source.close());
    window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  localize(document);
  if (document.body.dataset.stream) follow(document.body.dataset.stream);
})();
