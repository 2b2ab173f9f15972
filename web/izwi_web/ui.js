// Small things that every tab needs: elements, notes, menus, files.

export const byId = (id) => document.getElementById(id);

// h("li", { class: "a", onclick: f }, "text", child): an element with attributes and children.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function note(id, text, bad = false) {
  const element = byId(id);
  element.textContent = text;
  element.classList.toggle("bad", bad);
}

// Fill a menu and keep what was chosen, or what the address asks for, if it is there.
export function fill(select, entries) {
  const chosen = select.dataset.wanted ?? select.value;
  select.replaceChildren(...entries.map(({ value, label }) => new Option(label ?? value, value)));
  if (!entries.some(({ value }) => value === chosen)) return;
  select.value = chosen;
  delete select.dataset.wanted;
}

// The languages of a model, the automatic choice first.
export function fillLanguages(select, languages) {
  const names = languages.map((value) => ({ value, label: value[0].toUpperCase() + value.slice(1) }));
  fill(select, [{ value: "", label: "Automatic" }, ...names.sort((a, b) => a.label.localeCompare(b.label))]);
}

// Whether a key goes into a field: then it is no shortcut.
export const isTyping = ({ target }) =>
  target.isContentEditable || (target.matches?.("input, select, textarea") && !["checkbox", "range"].includes(target.type));

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function saveFile(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS there is no clipboard; a selected text area is the older way.
    const area = h("textarea", { class: "hidden" }, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// An area that takes files: dropped on it, or chosen with its button.
export function takesFiles(area, button, input, use) {
  button.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    if (input.files[0]) use(input.files[0]);
    input.value = "";
  });
  for (const kind of ["dragenter", "dragover"]) {
    area.addEventListener(kind, (event) => {
      event.preventDefault();
      area.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) area.addEventListener(kind, () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files[0]) use(event.dataTransfer.files[0]);
  });
}
