// Images: pictures by a description, shown while they are drawn.

import { events, known, sendJson } from "./server.js";
import { bindSettings } from "./settings.js";
import { byId, h, note, saveFile } from "./ui.js";

const CONTROLS = { size: "images-size", quality: "images-quality", seed: "images-seed" };
const PREVIEWS = 3;
let drawing = null, takesPreviews = true;

export function start() {
  bindSettings("images", CONTROLS);
  byId("images-form").addEventListener("submit", (event) => {
    event.preventDefault();
    draw();
  });
  byId("images-stop").addEventListener("click", stop);
}

// What keys do here: see shortcuts.js.
export const shortcuts = { main: () => byId("images-form").requestSubmit(), stop };

function stop() { drawing?.abort(); }

function body() {
  const seed = byId("images-seed").value;
  return {
    prompt: byId("images-prompt").value, model: known.images, size: byId("images-size").value,
    quality: byId("images-quality").value, stream: true,
    ...(seed !== "" && { seed: Number(seed) }), ...(takesPreviews && { partial_images: PREVIEWS }),
  };
}

async function draw() {
  if (drawing) return;
  drawing = new AbortController();
  busy(true);
  note("images-note", "");
  const asked = body(), shown = frame(asked.prompt);
  try {
    for await (const event of events(await sendJson("/v1/images/generations", asked, { signal: drawing.signal }))) {
      shown.show(event);
    }
  } catch (error) {
    if (error.name !== "AbortError") await failed(error);
  } finally {
    if (!shown.isDone()) shown.remove();
    drawing = null;
    busy(false);
  }
}

// Some models have no previews: they are asked once more, without.
async function failed(error) {
  if (error.param !== "partial_images" || !takesPreviews) {
    note("images-note", error.message, true);
    return;
  }
  takesPreviews = false;
  queueMicrotask(() => setTimeout(draw));
}

function busy(is) {
  byId("images-go").disabled = is;
  byId("images-stop").disabled = !is;
  byId("images-progress").hidden = !is;
}

// The place of an image, which has its previews until it is done.
function frame(prompt) {
  const image = h("img", { alt: prompt }), save = h("button", { type: "button", class: "ghost" }, "Download");
  const item = h("li", {}, image, h("p", {}, prompt), h("div", { class: "actions" }, save));
  let done = false;
  save.hidden = true;
  return {
    show({ type, b64_json: content, output_format: format }) {
      const kind = `image/${format}`;
      image.src = `data:${kind};base64,${content}`;
      if (!item.isConnected) byId("images-list").prepend(item);
      byId("images-empty").hidden = true;
      if (!type.endsWith(".completed")) return;
      done = true;
      save.hidden = false;
      const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
      save.addEventListener("click", () => saveFile(new Blob([bytes], { type: kind }), `image.${format}`));
    },
    isDone: () => done,
    remove() {
      item.remove();
      byId("images-empty").hidden = byId("images-list").children.length > 0;
    },
  };
}
