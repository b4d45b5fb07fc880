// Keeps the overview current while it is looked at: fetches the same page and swaps its live part.
"use strict";

const PERIOD_MS = 4000;
const live = document.querySelector("[data-live]");

async function refresh() {
  if (document.hidden || live.contains(document.activeElement) || !document.getSelection().isCollapsed) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
  if (fresh) live.replaceChildren(...fresh.childNodes);
}

if (live) setInterval(() => refresh().catch(() => undefined), PERIOD_MS);
