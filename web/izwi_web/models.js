// Models: what is loaded; load, unload and pull where the server allows it.

import { events, known, onLists, refresh, request } from "./server.js";
import { byId, h, note } from "./ui.js";
import { readMetrics } from "./metrics.js";

export function start() {
  byId("pull-form").addEventListener("submit", (event) => {
    event.preventDefault();
    change(event.submitter?.value ?? "load", byId("pull-name").value.trim());
  });
  onLists(list);
}

export function show() { list(); }

async function list() {
  if (byId("models").hidden) return;
  byId("pull-form").hidden = !known.manageable;
  byId("models-fixed").hidden = known.manageable;
  const figures = await readMetrics().catch(() => null);
  byId("model-list").replaceChildren(...known.models.map((model) => {
    const memory = figures ? figures.value("izwi_engine_pages", { model: model.root }) * figures.value("izwi_engine_page_bytes", { model: model.root }) : 0;
    const details = model.root === model.id ? (memory ? `${(memory / 2 ** 20).toFixed(0)} MiB of working memory` : "") : `alias of ${model.root}`;
    return h("li", {},
      h("div", { class: "what" }, h("strong", {}, model.id), h("small", {}, details)),
      h("span", { class: "tag" }, model.task),
      known.manageable && model.root === model.id ? h("button", { type: "button", class: "ghost", onclick: () => change("unload", model.id) }, "Unload") : null);
  }));
}

async function change(verb, name) {
  if (!name) return;
  if (verb === "unload" && !confirm(`Unload ${name}? Running requests finish first.`)) return;
  const where = verb === "unload" ? "models-note" : "pull-note";
  const bar = byId("pull-progress");
  note(where, `${{ pull: "Pulling", load: "Loading", unload: "Unloading" }[verb]} ${name}`);
  try {
    const path = verb === "pull" ? "/v1/models/pull" : `/v1/models/${name}/${verb}`;
    const options = { method: "POST", headers: { accept: "text/event-stream", "content-type": "application/json" } };
    if (verb === "pull") options.body = JSON.stringify({ model: name });
    for await (const event of events(await request(path, options))) {
      const share = event.total_bytes ? event.done_bytes / event.total_bytes : 0;
      bar.hidden = share === 0 || share >= 1;
      bar.value = share;
      note(where, `${name}: ${event.stage ?? ""}`);
    }
    await refresh();
  } catch (error) {
    note(where, error.message, true);
  } finally {
    bar.hidden = true;
  }
}
