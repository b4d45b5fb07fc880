// Keeps the live part of a page current while it is looked at: fetches the same page and swaps that part.
"use strict";

const PERIOD_MS = 4000; // unless the part asks for another with data-period
let live = document.querySelector("[data-live]");

async function refresh() {
  if (document.hidden || live.contains(document.activeElement) || !document.getSelection().isCollapsed) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
  if (!fresh) return;
  live.replaceWith(fresh);
  live = fresh;
}

async function keepCurrent() {
  await refresh().catch(() => undefined);
  setTimeout(keepCurrent, Number(live.dataset.period) || PERIOD_MS);
}

if (live) setTimeout(keepCurrent, Number(live.dataset.period) || PERIOD_MS);
