// The panels "Verify in your browser": fetches proofs from this explorer and checks them here (proof.js).
import { missing } from "./canonical.js";
import { check } from "./proof.js";

const MEANING = {
  fetch: "The explorer hands out a proof",
  file: "The file has the one form that a proof has",
  genesis: "Its genesis is the one you named",
  validators: "The first validators are distinct, usable keys",
  epochs: "Each epoch's set of validators handed over to the next",
  headers: "The block's header, and those that build on it, follow from each other by hash",
  certificate: "A quorum of the epoch's validators signed that it is final",
  proposer: "The block was made by whose turn it was",
  inclusion: "The entry is in that block",
  entry: "The author signed exactly these bytes",
};
const REMEMBERED = "gdf-network"; // what the visitor pasted, for this tab only

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function line(step) {
  const item = element("li", "");
  item.dataset.step = step.name;
  item.dataset.ok = String(step.ok);
  const state = element("span", "");
  state.append(element("span", step.ok ? "✓ holds" : "✗ fails", `chip ${step.ok ? "good" : "bad"}`));
  const said = element("span", MEANING[step.name] ?? step.name);
  said.append(element("small", step.detail));
  item.append(state, said);
  return item;
}

async function fetched(url) {
  const answer = await fetch(url);
  if (!answer.ok) {
    const why = await fetch(`${url}?format=json`).then((other) => other.json()).catch(() => ({}));
    throw new Error(why.message ?? `it answered ${answer.status}`);
  }
  return new Uint8Array(await answer.arrayBuffer());
}

async function load(panel, name) {
  const file = panel.querySelector("input[type=file]")?.files[0];
  if (file) return new Uint8Array(await file.arrayBuffer());
  return fetched(name);
}

/** Check one proof; list its steps under `steps`, return whether all hold. */
async function checkOne(panel, url, expected, network, steps) {
  let data;
  try {
    data = await load(panel, url);
  } catch (error) {
    steps.append(line({ name: "fetch", ok: false, detail: error.message }));
    return false;
  }
  const found = await check(data, network, (step) => steps.append(line(step)));
  if (found.holds && expected && found.entry?.id !== expected) {
    steps.append(line({ name: "entry", ok: false, detail: `the proof is of ${found.entry?.id ?? "no entry"}, this page of ${expected}` }));
    return false;
  }
  return found.holds;
}

/** Check the proofs of several entries, one after the other, each in a part that can be opened. */
async function checkAll(panel, items, network, steps) {
  let holding = 0;
  for (const item of items) {
    const part = element("details", "");
    const title = element("summary", `${item.textContent} …`);
    const own = element("ol", "", "checks");
    part.append(title, own);
    const row = element("li", "", "whole");
    row.append(part);
    steps.append(row);
    const holds = await checkOne(panel, item.href, item.dataset.entry, network, own);
    title.textContent = `${holds ? "✓" : "✗"} ${item.textContent}`;
    title.className = holds ? "" : "failed";
    row.dataset.ok = String(holds);
    part.open = !holds;
    holding += holds ? 1 : 0;
  }
  return holding === items.length;
}

async function run(panel) {
  const input = panel.querySelector("[name=network]");
  const result = panel.querySelector(".result");
  const steps = panel.querySelector(".checks");
  const network = input.value.trim().toLowerCase();
  steps.replaceChildren();
  if (!/^[0-9a-f]{64}$/.test(network)) {
    result.className = "result bad";
    result.textContent = "Paste the network id that you trust: 64 hex digits, as `gdf-market status` or whoever invited you says it.";
    input.focus();
    return;
  }
  sessionStorage.setItem(REMEMBERED, network);
  result.className = "result";
  result.textContent = "Checking…";
  const items = [...panel.querySelectorAll("a[data-entry]")];
  const holds = items.length > 1
    ? await checkAll(panel, items, network, steps)
    : await checkOne(panel, items[0]?.href ?? "", items[0]?.dataset.entry ?? "", network, steps);
  result.className = `result ${holds ? "good" : "bad"}`;
  result.textContent = holds ? "Everything holds, checked in this browser." : "This does not hold. Do not rely on it; the step that fails says why.";
}

async function prepare(panel) {
  const form = panel.querySelector("form");
  const button = form.querySelector("button");
  const why = await missing();
  if (why) {
    panel.querySelector(".result").textContent = `It cannot be checked here: ${why}. Use the command below.`;
    return;
  }
  form.querySelector("[name=network]").value = sessionStorage.getItem(REMEMBERED) ?? "";
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await run(panel);
    } catch (error) {
      const result = panel.querySelector(".result");
      result.className = "result bad";
      result.textContent = `The check itself failed: ${error.message}`;
    } finally {
      button.disabled = false;
    }
  });
}

for (const panel of document.querySelectorAll("[data-verify]")) prepare(panel);
