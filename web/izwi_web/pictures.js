// Pictures for a conversation: dropped, pasted or chosen, where the model sees.

import { modelsOf } from "./server.js";
import { byId, note, takesFiles } from "./ui.js";

// A data channel of WebRTC takes messages of 256 KiB; models see at most a few megapixels anyway.
const MOST_CHARACTERS = 220_000, SIDES = [1280, 1024, 768, 512, 256];

// Call `show(url, canvas)` for each picture: a data: URL, and what is seen on the page.
export function start(show) {
  const use = async (file) => {
    if (!sees()) {
      const model = byId("talk-model").value;
      note("talk-note", model ? `${model} cannot see pictures.` : "No model here can see pictures.", true);
      return;
    }
    try {
      show(...await shrink(file));
    } catch {
      note("talk-note", `${file.name || "That"} is no picture that this browser can show.`, true);
    }
  };
  takesFiles(byId("talk-said"), byId("talk-picture"), byId("picture-file"), use);
  byId("typed").addEventListener("paste", ({ clipboardData }) => {
    if (clipboardData.files[0]) use(clipboardData.files[0]);
  });
  byId("talk-model").addEventListener("change", showButton);
  showButton();
}

export function showButton() { byId("talk-picture").hidden = !sees(); }

const sees = () => modelsOf("vision").some(({ id }) => id === byId("talk-model").value);

// The largest JPEG that can be sent, and its canvas.
async function shrink(file) {
  const picture = await createImageBitmap(file);
  for (const most of SIDES) {
    const scale = Math.min(1, most / Math.max(picture.width, picture.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(picture.width * scale));
    canvas.height = Math.max(1, Math.round(picture.height * scale));
    const pen = canvas.getContext("2d");
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const url = canvas.toDataURL("image/jpeg", 0.85);
    if (url.length <= MOST_CHARACTERS) return [url, canvas];
  }
  throw new Error("no size fits");
}
